"""A selected byte in words: its formula with the numbers filled in, its views, and what the bytes decode to."""

from __future__ import annotations

import html

from ..debug.values import owner_words, terms
from ..figures import palette
from ..formats import E8M0_BIAS, E8M0_NAN, format_name, payload_dtype

TABLE = "border-collapse:collapse;font:13px monospace;line-height:20px;white-space:nowrap"


def formula_table(layout, cell, byte: int) -> str:
    """The same as an HTML table: digit names, digit x stride, and the bytes that each adds."""
    if cell is None:
        return f"<div style='font:13px monospace'>byte {byte:,}: no coordinate leads here</div>"
    field = layout.fields[cell.field]
    digits = terms(field, cell, layout.geometry.page_size)
    rows = [(t.name, f"{t.digit} × {t.stride:,}", f"{t.digit * t.stride:,}") for t in digits]
    rows.append(("byte of element", f"{cell.byte}", f"{cell.byte}"))
    cells = [f"<tr><td>byte</td><td>= offset</td>{_row(f'+ {name}' for name, _, _ in rows)}</tr>"]
    cells.append(f"<tr><td></td><td>= {field.offset:,}</td>{_row(f'+ {product}' for _, product, _ in rows)}</tr>")
    total = f"<b>{byte:,}</b>"
    cells.append(f"<tr><td>{total}</td><td>= {field.offset:,}</td>{_row(f'+ {x}' for _, _, x in rows)}</tr>")
    return f"<table style='{TABLE}'>" + "".join(cells).replace("<td>", "<td style='padding:0 9px 0 0'>") + "</table>"


def _row(words) -> str:
    return "".join(f"<td>{html.escape(w)}</td>" for w in words)


def view_words(layout, cell) -> list[str]:
    """How the 3-D and the 4-D index reach this cell, and whether they are zero-copy views: with their strides."""
    field, ps = layout.fields[cell.field], layout.geometry.page_size
    slot, dim = (_merged(field.modes[c]) for c in ("slot", "dim"))
    (head,), dims = field.modes["head"], f"{cell.head}, {cell.dim}"
    inner = None if len(dim) > 1 else (head[1], dim[0][1])
    three = (slot[0][1], *inner) if inner and len(slot) == 1 else None
    four = None
    if inner and len(slot) == 1:
        four = (ps * slot[0][1], slot[0][1], *inner)
    elif inner and len(slot) == 2 and slot[0][0] == ps:
        four = (slot[1][1], slot[0][1], *inner)
    name = f"{cell.field}[layer {cell.layer}]"
    why = "one stride for all slots" if inner else "one stride for dim"
    return [
        f"3-D  {name}[{cell.slot}, {dims}]: " + _strides(three, why),
        f"4-D  {name}[{cell.page}, {cell.offset}, {dims}]: " + _strides(four, "(page, offset) strides"),
    ]


def _strides(strides, missing: str) -> str:
    if strides is None:
        return f"only as a copy, there is no {missing}"
    return f"zero-copy, strides ({', '.join(f'{s:,}' for s in strides)}) bytes"


def _merged(modes) -> list[tuple[int, int]]:
    """``(size, stride)`` digits with those joined that step on evenly: two of them are then one axis of a view."""
    out = [modes[0]]
    for size, stride in modes[1:]:
        if size == 1:
            continue
        inner, step = out[-1]
        if inner == 1:
            out[-1] = (size, stride)
        elif stride == inner * step:
            out[-1] = (inner * size, step)
        else:
            out.append((size, stride))
    return out


def element(layout, raw, cell) -> tuple[str, list[int], float]:
    """Buffer, raw bytes and decoded number of a cell's element, without its block scale. ``raw``: bytes by buffer."""
    field = layout.fields[cell.field]
    buffer, at = layout.locate(cell.field, cell.layer, cell.slot, cell.head, cell.dim)
    data = raw[buffer][at : at + field.item]
    if cell.field.endswith("_scale"):
        code = int(data[0])
        number = float("nan") if code == E8M0_NAN else 2.0 ** (code - E8M0_BIAS)
    else:
        number = data.clone().view(payload_dtype(layout.format)).float().item()
    return buffer, data.tolist(), number


def value_words(layout, raw, cell) -> list[str]:
    """What the stored bytes of a cell mean, and where its block scale lies."""
    _, data, number = element(layout, raw, cell)
    stored = " ".join(f"{b:02X}" for b in data)
    order = " (lowest byte first)" if len(data) > 1 else ""
    dtype = format_name(payload_dtype(layout.format))
    if cell.field.endswith("_scale"):
        power = "NaN" if data[0] == E8M0_NAN else f"2^({data[0]} - {E8M0_BIAS}) = {number:g}"
        span = f"{32 * cell.dim} … {32 * cell.dim + 31}"
        return [f"stored {stored} = {data[0]}: UE8M0 {power}, the scale of dims {span} of {cell.field[0].upper()}"]
    words = f"stored {stored}{order}: {number:.6g} as {dtype}"
    scale = f"{cell.field}_scale"
    if scale not in layout.fields:
        return [words]
    block = type(cell)(scale, cell.layer, cell.slot, cell.page, cell.offset, cell.head, cell.dim // 32, 0)
    buffer, (code,), factor = element(layout, raw, block)
    _, at = layout.locate(scale, cell.layer, cell.slot, cell.head, block.dim)
    value = f"{number * factor:.6g}"
    return [
        f"{words}, times its scale {factor:g} = {value}",
        f"its scale, block {block.dim}: '{buffer}' byte {at:,} holds {code}",
    ]


def selection_words(layout, raw, cell, buffer: str, byte: int) -> str:
    """All that is known of the selected byte, as lines of HTML. ``cell`` None: a padding byte."""
    lines = [f"<b>'{buffer}' byte {byte:,}</b> (0x{byte:X}) holds {int(raw[buffer][byte]):02X}"]
    if cell is None:
        lines.append("padding: no field reaches this byte, and no commit writes it")
    else:
        lines.append(f"<b>{owner_words(layout, cell)}</b>")
        lines += value_words(layout, raw, cell)
        if cell.slot == 0:
            lines.append("slot 0 is the padding sink: no commit writes it")
        lines += view_words(layout, cell)
    return f"<div style='font-size:13px;line-height:20px'>{'<br>'.join(lines)}</div>"


def legend(layout) -> str:
    """The colours in words: fields, shades, stripes, and the scale of numbers."""
    box = "<span style='display:inline-block;width:12px;height:12px;border:1px solid #555;background:{}'></span> {}"
    stripes = "repeating-linear-gradient(135deg, {} 0 2px, {} 2px 4px)"
    parts = [box.format(palette.FIELDS[f], palette.NAMES[f]) for f in layout.fields]
    parts.append(box.format(stripes.format(*palette.PAD_SLOT), "slot 0, never written"))
    parts.append(box.format(stripes.format(*palette.PADDING), "padding"))
    dark, bright = palette.cividis(2)
    lines = [
        "&emsp;".join(parts) + "&emsp;paler: the next layers (in a cycle of 4); darker: odd pages",
        f"logical: the numbers that gather reads, {box.format(dark, 'low')} … {box.format(bright, 'high')}. "
        "Black outline: the selected row, in 4-D its page; ring: the selected element.",
    ]
    return f"<div style='font-size:12px;line-height:18px'>{'<br>'.join(lines)}</div>"
