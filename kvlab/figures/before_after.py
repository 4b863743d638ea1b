"""The byte values of a window before and after a commit, side by side."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..formats import format_name
from . import palette
from .grid import Grid, axes, choose_columns, hover, mark_runs, part_ticks, picture, span_words
from .owners import window
from .style import BELOW, finish, shortened, swatch

LEVELS = 128  # a palette has 256 entries: 128 for changed bytes in colour, 128 for unchanged ones in grey


def changed_runs(before: np.ndarray, after: np.ndarray, join: int = 16) -> list[tuple[int, int]]:
    """``(start, stop)`` of the runs of bytes that differ. Both ``(nbytes,)`` uint8.

    Runs closer than ``join`` bytes are one: a byte may get the value that it had, so a written row shows gaps.
    """
    at = np.flatnonzero(before != after)
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) > join)
    starts, stops = at[np.concatenate([[0], cuts + 1])], at[np.concatenate([cuts, [len(at) - 1]])] + 1
    return list(zip(starts.tolist(), stops.tolist(), strict=True))


def shades(values: np.ndarray, changed: np.ndarray) -> np.ndarray:
    """``(nbytes,)`` uint8 palette indices: value // 2 where changed, 128 + value // 2 elsewhere."""
    return (values // 2 + np.where(changed, 0, LEVELS)).astype(np.uint8)


def before_after(
    layout,
    before,
    after,
    buffer: str | None = None,
    first: int = 0,
    nbytes: int | None = None,
    columns: int | None = None,
) -> go.Figure:
    """Bytes of a window before and after: changed ones in colour and outlined, the others grey.

    Parameters
    ----------
    layout : Layout
    before, after : uint8 array or CPU tensor, ``(buffer bytes,)``
        Snapshots of the WHOLE buffer, such as ``pool.buffers["raw"].cpu().clone()``.
    buffer : str, optional
        The layout's first buffer where not given.
    first, nbytes : int
        The window, such as one page envelope.

    Raises
    ------
    ValueError
        A snapshot that is not the whole buffer.
    """
    buffer = buffer or next(iter(layout.buffers))
    first, nbytes = window(layout, buffer, first, nbytes)
    before, after = (_snapshot(layout, buffer, n, x) for n, x in (("before", before), ("after", after)))
    elsewhere = np.count_nonzero(before != after)
    before, after = before[first : first + nbytes], after[first : first + nbytes]
    changed = before != after
    elsewhere -= np.count_nonzero(changed)
    runs = changed_runs(before, after)
    grid = Grid(first, nbytes, columns or choose_columns(layout, buffer, nbytes))
    height = int(min(max(grid.rows * 8, 260), 600))
    titles = ("before", "after")
    fig = make_subplots(1, 2, shared_yaxes=True, subplot_titles=titles, horizontal_spacing=0.03)
    values = [("before", before), ("after", after)]
    for i, data in enumerate((before, after)):
        where = {"row": 1, "col": i + 1}
        fig.add_trace(picture(grid, grid.fold(shades(data, changed), 255), _colors()), **where)
        fig.add_trace(hover(layout, buffer, grid, values), **where)
        mark_runs(fig, grid, runs, "outline: bytes that changed", showlegend=i == 0 and bool(runs), **where)
    for value in (0, 128, 255):
        swatch(fig, f"changed, value {value}", _colors()[value // 2], row=1, col=1)
    for value in (0, 255):
        swatch(fig, f"unchanged, value {value}", _colors()[LEVELS + value // 2], row=1, col=1)
    total, count = layout.buffers[buffer], np.count_nonzero(changed)
    subtitle = (
        f"Buffer '{buffer}', bytes {first:,} … {first + nbytes - 1:,} of {total:,}. {count:,} bytes changed here, "
    )
    subtitle += f"in {len(runs):,} runs; {elsewhere:,} elsewhere."
    subtitle += "<br>A grey byte inside an outline was rewritten with the value it had."
    twin = [
        f"changed: bytes {first + a:>10,} … {first + b - 1:>10,} ({b - a:,})  "
        f"{span_words(layout, buffer, first + a, first + b)}"
        for a, b in runs
    ]
    x, y = axes(grid)
    y.update(part_ticks(layout, buffer, grid, height))
    title = f"What a commit changed: {layout.name}, {format_name(layout.format)}"
    finish(fig, title, subtitle, shortened(twin), height + 200)
    fig.update_xaxes(**x)
    fig.update_yaxes(**{k: v for k, v in y.items() if k != "title"})
    fig.update_layout(yaxis_title=y["title"], margin={"l": 135, "t": 100, "b": 110})
    fig.update_layout(legend=BELOW)
    return fig


def _snapshot(layout, buffer: str, name: str, x) -> np.ndarray:
    x = np.asarray(x)
    if x.dtype != np.uint8 or x.shape != (layout.buffers[buffer],):
        raise ValueError(
            f"before_after: {name} is {x.dtype} {x.shape}; it must be the whole buffer {buffer!r}, "
            f"uint8 ({layout.buffers[buffer]},)"
        )
    return x


def _colors() -> list[str]:
    grey = [palette.mix("#f4f4f4", "#9a9a9a", i / (LEVELS - 1)) for i in range(LEVELS)]
    return palette.cividis(LEVELS) + grey
