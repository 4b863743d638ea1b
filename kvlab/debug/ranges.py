"""Touched bytes as coordinates, folded into ranges: "layers 0-3, K, slots 12-15, heads 0-7, dims 0-127"."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from .boxes import CHUNK, Span, boxes, smooth, spans, states_of

FIELD_NAMES = {"k": "K", "v": "V", "k_scale": "K scale", "v_scale": "V scale"}
COORDINATES = ("layer", "slot", "head", "dim")
STRETCHES = 256  # of bytes that are no cell, in one buffer, from which on they are told as one


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
    """Bytes that no field owns: padding, or memory around the cells. ``bytes`` is (first, last) in the buffer.

    ``whole`` is False where there are more than 256 such stretches in a buffer, which are then told as one.
    """

    buffer: str
    bytes: Span
    whole: bool = True

    def __str__(self) -> str:
        part = "" if self.whole else ", some of them"
        return f"no cell, {span_words('byte', self.bytes)} of {self.buffer!r}{part}"

    def to_dict(self) -> dict:
        """JSON-ready."""
        return {"kind": "stray", "buffer": self.buffer, "bytes": list(self.bytes), "whole": self.whole}


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
        For values that changed, where some stay by chance: an element with any touched byte counts as touched, and rows
        that differ in few elements are told as one with ``whole`` False, once they have more than 16 looks.
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
        ranges += [Range(name, *where, whole) for where, whole in boxes(states, joined=elements)]
    order = list(layout.fields)
    ranges.sort(key=lambda r: (r.layers, order.index(r.field), r.slots, r.heads, r.dims))
    return ranges + [stray for b, mask in masks.items() for stray in _unowned(layout, b, mask, owned[b])]


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


def _unowned(layout, buffer: str, mask: np.ndarray, owned: int) -> list[Stray]:
    """Touched bytes that no field owns."""
    if int(np.count_nonzero(mask)) == owned:
        return []
    left = mask.copy()
    for field in layout.fields.values():
        for layer in range(field.extents["layer"]):
            if field.buffer_of(layer) == buffer:
                view = cell_view(field, layer, left)
                view &= ~_real(field)
    return strays(buffer, left)


def strays(buffer: str, mask: np.ndarray) -> list[Stray]:
    """The touched stretches of ``(nbytes,)`` bytes, or one that holds them all: the columns that tiles pad are many."""
    at = np.flatnonzero(mask)
    if np.count_nonzero(np.diff(at) > 1) >= STRETCHES:
        return [Stray(buffer, (int(at[0]), int(at[-1])), whole=False)]
    return [Stray(buffer, span) for span in spans(at)]


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
