"""KernelExplorer without a browser: what it shows is what the lens found, and another tile is really compiled."""

import asyncio
import json
import threading
from dataclasses import replace

import pytest

pytest.importorskip("plotly", reason="plotly is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")
pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")
pytest.importorskip("triton", reason="the lens compiles with Triton, which is not installed here")

import kvlab
from kvlab import lens
from kvlab.lens.pointers import mark
from kvlab.widgets import KernelExplorer, kernel_explorer, kernel_words
from kvlab.widgets.kernel_compile import Reports

NARROW = {"rows": 1, "columns": 128, "warps": 4}


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """Two tiles of the bf16 commit and one of an interleaved MXFP8 commit, really compiled, by their state."""
    states = [KernelExplorer.DEFAULTS, {**KernelExplorer.DEFAULTS, **NARROW}]
    states.append({**KernelExplorer.DEFAULTS, "layout": "head_major", "format": "mxfp8(interleaved, rceil)"})
    cases = [{"layout": kernel_explorer.layout_of(state), **kernel_explorer.tile_arguments(state)} for state in states]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        return {json.dumps(state): report for state, report in zip(states, lens.inspect_many(cases), strict=True)}


@pytest.fixture
def show(compiled, monkeypatch):
    """A widget whose compiler answers from ``compiled``; other tiles get the narrow one's report, renamed."""

    def inspect(operation, layout, arch, rows, columns, num_warps):
        state = {"layout": layout.name, "format": kvlab.formats.format_name(layout.format), "arch": arch}
        state |= {"rows": rows, "columns": columns, "warps": num_warps}
        asked.append(state)
        if json.dumps(state) in compiled:
            return compiled[json.dumps(state)]
        if arch == "sm_80":
            raise lens.CompileError("commit for sm_80 does not compile: no such thing")
        other = json.dumps({**KernelExplorer.DEFAULTS, **NARROW})
        return replace(compiled[other], tile=(rows, columns, num_warps), registers=77)

    asked = []
    monkeypatch.setattr(kernel_explorer.lens, "inspect", inspect)

    def _show(state=None):
        widget = KernelExplorer(state)
        widget.asked = asked
        widget.wait()
        return widget

    return _show


# ----------------------------------------------------------------------------------------------------------- the lens


def test_the_lens_compiles_another_tile(compiled):
    usual, narrow, tiles = compiled.values()
    assert (usual.tile, narrow.tile) == ((4, 1024, 4), (1, 128, 4))
    assert (usual.payload_store_bits, usual.payload_load_bits) == (128, 128)
    assert (narrow.payload_store_bits, narrow.payload_load_bits) == (16, 16)  # a thread has one bf16 number
    assert (usual.programs, narrow.programs) == (512 // 4 * 32, 512 * 32)
    assert (tiles.scale_store_bits, tiles.payload_store_bits) == (32, 128)
    # eight passes over a row of 1024: K and V are told apart in every one of them
    counts = {(a.what, a.kind): a.count for a in narrow.accesses if a.role == "payload"}
    assert counts == {
        (what, kind): 8 for what, kind in (("k rows", "load"), ("k", "store"), ("v rows", "load"), ("v", "store"))
    }


def test_loops_that_reuse_a_name_are_told_apart():
    ttir = """
  tt.func public @kernel(%k: !tt.ptr<i8>, %v: !tt.ptr<i8>) {
    scf.for %i = %c0 to %c8 {
      %3 = tt.addptr %k, %o : !tt.ptr<i8>, i32
      %4 = tt.load %3 : !tt.ptr<i8> loc(#loc1)
    }
    scf.for %i = %c0 to %c8 {
      %3 = tt.addptr %v, %o : !tt.ptr<i8>, i32
      %4 = tt.load %3 : !tt.ptr<i8> loc(#loc2)
    }
"""
    _, found = mark(ttir)
    assert [x["arguments"] for x in found] == [[0], [1]]


@pytest.mark.parametrize(
    ("tile", "words"),
    [
        ({"rows": 3}, "rows=3 must be a power of two from 1 to 1024"),
        ({"columns": 96}, "columns=96 must be a power of two"),
        ({"num_warps": 64}, "num_warps=64 must be a power of two from 1 to 32"),
        ({"rows": True}, "rows=True must be a power of two"),
        ({"rows": 32, "columns": 1024, "num_warps": 1}, "1024 elements for each thread; at most 512"),
        ({"rows": 1024}, "rows=1024 times columns=1024 over num_warps=4"),
    ],
)
def test_a_tile_that_cannot_be_is_refused_by_name(tile, words):
    layout = kernel_explorer.layout_of(KernelExplorer.DEFAULTS)
    with pytest.raises(ValueError, match=f"lens: .*{words}"):
        lens.inspect("commit", layout, **tile)


def test_mxfp8_tiles_hold_whole_words_of_scales_and_few_elements_a_thread():
    layout = kernel_explorer.layout_of({**KernelExplorer.DEFAULTS, "format": "mxfp8(flat, rceil)"})
    with pytest.raises(ValueError, match="columns=64 must be a power of two from 128"):
        lens.inspect("commit", layout, columns=64)
    with pytest.raises(ValueError, match="256 elements for each thread; at most 128"):
        lens.inspect("commit", layout, rows=8, num_warps=1)


# --------------------------------------------------------------------------------------------------------- the widget


def test_shows_what_the_lens_found(show, compiled):
    w = show()
    report = compiled[json.dumps(KernelExplorer.DEFAULTS)]
    facts = kernel_words.facts(report, kernel_explorer.layout_of(w.state))
    assert facts["payload store"] == "128 bits  STG.E.128" and facts["payload load"] == "128 bits  LDG.E.128"
    assert facts["registers per thread"] == str(report.registers) and facts["warp stores per K row"] == "4"
    assert facts["sectors per committed row"] == "128, the minimum is 128" and "scale store" not in facts
    assert all(name in w.table.value and value in w.table.value for name, value in facts.items())
    assert "before" not in w.table.value and kernel_words.NEW not in w.table.value + w.sass.value
    stores = sum(line.lstrip().startswith("STG.E.128") or " STG.E.128" in line for line in report.sass.splitlines())
    assert f"{stores} x STG.E.128" in w.sass.value and "tl.store(cells[0]" in w.sass.value
    assert "Compiled:" in w.said.value and w.error.value == ""


def test_a_change_marks_what_differs_from_before(show):
    w = show()
    w.boxes["rows"].value = 1
    w.wait()
    w.boxes["columns"].value = 128
    w.wait()
    assert w.error.value == "" and [x["columns"] for x in w.asked] == [1024, 1024, 128]
    new = [row for row in w.table.value.split("<tr>") if kernel_words.NEW in row]
    assert any("registers per thread" in row and "<td>77</td>" in row for row in new)
    assert not any("payload store" in row for row in new)  # the one before was the same report, but for its registers
    w.usual.click()
    w.wait()
    assert w.state == KernelExplorer.DEFAULTS and len(w.asked) == 3  # what was compiled is kept
    (row,) = [row for row in w.table.value.split("<tr>") if "payload store" in row]
    assert kernel_words.NEW + "128 bits  STG.E.128" in row and "<td>16 bits  STG.E.U16</td>" in row
    marked = [line for line in w.sass.value.splitlines() if "kvlab-new" in line]
    assert any("STG.E.128" in line for line in marked)
    assert not any("tl.load(cells[1]" in line for line in marked)  # source lines are no instructions


@pytest.mark.parametrize(
    ("state", "sectors", "stores", "scale"),
    [
        ({}, 64, 4, None),
        (NARROW, 64, 32, None),
        ({"layout": "head_major", "format": "mxfp8(interleaved, rceil)"}, 32, 2, (8, 1)),
    ],
)
def test_sectors_and_stores_of_a_row(show, state, sectors, stores, scale):
    w = show(state)
    assert f"in {sectors} sectors of 32 bytes" in w.strip.value and f": {stores} for the row" in w.strip.value
    boxes = w.strip.value.count("fill='#fff'")
    if scale is None:
        assert boxes == sectors and "K scale" not in w.strip.value
    else:
        assert (
            boxes == sectors + scale[0] and f"32 bytes in {scale[0]} sectors of 32 bytes, in 8 places" in w.strip.value
        )
        assert (
            w.strip.value.count(f": {scale[1]} for the row") == 1
            and "sectors of 32 bytes, in 8 places" in w.strip.value
        )
    where, held = kernel_words.row_sectors(kernel_explorer.layout_of(w.state).fields["k"])
    assert len(where) == sectors and held.sum() == sectors * 32


def test_compiling_is_said_and_the_last_one_stays(show):
    w = show()
    before, real = w.table.value, kernel_explorer.lens.inspect
    started, release = threading.Event(), threading.Event()
    w._reports._inspect = lambda **arguments: (started.set(), release.wait(30), real(**arguments))[2]
    w.boxes["rows"].value = 8
    started.wait(30)
    assert "Compiling" in w.said.value and "8 x 1024 elements" in w.said.value and "setting before" in w.said.value
    assert w.table.value == before and "Still compiling" in w.pytest()
    w.boxes["rows"].value = 16
    w.boxes["rows"].value = 2
    release.set()
    w.wait()
    assert "Compiled" in w.said.value and "2 x 1024 elements" in w.said.value and w.table.value != before
    assert [x["rows"] for x in w.asked] == [4, 8, 2]  # of those that waited only the newest was compiled


def test_in_a_notebook_the_event_loop_draws(show):
    async def notebook():
        w = KernelExplorer()
        assert "Compiling" in w.said.value
        for _ in range(200):
            await asyncio.sleep(0.01)
            if "Compiled" in w.said.value:
                return w
        return w

    show()
    assert "128 bits" in asyncio.run(notebook()).table.value


def test_a_thread_gives_way_to_what_is_known():
    started, slow = threading.Event(), threading.Event()
    reports = Reports(lambda x: (started.set(), slow.wait(30)) if x else "quick", lambda: None)
    assert reports.get("a", {"x": 0}) is None
    reports.wait()
    assert reports.get("a", {"x": 0}) == "quick"
    assert reports.get("b", {"x": 1}) is None
    started.wait(30)
    assert reports.get("c", {"x": 1}) is None
    assert reports.get("a", {"x": 0}) == "quick"  # back to a known one: c need not be made
    slow.set()
    reports.wait()
    assert reports._thread is None and set(reports._answers) == {"a", "b"}


def test_errors_are_shown_in_their_own_words(show):
    w = show({"rows": 3})
    assert "lens: rows=3 must be a power of two" in w.error.value and w.state["rows"] == 3
    assert w.asked == []
    w.boxes["rows"].value = 4
    w.wait()
    assert w.error.value == "" and "Compiled" in w.said.value
    w.boxes["arch"].value = "sm_80"
    w.wait()
    assert "commit for sm_80 does not compile: no such thing" in w.error.value and "Compil" not in w.said.value
    for state, words in (
        ({"arch": "sm_99"}, "arch='sm_99' is not one of sm_80"),
        ({"tile": 1}, "'tile' is not one of"),
    ):
        with pytest.raises(ValueError, match=words):
            KernelExplorer(state)


def test_state_round_trip(show):
    w = show(NARROW)
    again = show(w.to_json())
    assert again.state == w.state == json.loads(w.to_json()) and again.table.value == w.table.value


@pytest.mark.parametrize("state", [NARROW, {"layout": "head_major", "format": "mxfp8(interleaved, rceil)"}])
def test_copied_code_runs_and_its_test_can_fail(show, state):
    w = show(state)
    found = {}
    exec(w.python().replace("print(", "str("), found)
    assert found["report"] == w._shown.report and found["layout"] == w._shown.layout
    run_test(w.pytest())
    bits = w._shown.report.payload_store_bits
    wrong = w.pytest().replace(f", {bits}, ", ", 64, ")
    assert wrong != w.pytest()
    with pytest.raises(AssertionError):
        run_test(wrong)


def run_test(code: str) -> None:
    found = {}
    exec(code, found)
    next(x for name, x in found.items() if name.startswith("test_"))()


def test_without_triton_the_reason_is_shown(monkeypatch):
    monkeypatch.setattr(lens.ask.importlib.util, "find_spec", lambda name, package=None: None)
    w = KernelExplorer()
    w.wait()
    assert "Triton is not installed here" in w.error.value
