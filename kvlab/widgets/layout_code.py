"""A selected byte as code: lines that find it again, and a test that fails where it lies elsewhere."""

from __future__ import annotations

from ..formats import MXFP8, format_name
from ..layout import Padding
from .cell_words import element

HEAD = ["import torch", "", "import kvlab", "from kvlab.widgets.sample_pool import sample_pool", ""]


def layout_lines(layout, builder: str | None) -> list[str]:
    """Lines that make ``layout``: kvlab's builder of that name, or (None) the layout's own description."""
    if builder is None:
        return [f"layout = kvlab.Layout.from_dict({layout.to_dict()!r})"]
    fmt, sizes = layout.format, layout.geometry.to_dict()
    made = f"kvlab.MXFP8({fmt.scales!r})" if isinstance(fmt, MXFP8) else f"torch.{format_name(fmt)}"
    geometry = f"geometry = kvlab.Geometry({', '.join(f'{n}={v}' for n, v in sizes.items())})"
    return [geometry, f"layout = kvlab.{builder}(geometry, {made})"]


def python(layout, builder: str | None, buffer: str, byte: int) -> str:
    """Lines that print the cell's byte, the byte's owner and what is stored there."""
    cell = layout.explain(buffer, byte)
    lines = [*HEAD, *layout_lines(layout, builder)]
    if not isinstance(cell, Padding):
        where = f"{cell.field!r}, layer={cell.layer}, slot={cell.slot}, head={cell.head}, dim={cell.dim}"
        lines.append(f"print(layout.locate({where}))")
    lines += [
        f"print(layout.explain({buffer!r}, {byte}))",
        "pool = sample_pool(layout)  # one commit of real rows into every slot but 0",
        f'print(f"stored: 0x{{pool.buffers[{buffer!r}][{byte}].item():02X}}")',
    ]
    return "\n".join(lines) + "\n"


def pytest(layout, builder: str | None, raw, buffer: str, byte: int) -> str:
    """The same as a test, with the bytes that are stored now written in."""
    cell = layout.explain(buffer, byte)
    lines = [*layout_lines(layout, builder), f"assert layout.explain({buffer!r}, {byte}) == kvlab.{cell!r}"]
    first, stored = byte, [int(raw[buffer][byte])]
    if not isinstance(cell, Padding):
        first, stored = byte - cell.byte, element(layout, raw, cell)[1]
        where = (cell.field, cell.layer, cell.slot, cell.head, cell.dim)
        lines.append(f"assert layout.locate{where!r} == ({buffer!r}, {first})")
    lines += [
        "pool = sample_pool(layout)  # one commit of real rows into every slot but 0",
        f"assert pool.buffers[{buffer!r}][{first} : {first + len(stored)}].tolist() == {stored}",
    ]
    return "\n".join([*HEAD, "", "def test_cell():", *(f"    {line}" for line in lines)]) + "\n"
