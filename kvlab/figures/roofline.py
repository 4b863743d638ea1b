"""Launch-bound or bandwidth-bound: the least time that a launch which moves some bytes can take."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from . import palette
from .style import BELOW, annotate, finish, label

# Peak memory bandwidth in bytes per second, as NVIDIA's data sheets state it. No kernel reaches all of it.
DATA_SHEET = {"A100 80 GB": 2.039e12, "H100 SXM": 3.35e12, "H200": 4.8e12, "B200": 8e12}
LAUNCH_US = 4.0  # an assumption: a kernel launch costs a few microseconds, in a CUDA graph less

_LINES = (
    ("#8a8a8a", "dot", "circle"),
    ("#5f5f5f", "dash", "square"),
    ("#3a3a3a", "longdash", "diamond"),
    ("#000000", "solid", "triangle-up"),
)
HEIGHT = 600


def roofline_table(moved: dict[str, int], bandwidths=None, launch_us: float = LAUNCH_US) -> list[dict]:
    """One dict for each piece of work and GPU: ``work``, ``bytes``, ``gpu``, ``us`` and ``launch_share`` (0 … 1).

    Parameters as :func:`roofline`.
    """
    bandwidths = DATA_SHEET if bandwidths is None else bandwidths
    for name, values in (("moved", moved), ("bandwidths", bandwidths)):
        if not values:
            raise ValueError(f"roofline: {name} is empty; it needs at least one entry")
        for key, value in values.items():
            if not value > 0:
                raise ValueError(f"roofline: {name}[{key!r}]={value!r} must be above 0")
    if not launch_us > 0:
        raise ValueError(f"roofline: launch_us={launch_us!r} must be above 0")
    table = []
    for work, nbytes in moved.items():
        for gpu, bandwidth in bandwidths.items():
            us = launch_us + nbytes / bandwidth * 1e6
            table.append({"work": work, "bytes": nbytes, "gpu": gpu, "us": us, "launch_share": launch_us / us})
    return table


def roofline(moved: dict[str, int], bandwidths=None, launch_us: float = LAUNCH_US, measured=()) -> go.Figure:
    """Time over bytes: ``launch_us + bytes / bandwidth``, a line for each GPU. Log scales.

    Parameters
    ----------
    moved : dict of str to int
        Name of a piece of work -> bytes that it reads and writes, such as ``kvlab.bench.cases.traffic(case).total``.
    bandwidths : dict of str to float, optional
        GPU -> bytes per second; ``DATA_SHEET`` where not given.
    launch_us : float
        Microseconds of one launch, an assumption where it was not measured.
    measured : sequence of (str, int, float)
        Name, bytes and microseconds of what a GPU really took.

    Raises
    ------
    ValueError
        An empty dict; bytes, a bandwidth or a launch that is not above 0.
    """
    table = roofline_table(moved, bandwidths, launch_us)
    bandwidths = DATA_SHEET if bandwidths is None else bandwidths
    least = min(moved.values()) / 8
    most = max(*moved.values(), *(launch_us * 1e-6 * b for b in bandwidths.values())) * 6
    x = np.geomspace(least, most, 200)
    fig = go.Figure()
    for i, (gpu, bandwidth) in enumerate(bandwidths.items()):
        color, dash, symbol = _LINES[i % len(_LINES)]
        line = {"color": color, "dash": dash, "width": 2}
        dots = {"symbol": f"{symbol}-open", "size": 9, "color": color, "line": {"width": 2}}
        name, hover = f"{gpu}, {bandwidth / 1e12:g} TB/s", f"{gpu}: %{{x:,.0f}} bytes, %{{y:.1f}} us<extra></extra>"
        y = launch_us + x / bandwidth * 1e6
        fig.add_trace(go.Scatter(x=x, y=y, mode="lines", line=line, hovertemplate=hover, showlegend=False))
        mine = [row for row in table if row["gpu"] == gpu]
        words = [f"{r['work']}, {gpu}: {r['us']:.1f} us, {r['launch_share']:.0%} of it the launch" for r in mine]
        places = {"x": [r["bytes"] for r in mine], "y": [r["us"] for r in mine]}
        text = {"hovertext": words, "hovertemplate": "%{hovertext}<extra></extra>", "name": name}
        fig.add_trace(go.Scatter(**places, **text, mode="markers", marker=dots))
        # in the legend a GPU has its line and its mark: one entry that draws nothing here
        fig.data[-1].showlegend = False
        fig.add_trace(go.Scatter(x=[None], y=[None], mode="lines+markers", line=line, marker=dots, name=name))
    if measured:
        names, nbytes, times = zip(*measured, strict=True)
        dots = {"symbol": "star", "size": 12, "color": palette.MARK, "line": {"width": 1, "color": "#000"}}
        text = {"hovertext": names, "hovertemplate": "measured: %{hovertext}, %{y:.1f} us<extra></extra>"}
        fig.add_trace(go.Scatter(x=nbytes, y=times, mode="markers", marker=dots, name="measured", **text))
    title = "Roofline of a commit: " + (
        "lines are a model, stars were measured" if measured else "a model, not measured"
    )
    assumed = ", assumed" if launch_us == LAUNCH_US else ""
    peaks = " Bandwidths: peaks of data sheets." if bandwidths is DATA_SHEET else ""
    subtitle = f"time = launch + bytes / bandwidth. Launch: {launch_us:g} us{assumed}.{peaks}<br>"
    subtitle += "Left of a line's bend the launch costs more than the bytes. Points: bytes counted from the layout."
    twin = [
        f"{r['work']}: {r['bytes']:,} bytes, {r['gpu']}: {r['us']:.1f} us, {r['launch_share']:.0%} launch"
        for r in table
    ]
    twin += [f"measured: {name}, {n:,} bytes, {us:.1f} us" for name, n, us in measured]
    finish(fig, title, subtitle, twin, HEIGHT, margin={"t": 100 + 20 * len(moved), "b": 100})
    fig.update_xaxes(type="log", title="bytes read and written", exponentformat="SI", ticksuffix="B", dtick=1)
    fig.update_xaxes(range=np.log10([least, most]).tolist())
    fig.update_yaxes(type="log", title="microseconds", dtick=1)
    top = launch_us + most / min(bandwidths.values()) * 1e6
    fig.update_yaxes(range=np.log10([launch_us / 2.5, top]).tolist())
    _name_the_work(fig, moved)
    ends = ((least, "left", "launch-bound: fewer launches help"), (most, "right", "bandwidth-bound: fewer bytes help"))
    low = {"y": float(np.log10(launch_us / 1.6)), "xref": "x", "yref": "y"}
    annotate(fig, [label(float(np.log10(x)), words=words, xanchor=side, **low) for x, side, words in ends])
    return fig.update_layout(legend=BELOW)


def _name_the_work(fig: go.Figure, moved: dict[str, int]) -> None:
    """A dotted line at each piece of work, and its name above the panel, one line of words each."""
    notes = []
    height = HEIGHT - 200 - 20 * len(moved)
    for i, (work, nbytes) in enumerate(sorted(moved.items(), key=lambda item: item[1])):
        y = 1 + (14 + 20 * (len(moved) - 1 - i)) / height
        line = {"color": "#a0a0a0", "width": 1, "dash": "dot"}
        fig.add_shape(type="line", xref="x", yref="paper", x0=nbytes, x1=nbytes, y0=0, y1=y, line=line)
        words = label(float(np.log10(nbytes)), y, f"{work}: {_short(nbytes)} ", xref="x", yref="paper", xanchor="right")
        notes.append({**words, "yanchor": "middle", "bgcolor": "#ffffff"})
    annotate(fig, notes)


def _short(nbytes: int) -> str:
    """``16.8 MB``."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} B"
