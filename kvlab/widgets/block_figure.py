"""One MXFP8 block as a figure that is built once: its values, what is read back, and the error."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..figures import palette
from ..figures.style import BELOW, FONT, SMALL, TEMPLATE
from ..formats import BLOCK, E8M0_NAN
from .figure_widget import figure_widget
from .scale_page import Block

VALUES, READS, ERRORS = range(3)  # traces
WIDTH, HEIGHT = 540, 350


class BlockFigure:
    """A FigureWidget, and what must change in it for another block."""

    def __init__(self, block: Block, rounding: str, element: int):
        self.widget, self._mode = _empty(), None
        self.show(block, rounding, element)
        self.widget = figure_widget(self.widget)

    def show(self, block: Block, rounding: str, element: int) -> None:
        """Draw one block; ``element`` is framed."""
        fig = self.widget
        if rounding != self._mode:
            # Not in the batch: there the bars, which have a marker too, would lose their own colour.
            self._mode, (color, pattern, symbol) = rounding, palette.MODES[rounding]
            fig.data[READS].update(marker={"color": color, "symbol": f"{symbol}-open"})
            fig.data[ERRORS].update(marker={"color": color, "pattern": {"shape": pattern}})
        finite = np.where(np.isfinite(block.values), block.values, np.nan)
        error = block.read - finite
        with fig.batch_update():
            for trace, numbers in zip(fig.data, (finite, block.read, error), strict=True):
                trace.y = numbers
            fig.layout.yaxis.range = _range(np.concatenate([finite, block.read]))
            fig.layout.yaxis2.range = _range(error)
            fig.layout.shapes[0].update(x0=element - 0.5, x1=element + 0.5)
            bad = block.scale == E8M0_NAN
            fig.layout.annotations[0].text = "scale 255 is NaN:<br>all 32 elements read back NaN" if bad else ""


def _range(numbers: np.ndarray) -> list[float]:
    """A range around the finite numbers and 0; without one an empty panel keeps the last block's axis."""
    finite = np.append(numbers[np.isfinite(numbers)], 0.0)
    low, high = finite.min(), finite.max()
    room = 0.08 * (high - low) or 1.0
    return [low - room, high + room]


def _empty() -> go.Figure:
    fig = make_subplots(2, 1, shared_xaxes=True, row_heights=[0.56, 0.44], vertical_spacing=0.1)
    same = {"x": np.arange(BLOCK), "y": np.zeros(BLOCK), "hovertemplate": "element %{x}: %{y:.6g}<extra></extra>"}
    bars = go.Bar(**same, marker={"color": "#d9d9d9", "line": {"width": 1, "color": "#777"}}, name="value")
    reads = go.Scatter(
        **same, mode="markers", marker={"size": 8, "line": {"width": 2}}, name="read back, and its error"
    )
    errors = go.Bar(**same, marker={"pattern": {"fgcolor": "#fff"}}, showlegend=False)
    fig.add_traces([bars, reads, errors], rows=[1, 1, 2], cols=[1, 1, 1])
    line = {"color": palette.MARK, "width": 1.5, "dash": "dot"}
    fig.add_shape(type="rect", x0=0, x1=1, y0=0, y1=1, xref="x", yref="y domain", line=line)
    fig.update_xaxes(range=[-0.7, BLOCK - 0.3], dtick=4, tick0=0, fixedrange=True)
    fig.update_xaxes(title="element of the block", title_standoff=4, row=2, col=1)
    fig.update_yaxes(fixedrange=True, nticks=6)
    fig.update_yaxes(title="value", row=1, col=1)
    fig.update_yaxes(title="error", row=2, col=1)
    middle = {"x": 0.5, "y": 0.5, "xref": "x2 domain", "yref": "y2 domain"}
    fig.add_annotation(text="", showarrow=False, font={"size": FONT}, **middle)
    return fig.update_layout(
        template=TEMPLATE,
        width=WIDTH,
        height=HEIGHT,
        margin={"l": 62, "r": 8, "t": 32, "b": 62},
        title={
            "text": "The block: values, what is read back, the error",
            "font": {"size": FONT + 1},
            "x": 0.55,
            "y": 0.97,
        },
        font={"size": FONT, "color": palette.BLACK},
        hoverlabel={"font": {"size": FONT, "family": "monospace"}, "align": "left"},
        legend={
            **BELOW,
            "font": {"size": SMALL},
            "itemsizing": "constant",
            "itemclick": False,
            "itemdoubleclick": False,
        },
        barmode="overlay",
        dragmode=False,
    )
