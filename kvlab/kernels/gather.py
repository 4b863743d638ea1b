"""gather: pool -> dense rows, for every layout. All layers of one field in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..formats import INT_VIEW
from .addressing import column_offsets, row_offsets
from .casts import decode
from .launch import launch
from .tiles import tile_of


@triton.jit
def load_rows(
    out,
    cells,
    row,
    slot,
    inside,
    real,
    out_row,
    layer,
    scale,
    SIZES: tl.constexpr,
    VECTOR: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    STORED: tl.constexpr,
    SCALED: tl.constexpr,
):
    """``out[out_row[r]] = field[layer, slot[r]] (* scale)``; zeros where the slot is not real."""
    from_row = row_offsets(cells, SIZES, VECTOR, layer, slot)
    to_row = out_row * (HEADS * DIM)
    for first in range(0, HEADS * DIM, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        within = (column < HEADS * DIM)[None, :]
        from_column = column_offsets(cells, SIZES, VECTOR, column, DIM)
        values = tl.load(cells[0] + from_row[:, None] + from_column[None, :], mask=real[:, None] & within, other=0)
        if SCALED != "no":
            factor = tl.load(scale) if SCALED == "pointer" else scale
            number = decode(values, STORED).to(tl.float32, bitcast=True)
            # hardware and numpy give a product's NaN different bits: keep the decoded one
            values = tl.where(number == number, number * factor.to(tl.float32), number)
        tl.store(out + to_row[:, None] + column[None, :], values, mask=inside[:, None] & within)


@triton.jit
def gather_kernel(
    loc,
    k_out,
    v_out,
    k_cells,
    v_cells,
    k_scale,
    v_scale,
    rows,
    slots,
    first_layer,
    K_SIZES: tl.constexpr,
    V_SIZES: tl.constexpr,
    K_VECTOR: tl.constexpr,
    V_VECTOR: tl.constexpr,
    HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    STORED: tl.constexpr,
    K_SCALED: tl.constexpr,
    V_SCALED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid (blocks of ROWS rows, layers). ``k_out[y, r] = k[first_layer + y, loc[r]]``, then the same for V.

    Slot 0 is read like any other; a slot that is negative or beyond the pool reads as zeros.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    layer = tl.program_id(1).to(tl.int64)
    inside = row < rows
    slot = tl.load(loc[0] + row // loc[3] * loc[1] + row % loc[3] * loc[2], mask=inside, other=-1).to(tl.int64)
    real = inside & (slot >= 0) & (slot < slots)
    out_row = layer * rows + row.to(tl.int64)
    # fmt: off
    load_rows(k_out, k_cells, row, slot, inside, real, out_row, first_layer + layer, k_scale,
              K_SIZES, K_VECTOR, HEADS, K_DIM, COLUMNS, STORED, K_SCALED)
    load_rows(v_out, v_cells, row, slot, inside, real, out_row, first_layer + layer, v_scale,
              V_SIZES, V_VECTOR, HEADS, V_DIM, COLUMNS, STORED, V_SCALED)
    # fmt: on


def gather_rows(pool, first_layer: int, layers: int, loc, k_scale, v_scale):
    """Launch :func:`gather_kernel` once.

    Parameters
    ----------
    loc : int tensor ``(B, W)``
    k_scale, v_scale : float, 0-d tensor or None
        Multiplied back in fp32 where given.

    Returns
    -------
    k, v : ``(layers, B*W, heads, dim)``, of the pool's dtype, or float32 where a scale was given
    """
    g = pool.layout.geometry
    rows = loc.numel()
    k_cells, v_cells = pool.cells("k"), pool.cells("v")
    k, v = (
        torch.empty(
            (layers, rows, g.heads, g.dim(f)), dtype=pool.dtype if s is None else torch.float32, device=pool.device
        )
        for f, s in (("k", k_scale), ("v", v_scale))
    )
    columns = g.heads * max(g.head_dim, g.v_head_dim)
    tile_rows, tile_columns, warps = tile_of(rows, columns, pool.dtype.itemsize, pool.device)
    launch(
        gather_kernel,
        (triton.cdiv(rows, tile_rows), layers),
        (loc, *loc.stride(), loc.shape[1]),
        k if k_scale is not None else k.view(INT_VIEW[k.element_size()]),
        v if v_scale is not None else v.view(INT_VIEW[v.element_size()]),
        k_cells.args,
        v_cells.args,
        1.0 if k_scale is None else k_scale,
        1.0 if v_scale is None else v_scale,
        rows,
        g.slots,
        first_layer,
        K_SIZES=k_cells.sizes,
        V_SIZES=v_cells.sizes,
        K_VECTOR=k_cells.vector,
        V_VECTOR=v_cells.vector,
        HEADS=g.heads,
        K_DIM=g.head_dim,
        V_DIM=g.v_head_dim,
        STORED=str(pool.dtype).removeprefix("torch."),
        K_SCALED=_scaled(k_scale),
        V_SCALED=_scaled(v_scale),
        ROWS=tile_rows,
        COLUMNS=tile_columns,
        num_warps=warps,
    )
    return k, v


def _scaled(scale) -> str:
    return "no" if scale is None else "pointer" if isinstance(scale, torch.Tensor) else "number"
