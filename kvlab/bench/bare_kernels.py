"""Two kernels to compare with: one that does nothing, and a commit of one small tile per program."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

TILE = 128  # bytes


@triton.jit
def empty_kernel():
    """Grid (1,): what a launch costs."""


def launch_empty() -> None:
    empty_kernel[(1,)]()


@triton.jit
def tile_commit_kernel(loc, lens, k, v, k_cells, v_cells, width, ROW_BYTES: tl.constexpr, TILE: tl.constexpr):
    """Grid (requests, rows of a block, tiles of a row). A program moves TILE bytes of K and of V, if accepted.

    The shape of sglang's prefix-valid kernel: bytes, one program for each request, row and 128-byte tile, a pool of
    contiguous rows. Thread t moves byte t.
    """
    request, within = tl.program_id(0), tl.program_id(1)
    if within < tl.load(lens + request):
        row = request * width + within
        slot = tl.load(loc + row)
        byte = tl.program_id(2) * TILE + tl.arange(0, TILE)
        inside = byte < ROW_BYTES
        source, target = row * ROW_BYTES + byte, slot * ROW_BYTES + byte
        tl.store(k_cells + target, tl.load(k + source, mask=inside), mask=inside)
        tl.store(v_cells + target, tl.load(v + source, mask=inside), mask=inside)


def tile_commit(loc, lens, k, v, k_cells, v_cells) -> None:
    """Prefix-valid commit of one layer by small tiles.

    Parameters
    ----------
    loc : int64 tensor ``(B, W)``, contiguous
    lens : int64 tensor ``(B,)``
    k, v : tensors ``(B*W, heads, dim)``, contiguous, of one width
    k_cells, v_cells : tensors ``(slots, heads, dim)``, contiguous
    """
    k, v, k_cells, v_cells = (x.view(torch.uint8).flatten(1) for x in (k, v, k_cells, v_cells))
    row_bytes = k.shape[1]
    grid = (*loc.shape, triton.cdiv(row_bytes, TILE))
    tile_commit_kernel[grid](loc, lens, k, v, k_cells, v_cells, loc.shape[1], ROW_BYTES=row_bytes, TILE=TILE)
