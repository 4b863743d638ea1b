"""Rows as strided slices: how plain torch copies a run of slots between two pools at the speed of memcpy."""

from __future__ import annotations

import torch

from .formats import INT_VIEW

# Shorter runs cost more Python than they save.
SHORTEST = 4


def copy_field(source, target, name: str, source_loc: torch.Tensor, target_loc: torch.Tensor) -> bool:
    """Copy one field's rows run by run; False, with nothing done, where runs are short or a field's rows are not
    strided slices (a tile of scales, a dim that is split)."""
    a, b = source.layout.fields[name], target.layout.fields[name]
    steps = [_slot_step(a, source.layout.geometry), _slot_step(b, target.layout.geometry)]
    if None in steps:
        return False
    runs = slot_runs(source_loc, target_loc, source.layout.geometry.page_size, target.layout.geometry.page_size)
    if len(runs) * SHORTEST > len(source_loc):
        return False
    layers = source.layout.geometry.layers
    together = isinstance(a.buffer, str) and isinstance(b.buffer, str)
    for source_slot, target_slot, length in runs:
        for layer, count in [(0, layers)] if together else [(i, 1) for i in range(layers)]:
            rows = _slice(source, a, steps[0], layer, count, source_slot, length)
            _slice(target, b, steps[1], layer, count, target_slot, length).copy_(rows)
    return True


def slot_runs(source_loc, target_loc, source_page: int, target_page: int) -> list[tuple[int, int, int]]:
    """``(source slot, target slot, length)`` of the stretches in which both slots rise by one inside one page."""
    if not len(source_loc):
        return []
    breaks = torch.ones(len(source_loc), dtype=torch.bool, device=source_loc.device)
    breaks[1:] = (source_loc.diff() != 1) | (target_loc.diff() != 1)
    breaks |= (source_loc % source_page == 0) | (target_loc % target_page == 0)
    first = breaks.nonzero().squeeze(1)
    lengths = torch.cat([first, first.new_tensor([len(source_loc)])]).diff()
    return list(zip(source_loc[first].tolist(), target_loc[first].tolist(), lengths.tolist(), strict=True))


def _slot_step(field, geometry) -> int | None:
    """Bytes from one slot of a page to the next; None where a page's slots or a head's dims have several digits."""
    size, stride = field.modes["slot"][0]
    straight = size >= geometry.page_size and len(field.modes["dim"]) == len(field.modes["head"]) == 1
    return stride if straight else None


def _slice(pool, field, step: int, layer: int, layers: int, slot: int, length: int) -> torch.Tensor:
    """View ``(layers, length, heads, dims)`` of a field's rows, as integers of the item's width."""
    item = field.item
    shape = (layers, length, field.extents["head"], field.extents["dim"])
    strides = (field.layer_stride, step, field.modes["head"][0][1], field.modes["dim"][0][1])
    buffer = pool.buffers[field.buffer_of(layer)].view(INT_VIEW[item])
    offset = buffer.storage_offset() + field.byte(layer, slot, 0, 0) // item
    return buffer.as_strided(shape, [s // item for s in strides], offset)
