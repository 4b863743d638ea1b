"""A cell in words: whose it is, the formula that leads to its byte, and the number that is stored there."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Term:
    """One product of the byte formula: what the digit is called, its value, and the bytes that a step moves."""

    name: str
    digit: int
    stride: int


def terms(field, cell, page_size: int) -> list[Term]:
    """The products whose sum, with ``field.offset`` and the byte of the element, is the byte; largest stride first."""
    out = []
    for coordinate, modes in field.modes.items():
        step = 1
        for digit, (size, stride) in enumerate(modes):
            name = coordinate + f" // {step}" * (step > 1) + f" % {size}" * (digit < len(modes) - 1)
            if coordinate == "slot" and len(modes) > 1 and page_size in (step, size):
                name = f"{'page' if step == page_size else 'offset'}: {name}"
            out.append(Term(name, getattr(cell, coordinate) // step % size, stride))
            step *= size
    return sorted(out, key=lambda t: -t.stride)


def formula(layout, cell) -> str:
    """``20,682 = 0 + 1*4,096 (layer) + …``: the byte of a cell as plain text."""
    field = layout.fields[cell.field]
    parts = [f"{field.offset:,}"]
    parts += [f"{t.digit}*{t.stride:,} ({t.name})" for t in terms(field, cell, layout.geometry.page_size)]
    if cell.byte:
        parts.append(f"{cell.byte} (byte of the element)")
    own = 0 if not isinstance(field.buffer, str) else cell.layer
    return f"{field.byte(own, cell.slot, cell.head, cell.dim) + cell.byte:,} = " + " + ".join(parts)


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
