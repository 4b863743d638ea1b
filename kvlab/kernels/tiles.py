"""How large a program's tile is. Semantics never depend on it; cost does."""

from __future__ import annotations

import torch
import triton

# A compiled program of 128 threads moves 16 bytes per thread and access: 2 KiB of columns is one access per row.
COMPILED_BYTES = 8192
COMPILED_ROW_BYTES = 2048
# The interpreter pays about 2 ms per program and little per element: few, large programs. Triton's limit on the
# elements of a tile is 2**20; half of it keeps numpy's temporaries in tens of megabytes.
INTERPRETED_ELEMENTS = 2**19


def tile_of(rows: int, columns: int, item: int, device: torch.device, interpreted: bool | None = None):
    """``(rows, columns, warps)`` of a program's tile, powers of two, for a matrix of rows x columns items."""
    from ..backends import backend

    if interpreted is None:
        interpreted = backend(device) == "interpreter"
    wide = triton.next_power_of_2(columns)
    if interpreted:
        wide = min(wide, INTERPRETED_ELEMENTS)
        return min(triton.next_power_of_2(max(rows, 1)), INTERPRETED_ELEMENTS // wide), wide, 4
    wide = min(wide, COMPILED_ROW_BYTES // item)
    tall = min(triton.next_power_of_2(max(rows, 1)), max(1, COMPILED_BYTES // (wide * item)))
    return tall, wide, 4
