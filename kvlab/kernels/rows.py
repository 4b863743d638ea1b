"""What the commit and gather kernels do to one field: rows in and out of a tile, whatever the layout."""

import triton
import triton.language as tl

from .addressing import column_offsets, row_offsets
from .casts import decode, encode
from .mx import dequantize_blocks, quantize_blocks


@triton.jit
def load_source(source, row, layer, column, moved, DIM: tl.constexpr):
    """``source[layer, row[r], column // DIM, column % DIM]`` by the source's own strides; zeros where not moved."""
    VECTOR: tl.constexpr = source[5]
    from_row = tl.multiple_of(layer * source[1] + row.to(tl.int64) * source[2], [VECTOR])
    head = tl.multiple_of((column // DIM).to(tl.int64) * source[3], [VECTOR])
    from_column = head + (column % DIM) * source[4]
    return tl.load(source[0] + from_row[:, None] + from_column[None, :], mask=moved, other=0)


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
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOURCE: tl.constexpr,
    TARGET: tl.constexpr,
):
    """``field[layer, slot[r]] = cast(source[source_layer, row[r]] / scale)`` for every written row r.

    Rows that are of the field's dtype already are moved as bits: nothing is converted.
    """
    SCALED: tl.constexpr = scale[1]
    to_row = row_offsets(cells, layer, slot)
    for first in range(0, HEADS * DIM, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        moved = written[:, None] & (column < HEADS * DIM)[None, :]
        values = load_source(source, row, source_layer, column, moved, DIM)
        if SOURCE != TARGET:
            bits = decode(values, SOURCE)
            if SCALED != "no":
                divisor = tl.load(scale[0]) if SCALED == "pointer" else scale[0]
                # div_rn: the plain division of compiled Triton is an approximation
                quotient = tl.div_rn(bits.to(tl.float32, bitcast=True), divisor.to(tl.float32))
                # hardware and numpy give a quotient's NaN different bits: keep the decoded one
                is_nan = (bits & 0x7FFFFFFF) > 0x7F800000
                bits = tl.where(is_nan, bits, quotient.to(tl.uint32, bitcast=True))
            values = encode(bits, TARGET)
        to_column = column_offsets(cells, column, DIM)
        tl.store(cells[0] + to_row[:, None] + to_column[None, :], values, mask=moved)


@triton.jit
def quantize_rows(
    source,
    cells,
    scale_cells,
    row,
    slot,
    written,
    source_layer,
    layer,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOURCE: tl.constexpr,
    ROUNDING: tl.constexpr,
):
    """``field[layer, slot[r]], scales[layer, slot[r]] = quantize(source[source_layer, row[r]])``.

    Payload and scale leave the same program, so that no commit can write one without the other.
    """
    to_row = row_offsets(cells, layer, slot)
    for first in range(0, HEADS * DIM, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        moved = written[:, None] & (column < HEADS * DIM)[None, :]
        values = load_source(source, row, source_layer, column, moved, DIM)
        payload, scales = quantize_blocks(decode(values, SOURCE), ROWS, COLUMNS, ROUNDING)
        to_column = column_offsets(cells, column, DIM)
        tl.store(cells[0] + to_row[:, None] + to_column[None, :], payload, mask=moved)
        # fmt: off
        store_scales(scale_cells, scales, slot, written, layer, first // 32, HEADS, DIM // 32, ROWS, COLUMNS // 32)
        # fmt: on


@triton.jit
def move_scales(
    source,
    scale_cells,
    row,
    slot,
    written,
    source_layer,
    layer,
    HEADS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``scales[layer, slot[r]] = source[source_layer, row[r]]``: the scales of rows that are E4M3 already."""
    for first in range(0, HEADS * BLOCKS, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        moved = written[:, None] & (column < HEADS * BLOCKS)[None, :]
        scales = load_source(source, row, source_layer, column, moved, BLOCKS)
        store_scales(scale_cells, scales, slot, written, layer, first, HEADS, BLOCKS, ROWS, COLUMNS)


@triton.jit
def store_scales(
    scale_cells,
    scales,
    slot,
    written,
    layer,
    first,
    HEADS: tl.constexpr,
    BLOCKS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``scales[layer, slot[r], first + c] = scales[r, c]`` for uint8 ``(ROWS, COLUMNS)``.

    WORD neighbours that lie side by side leave as one word: a tile has fewer scales than threads, so the
    compiler would store them byte by byte.
    """
    WORD: tl.constexpr = scale_cells[7]
    word = scales.to(tl.uint32)
    if WORD > 1:
        shift = (tl.arange(0, WORD) * 8).to(tl.uint32)
        word = tl.sum(tl.reshape(word, [ROWS, COLUMNS // WORD, WORD]) << shift[None, None, :], axis=2)
    if WORD == 4:
        pointer = scale_cells[0].to(tl.pointer_type(tl.uint32))
    elif WORD == 2:
        pointer = scale_cells[0].to(tl.pointer_type(tl.uint16))
    else:
        pointer = scale_cells[0]
    column = first + tl.arange(0, COLUMNS // WORD) * WORD
    moved = written[:, None] & (column < HEADS * BLOCKS)[None, :]
    to_row = row_offsets(scale_cells, layer, slot) // WORD
    to_column = column_offsets(scale_cells, column, BLOCKS) // WORD
    tl.store(pointer + to_row[:, None] + to_column[None, :], word.to(pointer.dtype.element_ty), mask=moved)


@triton.jit
def load_rows(
    out,
    cells,
    scale,
    slot,
    inside,
    real,
    out_row,
    layer,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    STORED: tl.constexpr,
):
    """``out[out_row[r]] = field[layer, slot[r]] (* scale)``; zeros where the slot is not real."""
    SCALED: tl.constexpr = scale[1]
    from_row = row_offsets(cells, layer, slot)
    to_row = out_row * (HEADS * DIM)
    for first in range(0, HEADS * DIM, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        within = (column < HEADS * DIM)[None, :]
        from_column = column_offsets(cells, column, DIM)
        values = tl.load(cells[0] + from_row[:, None] + from_column[None, :], mask=real[:, None] & within, other=0)
        if SCALED != "no":
            factor = tl.load(scale[0]) if SCALED == "pointer" else scale[0]
            number = decode(values, STORED).to(tl.float32, bitcast=True)
            # hardware and numpy give a product's NaN different bits: keep the decoded one
            values = tl.where(number == number, number * factor.to(tl.float32), number)
        tl.store(out + to_row[:, None] + column[None, :], values, mask=inside[:, None] & within)


@triton.jit
def dequantize_rows(
    out,
    cells,
    scale_cells,
    slot,
    inside,
    real,
    out_row,
    layer,
    HEADS: tl.constexpr,
    DIM: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """``out[out_row[r]] = field[layer, slot[r]] * 2^(scales[layer, slot[r]] - 127)`` in fp32."""
    from_row = row_offsets(cells, layer, slot)
    scale_row = row_offsets(scale_cells, layer, slot)
    to_row = out_row * (HEADS * DIM)
    for first in range(0, HEADS * DIM, COLUMNS):
        column = first + tl.arange(0, COLUMNS)
        within = (column < HEADS * DIM)[None, :]
        from_column = column_offsets(cells, column, DIM)
        payload = tl.load(cells[0] + from_row[:, None] + from_column[None, :], mask=real[:, None] & within, other=0)
        block = first // 32 + tl.arange(0, COLUMNS // 32)
        scaled = real[:, None] & (block < HEADS * DIM // 32)[None, :]
        scale_column = column_offsets(scale_cells, block, DIM // 32)
        scales = tl.load(scale_cells[0] + scale_row[:, None] + scale_column[None, :], mask=scaled, other=0)
        values = dequantize_blocks(payload, scales, ROWS, COLUMNS)
        tl.store(out + to_row[:, None] + column[None, :], values, mask=inside[:, None] & within)
