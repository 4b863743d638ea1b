"""Figures: the data under them against ``Layout.explain`` and plain loops, their legends, and their text twins."""

import subprocess
import sys
import time
import zlib

import numpy as np
import pytest
import torch

import kvlab

go = pytest.importorskip("plotly.graph_objects", reason="plotly is not installed")

from kvlab import figures  # noqa: E402
from kvlab.figures import grid, owners, palette, png, style  # noqa: E402

from .helpers import BUILDERS  # noqa: E402

FORMATS = (torch.bfloat16, torch.float8_e4m3fn, kvlab.MXFP8("flat"), kvlab.MXFP8("interleaved"))


def layouts(fmt, **sizes):
    sizes = {"layers": 5, "heads": 2, "head_dim": 64, "v_head_dim": 96, "page_size": 128, "pages": 2, **sizes}
    return [builder(kvlab.Geometry(**sizes), fmt) for builder in BUILDERS.values()]


def all_layouts():
    return [layout for fmt in FORMATS for layout in layouts(fmt)]


def adopted():
    """K and V in one allocation per layer: a buffer per layer and field."""
    k = [torch.zeros(8, 2, 4, dtype=torch.bfloat16) for _ in range(3)]
    return kvlab.KVPool.adopt(k, [x.clone() for x in k], page_size=4).layout


def small():
    g = kvlab.Geometry(layers=2, heads=2, head_dim=32, page_size=4, pages=4)
    return kvlab.page_major(g, torch.bfloat16)


def name_of(x):
    return f"{x.name}-{x.fields['k'].item}-{'scales' if 'k_scale' in x.fields else 'plain'}"


def owner_codes(layout, buffer, first, nbytes):
    """The same codes from one question per byte."""
    c = layout.explain(buffer, np.arange(first, first + nbytes))
    field = np.array([owners.FIELDS.index(n) for n in c.names])[c.field]
    codes = np.where(c.slot == 0, owners.PAD_SLOT, field * 8 + c.layer % 4 * 2 + c.page % 2)
    return np.where(c.field < 0, owners.PADDING, codes)


def drawn(fig):
    """Every figure: text twin, title, sizes, and words of at least 12 points; serialises."""
    twin = figures.text(fig)
    title = fig.layout.title.text.removeprefix("<b>").removesuffix("</b>")
    assert twin.startswith(title) and fig.layout.title.subtitle.text.replace("<br>", "\n") in twin
    assert fig.layout.width == 900 and fig.layout.height
    sizes = [a.font.size or style.FONT for a in fig.layout.annotations]
    assert min([fig.layout.font.size, fig.layout.legend.font.size, *sizes]) >= 12
    axes = [*fig.select_xaxes(), *fig.select_yaxes()]
    assert any(a.title.text for a in axes)
    fig.to_json()
    return twin


def legend(fig):
    return [t.name for t in fig.data if getattr(t, "showlegend", False) is not False and t.name]


# ------------------------------------------------------------------------------------------------------- owner map


@pytest.mark.parametrize("layout", [*all_layouts(), adopted()], ids=lambda x: f"{name_of(x)}")
def test_owner_map_is_what_explain_says(layout):
    rng = np.random.default_rng(0)
    for buffer, size in layout.buffers.items():
        codes, entries = figures.owner_map(layout, buffer)
        assert codes.dtype == np.uint8
        assert (codes == owner_codes(layout, buffer, 0, size)).all()
        assert set(codes.tolist()) <= {c for e in entries for c in e.codes}
        for _ in range(6):
            first = int(rng.integers(size))
            nbytes = int(rng.integers(1, min(size - first, 3000) + 1))
            window = figures.owner_map(layout, buffer, first, nbytes)[0]
            assert (window == codes[first : first + nbytes]).all()


def test_owner_map_of_fields_that_interleave():
    """Fused K|V rows in one tensor: each field's axes jump over the other's bytes."""
    fused = torch.zeros(2, 12, 2, 2, 8, dtype=torch.float16)  # layer, slot, k|v, head, dim
    layout = kvlab.KVPool.adopt(list(fused[:, :, 0]), list(fused[:, :, 1]), page_size=4).layout
    (buffer,) = layout.buffers
    codes = figures.owner_map(layout, buffer)[0]
    assert (codes == owner_codes(layout, buffer, 0, len(codes))).all()
    assert {"K", "V"} <= {e.label[0] for e in figures.owner_map(layout, buffer)[1]}


def test_owner_map_is_fast():
    """It takes 5 to 25 ms for 1 MiB; a question per byte takes 200 ms and more."""
    for layout in layouts(kvlab.MXFP8("interleaved"), layers=4, heads=8, head_dim=64, v_head_dim=64, pages=32):
        for buffer in layout.buffers:
            best = min(_seconds(figures.owner_map, layout, buffer, 0, 1 << 20) for _ in range(3))
            assert best < 0.15, (layout.name, buffer, best)


def _seconds(f, *args):
    start = time.perf_counter()
    f(*args)
    return time.perf_counter() - start


def test_owner_map_names_a_bad_window():
    layout = small()
    with pytest.raises(KeyError, match="buffer='k'"):
        figures.owner_map(layout, "k")
    with pytest.raises(IndexError, match="first=8192 is outside 0 … 8191"):
        figures.owner_map(layout, "raw", 8192)
    with pytest.raises(ValueError, match="nbytes=0"):
        figures.owner_map(layout, "raw", 0, 0)


def test_regions_skip_what_is_too_short_to_name():
    codes = np.repeat([0, 33, 0, 2, 3, 32], [20, 2, 20, 16, 16, 5]).astype(np.uint8)
    assert owners.regions(codes) == [(0, 42), (42, 58), (58, 79)]
    assert owners.regions(codes, by_page=False) == [(0, 42), (42, 79)]
    assert owners.regions(codes[:3]) == [(0, 3)]
    assert owners.regions(codes, shortest=1)[:3] == [(0, 20), (20, 22), (22, 42)]


# ---------------------------------------------------------------------------------------------------- palette, png


def test_colours_are_told_apart():
    fields = [*palette.FIELDS.values()]
    others = [*palette.STATES.values(), palette.PAD_SLOT[0], palette.PADDING[1]]
    assert len({*fields, *others}) == len(fields) + len(others)
    shades = [palette.owner_color(f, layer) for f in palette.FIELDS for layer in range(4)]
    assert len(set(shades)) == 16
    assert owners.colors()[owners.PAD_SLOT] == palette.PAD_SLOT[0]
    assert len(palette.cividis(256)) == 256
    grey = [0.3 * r + 0.59 * g + 0.11 * b for r, g, b in map(palette.rgb, palette.cividis(64))]
    assert (np.diff(grey) > 0).all()


def test_png_holds_the_codes():
    codes = np.random.default_rng(0).integers(0, 3, (5, 7)).astype(np.uint8)
    data = png.palette_png(codes, ["#000000", "#ff0000", "#00ff7f"])
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, chunks = 8, {}
    while at < len(data):
        size = int.from_bytes(data[at : at + 4], "big")
        kind, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        assert int.from_bytes(data[at + 8 + size : at + 12 + size], "big") == zlib.crc32(kind + body)
        chunks[kind], at = body, at + 12 + size
    assert chunks[b"PLTE"] == bytes.fromhex("000000ff000000ff7f")
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(5, 8)
    assert (lines[:, 0] == 0).all() and (lines[:, 1:] == codes).all()
    with pytest.raises(ValueError, match="code 2 with 2 colors"):
        png.palette_png(codes, ["#000000", "#ff0000"])


# ------------------------------------------------------------------------------------------------------ byte maps


@pytest.mark.parametrize("layout", [*all_layouts(), adopted()], ids=name_of)
def test_memory_map_of_every_buffer(layout):
    for buffer, size in layout.buffers.items():
        fig = figures.memory_map(layout, buffer, nbytes=70_000, marks=[(size // 2, 5, "here")])
        twin = drawn(fig)
        assert f"Buffer '{buffer}'" in twin
        entries = figures.owner_map(layout, buffer, 0, 70_000)[1]
        assert [f"{e.letter}: {e.label}" for e in entries] == [n for n in legend(fig) if not n.startswith("marked")]
        if size > 70_000:
            assert f"bytes 0 … 69,999 of {size:,}" in twin


def test_memory_map_says_who_owns_what():
    fig = figures.memory_map(small(), marks=[(128, 128, "slot 1")])
    twin = figures.text(fig)
    assert "bytes        128 …        511  K L0 slots 1…3 (page 0)" in twin
    assert "bytes        512 …        639  pad slot 0, V L0 slot 0 (page 0)" in twin
    assert "marked: slot 1, bytes 128 … 255" in twin
    assert "▨: pad slot 0 (never written)" in legend(fig)
    assert "K L1 p3" in [a.text for a in fig.layout.annotations]


def test_hover_tells_the_coordinate():
    layout = small()
    g = grid.Grid(2048, 100, 32)
    text = grid.hover(layout, "raw", g).text
    assert (len(text), len(text[0])) == (4, 32)
    assert text[0][3] == "byte 2,051: K layer 0 slot 4 = page 1 offset 0, head 0 dim 1 byte 1"
    assert text[3][4] == "past the window" and text[3][3].startswith("byte 2,147")
    wide = grid.hover(layout, "raw", grid.Grid(0, 8192, 8192))
    assert np.asarray(wide.z).size <= grid.HOVER_CELLS


def test_outline_goes_around_the_bytes():
    g = grid.Grid(100, 40, 10)
    assert g.outline(2, 5) == ([1.5, 4.5, 4.5, 1.5, 1.5, None], [95, 95, 105, 105, 95, None])
    xs, ys = g.outline(8, 12)  # the end of one line and the start of the next do not touch
    assert xs.count(None) == 2 and ys[:2] == [95, 95]
    xs, ys = g.outline(3, 35)
    assert len(xs) == 10 and (xs[0], ys[0]) == (xs[-2], ys[-2])


def test_changed_runs_join_over_equal_bytes():
    before, after = np.zeros(100, np.uint8), np.zeros(100, np.uint8)
    after[[10, 12, 20, 60, 61]] = 7
    assert figures.changed_runs(before, after) == [(10, 21), (60, 62)]
    assert figures.changed_runs(before, after, join=1) == [(10, 11), (12, 13), (20, 21), (60, 62)]
    assert figures.changed_runs(before, before) == []


@pytest.mark.parametrize("layout", all_layouts(), ids=name_of)
def test_before_after(layout):
    buffer = next(iter(layout.buffers))
    before = np.zeros(layout.buffers[buffer], np.uint8)
    after = before.copy()
    at = layout.locate("k", 1, 130, 1, 3)[1]
    after[at] = 9
    after[-1] = 1
    fig = figures.before_after(layout, torch.from_numpy(before), after, first=at - 40, nbytes=400)
    twin = drawn(fig)
    assert "1 bytes changed here, in 1 runs; 1 elsewhere" in twin
    assert f"{at:>10,} …" in twin and "K L1 slot 130 (page 1)" in twin
    assert "outline: bytes that changed" in legend(fig)
    with pytest.raises(ValueError, match="after is uint8"):
        figures.before_after(layout, before, after[:-1])


# ------------------------------------------------------------------------------------------------ what a commit did


@pytest.mark.parametrize("layout", [*all_layouts(), adopted()], ids=name_of)
def test_expected_mask_is_what_a_loop_finds(layout):
    """Rows of two blocks, one cut by its length, one with a pad and a masked row: 3 slots are due."""
    loc, lens, mask = [[1, 5, 6], [0, 7, 2]], [2, 3], [[True, True, True], [True, True, False]]
    got = figures.expected_mask(layout, loc, lens, mask, layer=1)
    for buffer, size in layout.buffers.items():
        c = layout.explain(buffer, np.arange(size))
        assert (got[buffer] == (np.isin(c.slot, [1, 5, 7]) & (c.layer == 1))).all()
        every = figures.expected_mask(layout, np.array([1, 5]))[buffer]
        assert (every == np.isin(c.slot, [1, 5])).all()


@pytest.mark.parametrize("fmt", [torch.bfloat16, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_a_right_commit_is_all_written(builder, fmt):
    layout = builder(kvlab.Geometry(layers=2, heads=2, head_dim=32, page_size=4, pages=4), fmt)
    loc, lens = torch.tensor([[5, 6, 7], [9, 0, 10]]), torch.tensor([2, 3])
    rows = torch.randn(2, 6, 2, 32).to(fmt)
    before, after = [], []
    for fill in (0x00, 0xFF):
        pool = kvlab.KVPool(layout, device="cpu")
        for x in pool.buffers.values():
            x.fill_(fill)
        before.append({n: x.numpy().copy() for n, x in pool.buffers.items()})
        with kvlab.backends.reference_backend():
            pool.commit(loc, rows, rows, commit_lens=lens)
        after.append({n: x.numpy().copy() for n, x in pool.buffers.items()})
    expected = figures.expected_mask(layout, loc, lens)
    args = {"before_b": before[1], "after_b": after[1]}
    twin = drawn(figures.commit_diff(layout, before[0], after[0], expected, row_labels={5: "b0 row 0"}, **args))
    written = 4 * layout.runs("token", 1).nbytes
    assert f"{written:,} bytes written, 0 bytes missing, 0 bytes unexpected" in twin
    assert "slot     5  K  L0  W  b0 row 0" in twin and "slot     7  K  L0  ·" in twin
    # The same commit, judged by other lengths: one row missing, one unexpected.
    wrong = figures.expected_mask(layout, loc, [3, 2])
    twin = figures.text(figures.commit_diff(layout, before[0], after[0], wrong, layer=1, **args))
    assert "slot     7  V  L1  M" in twin and "slot    10  V  L1  U" in twin
    for buffer in layout.buffers:
        fig = figures.commit_diff_bytes(layout, before[0], after[0], wrong, buffer, **args)
        assert "missing    bytes" in drawn(fig) and "unexpected bytes" in figures.text(fig)
        assert [n[0] for n in legend(fig)] == ["W", "M", "U", "·"]


def test_classify_needs_both_fills_to_see_every_write():
    a, b = np.zeros(4, np.uint8), np.full(4, 255, np.uint8)
    written, expected = np.array([0, 255, 7, 0], np.uint8), np.array([1, 1, 0, 1], bool)
    after_a, after_b = written.copy(), written.copy()
    after_b[3] = 255  # byte 3 was never written
    assert figures.classify(expected, a, after_a, b, after_b).tolist() == [1, 1, 3, 2]
    assert figures.classify(expected, a, after_a).tolist() == [2, 1, 3, 2]
    with pytest.raises(ValueError, match="both fills hold 0 at byte 0"):
        figures.classify(expected, a, after_a, a, after_a)
    with pytest.raises(ValueError, match="a snapshot is uint8"):
        figures.classify(expected, a[:3], after_a[:3])


@pytest.mark.parametrize("layout", all_layouts(), ids=name_of)
def test_forgotten_scales_show_as_missing(layout):
    before = {n: np.zeros(size, np.uint8) for n, size in layout.buffers.items()}
    expected = figures.expected_mask(layout, [3])
    owned = {n: layout.explain(n, np.arange(size)).field for n, size in layout.buffers.items()}
    after = {n: (expected[n] & (owned[n] < 2)).astype(np.uint8) for n in before}
    twin = drawn(figures.commit_diff(layout, before, after, expected))
    assert "slot     3  K  L0  W" in twin and "One fill only" in twin
    assert ("slot     3  Ks L0  M" in twin) == ("k_scale" in layout.fields)


def test_commit_diff_says_what_it_leaves_out():
    layout = kvlab.token_major(kvlab.Geometry(layers=1, heads=1, head_dim=8, page_size=4, pages=40), torch.float16)
    before = {n: np.zeros(size, np.uint8) for n, size in layout.buffers.items()}
    after = {n: x + 1 for n, x in before.items()}
    twin = figures.text(figures.commit_diff(layout, before, after, figures.expected_mask(layout, range(160))))
    assert "48 of 160 slots shown, 112 more of interest are not" in twin
    assert "slot     0  K  L0  U" in twin


# ------------------------------------------------------------------------------------------------- runs and strides


@pytest.mark.parametrize("fmt", FORMATS, ids=str)
def test_runs_and_ladder(fmt):
    three = layouts(fmt)
    table = figures.runs_table(three)
    assert len(table) == 9
    for row in table:
        runs = next(x for x in three if x.name == row["layout"]).runs(row["what"])
        assert (row["count"], row["length"], row["nbytes"]) == (runs.count, runs.length, runs.nbytes)
    fig = figures.runs_figure(three)
    drawn(fig)
    assert legend(fig) == list(BUILDERS)
    assert len({t.marker.pattern.shape for t in fig.data}) == 3
    fig = figures.stride_ladder(three, 130)
    twin = drawn(fig)
    for layout in three:
        runs = layout.runs("token", 130)
        assert f"{layout.name}: one token: {runs}" in twin
        got = figures.rungs(layout, 130)
        assert [r.start for r in got] == runs.starts.tolist()
        assert all(layout.explain(r.buffer, r.start).slot == 130 for r in got)
    assert [n.split(":")[0] for n in legend(fig)] == [palette.LETTERS[f] for f in three[0].fields]


def test_layouts_of_one_name_are_kept_apart():
    plain, scaled = layouts(torch.bfloat16)[0], layouts(kvlab.MXFP8())[0]
    table = figures.runs_table([plain, scaled, scaled])
    names = ["token_major bfloat16", "token_major mxfp8(flat, rceil) #2", "token_major mxfp8(flat, rceil) #3"]
    assert [row["layout"] for row in table[::3]] == names


def test_ladder_of_an_adopted_pool():
    k = [torch.zeros(8, 2, 4, dtype=torch.bfloat16) for _ in range(12)]
    layout = kvlab.KVPool.adopt(k, [x.clone() for x in k], page_size=4).layout
    assert "16 more buffers are not shown" in drawn(figures.stride_ladder([layout], 3))


# ----------------------------------------------------------------------------------------------------- block scales


@pytest.mark.parametrize("head_dim", [32, 64, 128, 256, 288])
def test_atom_is_the_tile_formula(head_dim):
    columns = head_dim // 32
    for tile in range(-(-columns // 4)):
        pairs = figures.atom(head_dim, tile).reshape(-1, 2)
        for r in range(128):
            for c in range(4 * tile, min(4 * tile + 4, columns)):
                byte = (r % 32) * 16 + (r // 32) * 4 + c % 4
                assert pairs[byte].tolist() == [r, c]
        assert (pairs[:, 0] < 0).sum() == 512 - 128 * min(4, columns - 4 * tile)
    flat = figures.atom(head_dim, 0, "flat").reshape(-1, 2)
    real = min(512, 128 * columns)
    assert (flat[:real] == np.stack(np.divmod(np.arange(real), columns), 1)).all()


@pytest.mark.parametrize(("row", "column", "head_dim"), [(37, 2, 128), (127, 0, 32), (100, 1, 64), (90, 7, 256)])
def test_scale_atom(row, column, head_dim):
    scales = np.full((128, head_dim // 32), 120, np.uint8)
    scales[0, 0] = 255
    fig = figures.scale_atom(row, column, head_dim, scales)
    twin = drawn(fig)
    byte = column // 4 * 512 + (row % 32) * 16 + row // 32 * 4 + column % 4
    assert f"Row {row}, column {column}: byte {byte} of the tiles, byte {row * head_dim // 32 + column} flat" in twin
    assert "value 120 = 2^-7" in twin and f"elements {32 * column} … {32 * column + 31}" in twin
    assert len(fig.layout.shapes) == 3  # the scale in both placements, and its block
    assert ("–: padding, or past the end" in legend(fig)) == (head_dim < 128)
    if column < 4:
        assert "NaN" in fig.data[0].hovertext[0][0]
    with pytest.raises(IndexError, match="row=128"):
        figures.scale_atom(128)


def test_quantization_error_counts_what_is_clipped():
    values = np.zeros(32)
    values[:3] = 511, -3, 1.01
    up, down = values.copy(), values.copy()
    up[:3], down[:3] = (512, -3, 1), (448, -3, 1)
    table = figures.error_table(values, {"rceil": (up, 128), "floor": (down, 127)})
    assert [(r["scale"], r["exponent"], r["limit"], r["clipped"]) for r in table] == [
        (128, 1, 896, 0),
        (127, 0, 448, 1),
    ]
    assert table[1]["max_error"] == 63 and table[0]["rms"] == pytest.approx(np.sqrt((1 + 0.01**2) / 32))
    fig = figures.quantization_error(values, {"rceil": (up, 128), "floor": (down, 127)})
    twin = drawn(fig)
    assert "floor  scale byte 127 = 2^0, limit 448, clipped 1, largest error 63" in twin
    assert legend(fig) == ["value before", "rceil: scale byte 128 = 2^1", "floor: scale byte 127 = 2^0"]
    with pytest.raises(ValueError, match="shape"):
        figures.quantization_error(values[:31], {})


def test_quantization_error_of_a_nan_block():
    values = np.full(32, 2.0)
    values[4] = np.nan
    fig = figures.quantization_error(values, {"rceil": (np.full(32, np.nan), 255)})
    assert "scale byte 255 = NaN" in drawn(fig)


# ---------------------------------------------------------------------------------------------------------- imports


def test_importing_kvlab_leaves_plotly_alone():
    code = "import sys, kvlab; sys.exit('plotly' in sys.modules or 'kvlab.figures' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
