"""locate and explain are each other's inverse, and both agree with what upstream engines document."""

import json
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlab
from kvlab.field import Axis, Field

from .helpers import BUILDERS, PLAIN, geometry, placed

SMALL = geometry(heads=3, head_dim=8, v_head_dim=4, page_size=2, pages=3)
LONE = kvlab.Geometry(layers=1, heads=1, head_dim=1, page_size=1, pages=2)
SCALED = geometry(heads=1, head_dim=32, v_head_dim=64, page_size=4, pages=3)
TILED = geometry(layers=1, heads=2, head_dim=160, v_head_dim=64, page_size=256, pages=2)
LAYOUTS = [
    *(b(g, t) for b in BUILDERS.values() for t in PLAIN for g in (SMALL, LONE)),
    *(b(SCALED, kvlab.MXFP8("flat")) for b in BUILDERS.values()),
    *(b(TILED, kvlab.MXFP8("interleaved", "floor")) for b in BUILDERS.values()),
]
each_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=lambda x: str(x).split(" layers")[0])


def every_cell(layout, field):
    """Coordinates of all cells of a field, as flat arrays."""
    g = layout.geometry
    dims = layout.fields[field].extents["dim"]
    mesh = np.meshgrid(*(np.arange(n) for n in (g.layers, g.slots, g.heads, dims)), indexing="ij")
    return [x.reshape(-1) for x in mesh]


def check_inverse(layout):
    """Every byte of every buffer has the owner that locate says, or is Padding if it says none."""
    names = list(layout.fields)
    want = {b: {c: np.full(n, -1) for c in ("field", "layer", "slot", "head", "dim", "byte")}
            for b, n in layout.buffers.items()}  # fmt: skip
    owned = 0
    for i, (name, field) in enumerate(layout.fields.items()):
        layer, slot, head, dim = every_cell(layout, name)
        buffer, byte = layout.locate(name, layer, slot, head, dim)
        for here in layout.buffers:  # one name for all cells, or an array of names where each layer has its own
            at = np.broadcast_to(buffer == here if isinstance(buffer, str) else np.asarray(buffer) == here, byte.shape)
            for b in range(field.item):
                for c, x in {"field": i, "layer": layer, "slot": slot, "head": head, "dim": dim, "byte": b}.items():
                    want[here][c][byte[at] + b] = x[at] if np.ndim(x) else x
        owned += field.item * len(layer)
    for buffer, size in layout.buffers.items():
        cells = layout.explain(buffer, np.arange(size))
        assert list(cells.names) == names
        for c, x in want[buffer].items():
            assert np.array_equal(getattr(cells, c), x), c
        page_size = layout.geometry.page_size
        real = cells.field >= 0
        assert np.array_equal(cells.page * page_size + cells.offset, np.where(real, cells.slot, -page_size - 1))
        owned -= real.sum()
    assert owned == 0, "two cells share a byte"


@each_layout
def test_explain_is_the_inverse_of_locate_on_every_byte(layout):
    check_inverse(layout)


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_locate_agrees_with_torch_views(builder, dtype):
    layout = builder(SMALL, dtype)
    item = dtype.itemsize
    iota = {name: torch.arange(size // item) for name, size in layout.buffers.items()}
    for field in layout.fields:
        layer, slot, head, dim = every_cell(layout, field)
        _, byte = layout.locate(field, layer, slot, head, dim)
        views = [placed(layout, iota, field, i) for i in range(SMALL.layers)]
        assert byte.tolist() == (torch.stack(views).reshape(-1) * item).tolist()


@pytest.mark.parametrize("fmt", [torch.bfloat16, torch.float8_e5m2, kvlab.MXFP8("flat")], ids=str)
def test_page_envelope_order(fmt):
    """[L0_K | L0_V | L0_Ks | L0_Vs | L1_K | …], each part page_size slots, scale parts padded to 16 bytes."""
    layout = kvlab.page_major(SCALED, fmt)
    item = 1 if isinstance(fmt, kvlab.MXFP8) else fmt.itemsize
    parts = [("k", 4 * 32 * item), ("v", 4 * 64 * item)]
    if isinstance(fmt, kvlab.MXFP8):
        parts += [("k_scale", 16), ("v_scale", 16)]  # 4 slots of 1 and of 2 blocks: 4 and 8 bytes, padded
    at = 0
    for page in range(SCALED.pages):
        for layer in range(SCALED.layers):
            for field, size in parts:
                assert layout.locate(field, layer, page * 4) == ("raw", at)
                at += size
    assert layout.nbytes == at


def test_scale_padding_is_named_as_padding():
    layout = kvlab.page_major(SCALED, kvlab.MXFP8("flat"))
    _, first = layout.locate("k_scale", 1, 3)
    assert layout.explain("raw", first) == kvlab.Cell("k_scale", 1, 3, 0, 3, 0, 0, 0)
    for byte in range(first + 1, first + 13):
        assert layout.explain("raw", byte) == kvlab.Padding("raw", byte)
    assert layout.explain("raw", first + 13) == kvlab.Cell("v_scale", 1, 0, 0, 0, 0, 0, 0)


@pytest.mark.parametrize("head_dim", [64, 128, 160, 256])
@pytest.mark.parametrize("page_size", [128, 256])
def test_interleaved_scales_are_the_128x4_tile(page_size, head_dim):
    to_blocked = pytest.importorskip("torchao.prototype.mx_formats.utils").to_blocked
    g = geometry(layers=1, head_dim=head_dim, page_size=page_size, pages=2)
    blocks, tiles = head_dim // 32, -(-head_dim // 128)
    r, c = np.meshgrid(np.arange(page_size), np.arange(blocks), indexing="ij")
    tile = (r // 128) * tiles * 512 + (c // 4) * 512 + (r % 32) * 16 + ((r % 128) // 32) * 4 + c % 4
    plane = page_size * tiles * 4
    want = to_blocked(torch.arange(1, page_size * blocks + 1).view(page_size, blocks))
    for builder in (kvlab.token_major, kvlab.head_major):
        layout = builder(g, kvlab.MXFP8("interleaved"))
        for page in range(2):
            for head in range(2):
                _, byte = layout.locate("k_scale", 0, page * page_size + r, head, c)
                assert np.array_equal(byte, (page * 2 + head) * plane + tile)
                filled = torch.zeros(plane, dtype=torch.long)
                filled[byte.reshape(-1) - (page * 2 + head) * plane] = torch.arange(1, page_size * blocks + 1)
                assert torch.equal(filled, want.reshape(-1))
        assert layout.buffers["k_scale"] == 4 * plane


FULL_TILES = geometry(layers=2, heads=2, head_dim=128, v_head_dim=256, page_size=256, pages=2)
WITH_RUNS = [x for x in LAYOUTS if x.geometry is not TILED]  # a tile's unused columns travel with it, see below
WITH_RUNS += [b(FULL_TILES, kvlab.MXFP8("interleaved")) for b in BUILDERS.values()]


@pytest.mark.parametrize("layout", WITH_RUNS, ids=lambda x: str(x).split(" layers")[0])
@pytest.mark.parametrize("what", ["token", "page", "layer"])
def test_runs_by_brute_force(layout, what):
    index = {"token": layout.geometry.slots - 1, "page": 1, "layer": layout.geometry.layers - 1}[what]
    runs = layout.runs(what, index)
    found = []
    for buffer in sorted(layout.buffers):
        cells = layout.explain(buffer, np.arange(layout.buffers[buffer]))
        mine = getattr(cells, {"token": "slot"}.get(what, what)) == index
        ends = np.flatnonzero(mine & ~np.append(mine[1:], False))
        for a, b in zip(ends[:-1], np.flatnonzero(mine & ~np.append(False, mine[:-1]))[1:], strict=True):
            if b - a <= 16 and (cells.field[a + 1 : b] < 0).all():
                mine[a + 1 : b] = True  # a DMA runs over alignment padding
        starts = np.flatnonzero(mine & ~np.append(False, mine[:-1]))
        ends = np.flatnonzero(mine & ~np.append(mine[1:], False)) + 1
        found += [(buffer, int(s), int(e - s)) for s, e in zip(starts, ends, strict=True)]
    assert list(zip(runs.buffers, runs.starts.tolist(), runs.lengths.tolist(), strict=True)) == found
    assert (runs.count, runs.nbytes) == (len(found), sum(n for *_, n in found))


def test_runs_of_a_token_and_a_page():
    g = geometry()
    row, page = 2 * 64 * 2, 4 * 2 * 64 * 2
    assert str(kvlab.token_major(g, torch.bfloat16).runs("token", 5)) == f"4 runs of {row} bytes"
    assert str(kvlab.head_major(g, torch.bfloat16).runs("token", 5)) == "8 runs of 128 bytes"
    assert str(kvlab.page_major(g, torch.bfloat16).runs("page", 5)) == f"1 run of {4 * page:,} bytes"
    assert kvlab.page_major(g, torch.bfloat16).runs("page", 5).starts.tolist() == [5 * 4 * page]


def test_runs_carry_the_unused_columns_of_a_tile():
    runs = kvlab.token_major(TILED, kvlab.MXFP8("interleaved")).runs("token", 300)  # 5 blocks of K in 8 columns
    scales = [n for b, n in zip(runs.buffers, runs.lengths.tolist(), strict=True) if b == "k_scale"]
    assert scales == [4, 4] * TILED.heads


@each_layout
def test_describes_itself_through_json(layout):
    again = kvlab.Layout.from_dict(json.loads(json.dumps(layout.to_dict())))
    assert again == layout
    assert str(again) == str(layout)
    assert (again.nbytes, again.fields) == (layout.nbytes, layout.fields)
    for word in (layout.name, f"{layout.geometry.pages} pages", f"{layout.nbytes:,} bytes", *layout.fields):
        assert word in str(layout)


def test_ranges_are_checked():
    layout = kvlab.page_major(SMALL, torch.bfloat16)
    for name, size in (("layer", 2), ("slot", 6), ("head", 3), ("dim", 8)):
        for value in (-1, size, np.array([0, size])):
            at = {"layer": 0, "slot": 0, name: value}
            with pytest.raises(IndexError, match=rf"{name}=-?\d+ is outside 0 … {size - 1}"):
                layout.locate("k", **at)
    with pytest.raises(IndexError, match=r"dim=4 is outside 0 … 3"):
        layout.locate("v", 0, 0, 0, 4)
    with pytest.raises(TypeError, match="slot"):
        layout.locate("k", 0, 1.0)
    with pytest.raises(KeyError, match="k_scale"):
        layout.locate("k_scale", 0, 0)
    with pytest.raises(KeyError, match="nowhere"):
        layout.explain("nowhere", 0)
    for byte in (-1, layout.nbytes):
        with pytest.raises(IndexError, match=f"byte={byte} is outside 0 … {layout.nbytes - 1}"):
            layout.explain("raw", byte)
    with pytest.raises(IndexError, match="index=3"):
        layout.runs("page", 3)
    with pytest.raises(ValueError, match="'head'"):
        layout.runs("head")


def test_a_million_cells_at_once_in_64_bits():
    g = geometry(layers=1, heads=8, head_dim=128, page_size=16, pages=137_500)  # 2.2 million slots: 2.25e9 bytes
    layout = kvlab.page_major(g, torch.float8_e4m3fn)
    slot = np.arange(1_100_000, 2_100_000)
    began = time.perf_counter()
    _, byte = layout.locate("k", 0, slot, 7, 127)
    cells = layout.explain("raw", byte)
    assert time.perf_counter() - began < 5  # about 0.2 s; a loop over a million cells would take minutes
    assert np.array_equal(cells.slot, slot)
    assert set(cells.head) == {7} and set(cells.dim) == {127}
    # a caller's narrow integers must not narrow the arithmetic
    assert np.array_equal(layout.locate("k", 0, slot.astype(np.int32), np.uint8(7), np.array([127], np.uint8))[1], byte)
    assert layout.locate("k", 0, np.int32(slot[-1]), 7, 127)[1] == byte[-1] > 2**31


def test_a_field_whose_cells_would_overlap_is_refused():
    axes = (Axis("layer", 0, 1, 0), Axis("slot", 0, 4, 6), Axis("head", 0, 2, 4), Axis("dim", 0, 2, 2))
    with pytest.raises(ValueError, match="'k': the slot axis"):
        Field("k", "k", 0, 2, {"layer": 1, "slot": 4, "head": 2, "dim": 2}, axes)


@settings(max_examples=60)
@given(data=st.data(), builder=st.sampled_from(list(BUILDERS.values())))
def test_any_geometry(data, builder):
    size = st.integers(1, 5)
    fmt = data.draw(st.sampled_from([*PLAIN, kvlab.MXFP8("flat")]))
    unit = 32 if isinstance(fmt, kvlab.MXFP8) else 1
    sizes = {n: data.draw(size) for n in ("layers", "heads", "head_dim", "v_head_dim", "page_size", "pages")}
    g = kvlab.Geometry(**{n: x * unit if "dim" in n else x for n, x in sizes.items()})
    check_inverse(builder(g, fmt))
