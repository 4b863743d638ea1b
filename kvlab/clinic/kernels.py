"""Small kernels as engines write them, one program for each row. Most faults lie in how a kernel is used."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def rows_kernel(
    src_ptr, dst_ptr, loc_ptr, lens_ptr, width, columns, page_size, page_stride, row_stride,
    FIRST_SLOT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Grid ``(B * W,)``. ``dst[slot // page_size, slot % page_size, :columns] = src[row, :columns]``.

    Strides count elements.
    A row counts where it is within its block's ``lens`` and its slot is at least FIRST_SLOT.
    """
    row = tl.program_id(0)
    slot = tl.load(loc_ptr + row).to(tl.int64)
    keep = (row % width < tl.load(lens_ptr + row // width)) & (slot >= FIRST_SLOT)
    column = tl.arange(0, TILE)
    mask = column < tl.where(keep, columns, 0)
    x = tl.load(src_ptr + row * columns + column, mask=mask)
    place = slot // page_size * page_stride + slot % page_size * row_stride
    tl.store(dst_ptr + place + column, x, mask=mask)


@triton.jit
def rows_of_a_large_pool_kernel(src_ptr, dst_ptr, loc_ptr, row_stride, TILE: tl.constexpr):
    """Grid ``(N,)``. ``dst[loc[row], :] = src[row, :]`` for rows of TILE elements; loc is int32."""
    row = tl.program_id(0)
    slot = tl.load(loc_ptr + row)
    column = tl.arange(0, TILE)
    x = tl.load(src_ptr + row * TILE + column)
    tl.store(dst_ptr + slot * row_stride + column, x)


@triton.jit
def tile_scales_kernel(
    scale_ptr, dst_ptr, loc_ptr, lens_ptr, width, heads, blocks, page_stride, head_stride, TILE: tl.constexpr
):
    """Grid ``(B * W, heads)``. A row's scales ``(B * W, heads, blocks)`` into 128x4 tiles ``(pages, heads, 512)``."""
    row, head = tl.program_id(0), tl.program_id(1)
    slot = tl.load(loc_ptr + row).to(tl.int64)
    keep = (row % width < tl.load(lens_ptr + row // width)) & (slot > 0)
    r, c = slot % 128, tl.arange(0, TILE)
    mask = c < tl.where(keep, blocks, 0)
    x = tl.load(scale_ptr + (row * heads + head) * blocks + c, mask=mask)
    place = slot // 128 * page_stride + head * head_stride + r // 4 * 16 + r % 4 * 4 + c
    tl.store(dst_ptr + place, x, mask=mask)
