"""ScaleExplorer without a browser: what it shows is what the pool holds, and selecting launches nothing."""

import json

import numpy as np
import pytest
import torch

pytest.importorskip("plotly", reason="plotly is not installed")
pytest.importorskip("anywidget", reason="anywidget is not installed")
pytest.importorskip("ipywidgets", reason="ipywidgets is not installed")

import kvlab
from kvlab import samples
from kvlab.backends import backend, reference_backend
from kvlab.formats import dequantize, quantize
from kvlab.kernels.launch import record_launches
from kvlab.widgets import ScaleExplorer

LAUNCHES = 0 if backend() == "reference" else 1
WHERE = {"layer": 2, "field": "v", "token": 140, "head": 2, "block": 1, "element": 3}


@pytest.fixture(scope="module")
def shared():
    """One widget for the tests that only look or move; each sets its own state."""
    return ScaleExplorer()


def show(widget, **state):
    widget.set_state({**ScaleExplorer.DEFAULTS, **state})
    assert widget.error.value == ""
    return widget


def expected(layer, field, token, head, block, rounding):
    """Values, payload, scale and read-back of a block straight from the sample and kvlab.formats."""
    text = samples.load_kv()
    row = getattr(text, field)[layer, token, head]
    payload, scales = quantize(row, rounding)
    span = slice(32 * block, 32 * block + 32)
    return row[span].double(), payload[span], int(scales[block]), dequantize(payload, scales)[span].double()


@pytest.mark.parametrize("rounding", ["rceil", "floor", "even"])
@pytest.mark.parametrize("where", [(0, "k", 37, 1, 0), (3, "v", 130, 2, 1), (2, "k", 337, 0, 1)])
def test_shows_the_block_of_the_sample(shared, where, rounding):
    layer, field, token, head, block = where
    w = show(shared, layer=layer, field=field, token=token, head=head, block=block, rounding=rounding)
    values, payload, scale, read = expected(*where, rounding)
    shown, chart = w.shown, w.chart
    assert shown.scale == scale and f"scale byte {scale}" in w.words.value
    assert shown.payload.tolist() == payload.view(torch.uint8).tolist()
    assert np.array_equal(chart.values, values) and np.array_equal(chart.reads, read)
    assert np.array_equal(chart.errors, read - values)
    assert f"{abs(values).max():.6g}" in w.words.value
    assert repr(samples.load_kv().tokens[token]).strip("'\"") in w.words.value
    assert w.table.value.count("0x") == 32 and f"0x{shown.payload[31]:02X}" in w.table.value
    assert "differs" not in w.words.value and "== kvlab.formats.quantize on" in w.words.value


@pytest.mark.parametrize("where", [("k", 37, 1, 0), ("v", 255, 2, 1), ("k", 256, 0, 0)])
def test_places_are_those_of_the_pool(shared, where):
    field, token, head, block = where
    w = show(shared, field=field, token=token, head=head, block=block)
    row = token % 128
    lane, byte = divmod(w.tile_byte.value, 16)
    assert (lane, byte) == (row % 32, row // 32 * 4 + block)
    pool = w._page[1].pool
    tile = pool.get_kv_scale_buffer(0)[field == "v"][1, head]
    assert int(tile[row % 32, row // 32, block]) == w.shown.scale == int(w.tile.texts[16 * lane + byte])
    assert w.flat_byte.value == row * 6 + head * 2 + block
    assert (w.tile.selected, w.flat.selected) == (16 * lane + byte, w.flat_byte.value)
    assert f"row {row} head {head} block {block}, {w.shown.scale} =" in w.tile.words[w.tile.selected]


def test_flat_bytes_are_what_a_flat_pool_holds(shared):
    w = show(shared, field="v", token=5, head=2, rounding="even")
    page = w._page[1]
    flat = kvlab.KVPool(kvlab.token_major(page.pool.layout.geometry, kvlab.MXFP8("flat", "even")))
    flat.commit(page.slots, page.rows["k"], page.rows["v"], layer=0)
    stored = flat.buffers["v_scale"][page.pool.layout.geometry.page_size * 6 :].tolist()
    assert [int(x.split(", ")[1].split(" =")[0]) for x in w.flat.words] == stored


def test_moving_inside_a_page_launches_nothing():
    w = ScaleExplorer()
    assert w.launches == LAUNCHES
    with record_launches() as launches:
        for token in (0, 127):
            w.token.value = token
        w.head.value, w.field.value, w.block.value, w.element.value = 2, "v", 1, 31
        w.tile_byte.value = 16 * 7 + 9
        w.flat_byte.value = 3
    assert launches == [] and w.launches == LAUNCHES and w.error.value == ""


@pytest.mark.parametrize("change", ["layer", "page", "rounding", "inject"])
def test_other_bytes_are_one_launch(change):
    w = ScaleExplorer()
    with record_launches() as launches:
        if change == "layer":
            w.layer.value = 3
        elif change == "page":
            w.token.value = 128
        elif change == "rounding":
            w.rounding.value = "floor"
        else:
            w.inject["nan"].click()
    assert len(launches) == LAUNCHES and w.launches == 2 * LAUNCHES


def test_a_place_selects_its_block(shared):
    w = show(shared, field="v", token=0, head=2)
    w.tile_byte.value = 10 * 16 + 2 * 4 + 1  # lane 10, rows 64 … 95, column 1
    assert (w.token.value, w.head.value, w.block.value) == (74, 2, 1)
    w.flat_byte.value = 6 * 100 + 2 * 1 + 0  # row 100, head 1, block 0
    assert (w.token.value, w.head.value, w.block.value) == (100, 1, 0)
    w.tile.picked = [31 * 16 + 12, 1]  # what a click sends
    assert (w.token.value, w.head.value, w.block.value) == (127, 1, 0)
    w.flat.picked = [1 * 48 + 3, 1]
    assert (w.token.value, w.head.value, w.block.value) == (8, 1, 1)
    w.chart.picked = [17, 1]
    assert w.element.value == 17


def test_places_without_a_block_are_said(shared):
    w = show(shared, token=300)
    w.tile_byte.value = 2
    assert "padding" in w.error.value and w.token.value == 300
    w.tile_byte.value = 31 * 16 + 12  # row 127; the last page ends with row 81
    assert "No token there" in w.error.value and "82 rows" in w.error.value and w.token.value == 300
    assert w.tile.texts[2] == "–" and w.tile.texts[31 * 16 + 12] == "·"
    assert w.tile.codes[2] == w.tile.codes[31 * 16 + 12] == w.tile.skip
    w.token.value = 301
    assert w.error.value == ""


@pytest.mark.parametrize("kind", ["nan", "inf"])
def test_bad_values_are_loud(shared, kind):
    w = show(shared, token=40, element=9)
    w.inject[kind].click()
    assert w.shown.scale == 255 and (w.shown.payload == 0x7F).all() and np.isnan(w.shown.read).all()
    assert "scale byte 255" in w.words.value and "reads" in w.table.value
    assert w.tile.texts[8 * 16 + 4] == "NaN" and w.chart.note
    w.token.value = 41  # the neighbours are as they were, and the injected value stays where it was put
    assert w.shown.scale == expected(0, "k", 41, 1, 0, "rceil")[2]
    assert "token 40" in w.words.value and w.chart.note == ""
    w.undo.click()
    w.token.value = 40
    assert w.shown.scale == expected(0, "k", 40, 1, 0, "rceil")[2]


def test_a_zero_block_is_zero(shared):
    w = show(shared)
    w.inject["zero"].click()
    assert w.shown.scale == 0 and not w.shown.payload.any() and not w.shown.read.any()
    assert "all-zero block" in w.words.value


def test_proof_counts_bytes_that_differ():
    w = ScaleExplorer()
    page = w._page[1]
    page.pool.buffers["k_scale"][w.shown.buffer_byte] ^= 1
    page.pool.buffers["v"][128 * 192] ^= 1
    assert page._compare() == (2 * 128 * 3 * 66, 2)


@pytest.mark.parametrize("inject", [None, "nan", "zero"])
def test_copied_code_runs_and_its_test_can_fail(inject):
    state = {**WHERE, "rounding": "floor", "inject": {"kind": inject, **WHERE} if inject else None}
    w = ScaleExplorer(state)
    found = {}
    exec(w.python(), found)
    assert (found["byte"], found["scale"]) == (w.shown.buffer_byte, w.shown.scale)
    assert found["payload"].tolist() == w.shown.payload.tolist()
    assert np.array_equal(found["read"].double(), w.shown.read, equal_nan=True)
    run_test(w.pytest())
    for right, wrong in ((f", {w.shown.scale})\n", ", 77)\n"), (f", {w.shown.payload[31]}]\n", ", 5]\n")):
        assert w.pytest().count(right) == 1
        with pytest.raises(AssertionError):
            run_test(w.pytest().replace(right, wrong))


def run_test(code):
    """Run the one test in this text."""
    found = {}
    exec(code, found)
    (test,) = (x for name, x in found.items() if name.startswith("test_"))
    test()


def test_state_round_trip():
    w = ScaleExplorer({"field": "v", "token": 200, "rounding": "even", "element": 4})
    w.inject["inf"].click()
    again = ScaleExplorer(w.to_json())
    assert again.state == w.state == json.loads(w.to_json())
    assert again.words.value == w.words.value and again.table.value == w.table.value


@pytest.mark.parametrize(
    "state, words",
    [
        ({"token": 338}, "token=338 is not one of 0, …, 337"),
        ({"rounding": "up"}, "rounding='up' is not one of rceil, floor, even"),
        ({"slot": 1}, "'slot' is not one of"),
        ({"inject": {"kind": "nan"}}, "needs the keys"),
        ({"inject": {"kind": "big", **WHERE}}, "inject\\['kind'\\]='big' is not one of"),
    ],
)
def test_a_wrong_state_says_what_is_legal(state, words):
    with pytest.raises(ValueError, match=words):
        ScaleExplorer(state)


def test_on_the_reference_backend():
    with reference_backend():
        w = ScaleExplorer()
        w.rounding.value = "floor"
        assert w.launches == 0 and "no launch committed this page: reference path ==" in w.words.value
        assert w.shown.scale == expected(0, "k", 37, 1, 0, "floor")[2]
