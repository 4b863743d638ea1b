"""Rows as strided slices: how the plain path copies runs of slots between two pools at the speed of memcpy.

A field becomes a numpy view ``(outer, layers, slot digits …, heads, dim digits …)`` over its own bytes; a run of slots
is then one slice assignment. numpy and not torch, because a page is small: ``Tensor.copy_`` wakes its threads for it,
and where they share the cores with others, waiting for them takes a hundred times as long as the bytes. Threads of
Python's own gained nothing when measured: they wait for the interpreter's lock between two pages.
"""

from __future__ import annotations

from math import prod

import numpy as np

ITEMS = {1: np.uint8, 2: np.uint16, 4: np.uint32}


def copy_field(source, target, name: str, source_loc: np.ndarray, target_loc: np.ndarray) -> np.ndarray:
    """Copy one field's rows run by run; ``source_loc`` and ``target_loc`` int64 ``(rows,)``, all in range.

    Returns
    -------
    Bool ``(rows,)``: the rows that are left to do, because no slice of both fields holds them (a part of a tile of
    scales, dims split in two unlike ways, memory that numpy can't see).
    """
    pairs = _views(source, target, name) if len(source_loc) else None
    if pairs is None:
        return np.ones(len(source_loc), dtype=bool)
    (_, digits_a), (_, digits_b) = pairs[0]
    span_a, span_b = prod(digits_a), prod(digits_b)
    parts = max(digits_a, digits_b, key=len)
    slots_a, slots_b, lengths = slot_runs(source_loc, target_loc, span_a, span_b)
    # where slots have several digits, rows go by whole blocks only
    chosen = (lengths == prod(parts)) | (len(parts) == 1)
    columns = (*divmod(slots_a, span_a), *divmod(slots_b, span_b), lengths)
    runs = [*zip(*(x[chosen].tolist() for x in columns), strict=True)]
    for (a, _), (b, _) in pairs:
        for page_a, at_a, page_b, at_b, n in runs:
            rows = _rows(a[page_a], digits_a, at_a, n, parts)
            _rows(b[page_b], digits_b, at_b, n, parts)[...] = rows
    return np.repeat(~chosen, lengths)


def slot_runs(source_loc: np.ndarray, target_loc: np.ndarray, source_span: int, target_span: int):
    """Stretches in which both slots rise by one, and neither crosses a multiple of its span.

    Returns
    -------
    First source slot, first target slot and length of each run.
    """
    opens = np.ones(len(source_loc), dtype=bool)
    opens[1:] = (np.diff(source_loc) != 1) | (np.diff(target_loc) != 1)
    opens |= (source_loc % source_span == 0) | (target_loc % target_span == 0)
    first = np.flatnonzero(opens)
    return source_loc[first], target_loc[first], np.diff(np.append(first, len(opens)))


def _views(source, target, name: str):
    """Per buffer ``((source view, slot digits), (target view, slot digits))``, alike but for slots; or None."""
    if source.device.type != "cpu" or target.device.type != "cpu":
        return None
    a, b = source.layout.fields[name], target.layout.fields[name]
    slots_a, slots_b = _fused(a.modes["slot"]), _fused(b.modes["slot"])
    dims_a, dims_b = (_clipped(_fused(f.modes["dim"]), f.extents["dim"]) for f in (a, b))
    dims = [_split(x, like=y) for x, y in ((dims_a, dims_b), (dims_b, dims_a))] if dims_a and dims_b else [None]
    inner = [[size for size, _ in slots[: max(1, len(slots) - 1)]][::-1] for slots in (slots_a, slots_b)]
    straight = all(len(f.modes[c]) == 1 for f in (a, b) for c in ("layer", "head"))
    if not straight or None in dims or (min(map(len, inner)) > 1 and inner[0] != inner[1]):
        return None
    layers = a.extents["layer"]
    together = isinstance(a.buffer, str) and isinstance(b.buffer, str)
    pairs = []
    for layer, count in [(0, layers)] if together else [(i, 1) for i in range(layers)]:
        views = [
            _view(pool, field, layer, count, slots, dim_modes)
            for pool, field, slots, dim_modes in ((source, a, slots_a, dims[0]), (target, b, slots_b, dims[1]))
        ]
        pairs.append(tuple(zip(_joined(*views), inner, strict=True)))
    return pairs


def _view(pool, field, layer: int, layers: int, slots, dims) -> np.ndarray:
    """``(outer, layers, slot digits …, heads, dim digits …)`` of a field, items of its width; outer 1 if unsplit."""
    outer, *inner = reversed(slots if len(slots) > 1 else [*slots, (1, 0)])
    head = field.extents["head"], field.modes["head"][0][1]
    shape, strides = zip(outer, (layers, field.layer_stride), *inner, head, *reversed(dims), strict=True)
    memory = pool.buffers[field.buffer_of(layer)].numpy()
    return np.ndarray(shape, ITEMS[field.item], memory, field.byte(layer, 0, 0, 0), strides)


def _joined(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """Both views with their innermost run as one item, where it is contiguous in both."""
    if a.strides[-1] == b.strides[-1] == a.itemsize:
        run = np.dtype((np.void, a.shape[-1] * a.itemsize))
        return [a.view(run), b.view(run)]
    return [a, b]


def _rows(page: np.ndarray, digits: list[int], at: int, n: int, parts: list[int]) -> np.ndarray:
    """``n`` slots from ``at`` on of ``(layers, slot digits …)``, with ``parts`` as their axes if they are several."""
    if len(digits) > 1 or (n == digits[0] and len(parts) == 1):
        return page
    rows = page[:, at : at + n]
    # splits an axis: a view, whatever the strides
    return rows if len(parts) == 1 else rows.reshape(rows.shape[0], *parts, *rows.shape[2:])


def _fused(modes) -> list[tuple[int, int]]:
    """Digits ``(size, stride)``, fastest first, joined where the slower continues the faster: one even step."""
    out = [modes[0]]
    for size, stride in modes[1:]:
        if out[-1][0] == 1:
            out[-1] = (size, stride)
        elif size == 1 or stride == out[-1][0] * out[-1][1]:
            out[-1] = (out[-1][0] * size, out[-1][1])
        else:
            out.append((size, stride))
    return out


def _clipped(modes, extent: int):
    """Digits that count up to ``extent`` and no further (a tile pads its columns), or None where none do."""
    out, left = [], extent
    for size, stride in modes:
        if left <= size:
            return [*out, (left, stride)]
        if left % size:
            return None
        out.append((size, stride))
        left //= size
    return None


def _split(modes, like):
    """``modes`` cut into the digits of ``like``; None where both have several and they differ."""
    sizes = [size for size, _ in like]
    if [size for size, _ in modes] == sizes or len(sizes) == 1:
        return modes
    if len(modes) > 1:
        return None
    steps = np.cumprod([1, *sizes[:-1]]).tolist()
    return [(size, modes[0][1] * step) for size, step in zip(sizes, steps, strict=True)]
