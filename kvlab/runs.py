"""Contiguous byte runs: into how many pieces a token, a page or a layer falls, and how long each is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

# Alignment padding inside a page envelope is at most 15 bytes. A DMA descriptor runs over it.
ALIGNMENT = 16


@dataclass(frozen=True)
class Runs:
    """Contiguous runs, in order of their buffer and first byte.

    ``buffers[i]``, ``starts[i]`` and ``lengths[i]`` describe run i, in bytes.
    """

    buffers: tuple[str, ...]
    starts: np.ndarray
    lengths: np.ndarray

    @property
    def count(self) -> int:
        """Number of runs."""
        return len(self.starts)

    @property
    def length(self) -> int:
        """Bytes of the longest run (all are equal where K and V rows are)."""
        return int(self.lengths.max())

    @property
    def nbytes(self) -> int:
        """Bytes of all runs together."""
        return int(self.lengths.sum())

    def __str__(self) -> str:
        sizes = sorted(set(self.lengths.tolist()))
        each = f"{sizes[0]:,}" if len(sizes) == 1 else f"{sizes[0]:,} to {sizes[-1]:,}"
        return f"{self.count:,} run{'s' * (self.count != 1)} of {each} bytes"


def byte_runs(layout, what: str, index: int = 0) -> Runs:
    """See :meth:`kvlab.Layout.runs`."""
    g = layout.geometry
    sizes = {"token": g.slots, "page": g.pages, "layer": g.layers}
    if what not in sizes:
        raise ValueError(f"runs: what={what!r} is not one of {', '.join(map(repr, sizes))}")
    if not 0 <= index < sizes[what]:
        raise IndexError(f"runs: index={index} is outside 0 … {sizes[what] - 1}, the {what}s of this layout")
    first, slots = {"token": (index, 1), "page": (index * g.page_size, g.page_size), "layer": (0, g.slots)}[what]
    pieces: dict[str, list] = {}
    for field in layout.fields.values():
        layers = [index] if what == "layer" else range(g.layers)
        starts, length = _field_runs(field, first, slots)
        for layer in layers:
            origin = layer * field.layer_stride
            pieces.setdefault(field.buffer_of(layer), []).append((starts + origin, length))
    names, all_starts, all_lengths = [], [], []
    for buffer in sorted(pieces):
        starts = np.concatenate([s for s, _ in pieces[buffer]])
        lengths = np.concatenate([np.full(len(s), n) for s, n in pieces[buffer]])
        starts, lengths = _merge(layout, buffer, starts, lengths)
        names += [buffer] * len(starts)
        all_starts.append(starts)
        all_lengths.append(lengths)
    return Runs(tuple(names), np.concatenate(all_starts), np.concatenate(all_lengths))


def _field_runs(field, first_slot: int, slots: int) -> tuple[np.ndarray, int]:
    """Start bytes and common length of one field's runs in layer 0, over ``slots`` slots from ``first_slot`` on."""
    steps, left = [], slots
    for size, stride in field.modes["slot"]:
        inside = min(size, left)  # the slots of a page fill the fast digits and leave the slow ones fixed
        steps.append((stride, inside))
        left //= inside
    for coordinate in ("head", "dim"):
        steps += [(stride, size) for size, stride in field.modes[coordinate]]
    starts, length = np.array([field.byte(0, first_slot, 0, 0)]), field.item
    for stride, size in sorted(s for s in steps if s[1] > 1):
        if stride == length and len(starts) == 1:
            length *= size
        else:
            starts = (starts[None, :] + stride * np.arange(size)[:, None]).reshape(-1)
    return starts, length


def _merge(layout, buffer: str, starts: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Join runs that touch, or that only alignment padding separates."""
    order = np.argsort(starts, kind="stable")
    starts, ends = starts[order], (starts + lengths)[order]
    gaps = starts[1:] - ends[:-1]
    opens = np.concatenate([[True], gaps != 0])
    short = np.flatnonzero((gaps > 0) & (gaps < ALIGNMENT))
    if len(short):
        # A short gap can also be another token's scale: only bytes that no field owns are alignment padding.
        inside = np.minimum(ends[short, None] + np.arange(ALIGNMENT - 1), starts[short + 1, None] - 1)
        free = layout.explain(buffer, inside.reshape(-1)).field.reshape(inside.shape) < 0
        opens[short + 1] = ~free.all(axis=1)
    closes = np.concatenate([opens[1:], [True]])
    return starts[opens], ends[closes] - starts[opens]
