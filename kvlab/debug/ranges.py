"""Touched bytes as coordinates, folded into ranges: "layers 0-3, K, slots 12-15, heads 0-7, dims 0-127"."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

FIELD_NAMES = {"k": "K", "v": "V", "k_scale": "K scale", "v_scale": "V scale"}
COORDINATES = ("layer", "slot", "head", "dim")
NONE, PART, WHOLE = range(3)  # of an element: no byte touched, some, all
CHUNK = 1 << 24  # bytes looked at together
SCATTERED = 16  # runs of a row from which on they are not named one by one
Span = tuple[int, int]  # first and last, both included


@dataclass(frozen=True)
class Range:
    """A box of cells of one field, every byte of each; spans are (first, last), both included.

    ``whole`` is False where only some bytes in the box were touched.
    """

    field: str
    layers: Span
    slots: Span
    heads: Span
    dims: Span
    whole: bool = True

    def __str__(self) -> str:
        unit = "block" if self.field.endswith("_scale") else "dim"
        spans = (("slot", self.slots), ("head", self.heads), (unit, self.dims))
        where = ", ".join(span_words(*span) for span in spans)
        part = "" if self.whole else ", some bytes only"
        return f"{span_words('layer', self.layers)}, {FIELD_NAMES.get(self.field, self.field)}, {where}{part}"

    def to_dict(self) -> dict:
        """JSON-ready."""
        return {"kind": "cells", **{n: list(x) if isinstance(x, tuple) else x for n, x in asdict(self).items()}}


@dataclass(frozen=True)
class IndexRange:
    """The same for a plain tensor: a span of indices for each of its axes."""

    tensor: str
    index: tuple[Span, ...]
    whole: bool = True

    def __str__(self) -> str:
        spans = ", ".join(f"{a}" if a == b else f"{a}:{b + 1}" for a, b in self.index)
        return f"{self.tensor}[{spans}]{'' if self.whole else ', some bytes only'}"

    def to_dict(self) -> dict:
        """JSON-ready."""
        return {"kind": "indices", "tensor": self.tensor, "index": [list(x) for x in self.index], "whole": self.whole}


@dataclass(frozen=True)
class Stray:
    """Bytes that no field owns: padding, or memory around the cells. ``bytes`` is (first, last) in the buffer."""

    buffer: str
    bytes: Span

    def __str__(self) -> str:
        return f"no cell, {span_words('byte', self.bytes)} of {self.buffer!r}"

    def to_dict(self) -> dict:
        """JSON-ready."""
        return {"kind": "stray", "buffer": self.buffer, "bytes": list(self.bytes)}


def span_words(name: str, span: Span) -> str:
    """ "slot 5" or "slots 5-9"."""
    first, last = span
    return f"{name} {first:,}" if first == last else f"{name}s {first:,}-{last:,}"


def fold(layout, masks: dict[str, np.ndarray], elements: bool = False) -> list[Range | Stray]:
    """Ranges that together hold the touched bytes, in the order of layers, fields and slots; then what is no cell.

    A row whose touched bytes are scattered, in more than 16 runs, becomes one range with ``whole`` False: rows that
    were rewritten hold many bytes that did not change by chance.

    Parameters
    ----------
    layout : Layout
    masks : dict of buffer to bool array ``(nbytes,)``
        Buffers left out have no touched bytes. Costs one byte for each element of the largest field; the loops of
        Python run over ranges, not over bytes.
    elements : bool
        An element with any touched byte counts as touched: for values that changed, where some bytes stay by chance.
    """
    ranges: list[Range] = []
    owned = dict.fromkeys(masks, 0)
    for name, field in layout.fields.items():
        if not any(field.buffer_of(layer) in masks for layer in range(field.extents["layer"])):
            continue
        states = np.zeros([field.extents[c] for c in COORDINATES], np.uint8)
        for layer, own in enumerate(states):
            buffer = field.buffer_of(layer)
            if buffer in masks:
                owned[buffer] += _fill(own, field, layer, masks[buffer], elements)
        for (layers, slots, heads, dims), state in boxes(states):
            ranges.append(Range(name, layers, slots, heads, dims, state == WHOLE))
    order = list(layout.fields)
    ranges.sort(key=lambda r: (r.layers, order.index(r.field), r.slots, r.heads, r.dims))
    strays = [Stray(b, span) for b, mask in masks.items() for span in _unowned(layout, b, mask, owned[b])]
    return [*ranges, *strays]


def boxes(states: np.ndarray) -> list[tuple[tuple[Span, ...], int]]:
    """Boxes of equal nonzero state that together are all of ``states``, an array of any rank.

    Neighbours along the first axis that look alike become one; then the same inside each. Rows (the last two axes) must
    not be too ragged, see :func:`smooth`.
    """
    if states.ndim == 1:
        cuts = np.flatnonzero(np.diff(states)) + 1
        firsts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(states)]
        return [(((a, b - 1),), int(states[a])) for a, b in zip(firsts, ends, strict=True) if states[a]]
    flat = states.reshape(len(states), -1)
    live = np.flatnonzero(flat.any(1))
    out, i = [], 0
    if not len(live):
        return out
    alike = np.concatenate([(np.diff(live) == 1) & _equal_neighbours(flat, live), [False]])
    while i < len(live):
        j = i + int(np.argmin(alike[i:]))  # the first that differs from the one after it
        span = (int(live[i]), int(live[j]))
        out += [((span, *rest), state) for rest, state in boxes(states[live[i]])]
        i = j + 1
    return out


def _equal_neighbours(flat: np.ndarray, live: np.ndarray) -> np.ndarray:
    """Whether rows ``live[i]`` and ``live[i + 1]`` are equal, in chunks: comparing all at once would copy them all."""
    out = np.empty(len(live) - 1, bool)
    step = max(1, CHUNK // flat.shape[1])
    for at in range(0, len(out), step):
        here, after = live[at : at + step + 1][:-1], live[at + 1 : at + step + 1]
        out[at : at + step] = (flat[here[: len(after)]] == flat[after]).all(1)
    return out


def _fill(states: np.ndarray, field, layer: int, mask: np.ndarray, elements: bool) -> int:
    """Set ``states`` ``(slots, heads, dims)`` of one layer from the mask of its buffer; the number of touched bytes."""
    view = cell_view(field, layer, mask)
    x, touched = field.extents, 0
    slow = view.shape[0]
    inside = prod(view.shape[1 : len(field.modes["slot"])])  # slots for each step of the slowest slot digit
    step = max(1, CHUNK // max(1, prod(view.shape[1:])))
    for at in range(0, slow, step):
        part = view[at : at + step]
        wide = part.reshape(len(part) * inside, _size(field, "head"), _size(field, "dim"), field.item)
        first = at * inside
        rows = wide[: x["slot"] - first, : x["head"], : x["dim"]]
        count = int(np.count_nonzero(rows))
        if count:
            touched += count
            own = states[first : first + len(rows)]
            own[...] = states_of(rows, elements)
            smooth(own)
    return touched


def states_of(touched: np.ndarray, elements: bool) -> np.ndarray:
    """NONE, PART or WHOLE of every element, from its bytes on the last axis."""
    item = touched.shape[-1]
    bits = touched.view(f"u{item}")[..., 0]  # an element's bytes as one number: far quicker than any() and all()
    some = (bits != 0).view(np.uint8)
    if elements:
        return some * np.uint8(WHOLE)
    return some + (bits == int.from_bytes(b"\1" * item, "little"))


def smooth(rows: np.ndarray) -> None:
    """Rows ``(rows, heads, dims)`` with many runs become one box each: all dims of the heads that were touched."""
    runs = np.count_nonzero(np.diff(rows, axis=2), axis=(1, 2))
    for row in rows[runs > SCATTERED]:
        heads = np.flatnonzero(row.any(1))
        row[heads[0] : heads[-1] + 1] = PART


def _size(field, coordinate: str) -> int:
    return prod(size for size, _ in field.modes[coordinate])


def cell_view(field, layer: int, x: np.ndarray) -> np.ndarray:
    """Bytes of one layer of a field as a view of its buffer ``(nbytes,)``, without a copy.

    One axis for each digit of slot, head and dim, slowest first, and a last one for the bytes of an element. Where
    digits reach beyond the field's extents, the view holds padding as well.
    """
    modes = [mode for c in ("slot", "head", "dim") for mode in reversed(field.modes[c])]
    shape, strides = zip(*modes, strict=True)
    start = field.offset + layer * field.layer_stride
    return as_strided(x[start:], (*shape, field.item), (*strides, 1))


def cells_of(field, layer: int, x: np.ndarray) -> np.ndarray:
    """Bytes of one layer of a field by coordinate, ``(slots, heads, dims, item)``, from its buffer ``(nbytes,)``."""
    e = field.extents
    wide = cell_view(field, layer, x).reshape(
        _size(field, "slot"), _size(field, "head"), _size(field, "dim"), field.item
    )
    return wide[: e["slot"], : e["head"], : e["dim"]]


def _unowned(layout, buffer: str, mask: np.ndarray, owned: int) -> list[Span]:
    """Touched bytes that no field owns, as (first, last)."""
    if int(np.count_nonzero(mask)) == owned:
        return []
    left = mask.copy()
    for field in layout.fields.values():
        for layer in range(field.extents["layer"]):
            if field.buffer_of(layer) == buffer:
                view = cell_view(field, layer, left)
                view &= ~_real(field)
    return spans(np.flatnonzero(left))


def spans(at: np.ndarray) -> list[Span]:
    """(first, last) of each stretch of consecutive numbers in a rising array."""
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) != 1)
    return list(zip(at[np.r_[0, cuts + 1]].tolist(), at[np.r_[cuts, -1]].tolist(), strict=True))


def _real(field) -> np.ndarray:
    """Which places of :func:`cell_view` are cells and no padding; broadcasts to its shape."""
    out, coordinates = np.ones((), bool), ("slot", "head", "dim")
    digits = [len(field.modes[c]) for c in coordinates]
    for i, c in enumerate(coordinates):
        shape = [size for size, _ in reversed(field.modes[c])]
        real = (np.arange(prod(shape)) < field.extents[c]).reshape(shape)
        if real.all():
            real = np.ones([1] * len(shape), bool)
        out = out & real.reshape(*[1] * sum(digits[:i]), *real.shape, *[1] * sum(digits[i + 1 :]))
    return out[..., None]
