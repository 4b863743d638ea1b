"""What a scan can find, worst first, and how it is told."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

# First what spoils every reader, then what reads wrong, then what reads stale, last what may be meant.
KINDS = {
    "nan": "NaN in the payload: attention over these slots is NaN",
    "nan scale": "scale 0xFF: all 32 elements of the block read as NaN",
    "infinity": "infinity in the payload: attention over these slots is infinite or NaN",
    "pad": "content in slot 0, the padding sink, which no kvlab commit writes (other engines may: a NaN or infinity "
    "there spoils every padded batch)",
    "zero scale": "scale 0, which is 2^-127, over payload that is not 0: it reads as next to 0, as after a commit that "
    "left the scales behind",
    "mismatch": "scale and payload cannot come from one quantising commit",
    "bare scale": "a scale that is not 0 over payload that is all 0, as after a commit that left the payload behind "
    "(engines that keep amax above 0 store this for a block of zeros)",
    "missing": "named in written, but all bytes are still the fill",
    "half": "all bytes still the fill, though the slot's other one of K and V has content",
    "layers": "all bytes still the fill, though other layers of the slot have content",
    "part": "still the fill, inside a row that has content",
    "unexpected": "content in a slot that is not named in written",
    "hole": "all bytes still the fill, though a later slot of the page has content",
}
SHOWN = 8  # ranges of a finding in words


@dataclass(frozen=True)
class Finding:
    """``count`` cells that have one fault; ``kind`` is a key of ``KINDS``, ``ranges`` are their coordinates."""

    kind: str
    words: str
    count: int
    ranges: list

    @property
    def first(self) -> list[dict]:
        """First cell of each of the first ranges: ``{field, layer, slot, head, dim}``, as ``Layout.locate`` takes."""
        corners = ((r.field, r.layers[0], r.slots[0], r.heads[0], r.dims[0]) for r in self.ranges[:SHOWN])
        return [dict(zip(("field", "layer", "slot", "head", "dim"), corner, strict=True)) for corner in corners]

    def to_dict(self) -> dict:
        """JSON-ready."""
        ranges = [r.to_dict() for r in self.ranges]
        return {"kind": self.kind, "words": self.words, "count": self.count, "ranges": ranges, "first": self.first}

    def places(self) -> list[str]:
        """The first ranges in words, and how many are left out."""
        left = len(self.ranges) - SHOWN
        return [str(r) for r in self.ranges[:SHOWN]] + ([f"… and {left:,} more"] if left > 0 else [])

    def __str__(self) -> str:
        cells = f"{self.count:,} cell{'s' * (self.count != 1)}"
        return "\n".join([f"{self.kind}, {cells}: {self.words}", *(f"   {place}" for place in self.places())])


@dataclass(frozen=True)
class Scan:
    """Result of :func:`kvlab.scan`: findings, worst first, and what was looked at.

    ``nbytes`` of ``slots`` slots were read; ``live`` of these have content. ``looked`` says it in words.
    """

    findings: tuple[Finding, ...]
    nbytes: int
    slots: int
    live: int
    looked: str

    @property
    def ok(self) -> bool:
        """Nothing was found."""
        return not self.findings

    def to_dict(self) -> dict:
        """JSON-ready."""
        looked = {"nbytes": self.nbytes, "slots": self.slots, "live": self.live, "looked": self.looked}
        return {"ok": self.ok, **looked, "findings": [f.to_dict() for f in self.findings]}

    def _title(self) -> str:
        if self.ok:
            return f"nothing found in {self.looked}"
        kinds = len(self.findings)
        return f"{kinds} kind{'s' * (kinds != 1)} of fault, worst first, in {self.looked}"

    def __str__(self) -> str:
        return "\n".join([self._title(), *(f"{i}. {f}" for i, f in enumerate(self.findings, start=1))])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        if self.ok:
            return f"<p>{self._title()}</p>"
        left = "style='text-align:left'"
        rows = [
            f"<tr><td {left}>{f.kind}</td><td>{f.count:,}</td><td {left}>{escape(f.words)}</td>"
            f"<td {left}>{'<br>'.join(map(escape, f.places()))}</td></tr>"
            for f in self.findings
        ]
        head = f"<tr><th {left}>kind</th><th>cells</th><th {left}>what</th><th {left}>where</th></tr>"
        return f"<p>{self._title()}</p><table>{head}{''.join(rows)}</table>"
