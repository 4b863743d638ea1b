"""How often each scale byte occurs: the range that blocks of K and V really span."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from ..formats import E8M0_BIAS, E8M0_NAN
from . import palette
from .style import BELOW, SMALL, finish


def scale_counts(scales) -> go.Figure:
    """Blocks per scale byte, one group of bars per field.

    Parameters
    ----------
    scales : dict of "k" and "v" to uint8 arrays or tensors of any shape
        Such as the two of :meth:`kvlab.KVPool.gather_scales`.
    """
    counts = {f: np.bincount(np.asarray(x).reshape(-1), minlength=256) for f, x in scales.items()}
    used = np.flatnonzero(sum(counts.values()))
    bytes_ = np.arange(used.min(), used.max() + 1)
    fig = go.Figure()
    for field, count in counts.items():
        n = count[bytes_]
        pattern = {"shape": "/" if field == "v" else "", "fgcolor": palette.WHITE}
        fig.add_trace(
            go.Bar(
                x=bytes_,
                y=n,
                name=f"{palette.NAMES[field]} scale: {n.sum():,} blocks",
                marker={"color": palette.FIELDS[f"{field}_scale"], "pattern": pattern},
                text=[f"{x:,}" if x else "" for x in n],
                textposition="outside",
                textfont={"size": SMALL},
                hovertemplate="scale byte %{x}: %{y:,} blocks<extra></extra>",
            )
        )
    words = [f"{b}<br>{'NaN' if b == E8M0_NAN else f'2^{b - E8M0_BIAS}'}" for b in bytes_.tolist()]
    low, high = words[0].split("<br>"), words[-1].split("<br>")
    subtitle = f"Scale bytes {low[0]} … {high[0]}: {low[1]} … {high[1]}. Each serves one block of 32 elements."
    twin = [f"byte {b:3}: " + ", ".join(f"{palette.LETTERS[f]} {counts[f][b]:,}" for f in counts) for b in bytes_]
    finish(fig, "How often each scale byte occurs", subtitle, twin, 380)
    fig.update_xaxes(tickvals=bytes_, ticktext=words, title="scale byte e, and 2^(e-127)")
    fig.update_yaxes(title="blocks")
    return fig.update_layout(barmode="group", legend=BELOW, margin={"b": 105})
