"""The bytes of one buffer, coloured by owner."""

from __future__ import annotations

import plotly.graph_objects as go

from ..formats import format_name
from . import owners, palette
from .grid import Grid, axes, choose_columns, hover, mark_runs, picture, span_words
from .style import annotate, finish, label, shortened, swatch

LARGEST = 1 << 20  # bytes shown where no window is asked for


def memory_map(
    layout, buffer: str | None = None, first: int = 0, nbytes: int | None = None, columns: int | None = None, marks=()
) -> go.Figure:
    """Every byte of a window of one buffer, coloured by field, layer and page; pad slot and padding striped.

    Parameters
    ----------
    layout : Layout
    buffer : str, optional
        The layout's first buffer where not given.
    first, nbytes : int
        The window. Without ``nbytes`` up to 1 MiB; the subtitle says what is not shown.
    columns : int, optional
        Bytes per line; whole rows of the field where not given.
    marks : sequence of ``(byte, nbytes, words)``
        Runs to outline and name.

    Examples
    --------
    >>> import torch, kvlab
    >>> g = kvlab.Geometry(layers=2, heads=2, head_dim=32, page_size=4, pages=4)
    >>> fig = memory_map(kvlab.page_major(g, torch.bfloat16), marks=[(128, 128, "slot 1")])
    """
    buffer = buffer or next(iter(layout.buffers))
    first, nbytes = owners.window(layout, buffer, first, LARGEST if nbytes is None else nbytes)
    codes, legend = owners.owner_map(layout, buffer, first, nbytes)
    grid = Grid(first, nbytes, columns or choose_columns(layout, buffer, nbytes))
    height = int(min(max(grid.rows * 5, 240), 520))
    fig = go.Figure(picture(grid, owners.striped(grid.fold(codes, owners.PADDING)), owners.colors()))
    fig.add_trace(hover(layout, buffer, grid))
    for entry in legend:
        swatch(fig, f"{entry.letter}: {entry.label}", entry.color, "square-x" if entry.letter == "▨" else "square")
    labels = _region_labels(layout, buffer, grid, codes, height)
    for start, length, words in marks:
        at = start - first
        low, high = max(at, 0), min(at + length, nbytes)
        if low < high:
            mark_runs(fig, grid, [(low, high)], "", palette.WHITE, showlegend=False, width=4.5)  # seen on dark blue too
            mark_runs(fig, grid, [(low, high)], f"marked: {words}", palette.BLACK)
            x, y = low % grid.columns - 0.5, first + low // grid.columns * grid.columns
            labels.append(label(x, y, words, xanchor="left", bgcolor=palette.WHITE, bordercolor=palette.BLACK))
    annotate(fig, labels)
    total = layout.buffers[buffer]
    shown = "the whole buffer" if nbytes == total else f"bytes {first:,} … {first + nbytes - 1:,} of {total:,}"
    subtitle = f"Buffer '{buffer}', {shown}. Hue: field; lightness: layer; odd pages are darker."
    twin = [
        f"bytes {first + a:>10,} … {first + b - 1:>10,}  {_words(layout, buffer, first, a, b, codes)}"
        for a, b in owners.regions(codes, by_page=False)
    ]
    twin = shortened(twin) + [
        f"marked: {words}, bytes {start:,} … {start + length - 1:,}" for start, length, words in marks
    ]
    x, y = axes(grid)
    title = f"Who owns each byte: {layout.name}, {format_name(layout.format)}"
    return finish(fig, title, subtitle, twin, height + 150, xaxis=x, yaxis=y)


def _words(layout, buffer, first, a, b, codes) -> str:
    special = {owners.PAD_SLOT: "pad slot 0, ", owners.PADDING: ""}
    return special.get(int(codes[a]), "") + span_words(layout, buffer, first + a, first + b)


def _region_labels(layout, buffer, grid, codes, height: int) -> list[dict]:
    """Letter, layer and page for regions that have the room: pages where they fit, else whole layers."""
    labels = []
    line_px = height / grid.rows
    for by_page in (True, False):
        roomy = [
            (a, b)
            for a, b in owners.regions(codes, by_page)
            if codes[a] < owners.PAD_SLOT and (b - a) / grid.columns * line_px >= 14 and b - a >= grid.columns / 3
        ]
        if roomy:
            break
    for a, b in roomy[:60]:
        c = layout.explain(buffer, grid.first + (a + b - 1) // 2)
        words = f"{palette.LETTERS[c.field]} L{c.layer}" + (f" p{c.page}" if by_page else "")
        if a // grid.columns == (b - 1) // grid.columns:  # within one line: in the middle of its bytes
            x, row = (a + b - 1) / 2 % grid.columns, a // grid.columns
        else:
            x, row = grid.columns / 2, (a + b) / 2 / grid.columns - 0.5
        labels.append(label(x, grid.first + row * grid.columns, words))
    return labels
