"""Pick a byte and read its coordinate, or pick a coordinate and see its byte: one selection in four views."""

from __future__ import annotations

from typing import ClassVar

import ipywidgets as ipw
import numpy as np
import torch

from ..builders import head_major, page_major, token_major
from ..formats import parse_format
from ..geometry import Geometry
from ..layout import Padding
from . import layout_code
from .base import Explorer, with_first
from .cell_words import formula_table, legend, selection_words
from .hex_pad import HELP, STEPS, HexPad
from .layout_controls import CELL, SIZES, LayoutControls
from .layout_pictures import HEIGHT, WIDTH, panels, pictures, pixels, windows
from .panels import Panels
from .sample_pool import sample_pool
from .view_map import ViewMap

BUILDERS = {"token_major": token_major, "page_major": page_major, "head_major": head_major}
LARGEST = 4 << 20


class LayoutExplorer(Explorer):
    """Four views of a pool that a real commit has filled, with one selection.

    Parameters
    ----------
    state : dict or str, optional
        A saved state. ``at`` is ``[buffer, byte]`` where the selected byte is not the first one of its cell.
    layouts : dict of str to function, optional
        Layouts of your own beside the three: ``name: builder``, with ``builder(geometry, fmt) -> Layout``. The first
        one is shown, unless the state names another.

    Examples
    --------
    >>> LayoutExplorer({"layout": "head_major", "format": "float8_e4m3fn"})     # doctest: +SKIP
    >>> LayoutExplorer(layouts={"mine": my_layout})                             # doctest: +SKIP
    """

    DEFAULTS: ClassVar[dict] = {
        "layout": "page_major",
        "format": "bfloat16",
        "layers": 2,
        "heads": 2,
        "head_dim": 64,
        "v_head_dim": 64,
        "page_size": 4,
        "pages": 8,
        "field": "k",
        "layer": 1,
        "slot": 11,
        "head": 1,
        "dim": 5,
        "at": None,
    }

    def __init__(self, state: dict | str | None = None, layouts: dict | None = None):
        self.builders = {**BUILDERS, **(layouts or {})}
        self.pool = self._shown = self._at = None
        self._resized = False
        super().__init__(with_first(state, layouts))
        self.children = [child for child in self.children if child is not self.error]  # it has its place in _build
        self.layout.max_width = "1100px"

    def _build(self):
        self.controls = LayoutControls(self.builders)
        self.formula = ipw.HTML(layout={"height": "66px", "overflow": "auto"})
        self.words = ipw.HTML(layout={"flex": "1 1 0", "min_width": "0", "height": "146px", "overflow": "auto"})
        self.legend = ipw.HTML()
        self.hex = HexPad(self._key, lambda byte: self._pick_byte(self.controls.buffer.value, byte))
        self.views = Panels(width=WIDTH, height=HEIGHT)
        self.views.observe(lambda change: self._click(*change["new"][:3]), names="picked")
        for control in self.controls.pool.values():
            control.observe(self._resize, names="value")
        for control in self.controls.cell.values():
            control.observe(lambda _: self._pick_cell(), names="value")
        for control in (self.controls.buffer, self.controls.byte):
            control.observe(lambda _: self._pick_byte(*self._byte), names="value")
        below = ipw.HBox([self.words, self.hex], layout={"width": "100%"})
        # an error pushes the help out of this box of fixed height: it shows beside the boxes, and nothing moves
        self.error.layout.display = "none"
        self.error.observe(lambda c: setattr(self.error.layout, "display", "" if c["new"] else "none"), names="value")
        says = ipw.VBox([self.error, ipw.HTML(HELP)], layout={"height": "40px", "overflow": "hidden"})
        return [self.controls, says, self.views, self.legend, self.formula, below]

    def _read(self) -> dict:
        return {**self.controls.values(), "at": list(self._at) if self._at else None}

    def _write(self, state: dict) -> None:
        self.controls.write(state)
        self._at = tuple(state["at"]) if state["at"] else None

    @property
    def _byte(self) -> tuple[str, int]:
        return self.controls.buffer.value, self.controls.byte.value

    # --------------------------------------------------------------------------------------------------- selection

    def _resize(self, change) -> None:
        """Another pool, with the same cell selected where it exists there, else the nearest."""
        if self._busy:
            return
        with self._quiet():
            if change["owner"] is self.controls.pool["format"]:
                self.controls.legal_page_size()
        self._at, self._resized = None, True
        self.refresh()

    def _pick_cell(self, **coordinates) -> None:
        """Select a cell: the one in the boxes, after ``coordinates`` have been written there."""
        if self._busy:
            return
        with self._quiet():
            for name, value in coordinates.items():
                self.controls.cell[name].value = value
        self._at = None
        self.refresh()

    def _pick_byte(self, buffer: str, byte: int) -> None:
        if not self._busy:
            self._at = (buffer, byte)
            self.refresh()

    def _key(self, key: str) -> None:
        """A key of the hex dump: one step, kept inside the pool."""
        if self.pool is None:
            return
        layout, page = self.pool.layout, self.pool.layout.geometry.page_size
        if key in ("before", "after"):
            buffer, byte = self._byte
            byte += 1 if key == "after" else -1
            self._pick_byte(buffer, min(max(byte, 0), layout.buffers[buffer] - 1))
        elif key in STEPS or key in ("pageup", "pagedown"):
            name, step = STEPS.get(key, ("slot", page if key == "pagedown" else -page))
            with self._quiet():
                self.controls.cell[name].value += step
                self.controls.clamp(layout)
            self._pick_cell()

    def _click(self, view: int, x: int, y: int) -> None:
        """A click on a cell of one of the four pictures."""
        found = self._views.pick(view, x, y, self.controls.cell["field"].value, self.controls.cell["layer"].value)
        if isinstance(found, tuple):
            self._pick_byte(*found)
        elif found:
            self._pick_cell(**found)

    # ----------------------------------------------------------------------------------------------------- drawing

    def _fill(self) -> None:
        """A new pool where a box of the first line has moved: allocated, committed, read back, drawn."""
        wanted = {name: box.value for name, box in self.controls.pool.items()}
        if wanted == self._shown:
            return
        g = Geometry(**{name: wanted[name] for name in SIZES})
        layout = self.builders[wanted["layout"]](g, parse_format(wanted["format"]))
        if layout.nbytes > LARGEST:
            raise ValueError(
                f"LayoutExplorer: this pool has {layout.nbytes:,} bytes, and at most {LARGEST:,} can be drawn; "
                "use fewer pages, layers or heads"
            )
        views = ViewMap(layout)
        pool = sample_pool(layout)
        numbers = _numbers(pool)
        first = (next(iter(layout.fields)), 0, 0)
        self.views.show(panels=panels(views), sources=pictures(views, numbers), windows=windows(views, *first))
        self.pool, self._views, self._shown = pool, views, wanted
        self._window = first
        self.raw = {name: buffer.cpu() for name, buffer in pool.buffers.items()}
        self.controls.offer(layout)
        self.legend.value = legend(layout)

    def _draw(self) -> None:
        self._fill()
        layout, controls = self.pool.layout, self.controls
        if self._resized:
            controls.clamp(layout)
            self._resized = False
        if self._at is None:
            buffer, byte = layout.locate(*(controls.cell[name].value for name in ("field", *CELL)))
        else:
            buffer, byte = self._at
        owner = layout.explain(buffer, byte)
        cell = None if isinstance(owner, Padding) else owner
        if cell is not None:
            for name, box in controls.cell.items():
                box.value = getattr(cell, name)
            if cell.byte == 0:
                self._at = None
        controls.buffer.value, controls.byte.value = buffer, byte
        self._move(cell, buffer, byte)
        self.hex.show(layout, self.raw, buffer, byte, cell)
        self.formula.value = formula_table(layout, cell, byte)
        self.words.value = selection_words(layout, self.raw, cell, buffer, byte)

    def _move(self, cell, buffer: str, byte: int) -> None:
        """Move the marks, and the windows where another field, layer or head is shown; no picture is sent."""
        if cell is not None:
            self._window = (cell.field, cell.layer, cell.head)
        shown = windows(self._views, *self._window)
        boxes, points = pixels(shown, *self._views.marks(cell, buffer, byte))
        self.views.show(windows=shown, boxes=boxes, points=points)

    # -------------------------------------------------------------------------------------------------------- code

    @property
    def _builder(self) -> str | None:
        """The name that kvlab exports the shown layout's builder by; None for one of the user's own."""
        name = self._shown["layout"]
        return name if self.builders[name] is BUILDERS.get(name) else None

    def python(self) -> str:
        return layout_code.python(self.pool.layout, self._builder, *self._byte)

    def pytest(self) -> str:
        return layout_code.pytest(self.pool.layout, self._builder, self.raw, *self._byte)


def _numbers(pool) -> dict[str, np.ndarray]:
    """What the gather kernel reads of every slot: per field ``(layers, slots, heads, dims)``."""
    loc = torch.arange(pool.layout.geometry.slots, device=pool.device)
    read = dict(zip(("k", "v"), pool.gather(loc), strict=True))
    if "k_scale" in pool.layout.fields:
        read.update(zip(("k_scale", "v_scale"), pool.gather_scales(loc), strict=True))
    return {name: read[name].float().cpu().numpy() for name in pool.layout.fields}
