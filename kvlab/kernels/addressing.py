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
def spread(x, strides, SIZES: tl.constexpr):
    """``sum(digit_i(x) * strides[i])``: what one coordinate adds to an offset. Fastest digit first; 64 bits.

    The last digit takes no modulo, so a layout with one mode per coordinate costs one multiplication.
    """
    total = tl.zeros(x.shape, tl.int64)
    for i in tl.static_range(len(SIZES) - 1):
        total += (x % SIZES[i]).to(tl.int64) * strides[i]
        x = x // SIZES[i]
    return total + x.to(tl.int64) * strides[len(SIZES) - 1]


@triton.jit
def row_offsets(cells, SIZES: tl.constexpr, VECTOR: tl.constexpr, layer, slot):
    """Offset of each slot's row, in items. VECTOR items always lie side by side, at a multiple of VECTOR items."""
    origin = tl.load(cells[1] + layer)
    return tl.multiple_of(origin + spread(slot, cells[3], SIZES[1]), [VECTOR])


@triton.jit
def column_offsets(cells, SIZES: tl.constexpr, VECTOR: tl.constexpr, column, DIM: tl.constexpr):
    """Offset of each column (head * DIM + dim) inside its row, in items."""
    # The hint holds for whole heads only: inside one, neighbours are as far apart as the dim digits say.
    head = tl.multiple_of(spread(column // DIM, cells[2], SIZES[0]), [VECTOR])
    offset = head + spread(column % DIM, cells[4], SIZES[2])
    if len(SIZES[2]) > 1:
        # The compiler does not see through a sum of two digits that the first one still runs side by side.
        offset = tl.max_contiguous(tl.multiple_of(offset, [SIZES[3]]), [SIZES[3]])
    return offset


@dataclass(frozen=True)
class Cells:
    """One field of one pool, ready for a launch.

    ``args`` is what the kernels call ``cells``: the base pointer, a table with each layer's origin, and the strides
    of the head, slot and dim digits, all in items. ``sizes`` are the digits' sizes and, last, how many neighbours in
    dim lie side by side: a constexpr. ``vector`` is how many items of a head one access can move.
    """

    args: tuple
    sizes: tuple
    vector: int

    @property
    def word(self) -> int:
        """Scale bytes that leave as one store: neighbours in dim that lie side by side, at most 4."""
        return gcd(4, self.sizes[3])


def cells_of(field: Field, buffers: dict[str, torch.Tensor]) -> Cells:
    """Describe a field to the kernels.

    Layers need not be evenly spaced: tensors of a live engine are allocated one by one. So each layer's origin comes
    from a table, as the distance from the base pointer.
    """
    layers = field.extents["layer"]
    dtype = INT_VIEW[field.item]
    base = buffers[field.buffer_of(0)].view(dtype)
    origins = []
    for layer in range(layers):
        address = buffers[field.buffer_of(layer)].data_ptr() + field.offset + layer * field.layer_stride
        origins.append((address - base.data_ptr()) // field.item)
    strides = {c: tuple(s // field.item for _, s in modes) for c, modes in field.modes.items()}
    sizes = tuple(tuple(n for n, _ in field.modes[c]) for c in ("head", "slot", "dim"))
    table = torch.tensor(origins, dtype=torch.int64, device=base.device)
    vector = wide(field.item, base.data_ptr(), *strides["head"], *strides["slot"], *origins, field.extents["dim"])
    first, *slower = strides["dim"]
    beside = gcd(vector, sizes[2][0], *slower) if first == 1 else 1
    sizes = (*sizes, beside)
    return Cells((base, table, strides["head"], strides["slot"], strides["dim"]), sizes, vector)


def wide(item: int, address: int, *steps: int) -> int:
    """Items that one access can move: 16 bytes, or what address and steps (in items) are all multiples of."""
    items = gcd(16 // item, *steps)
    while address % (items * item):
        items //= 2
    return items
