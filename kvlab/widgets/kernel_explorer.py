"""KernelExplorer: another tile, another number of warps, another layout, and what the compiler makes of the commit."""

from __future__ import annotations

import html
import json
from dataclasses import dataclass
from typing import ClassVar

import ipywidgets as ipw

from .. import builders, lens
from ..formats import MXFP8, PLAIN, format_name, parse_format
from ..geometry import Geometry
from ..layout import Layout
from ..lens.cases import SLOTS, USUAL_TILE, request
from . import kernel_words
from .base import Explorer
from .kernel_compile import Reports

LAYOUTS = ("token_major", "page_major", "head_major")
FORMATS = [*PLAIN, format_name(MXFP8("flat")), format_name(MXFP8("interleaved"))]
TILE = {"rows": (1, 2, 4, 8, 16), "columns": (128, 256, 512, 1024), "warps": (1, 2, 4, 8)}
LABELS = {"rows": "rows per program", "columns": "elements of a row at once", "warps": "warps per program"}


@dataclass(frozen=True)
class Setting:
    """One compiled setting, and what the table says of it: counting sectors takes a moment, so it is kept."""

    state: dict
    layout: Layout
    report: lens.Report
    facts: dict[str, str]


class KernelExplorer(Explorer):
    """kvlab's own commit kernel, compiled for a GPU that need not be here, by :mod:`kvlab.lens`.

    Rows are bf16, 8 heads of 128, 32 layers. A change compiles in another process; until it is done, the line says so
    and what was shown before stays. Changes against it are marked.
    """

    DEFAULTS: ClassVar[dict] = {
        "layout": "token_major",
        "format": "bfloat16",
        "arch": "sm_90",
        "rows": USUAL_TILE[0],
        "columns": USUAL_TILE[1],
        "warps": USUAL_TILE[2],
    }

    def __init__(self, state: dict | str | None = None):
        super().__init__(state)
        self.children = [*self.children[:-2], self.copybox]  # the error has its place in _build, below the controls

    def _build(self):
        self._reports = Reports(lens.inspect, self.refresh)
        self._shown = self._before = None
        self.boxes = {"layout": _choice(LAYOUTS), "format": _choice(FORMATS), "arch": _choice(lens.ARCHES)}
        for name, values in TILE.items():
            style = {"button_width": "46px" if name != "columns" else "56px", "description_width": "initial"}
            self.boxes[name] = ipw.ToggleButtons(options=values, description=LABELS[name], style=style)
        for name in ("layout", "format", "arch"):
            self.boxes[name].description = name
        self.usual = ipw.Button(description="kvlab's own tile", layout=ipw.Layout(width="auto"))
        self.usual.on_click(lambda _: self.set_state(self.state | dict(zip(TILE, USUAL_TILE, strict=True))))
        self.watch(*self.boxes.values())
        self.said = ipw.HTML(layout=ipw.Layout(min_height="24px"))
        self.table = ipw.HTML(layout=ipw.Layout(min_height="226px"))
        self.strip = ipw.HTML(layout=ipw.Layout(min_height="112px"))
        self.sass = ipw.HTML(layout=ipw.Layout(min_height="248px"))
        row = ipw.Layout(flex_flow="row wrap", align_items="center", width="100%")
        return (
            ipw.HTML(kernel_words.CSS),
            ipw.HBox([*(self.boxes[n] for n in ("layout", "format", "arch")), self.usual], layout=row),
            ipw.HBox([self.boxes[n] for n in TILE], layout=row),
            self.said,
            self.error,
            self.table,
            self.strip,
            self.sass,
        )

    def _read(self) -> dict:
        return {name: box.value for name, box in self.boxes.items()}

    def _write(self, state: dict) -> None:
        for name, value in state.items():
            box = self.boxes[name]
            if name in TILE:
                # another tile than those offered is for the lens to judge, in its own words
                box.options = [*TILE[name], *([] if value in TILE[name] else [value])]
            elif value not in box.options:
                raise ValueError(f"state: {name}={value!r} is not one of {', '.join(box.options)}")
            box.value = value

    def _draw(self) -> None:
        state = self.state
        self.said.value = ""
        layout = layout_of(state)
        arguments = {"operation": "commit", "layout": layout, **tile_arguments(state)}
        request(**arguments)  # what is not legal is said at once
        report = self._reports.get(json.dumps(state), arguments)
        if isinstance(report, Exception):
            raise ValueError(str(report)) from report
        words = f"commit, {state['layout']}, {state['format']}, for {state['arch']}: a tile of {state['rows']} x "
        words += f"{state['columns']} elements, {state['warps']} warp{'s' * (state['warps'] != 1)}"
        if report is None:
            stays = " Below: the setting before." if self._shown else ""
            self.said.value = _line(f"<b>Compiling …</b> {html.escape(words)}. It takes some seconds.{stays}")
            return
        self.said.value = _line(f"<b>Compiled:</b> {html.escape(words)}.")
        if self._shown is None or self._shown.state != state:
            self._before = self._shown
            self._shown = Setting(state, layout, report, kernel_words.facts(report, layout))
        before = self._before
        self.table.value = kernel_words.table(self._shown.facts, before and before.facts)
        self.strip.value = kernel_words.strip(report, layout)
        self.sass.value = kernel_words.sass(report, before and before.report)

    def wait(self) -> None:
        """Return when the shown setting is compiled and drawn; for scripts, where no event loop draws it."""
        self._reports.wait()
        self.refresh()

    def python(self) -> str:
        return "\n".join([*_imports(), "", *_inspect(self.state), "print(report)", "print(lens.sectors(layout))"])

    def pytest(self) -> str:
        """What is exact in every version of Triton: widths and sectors, not registers and instructions."""
        if self._shown is None or self._shown.state != self.state:
            return "# Still compiling, or refused: copy again when the widget shows this setting.\n"
        state, report, layout = self._shown.state, self._shown.report, self._shown.layout
        bits = (report.payload_load_bits, report.payload_store_bits, report.scale_store_bits)
        checks = [
            f"assert (report.payload_load_bits, report.payload_store_bits, report.scale_store_bits) == {bits}",
            f"assert (report.launches, report.programs) == ({report.launches}, {report.programs})",
            f"assert bool(report.spill_bytes) is {bool(report.spill_bytes)}",
            f"assert lens.sectors(layout) == {lens.sectors(layout)}",
        ]
        tile = "_".join(str(state[name]) for name in TILE)
        body = [f"    {line}" for line in [*_inspect(state), *checks]]
        name = f"def test_commit_{state['layout']}_{state['arch']}_{tile}():"
        return "\n".join([*_imports(), "", "", name, *body]) + "\n"


def layout_of(state: dict):
    """The layout that is compiled for: the standard batch's sizes, in as many slots as a serving engine has."""
    fmt = parse_format(state["format"])
    page_size = page_size_of(state)
    g = Geometry(layers=32, heads=8, head_dim=128, page_size=page_size, pages=SLOTS // page_size)
    return getattr(builders, state["layout"])(g, fmt)


def page_size_of(state: dict) -> int:
    return 128 if "interleaved" in state["format"] else 16


def tile_arguments(state: dict) -> dict:
    """The state's target and tile, as ``lens.inspect`` takes them."""
    return {name: state[name] for name in ("arch", "rows", "columns")} | {"num_warps": state["warps"]}


def _imports() -> list[str]:
    return ["import torch", "", "import kvlab", "from kvlab import lens"]


def _inspect(state: dict) -> list[str]:
    page_size, fmt = page_size_of(state), parse_format(state["format"])
    stored = f'kvlab.MXFP8("{fmt.scales}")' if isinstance(fmt, MXFP8) else f"torch.{state['format']}"
    sizes = f"layers=32, heads=8, head_dim=128, page_size={page_size}, pages={SLOTS // page_size}"
    tile = ", ".join(f"{name}={value!r}" for name, value in tile_arguments(state).items()).replace("'", '"')
    return [
        f"layout = kvlab.{state['layout']}(kvlab.Geometry({sizes}), {stored})",
        f'report = lens.inspect("commit", layout, {tile})',
    ]


def _choice(options) -> ipw.Dropdown:
    return ipw.Dropdown(options=list(options), style={"description_width": "initial"}, layout=ipw.Layout(width="auto"))


def _line(words: str) -> str:
    return f"<div style='font-size:13px;line-height:24px'>{words}</div>"
