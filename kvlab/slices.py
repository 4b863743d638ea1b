"""Rows as strided slices: how the plain path copies runs of slots between two pools at the speed of memcpy.

A field becomes a numpy view ``(outer, layers, slot digits …, heads, dim digits …)`` over its own bytes; a run of slots
is then one slice assignment. numpy and not torch, because a page is small: ``Tensor.copy_`` wakes its threads for it,
and where they share the cores with others, waiting for them takes a hundred times as long as the bytes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from math import prod

import numpy as np
import torch

# What a thread takes at a time: as much as is copied while another one begins.
TASK_BYTES = 2**22
ITEMS = {1: np.uint8, 2: np.uint16, 4: np.uint32}
WORDS = (np.uint64, np.uint32, np.uint16)


def copy_fields(source, target, source_loc: np.ndarray, target_loc: np.ndarray) -> dict[str, np.ndarray]:
    """Copy the rows of all fields run by run; ``source_loc`` and ``target_loc`` int64 ``(rows,)``, all in range.

    Returns
    -------
    For each field a bool ``(rows,)``: the rows that are left to do, because no slice of both pools holds them (a part
    of a tile of scales, dims split in two unlike ways, memory that numpy can't see).
    """
    left, tasks = {}, []
    for name in target.layout.fields:
        left[name], more = _field_tasks(source, target, name, source_loc, target_loc)
        tasks += more
    threads = min(torch.get_num_threads(), len(tasks))
    if threads < 2:
        for copy_some, runs in tasks:
            copy_some(runs)
    else:  # numpy frees the GIL while it copies
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(lambda task: task[0](task[1]), tasks))
    return left


def _field_tasks(source, target, name: str, source_loc: np.ndarray, target_loc: np.ndarray):
    """Rows of one field that no slice holds, and ``(function, its runs)`` for the others, ``TASK_BYTES`` each."""
    left = np.ones(len(source_loc), dtype=bool)
    pairs = _views(source, target, name) if len(source_loc) else None
    if pairs is None:
        return left, []
    (_, digits_a), (_, digits_b) = pairs[0]
    span_a, span_b = prod(digits_a), prod(digits_b)
    parts = max(digits_a, digits_b, key=len)
    whole = prod(parts) if len(parts) > 1 else 0  # where slots have several digits, rows go by whole blocks only
    slots_a, slots_b, lengths = slot_runs(source_loc, target_loc, span_a, span_b)
    chosen = lengths == whole if whole else np.ones(len(lengths), dtype=bool)
    left = np.repeat(~chosen, lengths)
    columns = (*divmod(slots_a, span_a), *divmod(slots_b, span_b), lengths)
    runs = [*zip(*(x[chosen].tolist() for x in columns), strict=True)]
    tasks = []
    for (a, _), (b, _) in pairs:

        def copy_some(some, a=a, b=b):
            for page_a, at_a, page_b, at_b, n in some:
                rows = _rows(a[page_a], digits_a, at_a, n, parts)
                _rows(b[page_b], digits_b, at_b, n, parts)[...] = rows

        row = a.nbytes // (len(a) * span_a)
        step = max(1, TASK_BYTES * len(runs) // (row * len(source_loc)))
        tasks += [(copy_some, runs[i : i + step]) for i in range(0, len(runs), step)]
    return left, tasks


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
        pairs.append(tuple(zip(_widest(*views), inner, strict=True)))
    return pairs


def _view(pool, field, layer: int, layers: int, slots, dims) -> np.ndarray:
    """``(outer, layers, slot digits …, heads, dim digits …)`` of a field, items of its width; outer 1 if unsplit."""
    outer, *inner = reversed(slots if len(slots) > 1 else [*slots, (1, 0)])
    head = field.extents["head"], field.modes["head"][0][1]
    shape, strides = zip(outer, (layers, field.layer_stride), *inner, head, *reversed(dims), strict=True)
    memory = pool.buffers[field.buffer_of(layer)].numpy()
    return np.ndarray(shape, ITEMS[field.item], memory, field.byte(layer, 0, 0, 0), strides)


def _widest(a: np.ndarray, b: np.ndarray) -> list[np.ndarray]:
    """Both views in the widest words that divide their innermost run."""
    if a.strides[-1] == b.strides[-1] == a.itemsize:
        for word in WORDS:
            if a.shape[-1] * a.itemsize % np.dtype(word).itemsize == 0:
                return [a.view(word), b.view(word)]
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
