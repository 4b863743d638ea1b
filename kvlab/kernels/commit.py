"""commit: dense rows -> pool, for every layout and format. K and V, scales, all layers and masks in one launch."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ..formats import INT_VIEW, MXFP8
from .addressing import wide
from .launch import launch
from .rows import move_scales, quantize_rows, store_rows
from .tiles import tile_of


@triton.jit
def selected(row, rows, loc, lens, mask, slots, HAS_LENS: tl.constexpr, HAS_MASK: tl.constexpr):
    """Slot of each row, and whether the row is written.

    loc = (pointer, block stride, row stride, block width W). A row is written if its request accepted it
    (``w < commit_lens[b]``), its row_mask is set, and its slot is real: slot 0 is the padding sink, a negative slot
    is padding, and a slot beyond the pool would touch memory that is not addressed.
    """
    inside = row < rows
    block = (row // loc[3]).to(tl.int64)  # a block table of many requests outgrows 32 bits
    within = row % loc[3]
    slot = tl.load(loc[0] + block * loc[1] + within * loc[2], mask=inside, other=0).to(tl.int64)
    written = inside & (slot > 0) & (slot < slots)
    if HAS_LENS:
        written &= within < tl.load(lens[0] + block * lens[1], mask=inside, other=0).to(tl.int64)
    if HAS_MASK:
        written &= tl.load(mask[0] + block * mask[1] + within * mask[2], mask=inside, other=0) != 0
    return slot, written


@triton.jit
def commit_kernel(
    loc,
    lens,
    mask,
    sources,
    cells,
    divisors,
    rows,
    slots,
    first_layer,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    SOURCE: tl.constexpr,
    TARGET: tl.constexpr,
    QUANTIZE: tl.constexpr,
    HAS_LENS: tl.constexpr,
    HAS_MASK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid (blocks of ROWS rows, layers). A program commits ROWS rows of one layer: K, V, and their scales.

    ``field[first_layer + y, loc[r]] = source[y, r]`` for every field and every selected row r. ``sources``
    and ``cells`` hold K, V, K scale, V scale, as many as the format has; QUANTIZE is the rounding of an MXFP8 pool
    whose scales are made here, else "no". Reads no host value and syncs nothing, so a CUDA graph can hold it.
    Two written rows must not share a slot.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    layer = tl.program_id(1).to(tl.int64)
    slot, written = selected(row, rows, loc, lens, mask, slots, HAS_LENS, HAS_MASK)
    for i in tl.static_range(2):
        # fmt: off
        if QUANTIZE != "no":
            quantize_rows(sources[i], cells[i], cells[i + 2], row, slot, written, layer, first_layer + layer,
                          HEADS, DIMS[i], ROWS, COLUMNS, SOURCE, QUANTIZE)
        else:
            store_rows(sources[i], cells[i], divisors[i], row, slot, written, layer, first_layer + layer,
                       HEADS, DIMS[i], COLUMNS, SOURCE, TARGET)
            if len(cells) == 4:
                move_scales(sources[i + 2], cells[i + 2], row, slot, written, layer, first_layer + layer,
                            HEADS, DIMS[i] // 32, ROWS, COLUMNS // 32)
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
    k_scale, v_scale : float, 0-d tensor or None; for E4M3 rows of an MXFP8 pool
        uint8 tensors ``(layers, B*W, heads, dim/32)``
    """
    layout = pool.layout
    g, fmt = layout.geometry, layout.format
    quantize = fmt.rounding if isinstance(fmt, MXFP8) and k_scale is None else "no"
    given_scales = isinstance(fmt, MXFP8) and k_scale is not None
    divisors = (None, None) if given_scales else (k_scale, v_scale)
    sources = [rows_of(x) for x in ((k, v, k_scale, v_scale) if given_scales else (k, v))]
    cells = [pool.cells(name) for name in layout.fields]
    rows, layers = loc.numel(), k.shape[0]
    widest = g.heads * max(g.head_dim, g.v_head_dim)
    tile_rows, columns, warps = tile_of(rows, widest, k.element_size(), k.device)
    launch(
        commit_kernel,
        (triton.cdiv(rows, tile_rows), layers),
        (loc, *loc.stride(), loc.shape[1]),
        (commit_lens, commit_lens.stride(0)) if commit_lens is not None else (loc, 0),
        (row_mask.view(torch.uint8), *row_mask.stride()) if row_mask is not None else (loc, 0, 0),
        tuple(sources),
        tuple(c.args for c in cells),
        tuple(scale_of(d) for d in divisors),
        rows,
        g.slots,
        first_layer,
        HEADS=g.heads,
        DIMS=(g.head_dim, g.v_head_dim),
        SOURCE=kind(k.dtype),
        TARGET=kind(pool.dtype),
        QUANTIZE=quantize,
        HAS_LENS=commit_lens is not None,
        HAS_MASK=row_mask is not None,
        ROWS=tile_rows,
        COLUMNS=columns,
        num_warps=warps,
    )


def rows_of(x: torch.Tensor) -> tuple:
    """Dense or strided rows as the kernels take them: pointer, (layer, row, head, dim) strides, and items an access can
    move."""
    item = x.element_size()
    vector = wide(item, x.data_ptr(), *x.stride()[:3], x.shape[3])
    return (x.view(INT_VIEW[item]), *x.stride(), tl.constexpr(vector))


def kind(dtype: torch.dtype) -> str:
    """A dtype's name, as the kernels' constexprs spell it."""
    return str(dtype).removeprefix("torch.")


def scale_of(scale) -> tuple:
    """A plain FP8 scale as the kernels take it: a number, or a pointer that saves the host a sync, and which it is."""
    if scale is None:
        return 1.0, tl.constexpr("no")
    return scale, tl.constexpr("pointer" if isinstance(scale, torch.Tensor) else "number")
