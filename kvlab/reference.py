"""The primitives in the plainest torch: the field formula, then one indexed read or write.

This is what the operations mean. The kernels are tested against it byte for byte, and it serves where Triton is
missing. It has the same functions as :mod:`kvlab.kernels`.
"""

from __future__ import annotations

import numpy as np
import torch

from . import formats, slices
from .formats import INT_VIEW, MXFP8, cast, quantize


def commit_rows(pool, first_layer, loc, k, v, commit_lens, row_mask, k_scale, v_scale) -> None:
    """Write the selected rows; parameters as :func:`kvlab.kernels.commit.commit_rows`."""
    fmt = pool.layout.format
    rows = written_rows(loc, commit_lens, row_mask, pool.layout.geometry.slots)
    slots = loc.reshape(-1)[rows].long()
    for name, source, scale in (("k", k, k_scale), ("v", v, v_scale)):
        values = source[:, rows]
        if isinstance(fmt, MXFP8):
            values, scales = quantize(values, fmt.rounding) if scale is None else (values, scale[:, rows])
            write_field(pool, f"{name}_scale", first_layer, slots, scales)
        elif values.dtype != pool.dtype:
            values = values.float()
            if scale is not None:
                values = values / torch.as_tensor(scale, dtype=torch.float32, device=values.device)
            values = cast(values, pool.dtype)
        write_field(pool, name, first_layer, slots, values)


def gather_rows(pool, fields, first_layer: int, layers: int, loc, k_scale, v_scale, dequantize: bool):
    """Read rows, zeros where the slot is not real; as :func:`kvlab.kernels.gather.gather_rows`."""
    slots = loc.reshape(-1).long()
    real = (slots >= 0) & (slots < pool.layout.geometry.slots)
    out = []
    for name, scale in zip(fields, (k_scale, v_scale), strict=True):
        values = read_field(pool, name, first_layer, layers, slots.where(real, 0))
        if not name.endswith("_scale"):
            values = values.view(pool.dtype)
        if dequantize:
            scales = read_field(pool, f"{name}_scale", first_layer, layers, slots.where(real, 0))
            values = formats.dequantize(values, scales)
        if scale is not None:
            values = values.float()
            product = values * torch.as_tensor(scale, dtype=torch.float32, device=values.device)
            values = torch.where(values.isnan(), values.new_tensor(float("nan")).copysign(values), product)
        values.view(INT_VIEW[values.element_size()])[:, ~real] = 0
        out.append(values)
    return tuple(out)


def copy_rows(source, source_loc, target, target_loc) -> None:
    """Copy rows between pools; as :func:`kvlab.kernels.copy.copy_rows`.

    Slots that follow each other on both sides go as one strided slice, where both fields allow it; the formula does
    the rest, row by row.
    """
    a, b = (loc.cpu().numpy().astype(np.int64) for loc in (source_loc, target_loc))
    real = (a >= 0) & (a < source.layout.geometry.slots) & (b > 0) & (b < target.layout.geometry.slots)
    a, b = a[real], b[real]
    for name in target.layout.fields:
        left = slices.copy_field(source, target, name, a, b)
        if left.any():
            from_slots, to_slots = (torch.from_numpy(x[left]).to(source.device) for x in (a, b))
            values = read_field(source, name, 0, source.layout.geometry.layers, from_slots)
            write_field(target, name, 0, to_slots, values)


def written_rows(loc, commit_lens, row_mask, slots: int) -> torch.Tensor:
    """Indices of the rows that a commit writes: accepted, not masked out, and with a real slot."""
    written = (loc > 0) & (loc < slots)
    if commit_lens is not None:
        written &= torch.arange(loc.shape[1], device=loc.device) < commit_lens[:, None]
    if row_mask is not None:
        written &= row_mask
    return written.reshape(-1).nonzero().squeeze(1)


def write_field(pool, name: str, first_layer: int, slots: torch.Tensor, values: torch.Tensor) -> None:
    """``field[first_layer + l, slots[r]] = values[l, r]`` for values ``(layers, rows, heads, dims)``."""
    field = pool.layout.fields[name]
    bits = values.contiguous().view(INT_VIEW[field.item])
    for layer, rows in enumerate(bits, start=first_layer):
        index = _items(field, layer, slots)
        pool.buffers[field.buffer_of(layer)].view(bits.dtype)[index] = rows


def read_field(pool, name: str, first_layer: int, layers: int, slots: torch.Tensor) -> torch.Tensor:
    """``field[first_layer + l, slots[r]]`` as integers of the item's width, ``(layers, rows, heads, dims)``."""
    field = pool.layout.fields[name]
    dtype = INT_VIEW[field.item]
    each = []
    for layer in range(first_layer, first_layer + layers):
        each.append(pool.buffers[field.buffer_of(layer)].view(dtype)[_items(field, layer, slots)])
    return torch.stack(each)


def _items(field, layer: int, slots: torch.Tensor) -> torch.Tensor:
    """Item index in the layer's buffer of every (row, head, dim)."""
    head = torch.arange(field.extents["head"], device=slots.device)[None, :, None]
    dim = torch.arange(field.extents["dim"], device=slots.device)[None, None, :]
    return field.byte(layer, slots[:, None, None], head, dim) // field.item
