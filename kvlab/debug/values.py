"""A cell in words: whose it is, the formula that leads to its byte, and the number that is stored there."""

from __future__ import annotations

from ..formats import BLOCK, E8M0_BIAS, E8M0_NAN, MXFP8, dequantize, format_name, payload_dtype
from .ranges import FIELD_NAMES


def owner_words(layout, cell) -> str:
    """``K, layer 1, slot 11 (page 2, offset 3), head 1, dim 5, byte 1 of 2``; no byte where it is the first."""
    unit = "block" if cell.field.endswith("_scale") else "dim"
    item = layout.fields[cell.field].item
    part = f", byte {cell.byte} of {item}" if cell.byte else ""
    sink = ", the padding sink" if cell.slot == 0 else ""
    return (
        f"{FIELD_NAMES.get(cell.field, cell.field)}, layer {cell.layer}, slot {cell.slot} (page {cell.page}, "
        f"offset {cell.offset}{sink}), head {cell.head}, {unit} {cell.dim}{part}"
    )


def formula(layout, cell) -> str:
    """``4,352 = 0 + 2*2,112 (page) + …``: the sum that leads to a cell's byte, largest stride first."""
    field, page_size, terms = layout.fields[cell.field], layout.geometry.page_size, []
    for coordinate, modes in field.modes.items():
        step = 1
        for size, stride in modes:
            name = (
                coordinate
                if len(modes) == 1
                else f"{coordinate}//{step}%{size}"
                if step > 1
                else f"{coordinate}%{size}"
            )
            if coordinate == "slot" and len(modes) == 2 and modes[0][0] == page_size:
                name = "offset" if step == 1 else "page"
            if size > 1:
                terms.append((stride, f"{getattr(cell, coordinate) // step % size}*{stride:,} ({name})"))
            step *= size
    own = 0 if isinstance(field.buffer, tuple) else cell.layer
    total = field.byte(own, cell.slot, cell.head, cell.dim) + cell.byte
    words = [f"{field.offset:,}", *(w for _, w in sorted(terms, key=lambda t: -t[0]))]
    return f"{total:,} = " + " + ".join([*words, *([f"{cell.byte} (byte of the element)"] if cell.byte else [])])


def decoded(layout, buffers, cell) -> str:
    """The number that a cell's element stands for; ``buffers`` are the raw bytes by name, 1-D uint8 tensors."""
    element = _bytes(layout, buffers, cell.field, cell, cell.dim, layout.fields[cell.field].item)
    if cell.field.endswith("_scale"):
        exponent = int(element)
        return "UE8M0 NaN" if exponent == E8M0_NAN else f"UE8M0 2^{exponent - E8M0_BIAS}"
    dtype = payload_dtype(layout.format)
    element = element.view(dtype)
    words = f"{float(element):g} as {format_name(dtype)}"
    if isinstance(layout.format, MXFP8):
        scale = _bytes(layout, buffers, f"{cell.field}_scale", cell, cell.dim // BLOCK, 1)
        number = float(dequantize(element.expand(BLOCK), scale)[0])
        words += f", times its block's scale {int(scale)} = {number:g}"
    return words


def _bytes(layout, buffers, name: str, cell, dim: int, count: int):
    """``count`` bytes at ``dim`` of a field's cell of the same layer, slot and head: ``(count,)`` uint8 on the CPU."""
    buffer, at = layout.locate(name, cell.layer, cell.slot, cell.head, dim)
    return buffers[buffer][at : at + count].cpu().clone()
