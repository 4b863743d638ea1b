"""A field as a kernel sees it: pointers, strides and digit sizes. The same sum as :meth:`kvlab.field.Field.byte`."""

from __future__ import annotations

from dataclasses import dataclass
from math import gcd

import torch
import triton
import triton.language as tl

from ..field import Field
from ..formats import INT_VIEW


@triton.jit
def spread(x, modes):
    """``sum(digit_i(x) * strides[i])``: what one coordinate adds to an offset. Fastest digit first; 64 bits.

    modes = (strides, sizes), the sizes constexpr. The last digit takes no modulo, so a coordinate of one digit costs
    one multiplication.
    """
    total = tl.zeros(x.shape, tl.int64)
    for i in tl.static_range(len(modes[0]) - 1):
        total += (x % modes[1][i]).to(tl.int64) * modes[0][i]
        x = x // modes[1][i]
    return total + x.to(tl.int64) * modes[0][len(modes[0]) - 1]


@triton.jit
def row_offsets(cells, layer, slot):
    """Offset of each slot's row, in items. VECTOR items always lie side by side, at a multiple of VECTOR items."""
    VECTOR: tl.constexpr = cells[5]
    origin = tl.load(cells[1] + layer)
    return tl.multiple_of(origin + spread(slot, cells[3]), [VECTOR])


@triton.jit
def column_offsets(cells, column, DIM: tl.constexpr):
    """Offset of each column (head * DIM + dim) inside its row, in items."""
    # The hint holds for whole heads only: inside one, neighbours are as far apart as the dim digits say.
    VECTOR: tl.constexpr = cells[5]
    BESIDE: tl.constexpr = cells[6]
    offset = tl.multiple_of(spread(column // DIM, cells[2]), [VECTOR]) + spread(column % DIM, cells[4])
    if len(cells[4][0]) > 1:
        # The compiler does not see through a sum of two digits that the first one still runs side by side.
        offset = tl.max_contiguous(tl.multiple_of(offset, [BESIDE]), [BESIDE])
    return offset


@dataclass(frozen=True)
class Cells:
    """One field of one pool, ready for a launch.

    ``args`` is what the kernels call ``cells``: the base pointer, a table with each layer's origin, then (strides,
    sizes) of the head, slot and dim digits, all in items, and VECTOR, BESIDE and WORD. Sizes and these three are
    compile-time constants; they travel inside the tuple, since Triton 3.6 cannot pass a part of a constexpr tuple on to
    a function.

    ``vector`` is how many items of a head one access can move, ``beside`` how many neighbours in dim lie side by side;
    WORD is how many scale bytes leave as one store: those neighbours, at most 4.
    """

    args: tuple
    vector: int
    beside: int


def cells_of(field: Field, buffers: dict[str, torch.Tensor]) -> Cells:
    """Describe a field to the kernels.

    Layers need not be evenly spaced: tensors of a live engine are allocated one by one. So each layer's origin comes
    from a table, as the distance from the base pointer.
    """
    dtype = INT_VIEW[field.item]
    base = buffers[field.buffer_of(0)].view(dtype)
    origins = []
    for layer in range(field.extents["layer"]):
        address = buffers[field.buffer_of(layer)].data_ptr() + field.offset + layer * field.layer_stride
        origins.append((address - base.data_ptr()) // field.item)
    strides = {c: tuple(s // field.item for _, s in modes) for c, modes in field.modes.items()}
    vector = wide(field.item, base.data_ptr(), *strides["head"], *strides["slot"], *origins, field.extents["dim"])
    first, *slower = strides["dim"]
    beside = gcd(vector, field.modes["dim"][0][0], *slower) if first == 1 else 1
    modes = ((strides[c], tuple(tl.constexpr(n) for n, _ in field.modes[c])) for c in ("head", "slot", "dim"))
    table = torch.tensor(origins, dtype=torch.int64, device=base.device)
    return Cells((base, table, *modes, *map(tl.constexpr, (vector, beside, gcd(4, beside)))), vector, beside)


def wide(item: int, address: int, *steps: int) -> int:
    """Items that one access can move: 16 bytes, or what address and steps (in items) are all multiples of."""
    items = gcd(16 // item, *steps)
    while address % (items * item):
        items //= 2
    return items
