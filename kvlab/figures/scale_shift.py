"""Rows whose scales are not their own: by how many powers of two each block reads back wrong."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..formats import E8M0_NAN
from . import palette
from .style import SMALL, finish, swatch

MOST = 4  # the strongest colour; the number in the cell goes on


def scale_shift(needed, pools, row_labels=None, title: str = "Payload and scale, read together") -> go.Figure:
    """One panel per pool: rows by blocks, the number is ``stored byte - needed byte``; 0 is right.

    Parameters
    ----------
    needed : uint8 ``(rows, heads, blocks)``
        The scale bytes that belong to the payload that was committed.
    pools : dict of str to uint8 arrays of that shape
        The scale bytes that each pool holds for these rows.
    row_labels : list of str, optional
    """
    needed = _flat(needed)
    shifts = {name: _flat(x) - needed for name, x in pools.items()}
    rows = len(needed)
    fig = make_subplots(1, len(pools), shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=list(pools))
    pale, strong = palette.mix(palette.MARK, palette.WHITE, 0.6), palette.MARK
    for i, (name, shift) in enumerate(shifts.items(), 1):
        text = [
            ["NaN" if e == E8M0_NAN else f"{s:+d}" if s else "0" for s, e in zip(*pair, strict=True)]
            for pair in zip(shift.tolist(), _flat(pools[name]).tolist(), strict=True)
        ]
        cells = go.Heatmap(
            z=np.minimum(np.abs(shift), MOST).astype(np.uint8),
            zmin=0,
            zmax=MOST,
            colorscale=[[0, palette.WHITE], [0.25, palette.WHITE], [0.25, pale], [1, strong]],
            showscale=False,
            xgap=1,
            ygap=1,
            text=text,
            texttemplate="%{text}",
            textfont={"size": SMALL, "color": palette.BLACK},
            hovertemplate="row %{y}, block %{x}: reads back times 2^%{text}<extra></extra>",
        )
        fig.add_trace(cells, row=1, col=i)
    swatch(fig, "0: right", palette.WHITE)
    swatch(fig, "wrong by a factor of 2", pale)
    swatch(fig, f"by 2^{MOST} or more", strong)
    wrong = {name: int((x != 0).sum()) for name, x in shifts.items()}
    said = "; ".join(f"{name}: {n} of {needed.size} blocks wrong" for name, n in wrong.items())
    subtitle = f"A number n: this block reads back 2^n times as large as it should. {said}."
    twin = [
        f"{name}, row {r}: {' '.join(f'{s:+d}' for s in line)}"
        for name, x in shifts.items()
        for r, line in enumerate(x)
    ]
    finish(fig, title, subtitle, twin, 170 + 21 * rows)
    fig.update_xaxes(title="block of the row (all heads)", dtick=1, showgrid=False, zeroline=False)
    fig.update_yaxes(range=[rows - 0.5, -0.5], showgrid=False, zeroline=False)
    labels = row_labels or [f"row {r}" for r in range(rows)]
    fig.update_yaxes(tickvals=list(range(rows)), ticktext=labels, row=1, col=1)
    return fig.update_layout(margin={"l": 30 + 8 * max(map(len, labels)), "t": 95})


def _flat(x) -> np.ndarray:
    x = np.asarray(x).astype(np.int32)
    return x.reshape(len(x), -1)
