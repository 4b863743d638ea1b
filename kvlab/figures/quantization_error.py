"""One block of 32 elements under one or more rounding modes: values, what is read back, and the error."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..formats import BLOCK, E8M0_BIAS, E8M0_NAN, FP8_MAX
from . import palette
from .style import BELOW, finish

E4M3_MAX = max(v for dtype, v in FP8_MAX.items() if "e4m3" in str(dtype))


def error_table(values, results) -> list[dict]:
    """One dict per mode: ``mode``, ``scale`` (byte), ``exponent``, ``limit`` (largest magnitude that can be stored),
    ``max_error``, ``rms`` and ``clipped`` (how many values lie beyond the limit). NaN scales give NaN numbers.

    Parameters
    ----------
    values : ``(32,)`` floats
    results : dict of mode to ``(dequantized (32,), scale byte)``
    """
    values = _block("values", values)
    table = []
    for mode, (read, scale) in results.items():
        read, scale = _block(f"results[{mode!r}]", read), int(scale)
        exponent = scale - E8M0_BIAS
        limit = float("nan") if scale == E8M0_NAN else E4M3_MAX * 2.0**exponent
        error = read - values
        table.append(
            {
                "mode": mode,
                "scale": scale,
                "exponent": exponent,
                "limit": limit,
                "max_error": float(np.abs(error).max()),
                "rms": float(np.sqrt(np.mean(error**2))),
                "clipped": int((np.abs(values) > limit).sum()),
            }
        )
    return table


def quantization_error(values, results, title: str = "One MXFP8 block: 32 elements, one scale") -> go.Figure:
    """Values and what each rounding mode reads back (above), and the error of each element (below).

    Parameters
    ----------
    values : ``(32,)`` floats
        The block before quantisation.
    results : dict of mode to ``(dequantized (32,), scale byte)``
        Such as ``{"rceil": (read, 128), "floor": (read, 127)}``.
    """
    values, table = _block("values", values), error_table(values, results)
    heads = ("values (bars) and what is read back (marks)", "error: read back minus value")
    fig = make_subplots(2, 1, shared_xaxes=True, row_heights=[0.55, 0.45], vertical_spacing=0.1, subplot_titles=heads)
    x = np.arange(BLOCK)
    bars = go.Bar(
        x=x,
        y=values,
        marker={"color": "#d9d9d9", "line": {"width": 1, "color": "#777"}},
        name="value before",
        hovertemplate="element %{x}: %{y:.6g}<extra></extra>",
    )
    fig.add_trace(bars, row=1, col=1)
    for row in table:
        read = _block("", results[row["mode"]][0])
        color, pattern, symbol = palette.MODES.get(row["mode"], ("#000000", "x", "cross"))
        name = f"{row['mode']}: scale byte {row['scale']} = " + _power(row)
        marks = go.Scatter(
            x=x,
            y=read,
            mode="markers",
            marker={"symbol": f"{symbol}-open", "size": 9, "color": color, "line": {"width": 2}},
            name=name,
            legendgroup=name,
            hovertemplate=f"{row['mode']}, element %{{x}}: reads %{{y:.6g}}<extra></extra>",
        )
        fig.add_trace(marks, row=1, col=1)
        errors = go.Bar(
            x=x,
            y=read - values,
            marker={"color": color, "pattern": {"shape": pattern, "fgcolor": "#fff"}},
            name=name,
            legendgroup=name,
            showlegend=False,
            hovertemplate=f"{row['mode']}, element %{{x}}: error %{{y:.4g}}<extra></extra>",
        )
        fig.add_trace(errors, row=2, col=1)
        if row["clipped"]:
            clip = row["limit"]
            words = f"{row['mode']} stores at most {clip:g}: {row['clipped']} clipped"
            for sign in {float(np.sign(v)) for v in values[np.abs(values) > clip]}:
                note = {"annotation_text": words, "annotation_position": "top right", "annotation_font_color": color}
                fig.add_hline(y=sign * clip, line={"color": color, "dash": "dash", "width": 1.5}, row=1, col=1, **note)
    at = int(np.nanargmax(np.abs(values))) if not np.isnan(values).all() else 0
    subtitle = f"amax {np.abs(values).max():.6g} (element {at}). Stored: E4M3, at most ±{E4M3_MAX:g} times the scale."
    twin = [
        f"{r['mode']:6} scale byte {r['scale']:3} = {_power(r)}, limit {r['limit']:g}, clipped {r['clipped']}, "
        f"largest error {r['max_error']:.4g}, rms {r['rms']:.4g}"
        for r in table
    ]
    twin += ["", "element   value      " + "".join(f"{r['mode']:>12}" for r in table)]
    for i in range(BLOCK):
        reads = "".join(f"{_block('', results[r['mode']][0])[i]:12.6g}" for r in table)
        twin.append(f"{i:7} {values[i]:12.6g} {reads}")
    finish(fig, title, subtitle, twin, 640)
    fig.update_xaxes(range=[-0.7, BLOCK - 0.3], dtick=4, tick0=0, showticklabels=True)
    fig.update_xaxes(title="element of the block", row=2, col=1)
    fig.update_yaxes(title="value", row=1, col=1)
    fig.update_yaxes(title="error (same unit)", row=2, col=1)
    return fig.update_layout(barmode="group", legend=BELOW, margin={"t": 105, "b": 105})


def _block(name: str, x) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    if x.shape != (BLOCK,):
        raise ValueError(f"quantization_error: {name} has shape {x.shape}, not ({BLOCK},)")
    return x


def _power(row: dict) -> str:
    return "NaN" if row["scale"] == E8M0_NAN else f"2^{row['exponent']}"
