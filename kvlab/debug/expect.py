"""What a commit should have written, against what was written: missing, unexpected, wrong value."""

from __future__ import annotations

import html
from dataclasses import dataclass

import numpy as np

from .. import checks
from ..backends import reference_backend
from ..layout import Padding
from ..pool import KVPool
from .commit_data import MISSING, UNEXPECTED, UNTOUCHED, WRITTEN, expected_mask
from .ranges import fold
from .values import decoded, owner_words
from .writes import listed

WRONG = 4  # the state that joins those of commit_data
CODES = {"right": WRITTEN, "missing": MISSING, "unexpected": UNEXPECTED, "wrong": WRONG}
CHUNK = 1 << 22  # bytes judged at a time: all at once would take several times the memory of the pool
KINDS = {
    "missing": "should have been written and were not",
    "unexpected": "were written, though the commit has no business there",
    "wrong": "were written with another value than the reference stores",
}


@dataclass(frozen=True)
class Verdict:
    """Written bytes against a commit.

    Attributes
    ----------
    layout : Layout
    missing, unexpected, wrong : lists of Range or Stray
    counts : dict of str to int
        Bytes of each of the three, and of ``right`` ones: expected and written, with the right value where it is known.
    states : dict of buffer to ``(nbytes,)`` uint8
        The same for every byte, 0 where nothing should have been written and nothing was: values of ``CODES``.
    first : str
        The first wrong value in words, or "".
    note : str
        What this verdict could not tell, or "".
    """

    layout: object
    missing: list
    unexpected: list
    wrong: list
    counts: dict[str, int]
    states: dict[str, np.ndarray]
    first: str = ""
    note: str = ""

    @property
    def ok(self) -> bool:
        """Every byte is as it should be."""
        return not (self.missing or self.unexpected or self.wrong)

    def __str__(self) -> str:
        right = f"{self.counts['right']:,} bytes expected and written"
        if self.ok:
            return f"as expected: {right}, nothing else{self.note and f' ({self.note})'}"
        lines = [right]
        for kind, words in KINDS.items():
            ranges = getattr(self, kind)
            if ranges:
                lines += [f"{kind}: {self.counts[kind]:,} bytes {words}", *listed(ranges)]
        return "\n".join(
            [*lines, *([f"first wrong value: {self.first}"] if self.first else []), *filter(None, [self.note])]
        )

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict:
        """JSON-ready."""
        ranges = {kind: [r.to_dict() for r in getattr(self, kind)] for kind in KINDS}
        return {"ok": self.ok, "counts": self.counts, **ranges, "first": self.first, "note": self.note}


def judge(pool, before: dict, after: dict, masks: dict, both_fills: bool, loc, given: dict, rows: dict) -> Verdict:
    """See :meth:`Watch.expect`. ``given``: commit_lens, row_mask, layer; ``rows``: k, v and scales."""
    right = None
    if (rows["k"] is None) != (rows["v"] is None):
        given_one, other = ("k", "v") if rows["v"] is None else ("v", "k")
        raise ValueError(f"expect: {given_one} is given and {other} is not; give both rows, or neither")
    if rows["k"] is not None:
        right = KVPool.over(pool.layout, {name: x.clone() for name, x in before.items()})
        with reference_backend():
            right.commit(loc, rows["k"], rows["v"], **given, k_scale=rows["k_scale"], v_scale=rows["v_scale"])
    else:
        _check(pool, loc, **given)
    layer = given["layer"]
    layer = None if layer is None else checks.layer_range(layer, pool.layout.geometry.layers)[0]
    numbers = (x if x is None else x.cpu().numpy() for x in (loc, given["commit_lens"], given["row_mask"]))
    states = {name: x.view(np.uint8) for name, x in expected_mask(pool.layout, *numbers, layer=layer).items()}
    # a byte of a `with` block that already held the right value cannot be told from a written one, and is right
    held = WRITTEN if right is not None and not both_fills else MISSING
    # by expected (1), written (2), of the right value (4)
    table = [UNTOUCHED, MISSING, UNEXPECTED, WRONG, UNTOUCHED, held, UNEXPECTED, WRITTEN]
    table = np.array(table, np.uint8)
    for name, own in states.items():
        for at in range(0, len(own), CHUNK):
            part = slice(at, at + CHUNK)
            index = own[part] | masks[name][part].view(np.uint8) << 1
            if index.any():
                same = np.uint8(1)
                if right is not None:
                    same = (after[name][part] == right.buffers[name][part]).cpu().numpy().view(np.uint8)
                own[part] = table[index | same << 2]
    note = ""
    if right is None and not both_fills:
        note = "a byte rewritten with its own value counts as missing; pass k and v, or watch a callable"
    loose = ("wrong",) if both_fills else ("wrong", "unexpected")
    return verdict_of(pool.layout, states, loose, after, right and right.buffers, note)


def verdict_of(layout, states: dict[str, np.ndarray], loose, after, right, note: str) -> Verdict:
    """The verdict of bytes whose states are known.

    Parameters
    ----------
    states : dict of buffer to ``(nbytes,)`` uint8
    loose : kinds of which bytes can be equal by chance
    after, right : dict of buffer to ``(nbytes,)`` uint8 tensor
        What is there and what should be; ``right`` may be None where no byte is wrong.
    """
    counts, ranges, first = {}, {}, ""
    for kind, code in CODES.items():
        masks = {name: x == code for name, x in states.items()}
        counts[kind] = sum(int(np.count_nonzero(mask)) for mask in masks.values())
        if kind in KINDS:
            ranges[kind] = fold(layout, masks, kind in loose) if counts[kind] else []
    if counts["wrong"]:
        first = _first(layout, masks, after, right)  # wrong is the last kind
    return Verdict(layout, **ranges, counts=counts, states=states, first=first, note=note)


def _check(pool, loc, commit_lens, row_mask, layer) -> None:
    """What a commit checks of its arguments, before anything is compared."""
    g = pool.layout.geometry
    checks.layer_range(layer, g.layers)
    given, loc = loc, checks.slots_2d("loc", loc, pool.device)
    if commit_lens is not None:
        checks.commit_lens_ok(commit_lens, loc, given.dim(), True)
    if row_mask is not None:
        row_mask = checks.row_mask_2d(row_mask, loc, tuple(given.shape))
    checks.chosen_ok(loc, commit_lens, row_mask, g.slots)


def _first(layout, wrong: dict[str, np.ndarray], after: dict, right: dict) -> str:
    """The first wrong value and the right one, in words."""
    buffer = next(name for name, mask in wrong.items() if mask.any())
    byte = int(np.argmax(wrong[buffer]))
    cell = layout.explain(buffer, byte)
    if isinstance(cell, Padding):
        return ""
    return f"{owner_words(layout, cell)}: {decoded(layout, after, cell)}, should be {decoded(layout, right, cell)}"
