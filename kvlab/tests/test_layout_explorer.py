"""LayoutExplorer without a browser: boxes, keys, clicks and bytes agree with the library; its code runs."""

import base64
import subprocess
import sys
import time
from math import prod

import numpy as np
import pytest
import torch

import kvlab
from kvlab.backends import reference_backend
from kvlab.debug.values import formula
from kvlab.field import Field, nest
from kvlab.formats import parse_format
from kvlab.kernels.launch import record_launches

pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")
pytest.importorskip("plotly", reason="plotly is not installed")

from kvlab.figures import owners
from kvlab.widgets import LayoutExplorer, layout_pictures
from kvlab.widgets.cell_words import view_words
from kvlab.widgets.layout_controls import FORMATS
from kvlab.widgets.layout_explorer import BUILDERS
from kvlab.widgets.sample_pool import sample_rows
from kvlab.widgets.view_map import ViewMap

CELL = ("field", "layer", "slot", "head", "dim")


@pytest.fixture(autouse=True)
def fast():
    """The bytes are the same on every backend (test_pool_commit); here they need not come from the interpreter."""
    with reference_backend():
        yield


@pytest.fixture
def explorer():
    return LayoutExplorer()


def cell_of(w):
    return tuple(w.state[name] for name in CELL)


def byte_of(w):
    return w.controls.buffer.value, w.controls.byte.value


def point(w, view):
    """Column and row of the selection in the picture of a view."""
    _, points = w._views.marks(w.pool.layout.explain(*byte_of(w)), *byte_of(w))
    return points[view][1:]


def interleaved_kv(geometry, fmt):
    """A learner's layout: each slot's K row and V row beside each other, one buffer for each layer's pair."""
    g, item = geometry, fmt.itemsize
    k, v = g.heads * g.head_dim * item, g.heads * g.v_head_dim * item
    fields = {}
    for name, dims, offset in (("k", g.head_dim, 0), ("v", g.v_head_dim, k)):
        axes = nest(
            item, ("layer", g.layers, g.slots * (k + v)), ("slot", g.slots, k + v), ("head", g.heads), ("dim", dims)
        )
        extents = {"layer": g.layers, "head": g.heads, "slot": g.slots, "dim": dims}
        fields[name] = Field(name, "kv", offset, item, extents, axes)
    return kvlab.Layout("interleaved_kv", g, fmt, fields, {"kv": g.layers * g.slots * (k + v)})


# -------------------------------------------------------------------------------------------------------- selection


@pytest.mark.parametrize("layout", BUILDERS)
@pytest.mark.parametrize("fmt", FORMATS)
def test_cell_and_byte_agree_with_the_layout(layout, fmt):
    w = LayoutExplorer({"layout": layout, "format": fmt, "page_size": 128, "pages": 3, "head_dim": 96, "slot": 200})
    assert w.error.value == ""
    for field in w.pool.layout.fields:
        w.controls.cell["field"].value = field
        w.controls.cell["head"].value = 1
        w.controls.cell["dim"].value = 1
        assert w.error.value == "" and byte_of(w) == w.pool.layout.locate(field, 1, 200, 1, 1)
        got = w.pool.layout.explain(*byte_of(w))
        assert cell_of(w) == (got.field, got.layer, got.slot, got.head, got.dim)
        assert formula(w.pool.layout, got).startswith(f"{byte_of(w)[1]:,} = ")
        terms = formula(w.pool.layout, got).partition(" = ")[2].replace(",", "").split(" + ")
        assert sum(prod(int(n) for n in term.split(" ")[0].split("*")) for term in terms) == byte_of(w)[1]
        assert f"<b>{byte_of(w)[1]:,}</b>" in w.formula.value


def test_picking_a_byte_selects_its_owner(explorer):
    w = explorer
    for byte in (0, 1, 4097, w.pool.layout.nbytes - 1):
        w.controls.byte.value = byte
        owner = w.pool.layout.explain("raw", byte)
        assert cell_of(w) == (owner.field, owner.layer, owner.slot, owner.head, owner.dim)
        assert byte_of(w) == ("raw", byte) and f"holds {int(w.raw['raw'][byte]):02X}" in w.words.value
        assert w.state["at"] == (["raw", byte] if owner.byte else None)


def test_padding_is_a_selection_too():
    w = LayoutExplorer(
        {"format": FORMATS[-1], "page_size": 128, "pages": 2, "heads": 1, "head_dim": 32, "v_head_dim": 32}
    )
    c = w.pool.layout.explain("raw", np.arange(w.pool.layout.nbytes))
    byte = int(np.flatnonzero(c.field < 0)[5])
    w.controls.byte.value = byte
    assert w.error.value == "" and "padding" in w.words.value and "no coordinate" in w.formula.value
    assert w.views.boxes == [] and len(w.views.points) == 1
    exec(w.python(), {})
    exec(w.pytest() + "test_cell()", {})
    again = LayoutExplorer(w.to_json())
    assert byte_of(again) == ("raw", byte)
    again.hex.pressed = ["down", 1]
    assert again.state["at"] is None and len(again.views.points) == 4


def test_keys_do_what_the_boxes_do(explorer):
    w = explorer
    steps = {"left": "dim", "down": "slot", "shift-left": "head", "shift-up": "layer", "pagedown": "slot"}
    for count, (key, name) in enumerate(steps.items(), 1):
        before = w.state
        w.hex.pressed = [key, count]
        moved = {n for n in CELL if w.state[n] != before[n]}
        assert moved == {name} and byte_of(w) == w.pool.layout.locate(*cell_of(w))
    w.hex.pressed = [4242, 99]
    assert byte_of(w) == ("raw", 4242)
    w.hex.pressed = ["after", 100]
    assert byte_of(w) == ("raw", 4243) and w.state["at"] == ["raw", 4243]
    for count in range(70):
        w.hex.pressed = ["right", 200 + count]
    assert w.state["dim"] == 63 and w.error.value == ""


def test_a_click_in_any_view_selects():
    w = LayoutExplorer({"v_head_dim": 32, "field": "v", "layer": 1, "slot": 9, "head": 1, "dim": 7})
    want, byte = cell_of(w), byte_of(w)
    places = [point(w, view) for view in range(4)]
    for view, (x, y) in enumerate(places):
        w.controls.cell["slot"].value = 30
        w.views.picked = [view, x, y, view]
        assert cell_of(w) == want and byte_of(w) == byte, view
    w._click(0, -5, 3)
    w._click(2, w._views.tile[0] - 1, 0)  # the gap between two pages
    assert cell_of(w) == want


@pytest.mark.parametrize("layout", [*BUILDERS, "interleaved_kv"])
@pytest.mark.parametrize("fmt", ["bfloat16", FORMATS[-1]])
def test_the_raw_view_draws_every_byte_where_it_is_picked(layout, fmt):
    if layout == "interleaved_kv" and fmt != "bfloat16":
        pytest.skip("this layout holds no scales")
    g = kvlab.Geometry(layers=2, heads=2, head_dim=32, v_head_dim=64, page_size=128, pages=2)
    made = {**BUILDERS, "interleaved_kv": interleaved_kv}[layout](g, parse_format(fmt))
    views, rng = ViewMap(made), np.random.default_rng(0)
    for buffer, size in made.buffers.items():
        for byte in rng.integers(size, size=50).tolist():
            assert views.pick(3, *views.raw_at(buffer, byte), "k", 0) == (buffer, byte)
    for name, f in made.fields.items():
        for _ in range(50):
            layer, head, slot, dim = (int(rng.integers(f.extents[c])) for c in ("layer", "head", "slot", "dim"))
            cell = {"field": name, "layer": layer, "slot": slot, "head": head, "dim": dim}
            x, y = views.tile_at(name, layer, slot // 128)
            assert views.pick(0, views.column(name, layer, head, dim), slot, name, layer) == cell
            at = x + head * f.extents["dim"] + dim, y + slot % 128
            assert views.pick(2, *at, name, layer) == cell


def test_all_views_mark_the_same_cell(explorer):
    w = explorer
    w.controls.cell["slot"].value, w.controls.cell["dim"].value = 22, 40
    assert point(w, 0) == point(w, 1) == (w._views.column("k", 1, 1, 40), 22)
    assert point(w, 3) == w._views.raw_at(*byte_of(w))
    assert w.views.windows[0][:2] == [point(w, 0)[0] - 40, point(w, 0)[0] + 24]
    assert len(w.views.boxes) == 4  # a page-major row is one run, and lies on one line
    w.controls.pool["layout"].value = "head_major"
    assert len(w.views.boxes) == 5  # there it is a run for each of the 2 heads


def test_moving_the_selection_sends_no_picture(explorer):
    w = explorer
    sent = set()
    w.views.observe(lambda change: sent.add(change["name"]))
    for count, key in enumerate(("down", "right", "pagedown", "after")):
        w.hex.pressed = [key, count]
    assert sent == {"boxes", "points"}  # inside one head the windows stay too
    w.hex.pressed = ["shift-left", 10]
    w.controls.cell["field"].value = "v"
    assert sent == {"boxes", "points", "windows"}
    w.controls.pool["layers"].value = 1
    assert {"sources", "panels"} <= sent


def test_marks_and_ticks_lie_where_the_picture_has_the_cell(explorer):
    w = explorer
    w.controls.cell["field"].value, w.controls.cell["slot"].value = "v", 28
    for view, (x, y) in enumerate(w.views.points):
        p, (x0, x1, y0, y1) = w.views.panels[view], w.views.windows[view]
        column, row = point(w, view)
        assert abs(p["x"] + p["w"] * (column + 0.5 - x0) / (x1 - x0) - x) < 0.1
        assert abs(p["y"] + p["h"] * (row + 0.5 - y0) / (y1 - y0) - y) < 0.1
    assert [point(w, 0)[1] + 0.5, "28"] in w.views.panels[0]["yticks"]
    for panel, source in zip(w.views.panels, w.views.sources, strict=True):
        header = base64.b64decode(source.partition(",")[2])[16:24]
        assert panel["size"] == [int.from_bytes(header[:4], "big"), int.from_bytes(header[4:], "big")]


# --------------------------------------------------------------------------------------------------- real contents


def test_what_is_shown_is_what_the_commit_stored():
    w = LayoutExplorer({"format": "float16"})
    k, v = sample_rows(w.pool.layout.geometry)
    _, layer, slot, head, dim = cell_of(w)
    assert f"{k[layer, slot - 1, head, dim].half().item():.6g} as float16" in w.words.value
    w.controls.cell["field"].value = "v"
    assert f"{v[layer, slot - 1, head, dim].half().item():.6g} as float16" in w.words.value
    w.controls.cell["slot"].value = 0
    assert "padding sink" in w.words.value and "stored 00 00" in w.words.value
    (buffer,) = w.raw
    shown = [int(text, 16) for _, cells in w.hex.rows for text, _, _ in cells]
    first = w.hex.rows[0][0]
    assert shown == w.pool.buffers[buffer][first : first + len(shown)].tolist()


def test_a_scaled_element_names_its_scale_byte():
    w = LayoutExplorer({"format": FORMATS[-2], "dim": 40})
    _, layer, slot, head, dim = cell_of(w)
    buffer, at = w.pool.layout.locate("k_scale", layer, slot, head, 1)
    k = w.pool.gather(torch.tensor([slot]), layer=layer)[0][0, head, dim].item()
    assert f"= {k:.6g}" in w.words.value and f"'{buffer}' byte {at:,}" in w.words.value
    w.controls.byte.value = at
    assert cell_of(w) == ("k_scale", layer, slot, head, 1)
    assert "dims 32 … 63 of K" in w.words.value


def test_views_say_which_index_is_zero_copy():
    g = kvlab.Geometry(layers=2, heads=2, head_dim=128, page_size=128, pages=4)
    for layout, three, four in (
        (kvlab.token_major(g, torch.bfloat16), True, True),
        (kvlab.page_major(g, torch.bfloat16), False, True),
        (kvlab.head_major(g, torch.bfloat16), False, True),
        (interleaved_kv(g, torch.bfloat16), True, True),
    ):
        _, byte = layout.locate("k", 1, 140, 1, 5)
        words = view_words(layout, layout.explain(next(iter(layout.buffers)), byte))
        assert ["zero-copy" in w for w in words] == [three, four], layout.name
        shape = kvlab.KVPool(layout).get_key_buffer(0).stride()
        if layout.name == "page_major":
            assert "(" + ", ".join(f"{2 * s:,}" for s in shape) + ")" in words[1]
    tile = kvlab.page_major(g, kvlab.MXFP8("interleaved"))
    cell = tile.explain(*tile.locate("k_scale", 1, 140, 1, 2))
    assert all("only as a copy" in w for w in view_words(tile, cell))


def test_the_raw_view_has_the_owners_colours(explorer):
    want = owners.owner_map(explorer.pool.layout, "raw")[0]
    got = layout_pictures._raw(explorer._views).reshape(-1)[: len(want)]
    same = np.where(got > owners.PADDING, got - 2, got)
    assert (same == want).all()


# ----------------------------------------------------------------------------------------- controls, errors, code


def test_another_format_brings_its_page_sizes(explorer):
    w = explorer
    w.controls.pool["format"].value = FORMATS[-1]
    assert w.error.value == "" and w.state["page_size"] == 128
    assert w.controls.pool["page_size"].options == (128, 256, 512)
    assert list(w.controls.cell["field"].options) == ["k", "v", "k_scale", "v_scale"]
    w.controls.cell["field"].value = "v_scale"
    w.controls.pool["format"].value = "bfloat16"
    assert w.error.value == "" and w.state["field"] == "v"


def test_another_geometry_keeps_the_cell_or_takes_the_nearest(explorer):
    w = explorer
    before = cell_of(w)
    w.controls.pool["layout"].value = "head_major"
    assert cell_of(w) == before and byte_of(w) == w.pool.layout.locate(*before)
    w.controls.pool["pages"].value = 2
    w.controls.pool["layers"].value = 1
    assert w.error.value == "" and cell_of(w) == ("k", 0, 7, 1, 5)


@pytest.mark.parametrize(
    ("box", "value", "words"),
    [
        ("slot", 99, "locate: slot=99 is outside 0 … 31"),
        ("dim", -1, "locate: dim=-1 is outside 0 … 63"),
        ("byte", 1 << 20, "explain: byte=1048576 is outside 0 … 32767"),
        ("layers", 0, "Geometry: layers=0 must be at least 1"),
        ("pages", 1 << 20, "at most 4,194,304 can be drawn"),
    ],
)
def test_errors_are_the_librarys_own_and_go_away(explorer, box, value, words):
    w = explorer
    control = {**w.controls.pool, **w.controls.cell, "byte": w.controls.byte}[box]
    good, shown = control.value, w.views.points
    control.value = value
    assert words in w.error.value and w.views.points == shown
    control.value = good
    assert w.error.value == ""


def test_an_illegal_head_dim_for_mxfp8_is_explained(explorer):
    explorer.controls.pool["head_dim"].value = 40
    assert explorer.error.value == ""
    explorer.controls.pool["format"].value = FORMATS[-2]
    assert "MXFP8: head_dim=40 must be a multiple of 32" in explorer.error.value


def test_a_wrong_state_is_refused():
    with pytest.raises(ValueError, match="layout='hnd' is not one of"):
        LayoutExplorer({"layout": "hnd"})
    with pytest.raises(ValueError, match="state: 'slots' is not one of"):
        LayoutExplorer({"slots": 3})


def test_state_round_trip():
    w = LayoutExplorer({"layout": "token_major", "format": "float8_e5m2", "page_size": 5, "field": "v", "slot": 13})
    w.controls.byte.value += 1
    again = LayoutExplorer(w.to_json())
    assert again.state == w.state and byte_of(again) == byte_of(w) and again.words.value == w.words.value


@pytest.mark.parametrize("state", [{}, {"layout": "head_major", "format": FORMATS[-1], "page_size": 128, "pages": 2}])
def test_copied_python_runs(state):
    w = LayoutExplorer({**state, "slot": 7})
    run = subprocess.run([sys.executable, "-c", w.python()], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    buffer, byte = byte_of(w)
    assert run.stdout.splitlines()[0] == f"('{buffer}', {byte})"
    assert run.stdout.splitlines()[1] == repr(w.pool.layout.explain(buffer, byte))
    assert run.stdout.splitlines()[2] == f"stored: 0x{int(w.raw[buffer][byte]):02X}"


def test_copied_pytest_runs_and_can_fail(explorer):
    code = explorer.pytest()
    exec(code + "\ntest_cell()\n", {})
    with pytest.raises(AssertionError):
        exec(code.replace("heads=2", "heads=3") + "\ntest_cell()\n", {})
    with pytest.raises(AssertionError):
        exec(code.replace("pool = sample_pool(layout)", "pool = kvlab.KVPool(layout)") + "\ntest_cell()\n", {})


def test_a_layout_of_ones_own():
    w = LayoutExplorer(layouts={"mine": interleaved_kv})
    assert w.state["layout"] == "mine" and byte_of(w)[0] == "kv" and w.error.value == ""
    exec(w.pytest() + "\ntest_cell()\n", {})
    again = LayoutExplorer(w.to_json(), layouts={"mine": interleaved_kv})
    assert byte_of(again) == byte_of(w)
    w.controls.pool["layout"].value = "page_major"
    assert byte_of(w)[0] == "raw" and "kvlab.page_major(" in w.python()


def test_a_step_is_quick():
    """10 ms of Python at 1 MiB; the rest of the 100 ms is the browser's."""
    w = LayoutExplorer({"heads": 4, "page_size": 16, "pages": 32})
    assert w.pool.layout.nbytes == 1 << 20
    times = []
    for count in range(12):
        start = time.process_time()
        w.hex.pressed = ["down" if count % 2 else "shift-up", count]
        times.append(time.process_time() - start)
    assert sorted(times)[6] < 0.06


@pytest.mark.skipif(kvlab.backend() == "reference", reason="Triton is not to be had here")
def test_the_pool_is_filled_by_the_kernels(monkeypatch):
    monkeypatch.setattr("kvlab.backends._forced", [])
    with record_launches() as launches:
        w = LayoutExplorer()
    assert launches[0].kernel.startswith("commit") and len(launches) == 2
    k, _ = sample_rows(w.pool.layout.geometry)
    got = w.pool.gather(torch.arange(32, device=w.pool.device))[0].cpu()
    assert torch.equal(got[:, 1:], k) and not got[:, 0].any()
