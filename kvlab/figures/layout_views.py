"""Four views of one pool beside each other, as pictures that are drawn once.

The marks of a selection are no shapes of the figure: plotly draws all axes again when a shape moves, 50 ms and more.
:func:`pixels` says where they go; the figure's size is fixed for that.
"""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from . import owners, palette
from .png import data_uri, palette_png
from .style import BLACK, FONT, SMALL, TEMPLATE
from .view_map import ViewMap

TITLES = ("logical (slot, dim), one head", "3-D (slot, head, dim)", "4-D (page, offset, head, dim)", "raw bytes")
DOMAINS = ((0.055, 0.235), (0.26, 0.47), (0.505, 0.735), (0.81, 1.0))
WIDTH, HEIGHT = 960, 325
MARGIN = {"l": 5, "r": 8, "t": 28, "b": 42, "autoexpand": False}
SHADES = 32  # of the numbers: as many as can be told apart, and a smaller picture
BLANK = owners.PADDING  # white without stripes


def layout_views(views: ViewMap, values: dict[str, np.ndarray]) -> go.Figure:
    """The four pictures and their axes. They show the first field, layer and head; :func:`windows` shows another."""
    fig = go.Figure()
    for i, source in enumerate(pictures(views, values)):
        n = "" if i == 0 else i + 1
        image = go.Image(source=source, x0=0, dx=1, y0=0, dy=1, hoverinfo="none", xaxis=f"x{n}", yaxis=f"y{n}")
        fig.add_trace(image)
    notes = [
        {"text": f"<b>{t}</b>", "x": d[0], "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left"}
        for t, d in zip(TITLES, DOMAINS, strict=True)
    ]
    for note in notes:
        note.update({"yanchor": "bottom", "yshift": 6, "showarrow": False, "font": {"size": FONT}})
    axis = {"showgrid": False, "zeroline": False, "ticks": "outside", "ticklen": 4, "fixedrange": True}
    axis.update({"ticklabeloverflow": "allow", "automargin": False})  # both measure every label at every step
    fig.update_layout(
        template=TEMPLATE,
        width=WIDTH,
        height=HEIGHT,
        margin=MARGIN,
        font={"size": FONT, "color": BLACK},
        annotations=notes,
        dragmode=False,
        showlegend=False,
    )
    for i, (domain, words) in enumerate(zip(DOMAINS, ("dim", "head", None, "byte of the line"), strict=True)):
        n = "" if i == 0 else i + 1
        title = {"text": words, "standoff": 4, "font": {"size": SMALL}}
        fig.layout[f"xaxis{n}"] = {**axis, "domain": domain, "anchor": f"y{n}", "title": title}
        fig.layout[f"yaxis{n}"] = {**axis, "anchor": f"x{n}", "scaleanchor": False}
    fig.update_layout(xaxis3={"showticklabels": False, "ticks": ""}, yaxis2={"showticklabels": False, "ticks": ""})
    fig.update_layout(all_axes(views))
    return fig


def windows(views: ViewMap, field: str, layer: int, head: int) -> dict:
    """Axis ranges, as ``xaxis.range`` …, that show one head, one layer of the 3-D and one layer of the 4-D view."""
    one, whole, tiles, _ = views.spans(field, layer, head)
    return {
        "xaxis.range": [one[0] - 0.5, one[1] - 0.5],
        "xaxis2.range": [whole[0] - 0.5, whole[1] - 0.5],
        "xaxis3.range": [tiles[0] - 0.5, tiles[1] - 0.5],
        "yaxis3.range": [tiles[3] - 0.5, tiles[2] - 0.5],
    }


def pixels(spans, boxes, points) -> tuple[list, list]:
    """Boxes ``[x, y, width, height]`` and points ``[x, y]`` in pixels of the figure, from :meth:`ViewMap.marks`."""
    across, down = WIDTH - MARGIN["l"] - MARGIN["r"], HEIGHT - MARGIN["t"] - MARGIN["b"]

    def place(view, column, row):
        x0, x1, y0, y1 = spans[view]
        left, right = DOMAINS[view]
        share = left + (right - left) * (column - x0) / (x1 - x0)
        return MARGIN["l"] + across * share, MARGIN["t"] + down * (row - y0) / (y1 - y0)

    corners = [(*place(v, x, y), *place(v, x + width, y + height)) for v, x, y, width, height in boxes]
    placed = [[round(x0, 1), round(y0, 1), round(x1 - x0, 1), round(y1 - y0, 1)] for x0, y0, x1, y1 in corners]
    return placed, [[round(z, 1) for z in place(view, x + 0.5, y + 0.5)] for view, x, y in points]


def all_axes(views: ViewMap) -> dict:
    """Axis settings of a new layout, its first field, layer and head shown.

    The ticks are those of all fields, layers and heads at once: where only a range moves, plotly draws no axis anew.
    """
    first = windows(views, next(iter(views.layout.fields)), 0, 0)
    slots = views.layout.geometry.slots
    y = {"range": [slots - 0.5, -0.5], **_ticks((s, s) for s in range(0, slots, _step(slots / 8)))}
    return {
        **{key.replace(".", "_"): value for key, value in first.items()},
        "xaxis": _ticks(_dim_ticks(views)),
        "xaxis2": _ticks(_head_ticks(views)),
        "xaxis4": {"range": [-0.5, views.columns - 0.5], **_ticks((x, x) for x in (0, views.columns // 2))},
        "yaxis": {**y, "title": {"text": "slot", "standoff": 2, "font": {"size": SMALL}}},
        "yaxis2": y,
        "yaxis3": _ticks(_page_ticks(views)),
        "yaxis4": {"range": [views.first_line[""] - 0.5, -0.5], **_ticks(_byte_ticks(views))},
    }


def _ticks(pairs) -> dict:
    at, words = zip(*pairs, strict=True)
    return {"tickmode": "array", "tickvals": list(at), "ticktext": [str(w) for w in words]}


def _step(rows: float) -> int:
    return 2 ** int(np.ceil(np.log2(max(rows, 1))))


def _dim_ticks(views: ViewMap):
    for name, f in views.layout.fields.items():
        for layer, head in np.ndindex(f.extents["layer"], f.extents["head"]):
            for dim in sorted({0, f.extents["dim"] // 2}):
                yield views.column(name, layer, head, dim), dim


def _head_ticks(views: ViewMap):
    heads = views.layout.geometry.heads
    for name, f in views.layout.fields.items():
        for layer in range(f.extents["layer"]):
            for head in range(0, heads, -(-heads // 4)):
                yield views.column(name, layer, head) + (f.extents["dim"] - 1) / 2, head


def _page_ticks(views: ViewMap):
    rows, g = views.down // views.tile[1], views.layout.geometry
    for name, f in views.layout.fields.items():
        for layer in range(f.extents["layer"]):
            for row in range(0, rows, -(-rows // 6)):
                page = row * views.across
                yield views.tile_at(name, layer, page)[1] + (g.page_size - 1) / 2, f"p{page}"


def _byte_ticks(views: ViewMap):
    apart = views.first_line[""] / 6
    for buffer, size in views.layout.buffers.items():
        start, rows = views.first_line[buffer], -(-size // views.columns)
        yield start, f"<b>{buffer}</b> 0"
        for row in range(_step(apart), rows, _step(apart)):
            if rows - row > apart / 2:
                yield start + row, f"{row * views.columns:,}"


def pictures(views: ViewMap, values: dict[str, np.ndarray]) -> list[str]:
    """The four pictures as data addresses. ``values``: per field ``(layers, slots, heads, dims)`` numbers."""
    numbers = [_shades(values[f]).transpose(1, 0, 2, 3).reshape(views.layout.geometry.slots, -1) for f in values]
    pngs = [palette_png(np.concatenate(numbers, axis=1), palette.cividis(SHADES))]
    pngs += [palette_png(codes, owners.colors()) for codes in (_three(views), _four(views), _raw(views))]
    return [data_uri(png) for png in pngs]


def _codes(g, field: str) -> np.ndarray:
    """Owner codes of one field, ``(layers, slots)``, as :func:`kvlab.figures.owner_map` numbers them."""
    layer, slot = np.arange(g.layers)[:, None], np.arange(g.slots)[None, :]
    code = owners.FIELDS.index(field) * owners.SHADES * 2 + layer % owners.SHADES * 2 + slot // g.page_size % 2
    return np.where(slot == 0, owners.PAD_SLOT, code).astype(np.uint8)


def _three(views: ViewMap) -> np.ndarray:
    parts = []
    for name, f in views.layout.fields.items():
        parts.append(np.repeat(_codes(views.layout.geometry, name).T, f.extents["head"] * f.extents["dim"], axis=1))
    return owners.striped(np.concatenate(parts, axis=1))


def _four(views: ViewMap) -> np.ndarray:
    g = views.layout.geometry
    picture = np.full((len(views.layout.fields) * g.layers * views.down, views.across * views.tile[0]), BLANK, np.uint8)
    for name, f in views.layout.fields.items():
        width, codes = g.heads * f.extents["dim"], _codes(g, name).reshape(g.layers, g.pages, g.page_size)
        for layer in range(g.layers):
            for page in range(g.pages):
                x, y = views.tile_at(name, layer, page)
                tile = np.repeat(codes[layer, page][:, None], width, axis=1)
                picture[y : y + g.page_size, x : x + width] = owners.striped(tile)
    return picture


def _raw(views: ViewMap) -> np.ndarray:
    picture = np.full((views.first_line[""], views.columns), BLANK, np.uint8)
    for buffer, size in views.layout.buffers.items():
        lines = -(-size // views.columns)
        folded = np.full(lines * views.columns, BLANK, np.uint8)
        folded[:size] = owners.owner_map(views.layout, buffer)[0]
        real = (np.arange(len(folded)) < size).reshape(lines, views.columns)
        codes = folded.reshape(lines, views.columns)
        start = views.first_line[buffer]
        picture[start : start + lines] = np.where(real, owners.striped(codes), BLANK)
    return picture


def _shades(x: np.ndarray) -> np.ndarray:
    """Numbers as 0 … 31, from the 1st to the 99th percentile; the few beyond take the end's colour."""
    low, high = np.percentile(x, [1, 99])
    return (np.clip((x - low) / max(high - low, 1e-30), 0, 1) * (SHADES - 1)).round().astype(np.uint8)
