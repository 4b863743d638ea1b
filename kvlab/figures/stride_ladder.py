"""Where one token's cells lie in each layout's buffers, layer after layer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from . import palette
from .grid import span_words
from .runs_figure import WHAT, layout_names
from .style import BELOW, SMALL, finish, shortened, swatch

ROW = 1.8  # height of a buffer's row: letters above its bar, the span below
MOST_BUFFERS = 8  # an adopted pool has a buffer per layer; more rows than this say nothing new


@dataclass(frozen=True)
class Rung:
    """One contiguous run of the token: its buffer, first byte, length, and the field and layer of its first byte."""

    buffer: str
    start: int
    length: int
    field: str
    layer: int


def rungs(layout, slot: int) -> list[Rung]:
    """All runs of one token, from ``layout.runs("token", slot)``, with their owners."""
    runs = layout.runs("token", slot)
    out = []
    for buffer, start, length in zip(runs.buffers, runs.starts.tolist(), runs.lengths.tolist(), strict=True):
        cell = layout.explain(buffer, start)
        out.append(Rung(buffer, start, length, cell.field, cell.layer))
    return out


def stride_ladder(layouts, slot: int) -> go.Figure:
    """One token's runs across layers under each layout: left in the whole buffer, right zoomed to the token's span.

    Rows are buffers, grouped by layout. The zoom has its own scale in each row, written beside it.

    Examples
    --------
    >>> import torch, kvlab
    >>> g = kvlab.Geometry(layers=2, heads=2, head_dim=32, page_size=4, pages=4)
    >>> fig = stride_ladder([kvlab.token_major(g, torch.bfloat16), kvlab.page_major(g, torch.bfloat16)], slot=5)
    """
    panels = ("in the whole buffer", "zoomed: first to last byte of the token")
    fig = make_subplots(1, 2, horizontal_spacing=0.04, column_widths=[0.45, 0.55], subplot_titles=panels)
    twin, used, y, ticks, hidden = [], {}, 0.0, [], 0
    for name, layout in zip(layout_names(layouts), layouts, strict=True):
        cells = rungs(layout, slot)
        runs = {what: layout.runs(what, slot if what == "token" else 0) for what in WHAT}
        words = "   ".join(f"one {what}: {r}" for what, r in runs.items())
        style = {"xref": "paper", "x": 0, "xanchor": "left", "yref": "y", "showarrow": False}
        fig.add_annotation(text=f"<b>{name}</b>   {words}", y=y, font={"size": SMALL}, **style)
        twin += [f"{name}: {words}"]
        buffers = list(dict.fromkeys(c.buffer for c in cells))
        hidden += max(len(buffers) - MOST_BUFFERS, 0)
        for buffer in buffers[:MOST_BUFFERS]:
            y += ROW
            ticks.append((y, buffer))
            mine = [c for c in cells if c.buffer == buffer]
            used.update((c.field, None) for c in mine)
            twin += shortened([f"  {_words(layout, c)}" for c in mine], 12)
            _row(fig, layout, buffer, mine, y)
        y += ROW
    for field in (f for f in palette.FIELDS if f in used):
        swatch(
            fig,
            f"{palette.LETTERS[field]}: {palette.NAMES[field]} (then its layer)",
            palette.FIELDS[field],
            row=1,
            col=1,
        )
    g = layouts[0].geometry
    subtitle = f"Slot {slot} (page {slot // g.page_size}, offset {slot % g.page_size}) in {g.layers} layers; each tick "
    subtitle += "is one contiguous run, later layers paler (in a cycle of four)."
    subtitle += f" {hidden} more buffers are not shown." if hidden else ""
    finish(fig, "Stride ladder: one token across the layers", subtitle, twin, int(200 + 28 * y))
    fig.update_yaxes(range=[y - 0.6, -0.8], tickvals=[t for t, _ in ticks], showgrid=False, zeroline=False)
    fig.update_yaxes(ticktext=[f"'{b}'" for _, b in ticks], title="buffer", row=1, col=1)
    fig.update_yaxes(showticklabels=False, row=1, col=2)
    fig.update_xaxes(title="byte in the buffer", rangemode="tozero", nticks=5, row=1, col=1)
    fig.update_xaxes(title="share of the row's own span", range=[-0.04, 1.04], tickformat=".0%", row=1, col=2)
    return fig.update_layout(legend=BELOW, margin={"b": 95, "t": 100})


def _row(fig, layout, buffer: str, cells: list[Rung], y: float) -> None:
    """One buffer: a grey bar from end to end, and a tick per run; beside it the same ticks over the token's span."""
    size = layout.buffers[buffer]
    first, last = cells[0].start, cells[-1].start + cells[-1].length
    span = last - first
    hover = [_words(layout, c) for c in cells]
    colors = [palette.owner_color(c.field, c.layer) for c in cells]
    for column, end in ((1, size), (2, 1)):
        line = {"color": "#e2e2e2", "width": 16}
        bar = go.Scatter(x=[0, end], y=[y, y], mode="lines", line=line, hoverinfo="skip", showlegend=False)
        fig.add_trace(bar, row=1, col=column)
        x = [c.start if column == 1 else (c.start - first) / span for c in cells]
        ticks = go.Scatter(
            x=x,
            y=[y] * len(x),
            mode="markers",
            marker={"symbol": "line-ns", "size": 16, "line": {"width": 3, "color": colors}},
            hovertext=hover,
            hovertemplate="%{hovertext}<extra></extra>",
            showlegend=False,
        )
        fig.add_trace(ticks, row=1, col=column)
    heads = [c for i, c in enumerate(cells) if not i or (c.field, c.layer) != (cells[i - 1].field, cells[i - 1].layer)]
    if len(heads) <= 16:
        letters = go.Scatter(
            x=[(c.start - first) / span for c in heads],
            y=[y - 0.62] * len(heads),
            text=[f"{palette.LETTERS[c.field]}{c.layer}" for c in heads],
            mode="text",
            textfont={"size": SMALL},
            hoverinfo="skip",
            showlegend=False,
        )
        fig.add_trace(letters, row=1, col=2)
    gaps = sorted(set(np.diff([c.start for c in cells]).tolist()))
    steps = ", ".join(f"{s:,}" for s in gaps[:3]) + (" …" if len(gaps) > 3 else "")
    words = f"span {span:,} B" + (f", step{'s' * (len(gaps) > 1)} {steps} B" if gaps else "")
    style = {"xanchor": "right", "x": 1.04, "xref": "x2", "yref": "y2", "showarrow": False}
    fig.add_annotation(text=words, y=y + 0.66, font={"size": SMALL, "color": "#333"}, **style)


def _words(layout, c: Rung) -> str:
    owner = span_words(layout, c.buffer, c.start, c.start + c.length)
    return f"'{c.buffer}' bytes {c.start:,} … {c.start + c.length - 1:,} ({c.length:,}): {owner}"
