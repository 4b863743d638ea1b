"""Into how many contiguous pieces a token, a page and a layer fall under each layout, and how long each is."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..formats import format_name
from . import palette
from .style import finish

WHAT = ("token", "page", "layer")


def layout_names(layouts) -> list[str]:
    """One name per layout; with its format, and a number if need be, where two have the same name."""
    names = [layout.name for layout in layouts]
    if len(set(names)) < len(names):
        names = [f"{layout.name} {format_name(layout.format)}" for layout in layouts]
    return [n if names.count(n) == 1 else f"{n} #{i + 1}" for i, n in enumerate(names)]


def runs_table(layouts) -> list[dict]:
    """One dict per layout and kind: ``layout``, ``what``, ``count``, ``length`` (longest run) and ``nbytes``."""
    table = []
    for name, layout in zip(layout_names(layouts), layouts, strict=True):
        for what in WHAT:
            runs = layout.runs(what)
            table.append(
                {"layout": name, "what": what, "count": runs.count, "length": runs.length, "nbytes": runs.nbytes}
            )
    return table


def runs_figure(layouts) -> go.Figure:
    """Bars of run count and run length per token, page and layer, for each of ``layouts``; log scales.

    Examples
    --------
    >>> import torch, kvlab
    >>> g = kvlab.Geometry(layers=2, heads=2, head_dim=32, page_size=4, pages=4)
    >>> fig = runs_figure([kvlab.token_major(g, torch.bfloat16), kvlab.page_major(g, torch.bfloat16)])
    """
    table = runs_table(layouts)
    fig = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.09)
    names = layout_names(layouts)
    for i, name in enumerate(names):
        color, pattern = palette.LAYOUTS[i % len(palette.LAYOUTS)]
        mine = [row for row in table if row["layout"] == name]
        hover = [f"{name}, one {r['what']}: {r['count']:,} runs, {r['nbytes']:,} bytes in all" for r in mine]
        pattern = {"shape": pattern, "fgcolor": "#000"}
        marker = {"color": color, "pattern": pattern, "line": {"width": 1, "color": "#000"}}
        for column, key in ((1, "count"), (2, "length")):
            bar = go.Bar(
                orientation="h",
                x=[row[key] for row in mine],
                y=[f"one {row['what']}" for row in mine],
                text=[f"{row[key]:,}" for row in mine],
                textposition="outside",
                textangle=0,
                cliponaxis=False,
                hovertext=hover,
                hovertemplate="%{hovertext}<extra></extra>",
                marker=marker,
                name=name,
                showlegend=column == 1,
            )
            fig.add_trace(bar, row=1, col=column)
    g = layouts[0].geometry
    subtitle = f"{g.layers} layers, {g.heads} heads, head_dim {g.head_dim}, {g.pages} pages of {g.page_size} slots. "
    subtitle += "Few long runs are what a copy engine wants. Log scales."
    twin = [
        f"{row['layout']:14} one {row['what']:6} {row['count']:>8,} run(s), the longest {row['length']:>12,} bytes"
        for row in table
    ]
    finish(fig, "Contiguous runs under each layout", subtitle, twin, 170 + 26 * len(table))
    for column, key, words in ((1, "count", "contiguous runs (count)"), (2, "length", "longest run (bytes)")):
        top = max(row[key] for row in table)
        fig.update_xaxes(type="log", title=words, range=[-0.05, len(str(top)) * 1.18], dtick=1, row=1, col=column)
    fig.update_yaxes(autorange="reversed")
    legend = {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom"}
    return fig.update_layout(barmode="group", yaxis_title="what is moved", legend=legend, margin={"t": 100})
