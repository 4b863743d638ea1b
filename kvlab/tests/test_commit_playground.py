"""CommitPlayground without a browser: what it says is what the library does, for every layout, format and preset."""

import json

import numpy as np
import pytest

pytest.importorskip("anywidget", reason="needs anywidget")
pytest.importorskip("ipywidgets", reason="needs ipywidgets")
pytest.importorskip("plotly", reason="needs plotly")

import torch

import kvlab
import kvlab.zoo
from kvlab.backends import reference_backend
from kvlab.figures import expected_mask
from kvlab.formats import parse_format
from kvlab.samples import load_trace
from kvlab.widgets import CommitPlayground
from kvlab.widgets import commit_presets as presets
from kvlab.widgets.commit_playground import BUILDERS as LAYOUTS
from kvlab.widgets.commit_playground import FORMATS
from kvlab.widgets.commit_run import CALLS, FILLS, Bench, Commit, twin_layout

MX = "mxfp8(flat, rceil)"


@pytest.fixture(scope="module")
def widget():
    return CommitPlayground()


def show(widget, **state):
    """Show a state of the widget; what is not given is as in a fresh one."""
    widget.set_state({**widget.DEFAULTS, **state})
    return widget


def labels(widget) -> list[str]:
    """The words beside the rows of the picture."""
    return [words for _, words in widget.picture.panels[0]["yticks"]]


def run_code(code: str) -> None:
    """Run copied code in a namespace of its own, and each test that it defines."""
    space: dict = {"__name__": "copied"}
    exec(compile(code, "copied", "exec"), space)
    for name, thing in list(space.items()):
        if name.startswith("test_"):
            thing()


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_and_format_is_written_as_expected(widget, layout, fmt):
    show(widget, layout=layout, format=fmt, page_size=128 if "interleaved" in fmt else 16)
    assert widget.error.value == ""
    loc, lens = torch.tensor(widget.state["loc"]), widget.state["commit_lens"]
    built = getattr(kvlab, layout)(presets.geometry(widget.trace, widget.state["page_size"]), parse_format(fmt))
    expected = expected_mask(built, loc, lens, layer=0)
    for name, mask in expected.items():
        assert np.array_equal(widget.outcome.states[name] == 1, mask), name
    counts = widget.outcome.counts
    assert counts["written"] == sum(m.sum() for m in expected.values())
    assert counts["missing"] == counts["unexpected"] == widget.outcome.differing == 0
    assert f"{counts['written']:,} expected and written" in widget.said.value
    assert f"kernel == reference on {2 * built.nbytes:,} bytes" in widget.proof.value


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_both_fills_in_one_launch_write_what_two_calls_write(layout, call):
    trace = load_trace()
    built = getattr(kvlab, layout)(presets.geometry(trace, 16), parse_format(MX))
    value = presets.preset("mask", trace, 3, 8, 16)
    k, v = presets.rows(trace, 3, 8, 1)
    loc, lens, mask = (torch.tensor(value[n]) for n in ("loc", "commit_lens", "row_mask"))
    commit = Commit(call, 1, loc, lens, mask, k, v)
    bench = Bench(built)
    outcome = bench.run(commit)
    assert len(outcome.launches) == 1
    for fill, half in zip(FILLS, bench._halves(), strict=True):
        pool = kvlab.KVPool(built)
        for buffer in pool.buffers.values():
            buffer.fill_(fill)
        commit.on(pool)
        for name, buffer in pool.buffers.items():
            assert np.array_equal(half[name], buffer.cpu().numpy()), (fill, name)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_twin_has_each_cell_at_the_same_byte_of_its_copy(layout):
    built = getattr(kvlab, layout)(kvlab.Geometry(2, 2, 64, page_size=128, pages=3), kvlab.MXFP8("interleaved"))
    twin, rng, slots = twin_layout(built), np.random.default_rng(0), built.geometry.slots
    for name, field in built.fields.items():
        at = {c: rng.integers(0, n, 500) for c, n in field.extents.items()}
        buffer, byte = built.locate(name, **at)
        assert np.array_equal(twin.locate(name, **at)[1], byte)
        at["slot"] = at["slot"] + slots
        assert np.array_equal(twin.locate(name, **at)[1], byte + built.buffers[buffer])


def test_a_kernel_that_differs_is_not_proven(widget, monkeypatch):
    from kvlab import reference

    real = reference.write_field

    def off_by_one(pool, name, first_layer, slots, values):
        real(pool, name, first_layer, slots + 1, values)

    monkeypatch.setattr(reference, "write_field", off_by_one)
    show(widget)
    assert widget.outcome.differing > 0
    assert "KERNEL != REFERENCE" in widget.proof.value


def test_the_reference_backend_claims_no_proof(widget):
    with reference_backend():
        show(widget)
    assert "No kernel ran" in widget.proof.value
    assert "kernel ==" not in widget.proof.value
    assert widget.outcome.counts["unexpected"] == 0


@pytest.mark.parametrize(
    ("preset", "words"),
    [
        ("duplicate", "<b>ValueError</b>: loc: slot 284 is given twice, by rows 0 and 8"),
        ("beyond", "<b>IndexError</b>: loc[2, 0]=1427 is outside the pool"),
        ("bad_len", "<b>ValueError</b>: commit_lens[3]=9 is outside 0 … 8"),
    ],
)
def test_refusals_are_in_the_librarys_words_and_write_nothing(widget, preset, words):
    show(widget).buttons[preset].click()
    assert words in widget.error.value
    assert "0 of 2,187,264 bytes changed" in widget.proof.value
    assert widget.outcome.counts["untouched"] == 2_187_264


@pytest.mark.parametrize("preset", ["recorded", "pads", "not_accepted", "crossing", "mask"])
@pytest.mark.parametrize("page_size", [4, 16, 128])
def test_presets_that_are_fine(widget, preset, page_size):
    show(widget, page_size=page_size, format=MX).apply(preset)
    counts = widget.outcome.counts
    assert widget.error.value == ""
    assert counts["written"] > 0
    assert counts["missing"] == counts["unexpected"] == 0


def test_pads_and_the_row_mask_leave_rows_out(widget):
    row = 2 * 3 * 64 * 2
    show(widget).apply("pads")
    pads = np.array(widget.state["loc"]) <= 0
    assert widget.outcome.counts["written"] == (~pads).sum() * row
    widget.apply("mask")
    state = widget.state
    chosen = np.arange(8) < np.array(state["commit_lens"])[:, None]
    chosen &= np.array(state["row_mask"]) & (np.array(state["loc"]) > 0)
    assert widget.outcome.counts["written"] == chosen.sum() * row


def test_set_kv_buffer_shows_rejected_rows_as_unexpected(widget):
    show(widget, call="set_kv_buffer")
    real = (np.array(widget.state["loc"]) > 0).sum()
    written = (np.array(widget.state["loc"])[np.arange(8) < np.array(widget.state["commit_lens"])[:, None]] > 0).sum()
    assert widget.outcome.counts["unexpected"] == (real - written) * 2 * 3 * 64 * 2
    assert any("WUUU" in words for words in labels(widget))


def test_payload_only_shows_scales_as_missing(widget):
    show(widget, call="payload_only", format=MX)
    assert widget.outcome.counts["missing"] == widget.outcome.counts["written"] // 32
    assert any("MMMM" in words for words in labels(widget))


def test_a_slider_step_redraws(widget):
    show(widget)
    before, source = widget.outcome.counts["written"], widget.picture.sources[0]
    value = widget.table.value
    lens = [*value["commit_lens"][:3], 7, *value["commit_lens"][4:]]
    widget.table.value = {**value, "commit_lens": lens, "n": 41}
    assert widget.outcome.counts["written"] == before + 6 * 2 * 3 * 64 * 2
    assert widget.picture.sources[0] != source
    assert widget.table.done == 41, "the browser waits for this before it sends the next change"


def test_slots_typed_by_hand_stay_when_the_step_changes(widget):
    show(widget)
    loc = [list(slots) for slots in widget.table.value["loc"]]
    loc[0][0] = 700
    widget.table.value = {**widget.table.value, "loc": loc, "n": 42}
    widget.step_box.value = 3
    assert widget.state["loc"] == loc
    widget.buttons["recorded"].click()
    widget.step_box.value = 4
    assert widget.state["loc"] == presets.preset("recorded", widget.trace, 4, 8, 16)["loc"]


def test_a_layout_that_cannot_be_leaves_no_proof_behind(widget):
    show(widget, format="mxfp8(interleaved, rceil)", page_size=16)
    assert "must be a multiple of 128" in widget.error.value
    assert widget.proof.value == widget.said.value == ""
    run_code(widget.pytest())


def test_the_figure_has_the_states_of_the_library(widget):
    show(widget, format=MX, layout="head_major")
    from kvlab.widgets.commit_rows import Rows

    owners = {s: [(b, w)] for b, slots in enumerate(widget.state["loc"]) for w, s in enumerate(slots) if s > 0}
    rows = Rows(widget.bench.layout, 0, widget.outcome.states, owners, 360)
    assert sorted(owners) == rows.slots.tolist()
    accepted = {s for s, [(b, w)] in owners.items() if w < widget.state["commit_lens"][b]}
    for panel in rows.panels:
        assert {s for s, line in zip(rows.slots.tolist(), panel.states, strict=True) if line.all()} == accepted
    ticks, words = rows.labels()
    assert np.diff(ticks).min() >= rows.apart * 0.9
    assert sum(w.count("W") + w.count("·") for w in words) == len(owners)
    assert labels(widget) == words
    hover = widget.picture.hover
    assert len(hover["heads"]) == len(hover["lines"]) == len(hover["words"]) == len(owners)
    for slot, head, line in zip(rows.slots.tolist(), hover["heads"], hover["words"], strict=True):
        [(b, w)] = owners[slot]
        assert head.startswith(f"slot {slot} = page {slot // 16} ") and head.endswith(f": b{b} row {w}")
        buffer, byte = widget.bench.layout.locate("v", 0, slot)
        assert line[1].startswith(f"V in '{buffer}' from byte {byte:,}: ")


def test_state_goes_through_json(widget):
    show(widget, layout="token_major", format="float8_e5m2", step=5, layer=1).apply("mask")
    again = CommitPlayground(widget.to_json())
    assert again.state == widget.state == json.loads(widget.to_json())
    assert again.outcome.counts == widget.outcome.counts
    with pytest.raises(ValueError, match="'colour' is not one of"):
        CommitPlayground({"colour": 1})


@pytest.mark.parametrize(
    ("preset", "state"),
    [
        ("recorded", {}),
        ("mask", {"layout": "head_major", "format": MX, "layer": 1}),
        ("recorded", {"call": "set_kv_buffer", "layout": "token_major"}),
        ("recorded", {"call": "payload_only", "format": MX}),
    ],
)
def test_copied_code_runs(widget, preset, state):
    show(widget, **state).apply(preset)
    run_code(widget.python())
    run_code(widget.pytest())
    lens = widget.state["commit_lens"]
    broken = widget.pytest().replace(f"commit_lens = torch.tensor({lens}", f"commit_lens = torch.tensor({lens[::-1]}")
    with pytest.raises(AssertionError):
        run_code(broken)


def test_copied_code_of_a_refusal(widget):
    show(widget).apply("duplicate")
    with pytest.raises(ValueError, match="loc: slot 284 is given twice"):
        run_code(widget.python())
    run_code(widget.pytest())


@pytest.mark.parametrize("builder", [kvlab.zoo.nano_vllm, kvlab.zoo.vllm_nhd, kvlab.zoo.hicache_page_first])
def test_a_layout_of_ones_own(builder):
    widget = CommitPlayground(layouts={"mine": builder})
    assert widget.state["layout"] == "mine" and widget.error.value == ""
    assert "kernel == reference" in widget.proof.value or "No kernel ran" in widget.proof.value
    assert widget.outcome.counts["written"] > 0 and not widget.outcome.counts["unexpected"]
    run_code(widget.python())
    run_code(widget.pytest())
