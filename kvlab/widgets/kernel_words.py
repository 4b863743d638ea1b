"""A compiled kernel as HTML: the numbers beside those before, its loads and stores, and the sectors of a row."""

from __future__ import annotations

import html
from dataclasses import dataclass

import numpy as np

from ..figures import palette
from ..lens import sectors
from ..lens.isa import access_of
from ..lens.traffic import SECTOR

CSS = """<style>
.kvlab-lens { font: 13px monospace; border-collapse: collapse; }
.kvlab-lens td, .kvlab-lens th { text-align: left; padding: 1px 14px 1px 0; line-height: 20px; white-space: nowrap; }
.kvlab-lens .kvlab-new, .kvlab-sass .kvlab-new { background: #fbeee6; font-weight: bold; }
.kvlab-sass { font: 12px monospace; line-height: 18px; white-space: pre; overflow: auto; height: 236px; }
.kvlab-sass { border: 1px solid #ddd; padding: 4px 8px; }
.kvlab-sass .kvlab-source { color: #555; }
</style>"""
NEW = "● "  # beside the colour: what differs from the setting before


@dataclass(frozen=True)
class Line:
    """Loads or stores of one opcode at one place of the source."""

    source: str
    opcode: str
    count: int
    example: str


def accesses(report) -> list[Line]:
    """The loads and stores of the machine code, in its order; those of one place and opcode together."""
    found: dict[tuple, Line] = {}
    source = ""
    for text in report.sass.splitlines():
        if text.startswith("//"):
            source = text.removeprefix("// ")
            continue
        code = text.strip()
        opcode = next((word for word in code.split() if access_of(word)), None)
        if opcode:
            key = source, opcode
            count = found[key].count + 1 if key in found else 1
            found[key] = Line(source, opcode, count, found[key].example if key in found else code)
    return list(found.values())


def opcodes(report, kind: str, bits: int | None) -> str:
    """Names of the global accesses of this kind and width, such as ``STG.E.128``."""
    names = dict.fromkeys(a.opcode for a in accesses(report) if access_of(a.opcode) == (kind, "global", bits))
    return " ".join(names)


def lanes(report) -> int:
    """Threads that run one instruction together: a warp's, or on AMD a wavefront's."""
    return 64 if report.arch.startswith("gfx") else 32


def reach(report, field: str, layout) -> int:
    """Bytes of one row that one store instruction of a warp writes."""
    scale = field.endswith("_scale")
    bits = report.scale_store_bits if scale else report.payload_store_bits
    columns = report.tile[1] // (32 if scale else 1)
    return min(lanes(report) * bits // 8, columns * layout.fields[field].item)


def facts(report, layout) -> dict[str, str]:
    """What the table shows, name -> words."""
    rows, columns, warps = report.tile
    touched, least = sectors(layout)
    k_row = layout.geometry.row_elements("k") * layout.fields["k"].item
    words = {
        "payload store": f"{report.payload_store_bits} bits  {opcodes(report, 'store', report.payload_store_bits)}",
        "payload load": f"{report.payload_load_bits} bits  {opcodes(report, 'load', report.payload_load_bits)}",
    }
    if report.scale_store_bits is not None:
        words["scale store"] = f"{report.scale_store_bits} bits"
    return words | {
        "warp stores per K row": f"{-(-k_row // reach(report, 'k', layout)):,}",
        "registers per thread": f"{report.registers}",
        "spilled bytes per thread": f"{report.spill_bytes:,}",
        "machine instructions": f"{report.sass_instructions:,}",
        "elements per thread at once": f"{rows * columns / (lanes(report) * warps):g}",
        "programs, 512 rows x 32 layers": f"{report.programs:,}",
        "sectors per committed row": f"{touched:g}, the minimum is {least}",
    }


def table(now: dict[str, str], before: dict[str, str] | None) -> str:
    """The facts, those before beside them, changes marked."""
    head = "<tr><th></th><th>now</th>" + ("<th>before</th>" if before else "") + "</tr>"
    lines = []
    for name, value in now.items():
        old = (before or {}).get(name, "–")
        new = before is not None and old != value
        cell = f"<td class='kvlab-new'>{NEW}{html.escape(value)}</td>" if new else f"<td>{html.escape(value)}</td>"
        lines.append(f"<tr><td>{name}</td>{cell}" + (f"<td>{html.escape(old)}</td>" if before else "") + "</tr>")
    return f"<table class='kvlab-lens'>{head}{''.join(lines)}</table>"


def sass(report, before) -> str:
    """Loads and stores under their source lines. Marked: an opcode that was not there, or not so often."""
    old = {(a.source, a.opcode): a.count for a in accesses(before)} if before else None
    lines, last = [], None
    for a in accesses(report):
        if a.source != last:
            lines.append(f"<span class='kvlab-source'>{html.escape(a.source)}</span>")
            last = a.source
        new = old is not None and old.get((a.source, a.opcode)) != a.count
        where = access_of(a.opcode)[1]
        note = {"local": "   spill", "shared": "   between threads"}.get(where, "")
        text = f"{NEW if new else '  '}{a.count:4} x {a.opcode:16}{html.escape(a.example)}{note}"
        lines.append(f"<span class='kvlab-new'>{text}</span>" if new else text)
    return "<div class='kvlab-sass'>" + "\n".join(lines) + "</div>"


# ------------------------------------------------------------------------------------------------ sectors of one row

BOX, TALL, GAP, LEFT = 10, 16, 8, 70


def row_sectors(field, slot: int = 1) -> tuple[np.ndarray, np.ndarray]:
    """Sectors of one row in layer 0, in order of their bytes, and how many bytes of the row each holds."""
    head, dim = np.arange(field.extents["head"])[:, None, None], np.arange(field.extents["dim"])[None, :, None]
    byte = field.byte(0, slot, head, dim) + np.arange(field.item)
    return np.unique(byte // SECTOR, return_counts=True)


def strip(report, layout) -> str:
    """The sectors of a K row, and of its scales: every block of one shade is one store instruction of a warp."""
    rows, words = [], []
    for name in ("k", "k_scale"):
        if name not in layout.fields:
            continue
        where, held = row_sectors(layout.fields[name])
        each = reach(report, name, layout)
        rows.append(_boxes(name, where, held, each, len(rows) * (TALL + 12)))
        total, stores = int(held.sum()), -(-int(held.sum()) // each)
        words.append(
            f"{palette.NAMES[name]} of one token in one layer: {total:,} bytes in {len(where)} sectors of {SECTOR} "
            f"bytes{_pieces(where)}. One store instruction of a warp writes {each:,} bytes: {stores} for the row."
        )
    height = len(rows) * (TALL + 12)
    picture = f"<svg width='100%' height='{height}' role='img'>{''.join(rows)}</svg>"
    note = (
        "Each box is a sector; its filled part is this row's. Shades alternate from one store instruction to the next."
    )
    return f"{picture}<div style='font-size:13px;line-height:19px'>{'<br>'.join([*words, note])}</div>"


def _pieces(where: np.ndarray) -> str:
    pieces = 1 + int((np.diff(where) > 1).sum())
    return "" if pieces == 1 else f", in {pieces} places"


def _boxes(name: str, where, held, each: int, top: int) -> str:
    dark = palette.FIELDS[name]
    shades = (dark, palette.mix(dark, palette.WHITE, 0.55))
    x, before, parts = LEFT, 0, [f"<text x='0' y='{top + 13}' font-size='13'>{palette.NAMES[name]}</text>"]
    for i, (sector, count) in enumerate(zip(where.tolist(), held.tolist(), strict=True)):
        x += (GAP if sector != where[i - 1] + 1 else 0) if i else 0
        full = TALL * count // SECTOR or 1
        shade = shades[before // each % 2]
        parts.append(
            f"<rect x='{x}' y='{top}' width='{BOX}' height='{TALL}' fill='#fff' stroke='#999'/>"
            f"<rect x='{x}' y='{top + TALL - full}' width='{BOX}' height='{full}' fill='{shade}' stroke='#444'/>"
        )
        before += count
        x += BOX
    return "".join(parts)
