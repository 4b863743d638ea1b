"""The 128x4 scale tile: which row and column each of its 512 bytes serves, beside the flat placement."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..builders import token_major
from ..formats import BLOCK, E8M0_BIAS, E8M0_NAN, MXFP8
from ..geometry import Geometry
from . import palette
from .style import BELOW, SMALL, finish, swatch

ROWS, LINE, TILE = 128, 16, 512


def atom(head_dim: int = 128, tile: int = 0, scales: str = "interleaved") -> np.ndarray:
    """``(row, column)`` of the scale in each of 512 bytes, from kvlab's own layout: ``(32, 16, 2)``, -1 for padding.

    ``tile`` counts 4 columns each. ``scales="flat"`` gives as many bytes of the flat placement, from row 0 on.
    """
    layout = token_major(Geometry(layers=1, heads=1, head_dim=head_dim, page_size=ROWS, pages=1), MXFP8(scales))
    size = layout.buffers["k_scale"]
    byte = tile * TILE + np.arange(TILE)
    cells = layout.explain("k_scale", np.minimum(byte, size - 1))
    real = (cells.field >= 0) & (byte < size)
    pairs = np.stack([np.where(real, cells.slot, -1), np.where(real, cells.dim, -1)], axis=-1)
    return pairs.reshape(ROWS // 4, LINE, 2)


def scale_atom(row: int = 37, column: int = 2, head_dim: int = 128, scales=None, field: str = "k_scale") -> go.Figure:
    """One 128x4 tile as 32 lanes of 16 bytes, the flat bytes beside it, and the block that one scale belongs to.

    Parameters
    ----------
    row : int
        Slot within the tile's 128 rows.
    column : int
        32-element block of the row, 0 … head_dim/32 - 1. The tile that holds it is shown.
    scales : ``(128, head_dim // 32)`` uint8, optional
        Scale bytes of these rows, for the hover and the words about the selected one.
    field : "k_scale" or "v_scale"

    Raises
    ------
    IndexError
        A row or column that the matrix lacks.
    """
    columns = head_dim // BLOCK
    if not 0 <= row < ROWS or not 0 <= column < columns:
        raise IndexError(f"scale_atom: row={row}, column={column} lie outside {ROWS} rows and {columns} columns")
    tile = column // 4
    flat_line = (row * columns + column) // TILE  # with over 4 columns a part of the flat bytes is shown
    placements = {
        "interleaved": (atom(head_dim, tile), tile * TILE),
        "flat": (atom(head_dim, flat_line, "flat"), flat_line * TILE),
    }
    titles = ("interleaved: 32 lanes of 16 bytes", "flat: the same matrix, row by row")
    fig = make_subplots(
        2,
        2,
        specs=[[{}, {}], [{"colspan": 2}, None]],
        row_heights=[0.88, 0.12],
        vertical_spacing=0.13,
        horizontal_spacing=0.08,
        subplot_titles=(*titles, f"the payload of row {row}: blocks of {BLOCK} elements, one scale each"),
    )
    spots = {}
    for i, (name, (pairs, start)) in enumerate(placements.items(), 1):
        fig.add_trace(_cells(pairs, start, scales, field), row=1, col=i)
        lane, byte = np.argwhere((pairs == (row, column)).all(-1))[0].tolist()
        spots[name] = start + lane * LINE + byte
        _box(fig, byte - 0.5, byte + 0.5, lane - 0.5, lane + 0.5, i)
        labels = (
            _column_letters(pairs) if name == "interleaved" or LINE % columns == 0 else [str(b) for b in range(LINE)]
        )
        words = "byte of the lane: c = column" if name == "interleaved" else "byte of the line"
        words += ", c = column" if name == "flat" and LINE % columns == 0 else ""
        fig.update_xaxes(tickvals=list(range(LINE)), ticktext=labels, title=words, row=1, col=i)
        fig.update_yaxes(
            tickvals=list(range(0, 32, 4)), ticktext=[f"{start + t * LINE}" for t in range(0, 32, 4)], row=1, col=i
        )
    _payload(fig, row, column, columns)
    color = palette.FIELDS[field]
    for group in range(4):
        shade = palette.mix(color, palette.WHITE, _SHADES[group])
        swatch(fig, f"rows {32 * group} … {32 * group + 31}", shade, row=1, col=1)
    if (placements["interleaved"][0] < 0).any() or (placements["flat"][0] < 0).any():
        swatch(fig, "–: padding, or past the end", palette.PADDING[1], "square-x", row=1, col=1)
    swatch(fig, "selected scale and its block", "rgba(0,0,0,0)", "square", palette.MARK, row=1, col=1)
    name = palette.NAMES[field]
    words = f"Row {row}, column {column}: byte {spots['interleaved']} of the tiles, byte {spots['flat']} flat"
    words += _value(scales, row, column)
    subtitle = f"{name}, one head, {ROWS} rows x {columns} columns (head_dim {head_dim}). A cell's number is its row."
    subtitle += f"<br>{words}; it scales elements {BLOCK * column} … {BLOCK * column + BLOCK - 1}."
    subtitle += f" Tile {tile} of {-(-columns // 4)} is shown." if columns > 4 else ""
    formula = "tile byte = (c//4)*512 + (r%32)*16 + (r//32)*4 + c%4;  flat byte = r*columns + c"
    lines = [
        f"lane {i:2}: " + " ".join(f"{r:3}.{c}" if r >= 0 else "    –" for r, c in lane)
        for i, lane in enumerate(placements["interleaved"][0].tolist())
    ]
    finish(fig, f"The 128x4 scale tile ({name})", subtitle, [formula, "row.column of each byte:", *lines], 900)
    fig.update_yaxes(range=[31.5, -0.5], showgrid=False, zeroline=False, row=1)
    fig.update_yaxes(title="byte offset of the line", row=1, col=1)
    fig.update_xaxes(range=[-0.5, LINE - 0.5], showgrid=False, zeroline=False, tickangle=0, row=1)
    return fig.update_layout(legend=BELOW, margin={"t": 115, "b": 95, "l": 65})


_SHADES = (0.78, 0.6, 0.42, 0.24)  # pale enough everywhere for black numbers


def _cells(pairs: np.ndarray, start: int, scales, field: str) -> go.Heatmap:
    """512 cells, coloured by group of 32 rows, each with its row number."""
    group = np.where(pairs[..., 0] < 0, 4, pairs[..., 0] // 32).astype(np.uint8)
    colors = [palette.mix(palette.FIELDS[field], palette.WHITE, s) for s in _SHADES] + [palette.PADDING[1]]
    stops = [[(i + d) / 5, color] for i, color in enumerate(colors) for d in (0, 1)]
    hover = []
    for lane, line in enumerate(pairs.tolist()):
        words = []
        for byte, (r, c) in enumerate(line):
            at = f"byte {start + lane * LINE + byte} (line {lane}, byte {byte})"
            here = f"row {r}, column {c}: elements {BLOCK * c} … {BLOCK * c + BLOCK - 1}" if r >= 0 else "padding"
            words.append(f"{at}<br>{here}" + (_value(scales, r, c) if r >= 0 else ""))
        hover.append(words)
    return go.Heatmap(
        z=group,
        zmin=-0.5,
        zmax=4.5,
        colorscale=stops,
        showscale=False,
        xgap=1,
        ygap=1,
        text=[[str(r) if r >= 0 else "–" for r, _ in line] for line in pairs.tolist()],
        texttemplate="%{text}",
        textfont={"size": SMALL, "color": palette.BLACK},
        hovertext=hover,
        hovertemplate="%{hovertext}<extra></extra>",
    )


def _column_letters(pairs: np.ndarray) -> list[str]:
    columns = pairs[0, :, 1].tolist()
    return [f"c{c}" if c >= 0 else "–" for c in columns]


def _box(fig, x0, x1, y0, y1, panel: int, row: int = 1) -> None:
    line = {"color": palette.MARK, "width": 3}
    fig.add_shape(type="rect", x0=x0, x1=x1, y0=y0, y1=y1, line=line, row=row, col=panel)


def _payload(fig, row: int, column: int, columns: int) -> None:
    """The row's elements as one bar per block; the selected block is outlined."""
    for c in range(columns):
        words = f"row {row}, elements {BLOCK * c} … {BLOCK * c + BLOCK - 1}: scale in column {c}"
        bar = go.Bar(
            x=[BLOCK],
            base=BLOCK * c,
            y=[0],
            orientation="h",
            width=0.9,
            marker={"color": "#dddddd", "line": {"width": 1, "color": "#555"}},
            text=[f"c{c}"],
            textposition="inside",
            insidetextanchor="middle",
            textangle=0,
            textfont={"size": SMALL, "color": palette.BLACK},
            hovertext=words,
            hovertemplate="%{hovertext}<extra></extra>",
            showlegend=False,
        )
        fig.add_trace(bar, row=2, col=1)
    _box(fig, BLOCK * column, BLOCK * (column + 1), -0.45, 0.45, 1, row=2)
    fig.update_layout(barmode="overlay")
    ticks = [BLOCK * c for c in range(columns + 1)]
    fig.update_xaxes(title="element of the row (dim)", tickvals=ticks, row=2, col=1)
    fig.update_yaxes(showticklabels=False, showgrid=False, zeroline=False, range=[-0.5, 0.5], row=2, col=1)


def _value(scales, row: int, column: int) -> str:
    if scales is None:
        return ""
    e = int(np.asarray(scales)[row, column])
    return f", value {e} = " + ("NaN" if e == E8M0_NAN else f"2^{e - E8M0_BIAS}")
