"""The figure of a commit: the bytes of each slot's row by state, and where they lie in the raw buffers."""

from __future__ import annotations

import html

import ipywidgets as ipw
import numpy as np
import plotly.graph_objects as go

from ..figures import palette
from ..figures.commit_data import row_bytes
from ..figures.owners import fields_in
from ..figures.png import data_uri, palette_png
from ..figures.style import FONT, SMALL
from .commit_rows import COLORS, LINES, STRIPE, WHITE, WORDS, Rows, striped
from .figure_widget import figure_widget

LABELS, WIDTH, HEIGHT = 232, 728, 490
TOP, BOTTOM = 24, 10
ROWS_FROM, STRIPS_TO = 0.24, 0.13  # of the height between the margins
BINS = 300  # columns of a strip


class Picture:
    """The figure and the labels left of it, built once; :meth:`show` sends the browser only what differs.

    The labels are HTML: plotly measures and lays out every tick label at every step, a third of a step's time.
    """

    def __init__(self, *shown):
        """``shown``: the first arguments of :meth:`show`.

        The figure is filled before it becomes a widget: what is sent before the browser has loaded plotly can get lost.
        """
        self.labels = ipw.HTML(layout=ipw.Layout(width=f"{LABELS}px", flex=f"0 0 {LABELS}px", margin="0"))
        self.fig, self._sent = _empty(), {}
        self.show(*shown)
        self.fig = figure_widget(self.fig)
        self.widget = ipw.HBox([self.labels, self.fig])

    def show(self, layout, layer: int, states: dict, owners: dict[int, list[tuple[int, int]]]) -> None:
        """Mutate the figure. ``owners``: for each slot that loc_2d names, its ``(request, row)`` pairs."""
        rows = Rows(layout, layer, states, owners, _span(ROWS_FROM, 1)[1])
        values = _values(rows, states)
        changed = {at: value for at, value in values.items() if self._sent.get(at) != value}
        with self.fig.batch_update():
            for (trace, name), value in changed.items():
                (self.fig.layout if trace is None else self.fig.data[trace])[name] = value
        self._sent = values
        self.labels.value = _labels(rows)


def _span(low: float, high: float) -> tuple[float, float]:
    """First pixel and number of pixels of a domain of the y axis."""
    inner = HEIGHT - TOP - BOTTOM
    return TOP + (1 - high) * inner, (high - low) * inner


def _labels(rows: Rows) -> str:
    """A label beside each run of rows and each strip, at its height."""
    first, pixels = _span(ROWS_FROM, 1)
    at = [
        (first + (tick + 0.6) / (rows.lines + 0.2) * pixels, words) for tick, words in zip(*rows.labels(), strict=True)
    ]
    first, pixels = _span(0, STRIPS_TO)
    buffers = [f"'{n}' {size:,} B" for n, size in rows.layout.buffers.items()]
    at += [(first + (i + 0.5) / len(buffers) * pixels, words) for i, words in enumerate(buffers)]
    look = "position:absolute; right:8px; white-space:pre"
    lines = [f"<div style='{look}; top:{y - 7:.1f}px'>{html.escape(words)}</div>" for y, words in at]
    ground = f"position:relative; height:{HEIGHT}px; font:{SMALL}px/14px monospace"
    return f"<div style='{ground}'>{''.join(lines)}</div>"


def legend() -> str:
    """The states' colours, letters and words as HTML: plotly would lay a legend out anew at every step."""
    entry = (
        "<span style='display:inline-block; width:14px; height:12px; border:1px solid #555; background:{}'></span> {}"
    )
    entries = []
    for i, (state, words) in enumerate(WORDS.items()):
        stripe = f"{COLORS[STRIPE[i]]} 0 2px, {COLORS[i]} 2px 5px" if i in STRIPE else f"{COLORS[i]} 0 5px"
        ground = f"repeating-linear-gradient(135deg, {stripe})"
        entries.append(entry.format(ground, f"{palette.STATE_LETTERS[state]}: {words}"))
    return " &emsp; ".join([*entries, "black line: another page begins"])


def _empty() -> go.Figure:
    fig = go.Figure()
    for axis in ("", "2", "3"):
        where = {"xaxis": f"x{axis}", "yaxis": f"y{axis}", "x0": 0, "dx": 1, "y0": 0.5 / LINES - 0.5, "dy": 1 / LINES}
        fig.add_trace(go.Image(hoverinfo="skip", **where))
    look = {"opacity": 0, "showscale": False, "hovertemplate": "%{text}<extra></extra>"}
    fig.add_trace(go.Heatmap(z=[[0]], text=[[""]], **look))
    bare = {"visible": False, "fixedrange": True}
    tall = {**bare, "scaleanchor": False}  # a picture locks its axes to square pixels unless told otherwise
    share = {**bare, "range": [-0.5, BINS - 0.5]}
    # to hide labels past the edge, plotly would measure every one of them at every step
    top = {"side": "top", "ticks": "", "tickfont": {"size": SMALL}, "ticklabeloverflow": "allow"}
    fig.update_layout(
        template="none",
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 0, "r": 15, "t": TOP, "b": BOTTOM},
        font={"size": FONT, "color": palette.BLACK},
        hoverlabel={"font": {"size": FONT, "family": "monospace"}, "align": "left"},
        showlegend=False,
        xaxis={**top, "showgrid": False, "zeroline": False, "fixedrange": True},
        yaxis={**tall, "domain": [ROWS_FROM, 1]},
        xaxis2={**share, "domain": [0, 0.44], "anchor": "y2"},
        yaxis2={**tall, "domain": [0, STRIPS_TO], "anchor": "x2"},
        xaxis3={**share, "domain": [0.5, 1], "anchor": "y3"},
        yaxis3={**tall, "domain": [0, STRIPS_TO], "anchor": "x3"},
        annotations=[_note(0, "where they lie: whole buffers, end to end"), _note(0.5, "")],
    )
    return fig


def _note(x: float, words: str) -> dict:
    """Words above a strip."""
    at = {"xref": "paper", "yref": "paper", "x": x, "y": STRIPS_TO, "xanchor": "left", "yanchor": "bottom"}
    return {"text": words, "showarrow": False, "font": {"size": SMALL}, **at}


def _values(rows: Rows, states: dict) -> dict[tuple[int | None, str], object]:
    """Every property that depends on what is shown, by trace (None: the layout) and name."""
    page = _busiest(rows)
    picture, (whole, zoomed) = rows.picture(), _strips(rows.layout, rows.layer, states, page)
    (edges, words), (columns, names), buffers = rows.hover(), rows.columns(), len(rows.layout.buffers)
    traces = {
        (0, "source"): _png(picture),
        (1, "source"): _png(whole),
        (2, "source"): _png(zoomed),
        (3, "x"): edges,
        (3, "y"): rows.place.tolist(),
        (3, "z"): np.zeros((len(words), len(words[0])), int).tolist(),
        (3, "text"): words,
    }
    layout = {
        "xaxis.range": [-0.5, picture.shape[1] - 0.5],
        "xaxis.tickvals": columns,
        "xaxis.ticktext": names,
        "yaxis.range": [rows.lines - 0.4, -0.6],
        "yaxis2.range": [buffers - 0.5, -0.5],
        "yaxis3.range": [buffers - 0.5, -0.5],
        "annotations[1].text": f"of these, page {page} of layer {rows.layer}, end to end",
    }
    return {**traces, **{(None, name): value for name, value in layout.items()}}


def _busiest(rows: Rows) -> int:
    """The page with the most slots that are not untouched."""
    hit = np.max([p.states.max(1) for p in rows.panels], axis=0) > 0
    pages = (rows.slots[hit] if hit.any() else rows.slots) // rows.page_size
    return int(np.bincount(pages).argmax())


def _strips(layout, layer: int, states, page: int) -> tuple[np.ndarray, np.ndarray]:
    """Palette codes, LINES lines per buffer: of each whole buffer, and of the bytes of one page and layer."""
    slots = np.arange(layout.geometry.page_size) + page * layout.geometry.page_size
    whole, zoomed = [], []
    for name, codes in states.items():
        whole.append(_binned(codes))
        at = np.concatenate([row_bytes(f, layer, slots).reshape(-1) for f in fields_in(layout, name)])
        zoomed.append(_binned(codes[at.min() : at.max() + 1]))
    return _bands(whole), _bands(zoomed)


def _bands(buffers: list[np.ndarray]) -> np.ndarray:
    out = np.stack(buffers)[:, None].repeat(LINES, 1)
    out[:, 0] = WHITE
    return striped(out.reshape(-1, BINS))


def _binned(codes: np.ndarray) -> np.ndarray:
    """The most telling state of each of BINS equal parts: a later one of STATES hides an earlier one."""
    if len(codes) < BINS:
        return codes[np.arange(BINS) * len(codes) // BINS]
    return np.maximum.reduceat(codes, np.arange(BINS) * len(codes) // BINS)


def _png(codes: np.ndarray) -> str:
    return data_uri(palette_png(codes, COLORS))
