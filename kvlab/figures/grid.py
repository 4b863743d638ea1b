"""A window of a buffer as rows and columns of bytes: shape, axes, hover and outlines, shared by all byte maps.

The y axis is the address of a line's first byte and the x axis the byte within the line, so address = y + x.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from .owners import fields_in
from .palette import LETTERS, MARK, NAMES
from .png import data_uri, palette_png

HOVER_CELLS = 8192  # more texts than this make the page slow; larger maps share one text among neighbours


@dataclass(frozen=True)
class Grid:
    """``rows`` lines of ``columns`` bytes from byte ``first`` on; the last line may end early (``nbytes``)."""

    first: int
    nbytes: int
    columns: int

    @property
    def rows(self) -> int:
        """Number of lines."""
        return -(-self.nbytes // self.columns)

    def fold(self, values: np.ndarray, fill: int) -> np.ndarray:
        """``(nbytes,)`` uint8 as ``(rows, columns)``, the end of the last line filled up."""
        full = np.full(self.rows * self.columns, fill, np.uint8)
        full[: self.nbytes] = values
        return full.reshape(self.rows, self.columns)

    def outline(self, start: int, stop: int) -> tuple[list, list]:
        """Closed path around bytes ``start`` … ``stop``-1 of the window, as x and y; lists end with None."""
        c, y = self.columns, lambda row: self.first + (row - 0.5) * self.columns
        (r0, c0), (r1, c1) = divmod(start, c), divmod(stop - 1, c)
        left, right = c0 - 0.5, c1 + 0.5
        if r0 == r1:
            xs, rows = [left, right, right, left, left], [r0, r0, r0 + 1, r0 + 1, r0]
        elif r1 == r0 + 1 and c1 < c0:  # two pieces that do not touch
            a, b = self.outline(start, (r0 + 1) * c), self.outline(r1 * c, stop)
            return a[0] + b[0], a[1] + b[1]
        else:
            end = c - 0.5
            xs = [left, end, end, right, right, -0.5, -0.5, left, left]
            rows = [r0, r0, r1, r1, r1 + 1, r1 + 1, r0 + 1, r0 + 1, r0]
        return [*xs, None], [*(y(r) for r in rows), None]


def choose_columns(layout, buffer: str, nbytes: int) -> int:
    """Bytes per line: whole rows (or head rows) of the buffer's first field, so that columns line up."""
    field = fields_in(layout, buffer)[0]
    length = field.item
    for axis in sorted((a for a in field.axes if a.size > 1), key=lambda a: a.stride):
        if axis.stride == length and axis.coordinate in ("dim", "head"):
            length *= axis.size
    columns = max(length, 16)
    while columns < 1024 and nbytes > 2 * columns * columns:
        columns *= 2
    while columns > 1024 and columns % 2 == 0:
        columns //= 2
    return columns


def picture(grid: Grid, codes: np.ndarray, colors: list[str]) -> go.Image:
    """``(rows, columns)`` palette indices as a picture trace."""
    return go.Image(
        source=data_uri(palette_png(codes, colors)), x0=0, dx=1, y0=grid.first, dy=grid.columns, hoverinfo="skip"
    )


def hover(layout, buffer: str, grid: Grid, values: list[tuple[str, np.ndarray]] = ()) -> go.Heatmap:
    """An invisible trace with the coordinate of every byte (of the first and last byte of a cell in large maps).

    ``values``: names and ``(nbytes,)`` uint8 arrays whose byte is shown as well, where a cell is one byte.
    """
    unit = 1
    while grid.rows * -(-grid.columns // unit) > HOVER_CELLS and unit < grid.columns:
        unit *= 2
    starts = (np.arange(grid.rows)[:, None] * grid.columns + np.arange(0, grid.columns, unit)[None, :]).reshape(-1)
    ends = np.minimum(starts + unit, starts // grid.columns * grid.columns + grid.columns) - 1
    words, real = describe(layout, buffer, grid.first + np.minimum(starts, grid.nbytes - 1)), starts < grid.nbytes
    ends = np.minimum(ends, grid.nbytes - 1)
    if unit > 1:
        last = describe(layout, buffer, grid.first + ends)
        words = [a if a == b else f"{a}<br>… {b}" for a, b in zip(words, last, strict=True)]
    else:
        for name, data in values:
            words = [f"{w}<br>{name} 0x{data[min(s, grid.nbytes - 1)]:02X}" for w, s in zip(words, starts, strict=True)]
    texts = [w if ok else "past the window" for w, ok in zip(words, real.tolist(), strict=True)]
    across = -(-grid.columns // unit)
    return go.Heatmap(
        z=np.zeros((grid.rows, across), np.uint8),
        x0=(unit - 1) / 2,
        dx=unit,
        y0=grid.first,
        dy=grid.columns,
        text=[texts[i : i + across] for i in range(0, len(texts), across)],
        hovertemplate="%{text}<extra></extra>",
        opacity=0,
        showscale=False,
        showlegend=False,
    )


def describe(layout, buffer: str, byte: np.ndarray) -> list[str]:
    """One line of words per byte: its address and owner, all coordinates."""
    c = layout.explain(buffer, byte)
    columns = [x.tolist() for x in (byte, c.field, c.layer, c.slot, c.page, c.offset, c.head, c.dim, c.byte)]
    lines = []
    for at, f, layer, slot, page, offset, head, dim, item in zip(*columns, strict=True):
        if f < 0:
            lines.append(f"byte {at:,}: padding")
            continue
        name, unit = NAMES[c.names[f]], "block" if c.names[f].endswith("_scale") else "dim"
        pad = " (pad slot)" if slot == 0 else ""
        lines.append(
            f"byte {at:,}: {name} layer {layer} slot {slot}{pad} = page {page} offset {offset}, "
            f"head {head} {unit} {dim} byte {item}"
        )
    return lines


def span_words(layout, buffer: str, start: int, stop: int) -> str:
    """Owner of bytes ``start`` … ``stop``-1 in a few words, from their first and last byte: ``K L0 slots 5…7``."""
    c = layout.explain(buffer, np.array([start, stop - 1]))
    if (c.field < 0).any():
        return "padding"
    names = [LETTERS[c.names[i]] for i in c.field]
    owner = [f"{n} L{layer}" for n, layer in zip(names, c.layer, strict=True)]
    if owner[0] != owner[1]:
        return f"{owner[0]} slot {c.slot[0]} … {owner[1]} slot {c.slot[1]}"
    return f"{owner[0]} {_range('slot', c.slot)} ({_range('page', c.page)})"


def _range(word: str, ends) -> str:
    low, high = sorted(ends.tolist())
    return f"{word} {low}" if low == high else f"{word}s {low}…{high}"


def mark_runs(
    fig: go.Figure, grid: Grid, runs, name: str, color: str = MARK, showlegend: bool = True, width=1.5, **where
) -> None:
    """Outline runs of bytes ``(start, stop)`` of the window: one trace, one legend entry."""
    xs, ys = [], []
    for start, stop in runs:
        x, y = grid.outline(start, stop)
        xs += x
        ys += y
    line = {"color": color, "width": width}
    trace = go.Scatter(x=xs, y=ys, mode="lines", line=line, name=name, hoverinfo="skip", showlegend=showlegend)
    fig.add_trace(trace, **where)


def axes(grid: Grid) -> tuple[dict, dict]:
    """Settings of the x and y axis: bytes, in steps of a power of two, the picture free to stretch."""
    x_step, row_step = _step(grid.columns, 8), _step(grid.rows, 8)
    ticks = [grid.first + r * grid.columns for r in range(0, grid.rows, row_step)]
    x = {"title": {"text": f"byte within a line of {grid.columns:,} bytes"}, "dtick": x_step, "tick0": 0}
    y = {
        "title": {"text": "address of the line's first byte", "standoff": 6},
        "tickvals": ticks,
        "ticktext": [f"{t:,}" for t in ticks],
        "range": [grid.first + (grid.rows - 0.5) * grid.columns, grid.first - 0.5 * grid.columns],
    }
    x["range"] = [-0.5, grid.columns - 0.5]
    same = {"showgrid": False, "zeroline": False, "ticks": "outside"}
    # A picture locks its axes to square pixels unless told otherwise.
    return {**x, **same, "constrain": "domain"}, {**y, **same, "scaleanchor": False}


def part_ticks(layout, buffer: str, grid: Grid, height: int) -> dict:
    """Ticks where a field, layer or page begins, thinned so that their words do not overlap."""
    starts = grid.first + np.arange(0, grid.nbytes, grid.columns)
    c = layout.explain(buffer, starts)
    key = np.stack([c.field, c.layer, c.page])
    cuts = np.concatenate([[0], np.flatnonzero((key[:, 1:] != key[:, :-1]).any(0)) + 1])
    apart = 18 * grid.rows / height
    kept = [0]
    for cut in cuts[1:].tolist():
        if cut - kept[-1] >= apart:
            kept.append(cut)
    words = [
        "padding" if c.field[i] < 0 else f"{LETTERS[c.names[c.field[i]]]} L{c.layer[i]} p{c.page[i]}" for i in kept
    ]
    return {
        "title": {"text": "address, and what begins there", "standoff": 6},
        "tickvals": starts[kept].tolist(),
        "ticktext": [f"{b:,}  <b>{w}</b>" for b, w in zip(starts[kept].tolist(), words, strict=True)],
    }


def _step(n: int, parts: int) -> int:
    step = 1
    while step * parts < n:
        step *= 2
    return step
