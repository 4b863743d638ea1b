"""What was written, for a reader: a table of ranges as text, as HTML and as JSON."""

from __future__ import annotations

import html

import numpy as np

SHOWN = 20  # ranges in a table; to_dict() has all


class Writes:
    """Bytes that some code wrote.

    Attributes
    ----------
    ranges : list of Range, Stray or IndexRange
        Coordinates; together they hold the written bytes.
    masks : dict of buffer to bool array ``(nbytes,)``
    both_fills : bool
        Whether bytes rewritten with their own value are in it.
    """

    ranges: list | None = None

    def _set(self, masks: dict[str, np.ndarray], ranges: list, both_fills: bool) -> None:
        self.masks, self.ranges, self.both_fills = masks, ranges, both_fills

    @property
    def nbytes(self) -> int:
        """Written bytes."""
        return sum(int(np.count_nonzero(mask)) for mask in self.masks.values())

    @property
    def summary(self) -> str:
        """The first line of the table."""
        if self.ranges is None:
            return "still watching: the block has not ended"
        verb = "written (two runs over different fills)" if self.both_fills else "changed"
        note = "" if self.both_fills else " (a byte rewritten with its own value does not show)"
        if not self.ranges:
            return f"nothing {verb.split(' ')[0]} in {sum(map(len, self.masks.values())):,} bytes{note}"
        return f"{len(self.ranges):,} range{'s' * (len(self.ranges) > 1)}, {self.nbytes:,} bytes {verb}{note}"

    def __str__(self) -> str:
        return "\n".join([self.summary, *listed(self.ranges or [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict:
        """JSON-ready: ``nbytes``, ``both_fills`` and every range."""
        return {"nbytes": self.nbytes, "both_fills": self.both_fills, "ranges": [r.to_dict() for r in self.ranges]}


def listed(ranges: list, indent: str = "  ") -> list[str]:
    """Lines for the first ranges, and one that counts the rest."""
    lines = [f"{indent}{r}" for r in ranges[:SHOWN]]
    if len(ranges) > SHOWN:
        lines.append(f"{indent}… and {len(ranges) - SHOWN:,} more ranges")
    return lines
