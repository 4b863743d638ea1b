"""What the bench measured, as dots with their spread: kvlab beside the same work by others."""

from __future__ import annotations

import plotly.graph_objects as go
from plotly.subplots import make_subplots

from .style import finish, swatch

_LOOKS = (
    ("#332288", "circle"),
    ("#882255", "square-open"),
    ("#999933", "diamond"),
    ("#3a3a3a", "x-thin-open"),
    ("#8a8a8a", "triangle-up"),
    ("#5f5f5f", "cross"),
)
BOUND = "launch + bytes at the bandwidth of copy_"


def bench_plot(found: dict, operation: str = "commit", mode: str | None = None) -> go.Figure:
    """Median time of each case with its 10th to 90th percentile, a panel for each format. Log scale.

    Parameters
    ----------
    found : dict
        From :func:`kvlab.bench.run.run`, or the JSON of ``python -m kvlab.bench --json``.
    operation : "commit", "gather", "copy" or "attention"
    mode : str, optional
        "cold", "warm", "graph" or "host"; "cold" where there is such a result, else "host".

    Raises
    ------
    ValueError
        No result of that operation and mode.
    """
    modes = {r["mode"] for r in found["results"] if r["operation"] == operation}
    mode = mode or ("cold" if "cold" in modes else "host")
    rows = [r for r in found["results"] if (r["operation"], r["mode"]) == (operation, mode)]
    if not rows:
        there = sorted({(r["operation"], r["mode"]) for r in found["results"]})
        raise ValueError(f"bench_plot: no result of operation={operation!r} and mode={mode!r}; there are {there}")
    formats, names = (list(dict.fromkeys(r[key] for r in rows)) for key in ("format", "by"))
    heights = [len({_what(r) for r in rows if r["format"] == fmt}) for fmt in formats]
    unit, factor = ("us", 1) if found["copy_gb_per_s"] else ("ms", 1e-3)
    room = 26 * sum(heights) + 46 * len(formats)
    fig = make_subplots(
        len(formats),
        1,
        shared_xaxes=True,
        row_heights=heights,
        vertical_spacing=min(0.3, 46 / room),
        subplot_titles=formats,
    )
    for panel, fmt in enumerate(formats, 1):
        for name, (color, symbol) in zip(names, _LOOKS, strict=False):
            mine = [r for r in rows if (r["format"], r["by"]) == (fmt, name)]
            if mine:
                fig.add_trace(_dots(mine, name, color, symbol, factor, unit), row=panel, col=1)
        bounds = {_what(r): r["median_us"] / r["of_bound"] for r in rows if r["format"] == fmt and r["of_bound"]}
        if bounds:
            marker = {"symbol": "line-ns-open", "size": 14, "color": "#000", "line": {"width": 2}}
            hover = f"{BOUND}: %{{x:.1f}} us<extra></extra>"
            ticks = {"x": list(bounds.values()), "y": list(bounds), "mode": "markers", "marker": marker}
            fig.add_trace(go.Scatter(**ticks, hovertemplate=hover, showlegend=False), row=panel, col=1)
    for name, (color, symbol) in zip(names, _LOOKS, strict=False):
        swatch(fig, name, color, symbol, row=1, col=1)
    if any(r["of_bound"] for r in rows):
        swatch(fig, BOUND, "#000", "line-ns-open", edge="#000", row=1, col=1)
    where = f"{found['device']}, {found['date']}, mode {mode}. A line: layout, rows x layers. "
    where += "Whiskers: 10th to 90th percentile. Log scale."
    warning = f"<b>{found['note'][0].upper()}{found['note'][1:]}.</b><br>" if found["note"] else ""
    twin = [
        f"{r['format']}, {_what(r)}, {r['by']}: {r['median_us'] * factor:,.2f} {unit} "
        f"({r['p10_us'] * factor:,.2f} … {r['p90_us'] * factor:,.2f})"
        for r in rows
    ]
    finish(fig, f"Time of a {operation}", warning + where, twin, 205 + room, margin={"l": 260, "t": 115, "b": 95})
    fig.update_xaxes(type="log", dtick=1)
    fig.update_xaxes(title=f"{unit} (median)", row=len(formats), col=1)
    fig.update_yaxes(autorange="reversed", type="category")
    return fig.update_layout(legend={"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"})


def _what(r: dict) -> str:
    """``page_major, 64 x 32, 25% accepted``: layout, rows, layers."""
    share = "" if r["accepted"] is None else f", {r['accepted']:.0%} accepted"
    return f"{r['layout']}, {r['rows']:,} x {r['layers']}{share}"


def _dots(rows: list[dict], name: str, color: str, symbol: str, factor: float, unit: str) -> go.Scatter:
    x = [r["median_us"] * factor for r in rows]
    spread = {
        "type": "data",
        "array": [r["p90_us"] * factor - m for r, m in zip(rows, x, strict=True)],
        "arrayminus": [m - r["p10_us"] * factor for r, m in zip(rows, x, strict=True)],
        "color": color,
        "thickness": 1.5,
    }
    hover = [f"{name}: {_what(r)}: {m:,.2f} {unit}" for r, m in zip(rows, x, strict=True)]
    return go.Scatter(
        x=x,
        y=[_what(r) for r in rows],
        error_x=spread,
        mode="markers",
        marker={"symbol": symbol, "size": 10, "color": color, "line": {"width": 2, "color": color}},
        hovertext=hover,
        hovertemplate="%{hovertext}<extra></extra>",
        showlegend=False,
    )
