"""gather: pool -> dense rows, for every layout and format. K and V and all layers in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..formats import INT_VIEW
from .commit import kind, scale_of
from .launch import launch
from .rows import dequantize_rows, load_rows
from .tiles import tile_of


@triton.jit
def gather_kernel(
    loc,
    outs,
    cells,
    factors,
    rows,
    slots,
    first_layer,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    STORED: tl.constexpr,
    DEQUANTIZE: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid (blocks of ROWS rows, layers). ``outs[i][y, r] = field_i[first_layer + y, loc[r]]`` for each field i.

    With DEQUANTIZE, cells 2 and 3 are the scales of fields 0 and 1. Slot 0 is read like any other; a slot that is
    negative or beyond the pool reads as zeros.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    layer = tl.program_id(1).to(tl.int64)
    inside = row < rows
    block = (row // loc[3]).to(tl.int64)
    slot = tl.load(loc[0] + block * loc[1] + row % loc[3] * loc[2], mask=inside, other=-1).to(tl.int64)
    real = inside & (slot >= 0) & (slot < slots)
    out_row = layer * rows + row.to(tl.int64)
    for i in tl.static_range(len(DIMS)):
        # fmt: off
        if DEQUANTIZE:
            dequantize_rows(outs[i], cells[i], cells[i + 2], slot, inside, real, out_row, first_layer + layer,
                            HEADS, DIMS[i], ROWS, COLUMNS)
        else:
            load_rows(outs[i], cells[i], factors[i], slot, inside, real, out_row, first_layer + layer,
                      HEADS, DIMS[i], COLUMNS, STORED)
        # fmt: on


def gather_rows(pool, fields, first_layer: int, layers: int, loc, k_scale, v_scale, dequantize: bool):
    """Launch :func:`gather_kernel` once.

    Parameters
    ----------
    fields : ("k", "v") or ("k_scale", "v_scale")
    loc : int tensor ``(B, W)``
    k_scale, v_scale : float, 0-d tensor or None
        Plain FP8: multiplied back in fp32 where given.
    dequantize : bool
        MXFP8: payload times its block scale, in fp32.

    Returns
    -------
    two tensors ``(layers, B*W, heads, dim)``
        Of the field's dtype (uint8 for scales), or float32 where a scale was applied.
    """
    g = pool.layout.geometry
    rows = loc.numel()
    dtype = torch.uint8 if fields[0].endswith("_scale") else pool.dtype
    dims = tuple(pool.layout.fields[f].extents["dim"] for f in fields)
    factors = (k_scale, v_scale)
    outs = []
    for dim, factor in zip(dims, factors, strict=True):
        out_dtype = torch.float32 if dequantize or factor is not None else dtype
        outs.append(torch.empty((layers, rows, g.heads, dim), dtype=out_dtype, device=pool.device))
    names = [*fields, *(f"{f}_scale" for f in fields)] if dequantize else fields
    cells = [pool.cells(name) for name in names]
    tile_rows, columns, warps = tile_of(rows, g.heads * max(dims), dtype.itemsize, pool.device)
    launch(
        gather_kernel,
        (triton.cdiv(rows, tile_rows), layers),
        (loc, *loc.stride(), loc.shape[1]),
        tuple(
            x if x.dtype == torch.float32 and dtype != torch.float32 else x.view(INT_VIEW[x.element_size()])
            for x in outs
        ),
        tuple(c.args for c in cells),
        tuple(scale_of(f) for f in factors),
        rows,
        g.slots,
        first_layer,
        HEADS=g.heads,
        DIMS=dims,
        STORED=kind(dtype),
        DEQUANTIZE=dequantize,
        ROWS=tile_rows,
        COLUMNS=columns,
        num_warps=warps,
    )
    return tuple(outs)
