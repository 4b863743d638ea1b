"""What differs between two states of a pool, in coordinates and with both values."""

from __future__ import annotations

import html
from dataclasses import dataclass

import numpy as np
import torch

from ..layout import Cell, Layout
from ..move import mismatch
from .boxes import boxes, smooth, states_of
from .ranges import COORDINATES, Range, Stray, cells_of, fold
from .shared import each_byte_once
from .values import decoded, owner_words
from .writes import listed

CHANGES = 4  # cells shown with both values


@dataclass(frozen=True)
class Difference:
    """What :func:`kvlab.diff` found.

    Attributes
    ----------
    ranges : list of Range or Stray
        Coordinates that together hold the bytes that differ.
    nbytes : int
        How many bytes differ; of pools of two layouts only bytes of cells are compared.
    compared : int
        How many were compared.
    changes : list of str
        The first cell of each of the first ranges, with both values.
    """

    ranges: list[Range | Stray]
    nbytes: int
    compared: int
    changes: list[str]

    @property
    def ok(self) -> bool:
        """Nothing differs."""
        return not self.nbytes

    def __str__(self) -> str:
        if self.ok:
            return f"equal in all {self.compared:,} bytes"
        count = f"{self.nbytes:,} of {self.compared:,} bytes differ"
        changes = [f"  {words}" for words in self.changes]
        return "\n".join([count, *listed(self.ranges), *(["for example:", *changes] if changes else [])])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"

    def to_dict(self) -> dict:
        """JSON-ready."""
        ranges = [r.to_dict() for r in self.ranges]
        return {"nbytes": self.nbytes, "compared": self.compared, "ranges": ranges, "changes": self.changes}


def diff(before, after, layout: Layout | None = None) -> Difference:
    """Compare two states of a pool, or two pools, byte by byte.

    Parameters
    ----------
    before, after : KVPool, or dict of buffer to ``(nbytes,)`` uint8 tensor or array
        Two pools of different layouts, but of one geometry and format, are compared cell by
        cell: padding is then no matter.
    layout : Layout, optional
        Of raw bytes; beside a pool they are read by its layout.

    Returns
    -------
    Difference

    Raises
    ------
    ValueError
        Raw bytes without a layout, or of another size; pools of another geometry, format or scale placement.
    TypeError
        Neither pools nor dicts of bytes.
    """
    if layout is None:  # raw bytes beside a pool are read by the pool's layout
        layout = next((x.layout for x in (before, after) if hasattr(x, "buffers") and hasattr(x, "layout")), None)
    (a, layout_a), (b, layout_b) = (_raw(name, x, layout) for name, x in (("before", before), ("after", after)))
    if layout_a.fields == layout_b.fields and layout_a.geometry == layout_b.geometry:
        masks = {name: a[name] != b[name] for name in a}
        for x in (before, after):
            if hasattr(x, "buffers"):
                each_byte_once(x, masks)
        ranges, nbytes = fold(layout_a, masks, elements=True), sum(int(np.count_nonzero(m)) for m in masks.values())
        compared = sum(x.size for x in a.values())
    else:
        if words := mismatch(layout_a, layout_b):
            raise ValueError(f"diff: before and after cannot be compared: {words}")
        ranges, nbytes, compared = _by_coordinate(layout_a, a, layout_b, b)
    changes = [words for r in ranges if isinstance(r, Range) and (words := _change(r, layout_a, a, layout_b, b))]
    return Difference(ranges, nbytes, compared, changes[:CHANGES])


def _raw(name: str, x, layout: Layout | None) -> tuple[dict[str, np.ndarray], Layout]:
    """Bytes on the host, and their layout."""
    if hasattr(x, "layout") and hasattr(x, "buffers"):
        layout, x = x.layout, x.buffers
    elif not isinstance(x, dict):
        raise TypeError(f"diff: {name} is a {type(x).__name__}; it must be a KVPool or a dict of buffer to bytes")
    if layout is None:
        raise ValueError(f"diff: {name} is raw bytes, and layout is None; say how to read them, as layout=pool.layout")
    raw = {n: (b.cpu().numpy() if isinstance(b, torch.Tensor) else np.asarray(b)) for n, b in x.items()}
    sizes = {n: b.size if b.ndim == 1 and b.dtype == np.uint8 else f"{b.dtype} {b.shape}" for n, b in raw.items()}
    if sizes != layout.buffers:
        raise ValueError(f"diff: {name} holds {sizes}; the layout has the buffers {layout.buffers}, 1-D uint8")
    return raw, layout


def _by_coordinate(layout_a, a, layout_b, b) -> tuple[list[Range], int, int]:
    ranges, nbytes, compared = [], 0, 0
    for name, f in layout_a.fields.items():
        g, states = layout_b.fields[name], np.zeros([f.extents[c] for c in COORDINATES], np.uint8)
        for layer, own in enumerate(states):
            x, y = cells_of(f, layer, a[f.buffer_of(layer)]), cells_of(g, layer, b[g.buffer_of(layer)])
            touched = x != y
            nbytes, compared = nbytes + int(np.count_nonzero(touched)), compared + touched.size
            own[...] = states_of(touched, elements=True)
            smooth(own)
        ranges += [Range(name, *where, whole) for where, whole in boxes(states, joined=True)]
    return ranges, nbytes, compared


def _change(r: Range, layout_a, a, layout_b, b) -> str:
    """The first cell of a range that differs, with both values."""
    slots, heads, dims = (np.arange(first, last + 1) for first, last in (r.slots[:1] * 2, r.heads, r.dims))
    grid = np.broadcast_arrays(*np.ix_(slots, heads, dims))
    places = [lay.locate(r.field, r.layers[0], *grid) for lay in (layout_a, layout_b)]
    item = np.arange(layout_a.fields[r.field].item)
    x, y = (raw[buffer][byte[..., None] + item] for raw, (buffer, byte) in zip((a, b), places, strict=True))
    at = np.argwhere((x != y).any(-1))
    if not len(at):
        return ""
    _, head, dim = (int(i) for i in at[0])
    slot, g = r.slots[0], layout_a.geometry
    cell = Cell(
        r.field, r.layers[0], slot, slot // g.page_size, slot % g.page_size, int(heads[head]), int(dims[dim]), 0
    )
    was, now = (
        decoded(lay, {n: torch.from_numpy(raw[n]) for n in raw}, cell) for lay, raw in ((layout_a, a), (layout_b, b))
    )
    return f"{owner_words(layout_a, cell)}: {was} -> {now}"
