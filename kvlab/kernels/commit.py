"""commit: dense rows -> pool, for every layout. K and V, all layers, masks and casts in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..formats import INT_VIEW
from .addressing import column_offsets, row_offsets, wide
from .casts import decode, encode
from .launch import launch
from .tiles import tile_of


@triton.jit
def selected(row, rows, loc, lens, mask, slots, HAS_LENS: tl.constexpr, HAS_MASK: tl.constexpr):
    """Slot of each row, and whether the row is written.

    loc = (pointer, block stride, row stride, block width W). A row is written if its request accepted it
    (``w < commit_lens[b]``), its row_mask is set, and its slot is real: slot 0 is the padding sink, a negative slot
    is padding, and a slot beyond the pool would touch memory that is not addressed.
    """
    inside = row < rows
    block = row // loc[3]
    within = row % loc[3]
    slot = tl.load(loc[0] + block * loc[1] + within * loc[2], mask=inside, other=0).to(tl.int64)
    written = inside & (slot > 0) & (slot < slots)
    if HAS_LENS:
        written &= within < tl.load(lens[0] + block * lens[1], mask=inside, other=0).to(tl.int64)
    if HAS_MASK:
        written &= tl.load(mask[0] + block * mask[1] + within * mask[2], mask=inside, other=0) != 0
    return slot, written


@triton.jit
def store_rows(
    source,
    cells,
    scale,
    row,
    slot,
    written,
    source_layer,
    layer,
    SIZES: tl.constexpr,
    VECTORS: tl.constexpr,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOURCE: tl.constexpr,
    TARGET: tl.constexpr,
    SCALED: tl.constexpr,
):
    """``field[layer, slot[r]] = cast(source[source_layer, row[r]] / scale)`` for every written row r."""
    from_row = tl.multiple_of(source_layer * source[1] + row.to(tl.int64) * source[2], [VECTORS[0]])
    to_row = row_offsets(cells, SIZES, VECTORS[1], layer, slot)
    for first in range(0, HEADS * DIM, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        moved = written[:, None] & (column < HEADS * DIM)[None, :]
        head = tl.multiple_of((column // DIM).to(tl.int64) * source[3], [VECTORS[0]])
        from_column = head + (column % DIM) * source[4]
        values = tl.load(source[0] + from_row[:, None] + from_column[None, :], mask=moved)
        if SOURCE != TARGET or SCALED != "no":
            bits = decode(values, SOURCE)
            if SCALED != "no":
                divisor = tl.load(scale) if SCALED == "pointer" else scale
                bits = tl.div_rn(bits.to(tl.float32, bitcast=True), divisor.to(tl.float32)).to(tl.uint32, bitcast=True)
            values = encode(bits, TARGET)
        to_column = column_offsets(cells, SIZES, VECTORS[1], column, DIM)
        tl.store(cells[0] + to_row[:, None] + to_column[None, :], values, mask=moved)


@triton.jit
def commit_kernel(
    loc,
    lens,
    mask,
    k_source,
    v_source,
    k_cells,
    v_cells,
    k_scale,
    v_scale,
    rows,
    slots,
    first_layer,
    K_SIZES: tl.constexpr,
    V_SIZES: tl.constexpr,
    K_VECTORS: tl.constexpr,
    V_VECTORS: tl.constexpr,
    HEADS: tl.constexpr,
    K_DIM: tl.constexpr,
    V_DIM: tl.constexpr,
    SOURCE: tl.constexpr,
    TARGET: tl.constexpr,
    K_SCALED: tl.constexpr,
    V_SCALED: tl.constexpr,
    HAS_LENS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid (blocks of ROWS rows, layers). Per program: the K rows, then the V rows, of ROWS source rows of a layer.

    k[first_layer + y, loc[r]] = k_source[y, r] and the same for V, for every selected row r. Reads no host value and
    syncs nothing, so a CUDA graph can hold it. Two written rows must not share a slot.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    layer = tl.program_id(1).to(tl.int64)
    slot, written = selected(row, rows, loc, lens, mask, slots, HAS_LENS, HAS_MASK)
    # fmt: off
    store_rows(k_source, k_cells, k_scale, row, slot, written, layer, first_layer + layer,
               K_SIZES, K_VECTORS, HEADS, K_DIM, COLUMNS, SOURCE, TARGET, K_SCALED)
    store_rows(v_source, v_cells, v_scale, row, slot, written, layer, first_layer + layer,
               V_SIZES, V_VECTORS, HEADS, V_DIM, COLUMNS, SOURCE, TARGET, V_SCALED)
    # fmt: on


def commit_rows(pool, first_layer, loc, k, v, commit_lens, row_mask, k_scale, v_scale) -> None:
    """Launch :func:`commit_kernel` once.

    Parameters
    ----------
    pool : KVPool
    first_layer : int
        Pool layer of ``k[0]``.
    loc : int tensor ``(B, W)``
    k, v : tensors ``(layers, B*W, heads, dim)``, any strides
    commit_lens : int tensor ``(B,)`` or None
    row_mask : bool tensor ``(B, W)`` or None
    k_scale, v_scale : float, 0-d tensor or None
    """
    g = pool.layout.geometry
    rows, layers = loc.numel(), k.shape[0]
    source, target = _kind(k.dtype), _kind(pool.dtype)
    k_cells, v_cells = pool.cells("k"), pool.cells("v")
    k_rows, k_vector = rows_of(k)
    v_rows, v_vector = rows_of(v)
    tile_rows, columns, warps = tile_of(rows, g.heads * max(g.head_dim, g.v_head_dim), k.element_size(), k.device)
    launch(
        commit_kernel,
        (triton.cdiv(rows, tile_rows), layers),
        (loc, *loc.stride(), loc.shape[1]),
        (commit_lens, commit_lens.stride(0)) if commit_lens is not None else (loc, 0),
        (row_mask.view(torch.uint8), *row_mask.stride()) if row_mask is not None else (loc, 0, 0),
        k_rows,
        v_rows,
        k_cells.args,
        v_cells.args,
        1.0 if k_scale is None else k_scale,
        1.0 if v_scale is None else v_scale,
        rows,
        g.slots,
        first_layer,
        K_SIZES=k_cells.sizes,
        V_SIZES=v_cells.sizes,
        K_VECTORS=(k_vector, k_cells.vector),
        V_VECTORS=(v_vector, v_cells.vector),
        HEADS=g.heads,
        K_DIM=g.head_dim,
        V_DIM=g.v_head_dim,
        SOURCE=source,
        TARGET=target,
        K_SCALED=_scaled(k_scale),
        V_SCALED=_scaled(v_scale),
        HAS_LENS=commit_lens is not None,
        HAS_MASK=row_mask is not None,
        ROWS=tile_rows,
        COLUMNS=columns,
        num_warps=warps,
    )


def rows_of(x: torch.Tensor) -> tuple[tuple, int]:
    """Dense or strided rows as the kernels take them: pointer and (layer, row, head, dim) strides; and their vector."""
    item = x.element_size()
    vector = wide(item, x.data_ptr(), *x.stride()[:3], x.shape[3])
    return (x.view(INT_VIEW[item]), *x.stride()), vector


def _kind(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _scaled(scale) -> str:
    return "no" if scale is None else "pointer" if isinstance(scale, torch.Tensor) else "number"
