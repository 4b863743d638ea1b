"""Where each cell and byte of a pool is drawn in four views, and which one a point of a view is. No drawing here.

The four: the numbers of one head, the 3-D index space (slot, head, dim), the 4-D one (page, offset, head, dim), and
the raw bytes. The first two are windows of one picture with all fields, layers and heads beside each other; the third
of one with all fields and layers one below the other. So a selection moves windows and marks, and no picture.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..figures.grid import choose_columns

LARGEST = 16384


@dataclass(frozen=True)
class ViewMap:
    """Where the cells and bytes of a layout are drawn, and which one a point of a view is."""

    layout: object

    @cached_property
    def first_column(self) -> dict[str, int]:
        """Column of (layer 0, head 0, dim 0) of each field in the picture of the first two views."""
        at, first = 0, {}
        for name, f in self.layout.fields.items():
            first[name] = at
            at += f.extents["layer"] * f.extents["head"] * f.extents["dim"]
        return {**first, "": at}

    def __post_init__(self):
        columns = self.first_column[""]
        lines = len(self.layout.fields) * self.layout.geometry.layers * self.down
        if max(columns, lines) > LARGEST:
            raise ValueError(
                f"the pictures of all layers would be {columns:,} x {lines:,} cells, a browser draws at most "
                f"{LARGEST:,} each way; use fewer layers, heads or pages"
            )

    @cached_property
    def across(self) -> int:
        """Page tiles beside each other in the 4-D view."""
        return max(1, round((self.layout.geometry.pages / 2) ** 0.5))

    @cached_property
    def tile(self) -> tuple[int, int]:
        """Width and height of a page's tile with the gap after it; the same for all fields."""
        g = self.layout.geometry
        width = max(f.extents["dim"] for f in self.layout.fields.values()) * g.heads
        return width + max(1, width // 10), g.page_size + max(1, g.page_size // 6)

    @cached_property
    def down(self) -> int:
        """Rows of one (field, layer) in the picture of the 4-D view."""
        return -(-self.layout.geometry.pages // self.across) * self.tile[1]

    @cached_property
    def columns(self) -> int:
        """Bytes per line of the raw view."""
        return choose_columns(self.layout, next(iter(self.layout.buffers)), self.layout.nbytes)

    @cached_property
    def first_line(self) -> dict[str, int]:
        """Line on which each buffer begins in the raw view, with a gap before the next; ``""`` is the end."""
        lines = [-(-size // self.columns) for size in self.layout.buffers.values()]
        gap = max(1, sum(lines) // 16)
        starts = np.concatenate([[0], np.cumsum([n + gap for n in lines])])
        starts[-1] -= gap
        return dict(zip((*self.layout.buffers, ""), starts.tolist(), strict=True))

    def column(self, field: str, layer: int, head: int = 0, dim: int = 0) -> int:
        """Column of a cell in the picture of the first two views."""
        x = self.layout.fields[field].extents
        return self.first_column[field] + (layer * x["head"] + head) * x["dim"] + dim

    def tile_at(self, field: str, layer: int, page: int) -> tuple[int, int]:
        """Column and row of the first cell of a page's tile in the picture of the 4-D view."""
        block = list(self.layout.fields).index(field) * self.layout.geometry.layers + layer
        down, across = divmod(page, self.across)
        return across * self.tile[0], block * self.down + down * self.tile[1]

    def raw_at(self, buffer: str, byte: int) -> tuple[int, int]:
        """Column and line of a byte in the raw view."""
        line, column = divmod(byte, self.columns)
        return column, self.first_line[buffer] + line

    def pick(self, view: int, x: int, y: int, field: str, layer: int):
        """What lies at a pixel: ``{field, layer, slot, head, dim}``, ``(buffer, byte)`` in the raw view, or None."""
        extents = self.layout.fields[field].extents
        if view == 3:
            return self._raw_byte(x, y)
        if view == 2:
            (across, column), (down, offset) = divmod(x, self.tile[0]), divmod(y, self.tile[1])
            page = down % (self.down // self.tile[1]) * self.across + across
            head, dim = divmod(column, extents["dim"])
            g = self.layout.geometry
            if page >= g.pages or offset >= g.page_size or head >= g.heads or across >= self.across:
                return None
            return {"field": field, "layer": layer, "slot": page * g.page_size + offset, "head": head, "dim": dim}
        head, dim = divmod(x - self.column(field, layer), extents["dim"])
        if not (0 <= head < extents["head"] and 0 <= y < extents["slot"]):
            return None
        return {"field": field, "layer": layer, "slot": y, "head": head, "dim": dim}

    def _raw_byte(self, x: int, y: int):
        for buffer, size in self.layout.buffers.items():
            byte = (y - self.first_line[buffer]) * self.columns + x
            if 0 <= byte < size and y >= self.first_line[buffer]:
                return buffer, byte
        return None

    # ---------------------------------------------------------------------------------------- windows and marks

    def spans(self, field: str, layer: int, head: int) -> list[tuple[int, int, int, int]]:
        """What each view shows of its picture: first column, end column, first row, end row."""
        g, dims = self.layout.geometry, self.layout.fields[field].extents["dim"]
        one, whole, top = self.column(field, layer, head), self.column(field, layer), self.tile_at(field, layer, 0)[1]
        width, gap = dims * g.heads, self.tile[1] - g.page_size
        return [
            (one, one + dims, 0, g.slots),
            (whole, whole + width, 0, g.slots),
            (0, (self.across - 1) * self.tile[0] + width, top, top + self.down - gap),
            (0, self.columns, 0, self.first_line[""]),
        ]

    def marks(self, cell, buffer: str, byte: int) -> tuple[list, list]:
        """Where a selection is: boxes ``(view, column, row, width, height)`` and points ``(view, column, row)``.

        ``cell`` None is a padding byte, a point of the raw view only.
        """
        points = [(3, *self.raw_at(buffer, byte))]
        if cell is None:
            return [], points
        g, field = self.layout.geometry, self.layout.fields[cell.field]
        at, whole = self.column(cell.field, cell.layer, cell.head), self.column(cell.field, cell.layer)
        dims = field.extents["dim"]
        x, y = self.tile_at(cell.field, cell.layer, cell.page)
        in_tile = (2, x + cell.head * dims + cell.dim, y + cell.offset)
        points = [(0, at + cell.dim, cell.slot), (1, at + cell.dim, cell.slot), in_tile, *points]
        boxes = [(0, at, cell.slot, dims, 1), (1, whole, cell.slot, dims * g.heads, 1)]
        boxes.append((2, x, y, dims * g.heads, g.page_size))
        return boxes + [(3, *box) for box in self._row_boxes(field, cell, buffer)], points

    def _row_boxes(self, field, cell, buffer: str) -> list[tuple[int, int, int, int]]:
        """Every byte run of the selected row; a run that goes on in the next line is one box per line."""
        own = cell.layer if isinstance(field.buffer, str) else 0
        head, dim = np.arange(field.extents["head"])[:, None], np.arange(field.extents["dim"])[None, :]
        starts = np.sort(field.byte(own, cell.slot, head, dim).reshape(-1))
        cuts = np.flatnonzero(np.diff(starts) != field.item) + 1
        boxes = []
        for first, last in zip(starts[[0, *cuts]].tolist(), starts[[*(cuts - 1), -1]].tolist(), strict=True):
            while first < last + field.item:
                stop = min(last + field.item, (first // self.columns + 1) * self.columns)
                boxes.append((*self.raw_at(buffer, first), stop - first, 1))
                first = stop
        return boxes
