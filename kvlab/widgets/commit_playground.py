"""CommitPlayground: edit a speculative step's block of slots, and see which bytes the real kernel writes."""

from __future__ import annotations

import html
from typing import ClassVar

import ipywidgets as ipw
import torch

from ..builders import head_major, page_major, token_major
from ..formats import MXFP8, PLAIN, format_name, parse_format
from ..samples import load_trace
from . import commit_presets as presets
from .base import Explorer, with_first
from .commit_code import pytest_code, python_code
from .commit_picture import legend, panels, picture
from .commit_rows import WORDS
from .commit_run import Bench, Commit, proof
from .slot_table import SlotTable

BUILDERS = {"token_major": token_major, "page_major": page_major, "head_major": head_major}
MX = [MXFP8(s, r) for s in ("flat", "interleaved") for r in ("rceil", "floor", "even")]
FORMATS = [*PLAIN, *map(format_name, MX)]
PAGE_SIZES = (4, 16, 32, 128)
CALLS = {
    "set_kv_buffer_prefix_valid": "prefix_valid",
    "set_kv_buffer: ignores commit_lens": "set_kv_buffer",
    "payload only: forgets the scales": "payload_only",
}
SMALL = "<div style='line-height:1.35; font-size:13px'>{}</div>"
HELP = SMALL.format(
    "In the table: blue is accepted, grey italics is past commit_lens or masked, striped is padding (slot 0 or below). "
    "Tab goes right, up and down arrows go to the next request."
)


class CommitPlayground(Explorer):
    """``loc_2d`` and ``commit_lens`` in, the state of every byte out; K and V are real rows of a recorded step.

    Every change runs the chosen call by the backend's kernel over two fills, and by the reference, and compares whole
    buffers. A call that the library refuses shows its words, and that nothing was written.
    """

    DEFAULTS: ClassVar[dict] = {
        "layout": "page_major",
        "format": "bfloat16",
        "page_size": 16,
        "layer": 0,
        "call": "prefix_valid",
        "step": 2,
        "loc": None,  # None: as recorded, eight requests
        "commit_lens": None,
        "row_mask": None,
    }

    def __init__(self, state: dict | str | None = None, layouts: dict | None = None):
        self.builders = {**BUILDERS, **(layouts or {})}
        super().__init__(with_first(state, layouts))
        self.children = [c for c in self.children if c is not self.error]  # it stands beside the table

    def _build(self):
        self.trace = load_trace()
        self.bench = None
        self.outcome = self.fault = None
        short = {"description_width": "initial"}
        auto = ipw.Layout(width="auto")
        self.layout_box = ipw.Dropdown(options=list(self.builders), description="layout", style=short, layout=auto)
        self.format_box = ipw.Dropdown(options=FORMATS, description="format", style=short, layout=auto)
        self.page_box = ipw.Dropdown(options=PAGE_SIZES, description="page_size", style=short, layout=auto)
        self.layer_box = ipw.Dropdown(options=range(presets.LAYERS), description="layer", style=short, layout=auto)
        self.call_box = ipw.Dropdown(options=CALLS, description="runs", style=short, layout=auto)
        last = len(self.trace.commit_lens) - 1
        width = ipw.Layout(width="85px")
        self.step_box = ipw.BoundedIntText(min=0, max=last, description="step", style=short, layout=width)
        self.requests_box = ipw.Dropdown(options=(4, 8), value=8, description="requests", style=short, layout=auto)
        self.buttons = {}
        for name, words in presets.PRESETS.items():
            button = ipw.Button(description=words, layout=ipw.Layout(width="auto", padding="0 7px"))
            button.on_click(lambda _, name=name: self.apply(name))
            self.buttons[name] = button
        self.table = SlotTable()
        self.said = ipw.HTML()
        self.picture = panels()
        self.proof = ipw.HTML(layout=ipw.Layout(min_height="56px"))
        self.watch(self.layout_box, self.format_box, self.layer_box, self.call_box)
        for box in (self.page_box, self.step_box, self.requests_box):
            box.observe(self._again, names="value")
        self.table.observe(self._edited, names="value")
        row = ipw.Layout(flex_flow="row wrap")
        how = [self.layout_box, self.format_box, self.page_box, self.layer_box, self.call_box, self.requests_box]
        what = [self.step_box, *self.buttons.values()]
        # beside the table: an error below the figure would be out of sight of what caused it
        beside = ipw.VBox([self.said, self.error, ipw.HTML(HELP)])
        beside.layout = ipw.Layout(flex="1 1 260px", height="210px", padding="0 0 0 12px", overflow="auto")
        table = ipw.HBox([self.table, beside], layout=ipw.Layout(min_height="212px"))
        return [
            ipw.HBox(how, layout=row),
            ipw.HBox(what, layout=row),
            table,
            self.picture,
            ipw.HTML(SMALL.format(legend())),
            self.proof,
        ]

    def apply(self, name: str) -> None:
        """Fill the table with a preset, one of ``commit_presets.PRESETS``."""
        self._preset = name
        with self._quiet():
            self._fill(
                presets.preset(name, self.trace, self.step_box.value, self.requests_box.value, self.page_box.value)
            )
        self.refresh()

    def _fill(self, value: dict) -> None:
        self.table.value = {**value, "n": 0}

    def _again(self, _change) -> None:
        """Another page size, step or batch: the preset is made anew; slots typed by hand stay."""
        if self._busy:
            return
        edited = self._preset is None and len(self.table.value["loc"]) == self.requests_box.value
        self.refresh() if edited else self.apply(self._preset or "recorded")

    def _edited(self, change) -> None:
        if self._busy:
            return
        if change["old"]["loc"] != change["new"]["loc"]:
            self._preset = None
        self.refresh()
        self.table.done = change["new"]["n"]

    def _read(self) -> dict:
        value = self.table.value
        return {
            "layout": self.layout_box.value,
            "format": self.format_box.value,
            "page_size": self.page_box.value,
            "layer": self.layer_box.value,
            "call": self.call_box.value,
            "step": self.step_box.value,
            "loc": value["loc"],
            "commit_lens": value["commit_lens"],
            "row_mask": value["row_mask"],
        }

    def _write(self, state: dict) -> None:
        boxes = ("layout_box", "format_box", "page_box", "layer_box", "call_box", "step_box")
        for box, name in zip(boxes, ("layout", "format", "page_size", "layer", "call", "step"), strict=True):
            getattr(self, box).value = state[name]
        self._preset = "recorded" if state["loc"] is None else None
        if state["loc"] is not None:
            self.requests_box.value = len(state["loc"])
        value = presets.preset("recorded", self.trace, state["step"], self.requests_box.value, state["page_size"])
        self._fill({name: value[name] if state[name] is None else state[name] for name in value})

    def _draw(self) -> None:
        try:
            self._run(self.state)
        except Exception as error:  # a proof of another state must not outlive it
            self.proof.value = self.said.value = ""
            self.outcome, self.fault = None, error
            raise
        if self.outcome.error is not None:
            raise self.outcome.error

    def _run(self, state: dict) -> None:
        g = presets.geometry(self.trace, state["page_size"])
        layout = self.builders[state["layout"]](g, parse_format(state["format"]))
        if self.bench is None or self.bench.layout != layout:
            self.bench = Bench(layout)
        commit = self._commit(state)
        outcome = self.bench.run(commit)
        owners: dict[int, list] = {}
        for b, slots in enumerate(state["loc"]):
            for w, slot in enumerate(slots):
                owners.setdefault(slot, []).append((b, w))
        shown = (layout, state["layer"], outcome.states, owners)
        drawn, said = picture(*shown), self._words(state, outcome)
        proven = proof(outcome, commit, self.bench)
        # sent together, after all of it is made: the browser would else paint the page once for each
        self.picture.show(**drawn)
        self.said.value = SMALL.format(html.escape(said))
        self.proof.value = SMALL.format(html.escape(proven))
        self.outcome, self.fault = outcome, outcome.error

    def _commit(self, state: dict) -> Commit:
        device = self.bench.device
        k, v = presets.rows(self.trace, state["step"], len(state["loc"]), state["layer"])
        mask = None if state["row_mask"] is None else torch.tensor(state["row_mask"], device=device)
        loc, lens = (torch.tensor(state[name], device=device) for name in ("loc", "commit_lens"))
        return Commit(state["call"], state["layer"], loc, lens, mask, k.to(device), v.to(device))

    def _words(self, state: dict, outcome) -> str:
        """The text twin of the picture."""
        steps = presets.steps_of(self.trace, state["step"], len(state["loc"]))
        of = f"K and V of recorded step{'s' * (len(steps) > 1)} {' and '.join(map(str, steps))}"
        batch = f"{len(state['loc'])} requests x {len(state['loc'][0])} rows, {of}"
        if outcome.error is not None:
            return f"{batch}: refused, all bytes as they were."
        counts = ", ".join(f"{outcome.counts[s]:,} {words}" for s, words in WORDS.items())
        lens = " ".join(f"b{b}:{n}" for b, n in enumerate(state["commit_lens"]))
        return f"{batch}; commit_lens {lens}. Bytes: {counts}."

    def python(self) -> str:
        return python_code(self.state, self.trace, self._own)

    def pytest(self) -> str:
        return pytest_code(self.state, self.trace, self.outcome, self.fault, self._own)

    @property
    def _own(self):
        """The shown layout, where its builder is the user's: code can then only give its description."""
        name = self.layout_box.value
        mine = self.builders[name] is not BUILDERS.get(name)
        return self.bench.layout if mine and self.outcome is not None else None
