"""Four views of one pool beside each other: pictures that are drawn once, their places, axes and windows.

No drawing here: :class:`kvlab.widgets.panels.Panels` shows what these functions return.
"""

from __future__ import annotations

import numpy as np

from ..figures import owners, palette
from ..figures.png import data_uri, palette_png
from .view_map import ViewMap

WIDTH, HEIGHT = 960, 325
TOP, TALL = 28, 252  # first pixel and height of the pictures
PLACES = (
    {"x": 57, "w": 170, "title": "logical (slot, dim), one head", "xlabel": "dim", "ylabel": "slot"},
    {"x": 251, "w": 198, "title": "3-D (slot, head, dim)", "xlabel": "head"},
    {"x": 484, "w": 217, "title": "4-D (page, offset, head, dim)"},
    {"x": 772, "w": 178, "title": "raw bytes", "xlabel": "byte of the line"},
)
SHADES = 32  # of the numbers: as many as can be told apart, and a smaller picture
BLANK = owners.PADDING  # white without stripes


def panels(views: ViewMap) -> list[dict]:
    """The four places with their axes, as :class:`kvlab.widgets.panels.Panels` takes them.

    The ticks are those of all fields, layers and heads at once: a window shows its part of them.
    """
    g = views.layout.geometry
    slots = [(s + 0.5, s) for s in range(0, g.slots, _step(g.slots / 8))]
    x = [_dim_ticks(views), _head_ticks(views), (), ((x + 0.5, x) for x in (0, views.columns // 2))]
    y = [slots, (), _page_ticks(views), _byte_ticks(views)]
    sizes = [(views.first_column[""], g.slots)] * 2
    sizes += [(views.across * views.tile[0], len(views.layout.fields) * g.layers * views.down)]
    sizes += [(views.columns, views.first_line[""])]
    return [
        {**place, "y": TOP, "h": TALL, "size": list(size), "xticks": _ticks(xs), "yticks": _ticks(ys)}
        for place, size, xs, ys in zip(PLACES, sizes, x, y, strict=True)
    ]


def windows(views: ViewMap, field: str, layer: int, head: int) -> list[list[int]]:
    """What each view shows of its picture ``[x0, x1, y0, y1]``: one head, one layer in 3-D, one layer in 4-D, all."""
    return [list(span) for span in views.spans(field, layer, head)]


def pixels(windows, boxes, points) -> tuple[list, list]:
    """Boxes ``[x, y, width, height]`` and points ``[x, y]`` in pixels of the widget, from :meth:`ViewMap.marks`."""

    def place(view, column, row):
        (x0, x1, y0, y1), at = windows[view], PLACES[view]
        return at["x"] + at["w"] * (column - x0) / (x1 - x0), TOP + TALL * (row - y0) / (y1 - y0)

    corners = [(*place(v, x, y), *place(v, x + width, y + height)) for v, x, y, width, height in boxes]
    placed = [[round(x0, 1), round(y0, 1), round(x1 - x0, 1), round(y1 - y0, 1)] for x0, y0, x1, y1 in corners]
    return placed, [[round(z, 1) for z in place(view, x + 0.5, y + 0.5)] for view, x, y in points]


def _ticks(pairs) -> list:
    return [[at, str(words)] for at, words in pairs]


def _step(rows: float) -> int:
    return 2 ** int(np.ceil(np.log2(max(rows, 1))))


def _dim_ticks(views: ViewMap):
    for name, f in views.layout.fields.items():
        for layer, head in np.ndindex(f.extents["layer"], f.extents["head"]):
            for dim in sorted({0, f.extents["dim"] // 2}):
                yield views.column(name, layer, head, dim) + 0.5, dim


def _head_ticks(views: ViewMap):
    heads = views.layout.geometry.heads
    for name, f in views.layout.fields.items():
        for layer in range(f.extents["layer"]):
            for head in range(0, heads, -(-heads // 4)):
                yield views.column(name, layer, head) + f.extents["dim"] / 2, head


def _page_ticks(views: ViewMap):
    rows, g = views.down // views.tile[1], views.layout.geometry
    for name, f in views.layout.fields.items():
        for layer in range(f.extents["layer"]):
            for row in range(0, rows, -(-rows // 6)):
                page = row * views.across
                yield views.tile_at(name, layer, page)[1] + g.page_size / 2, f"p{page}"


def _byte_ticks(views: ViewMap):
    apart = views.first_line[""] / 6
    for buffer, size in views.layout.buffers.items():
        start, rows = views.first_line[buffer], -(-size // views.columns)
        yield start + 0.5, f"'{buffer}' 0"
        for row in range(_step(apart), rows, _step(apart)):
            if rows - row > apart / 2:
                yield start + row + 0.5, f"{row * views.columns:,}"


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
