"""ScaleExplorer: one 32-element block of real K or V, its scale byte, and where that byte lies."""

from __future__ import annotations

import html
from typing import ClassVar

import ipywidgets as ipw

from ..formats import BLOCK
from . import scale_cells as sc
from . import scale_code, scale_words
from .base import Explorer
from .block_chart import BlockChart
from .scale_page import FIRST, PAGE, ScalePage, layout_of, sample

KINDS = {"nan": "NaN", "inf": "Inf", "zero": "zero block"}
CSS = """<style>
.kvlab-words { font-size: 13px; line-height: 20px; }
.kvlab-block { font: 12px monospace; border-collapse: collapse; width: 100%; max-width: 960px; }
.kvlab-block td, .kvlab-block th { text-align: right; padding: 0 8px; line-height: 18px; }
.kvlab-block td { border-bottom: 1px solid #eee; }
</style>"""


class ScaleExplorer(Explorer):
    """Pick a block of the real sample; a real MXFP8 pool holds it, and every byte shown is read from there.

    Click a place in the tile, a place in the flat bytes or a bar; or use the controls. Another page, layer, rounding
    or injected value is committed by one launch; moving inside the page launches nothing.
    """

    DEFAULTS: ClassVar[dict] = {
        "layer": 0,
        "field": "k",
        "token": 37,
        "head": 1,
        "block": 0,
        "element": 0,
        "rounding": "rceil",
        "inject": None,
    }
    launches = 0  # commit launches of this widget

    def _build(self):
        text = sample()
        _, tokens, heads, head_dim = text.k.shape
        self._page = self._inject = self._maps = None
        self.layer = _buttons("layer", [(str(x), i) for i, x in enumerate(text.layer_ids)], "44px")
        self.field = _buttons("field", [("K", "k"), ("V", "v")], "44px")
        self.rounding = _buttons("rounding", ["rceil", "floor", "even"], "60px")
        self.head = _buttons("head", list(range(heads)), "36px")
        self.block = _buttons("block", list(range(head_dim // BLOCK)), "36px")
        wide = ipw.Layout(flex="1 1 300px", min_width="280px")
        self.token = ipw.IntSlider(0, 0, tokens - 1, description="token", continuous_update=False, layout=wide)
        self.tile_byte = _number("tile byte", sc.LANES * sc.LANE - 1)
        self.flat_byte = _number("flat byte", sc.FLAT_LINES * sc.flat_line("k") - 1)
        self.element = _number("element", BLOCK - 1)
        self.inject = {
            kind: _button(f"put {name}" if kind != "zero" else "zero the block") for kind, name in KINDS.items()
        }
        self.undo = _button("as it was")
        for kind, button in self.inject.items():
            button.on_click(lambda _, kind=kind: self._put(kind))
        self.undo.on_click(lambda _: self._put(None))
        self.watch(self.layer, self.field, self.rounding, self.token, self.head, self.block, self.element)
        self.tile_byte.observe(self._from_tile_box, names="value")
        self.flat_byte.observe(self._from_flat_box, names="value")
        self.tile, self.flat, self.chart = sc.tile_map(), sc.flat_map(), BlockChart()
        self.tile.layout, self.flat.layout = ipw.Layout(width="410px"), ipw.Layout(width="540px")
        self.tile.observe(self._from_tile, names="picked")
        self.flat.observe(self._from_flat, names="picked")
        self.chart.observe(self._from_bar, names="picked")
        self.words = ipw.HTML(layout=ipw.Layout(min_height="104px"))
        self.table = ipw.HTML(layout=ipw.Layout(min_height="340px"))
        return (
            ipw.HTML(CSS),
            _line(self.layer, self.field, self.head, self.block, self.rounding),
            _line(self.token, self.tile_byte, self.flat_byte),
            _line(self.element, *self.inject.values(), self.undo),
            self.words,
            ipw.HBox([self.tile, ipw.VBox([self.flat, self.chart])], layout=ipw.Layout(min_height="530px")),
            self.table,
        )

    def _read(self) -> dict:
        state = {name: getattr(self, name).value for name in self.DEFAULTS if name != "inject"}
        return {**state, "inject": dict(self._inject) if self._inject else None}

    def _write(self, state: dict) -> None:
        for name, value in state.items():
            if name == "inject":
                self._inject = scale_code.checked_injection(value)
                continue
            control = getattr(self, name)
            legal = _legal(control)
            if value not in legal:
                raise ValueError(f"state: {name}={value!r} is not one of {', '.join(map(str, _short(legal)))}")
            control.value = value

    def _draw(self) -> None:
        s = self.state
        wanted = (s["layer"], s["token"] // PAGE, s["rounding"], s["inject"])
        if self._page is None or self._page[0] != wanted:
            page = ScalePage(*wanted)
            self.launches += len(page.launches)
            self._page = (wanted, page)
        page = self._page[1]
        block = page.block(s["field"], s["token"], s["head"], s["block"])
        self.tile_byte.value = self.tile.selected = sc.tile_byte(block)
        self.flat_byte.value = self.flat.selected = sc.flat_byte(s["field"], block)
        if self._maps != (page, s["field"], s["head"]):
            self._maps = (page, s["field"], s["head"])
            sc.show_tile(self.tile, *self._maps)
            sc.show_flat(self.flat, *self._maps)
        self.chart.show(block, s["rounding"], s["element"])
        self.undo.disabled = s["inject"] is None
        self.words.value = self._sentences(s, page, block)
        self.table.value = scale_words.table(block, s["element"])
        self.shown = block

    def _sentences(self, s: dict, page: ScalePage, block) -> str:
        text = sample()
        name, row = s["field"].upper(), s["token"] - page.tokens.start
        first = BLOCK * s["block"]
        what = f"<b>{name} of layer {text.layer_ids[s['layer']]}, token {s['token']} "
        what += f"{html.escape(repr(text.tokens[s['token']]))}, head {s['head']}, block {s['block']}</b>"
        what += f": elements {first} … {first + BLOCK - 1}. amax: {scale_words.how(block, s['rounding'])}."
        lane, byte = divmod(sc.tile_byte(block), sc.LANE)
        place = f"Row {row} of the page. Its byte: lane {lane}, byte {byte} of the tile, byte {block.buffer_byte:,} of "
        place += f"pool.buffers['{s['field']}_scale']; in a flat pool it would be byte {block.flat_byte:,}."
        lines = [what, scale_words.summary(block), place, self._injected(s), f"Proof: {page.words()}."]
        return "<div class='kvlab-words'>" + "<br>".join(lines) + "</div>"

    def _injected(self, s: dict) -> str:
        i = s["inject"]
        if i is None:
            return "Nothing injected."
        where = f"{i['field'].upper()} of layer {sample().layer_ids[i['layer']]}, token {i['token']}, head {i['head']}"
        what = "0 in all elements" if i["kind"] == "zero" else f"{KINDS[i['kind']]} in element {i['element']}"
        return f"Injected before the commit: {what} of {where}, block {i['block']}."

    # ------------------------------------------------------------------------------------------- ways to select

    def _put(self, kind: str | None) -> None:
        s = self.state
        where = {name: s[name] for name in ("layer", "field", "token", "head", "block", "element")}
        self._inject = {"kind": kind, **where} if kind else None
        self.refresh()

    def _from_bar(self, change) -> None:
        self.element.value = change["new"][0]

    def _from_tile(self, change) -> None:
        self._select_tile(change["new"][0])

    def _from_flat(self, change) -> None:
        self._select_flat(change["new"][0])

    def _from_tile_box(self, change) -> None:
        if not self._busy:
            self._select_tile(change["new"])

    def _from_flat_box(self, change) -> None:
        if not self._busy:
            self._select_flat(change["new"])

    def _select_flat(self, byte: int) -> None:
        self._select("flat", sc.flat_start(self.field.value) + byte)

    def _select_tile(self, byte: int) -> None:
        self._select("interleaved", sc.tile_start(self.field.value, self.head.value) + byte)

    def _select(self, scales: str, byte: int) -> None:
        """Select the block whose scale lies there; a place without one is said in words and selects nothing."""
        cell = layout_of(scales).explain(f"{self.field.value}_scale", byte)
        page = self._page[1]
        problem = ""
        if not hasattr(cell, "slot"):
            problem = "That byte is padding: the tile has room for 4 blocks a row, this head has fewer."
        elif cell.slot - FIRST >= len(page.tokens):
            problem = f"No token there: this page holds {len(page.tokens)} rows of the text."
        else:
            with self._quiet():
                self.token.value = page.tokens.start + cell.slot - FIRST
                self.head.value, self.block.value = cell.head, cell.dim
        self.refresh()
        if problem:
            self.error.value = f"<div class='kvlab-error-text'>{problem}</div>"

    def python(self) -> str:
        return scale_code.python(self.state, self.shown)

    def pytest(self) -> str:
        return scale_code.pytest(self.state, self.shown)


def _line(*controls) -> ipw.HBox:
    return ipw.HBox(controls, layout=ipw.Layout(flex_flow="row wrap", align_items="center", width="100%"))


def _buttons(name: str, options: list, width: str) -> ipw.ToggleButtons:
    style = {"button_width": width, "description_width": "initial"}
    return ipw.ToggleButtons(options=options, description=name, style=style, layout=ipw.Layout(margin="2px 14px 2px 0"))


def _number(name: str, most: int) -> ipw.BoundedIntText:
    layout = ipw.Layout(width="150px", margin="2px 14px 2px 0")
    return ipw.BoundedIntText(0, 0, most, description=name, style={"description_width": "initial"}, layout=layout)


def _button(name: str) -> ipw.Button:
    return ipw.Button(description=name, layout=ipw.Layout(width="auto"))


def _legal(control) -> range | list:
    if hasattr(control, "options"):
        return [x[1] if isinstance(x, tuple) else x for x in control.options]
    return range(control.min, control.max + 1)


def _short(legal) -> list:
    return list(legal) if len(legal) < 6 else [legal[0], "…", legal[-1]]
