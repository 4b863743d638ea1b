"""Two formulas for one scale tile, byte by byte: where they put the same scale, and where they do not."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from . import palette
from .scale_atom import LINE, ROWS, TILE, atom
from .style import BELOW, SMALL, finish, swatch

_SAME, _OTHER, _NOBODY = range(3)


def general_offsets(columns: int, page_size: int = ROWS) -> np.ndarray:
    """sglang's general formula ``(t%32)*((ps//32)*SF) + (t//32)*SF + s``: byte of each (row, column)."""
    t, s = np.arange(page_size)[:, None], np.arange(columns)[None, :]
    return t % 32 * (page_size // 32 * columns) + t // 32 * columns + s


def tile_offsets(columns: int) -> np.ndarray:
    """Byte of each (row, column) in the tiles that kvlab stores, from its own layout."""
    offsets = np.full((ROWS, columns), -1)
    for tile in range(-(-columns // 4)):
        pairs = atom(32 * columns, tile).reshape(-1, 2)
        (real,) = np.nonzero(pairs[:, 0] >= 0)
        offsets[tuple(pairs[real].T)] = tile * TILE + real
    return offsets


def scale_formulas(head_dim: int = 64) -> go.Figure:
    """The first 512 bytes under the tile and under sglang's general formula; a cell says which row it serves."""
    columns = head_dim // 32
    offsets = {"the 128x4 tile": tile_offsets(columns), "the general formula": general_offsets(columns)}
    same = offsets["the 128x4 tile"] == offsets["the general formula"]
    fig = make_subplots(1, 2, shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=list(offsets))
    twin = []
    for i, (name, offset) in enumerate(offsets.items(), 1):
        words, codes = _cells(offset, same)
        fig.add_trace(_heatmap(words, codes), row=1, col=i)
        twin += [
            name,
            *(f"byte {LINE * n:3}: " + " ".join(f"{w:>5}" for w in line) for n, line in enumerate(words[:8])),
        ]
    swatch(fig, "same place in both", _COLORS[_SAME], row=1, col=1)
    swatch(fig, "another place", _COLORS[_OTHER], row=1, col=1)
    swatch(fig, "–: no scale here", _COLORS[_NOBODY], row=1, col=1)
    subtitle = f"{same.sum()} of {same.size} scales lie at the same byte. A cell's number is the row whose scale lies"
    subtitle += f" there; the first {TILE} bytes."
    finish(fig, f"head_dim {head_dim}: {columns} scales a row", subtitle, twin, 690)
    fig.update_xaxes(title="byte of the line", dtick=4, showgrid=False, zeroline=False)
    fig.update_yaxes(range=[TILE // LINE - 0.5, -0.5], showgrid=False, zeroline=False)
    ticks = list(range(0, TILE // LINE, 4))
    fig.update_yaxes(tickvals=ticks, ticktext=[LINE * t for t in ticks], title="byte offset of the line", row=1, col=1)
    return fig.update_layout(legend=BELOW, margin={"l": 60, "t": 100, "b": 95})


_COLORS = ("#d9d9d9", palette.mix(palette.MARK, palette.WHITE, 0.45), palette.PADDING[0])


def _cells(offset: np.ndarray, same: np.ndarray) -> tuple[list, np.ndarray]:
    """``row.column`` and code of each of the first 512 bytes, 32 lines of 16."""
    words, codes = np.full(TILE, "–", object), np.full(TILE, _NOBODY)
    for row, column in np.argwhere(offset < TILE).tolist():
        words[offset[row, column]] = f"{row}.{column}"
        codes[offset[row, column]] = _SAME if same[row, column] else _OTHER
    return words.reshape(-1, LINE).tolist(), codes.reshape(-1, LINE).astype(np.uint8)


def _heatmap(words: list, codes: np.ndarray) -> go.Heatmap:
    return go.Heatmap(
        z=codes,
        zmin=-0.5,
        zmax=2.5,
        colorscale=[[(i + d) / 3, color] for i, color in enumerate(_COLORS) for d in (0, 1)],
        showscale=False,
        xgap=1,
        ygap=1,
        text=[[w.split(".")[0] for w in line] for line in words],
        texttemplate="%{text}",
        textfont={"size": SMALL, "color": palette.BLACK},
        hovertext=words,
        hovertemplate="line %{y}, byte %{x}: row.column %{hovertext}<extra></extra>",
    )
