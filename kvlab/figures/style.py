"""What every figure shares: title, subtitle, fonts, legend, and the text twin that :func:`text` reads back."""

from __future__ import annotations

import plotly.graph_objects as go
import plotly.io as pio

from .palette import BLACK

FONT = 13
SMALL = 12  # the smallest size anywhere: below it a projected notebook cannot be read
WIDTH = 900
AXIS = {"title": {"font": {"size": FONT}}, "tickfont": {"size": SMALL}}
TEMPLATE = go.layout.Template(pio.templates["plotly_white"])
TEMPLATE.layout.update(xaxis=AXIS, yaxis=AXIS)
BELOW = {"orientation": "h", "x": 0, "y": 0, "yref": "container", "yanchor": "bottom"}  # a legend under the panels


def finish(fig: go.Figure, title: str, subtitle: str, twin: list[str], height: int, **layout) -> go.Figure:
    """Apply the common look. ``twin`` holds the lines of the text twin, which begins with title and subtitle."""
    margin = {"l": 95, "r": 20, "t": 72 + 17 * subtitle.count("<br>"), "b": 60}
    margin.update(layout.pop("margin", {}))
    fig.update_layout(
        template=TEMPLATE,
        width=WIDTH,
        height=height,
        title={
            "text": f"<b>{title}</b>",
            "subtitle": {"text": subtitle, "font": {"size": SMALL, "color": "#444"}},
            "font": {"size": 16},
            "x": 0.01,
            "xanchor": "left",
            "y": 1 - 16 / height,
            "yanchor": "top",
        },
        font={"size": FONT, "color": BLACK},
        hoverlabel={"font": {"size": FONT, "family": "monospace"}, "align": "left"},
        legend={"font": {"size": SMALL}, "itemsizing": "constant", "itemclick": False, "itemdoubleclick": False},
        meta={"text": "\n".join([title, subtitle.replace("<br>", "\n"), "", *twin])},
        margin=margin,
    )
    fig.update_layout(**layout)
    for note in fig.layout.annotations:
        if note.font.size == 16:  # a panel's title, as large as the figure's own unless told otherwise
            note.font.size = FONT + 1
    return fig


def text(fig: go.Figure) -> str:
    """The text twin of a figure: the same facts in plain text, for screen readers, terminals and tests."""
    return fig.layout.meta["text"]


def swatch(fig: go.Figure, name: str, color: str, symbol: str = "square", edge: str = "#555", **where) -> None:
    """A legend entry that draws nothing: pictures have no entries of their own."""
    marker = {"size": 13, "color": color, "symbol": symbol, "line": {"width": 1, "color": edge}}
    trace = go.Scatter(x=[None], y=[None], mode="markers", marker=marker, name=name, showlegend=True, hoverinfo="skip")
    fig.add_trace(trace, **where)


def label(x: float, y: float, words: str, **more) -> dict:
    """Words on a coloured area, on a pale ground so that they can be read on any colour; for :func:`annotate`."""
    look = {"showarrow": False, "font": {"size": SMALL, "color": BLACK}, "bgcolor": "rgba(255,255,255,0.8)"}
    return {"x": x, "y": y, "text": words, "borderpad": 0, **look, **more}


def annotate(fig: go.Figure, labels: list[dict]) -> None:
    """Add annotations all at once: one by one, plotly checks every earlier one again, 5 s for a hundred."""
    fig.update_layout(annotations=[*(a.to_plotly_json() for a in fig.layout.annotations), *labels])


def shortened(lines: list[str], most: int = 40) -> list[str]:
    """At most ``most`` lines, and a last one that says how many are left out."""
    return lines if len(lines) <= most else [*lines[:most], f"… and {len(lines) - most:,} more"]
