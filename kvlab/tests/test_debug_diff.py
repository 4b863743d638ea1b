"""diff and where: coordinates and values of what differs, and of any address, byte or index."""

import numpy as np
import pytest
import torch

import kvlab
from kvlab import zoo

from .test_debug_watch import BUILDERS, CASES, G, filled, rows


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda b: b.__name__)
def test_equal_pools_and_one_cell(builder):
    a, b = filled(builder(G, torch.bfloat16)), filled(builder(G, torch.bfloat16))
    assert kvlab.diff(a, b).ok and str(kvlab.diff(a, b)) == f"equal in all {a.layout.nbytes:,} bytes"
    for pool, x in ((a, 0.25), (b, -0.5)):
        buffer, byte = pool.layout.locate("v", 1, 13, 1, 40)
        pool.buffers[buffer][byte : byte + 2] = torch.tensor([x]).bfloat16().view(torch.uint8)
    found = kvlab.diff(a, b)
    assert [str(r) for r in found.ranges] == ["layer 1, V, slot 13, head 1, dim 40"] and not found.ok
    assert found.changes == [
        "V, layer 1, slot 13 (page 3, offset 1), head 1, dim 40: 0.25 as bfloat16 -> -0.5 as bfloat16"
    ]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_layouts_are_compared_by_coordinate(case):
    g, fmt = case
    a, b = filled(kvlab.page_major(g, fmt), 1), kvlab.KVPool(kvlab.head_major(g, fmt), device="cpu")
    slots = torch.arange(1, g.slots)
    kvlab.copy(a, slots, b, slots)
    for pool in (a, b):  # slot 0 is the sink, which a copy skips
        for name in pool.layout.fields:
            for layer in range(g.layers):
                f = pool.layout.fields[name]
                head, dim = np.indices((f.extents["head"], f.extents["dim"]))
                buffer, byte = pool.layout.locate(name, layer, np.zeros_like(head), head, dim)
                pool.buffers[buffer][torch.from_numpy(byte[..., None] + np.arange(f.item))] = 0
    assert kvlab.diff(a, b).ok
    row = rows(g, 1)
    b.set_kv_buffer(1, torch.tensor([7]), *row)
    found = kvlab.diff(a, b)
    assert {(r.layers, r.slots) for r in found.ranges} == {((1, 1), (7, 7))}
    assert found.nbytes > 0 and " -> " in str(found)
    swapped = kvlab.diff(b, a)
    assert swapped.nbytes == found.nbytes


def test_scales_are_shown_as_powers():
    a, b = (filled(kvlab.token_major(G, kvlab.MXFP8("flat"))) for _ in range(2))
    buffer, byte = a.layout.locate("k_scale", 0, 5, 1, 0)
    a.buffers[buffer][byte], b.buffers[buffer][byte] = 130, 255
    assert kvlab.diff(a, b).changes == [
        "K scale, layer 0, slot 5 (page 1, offset 1), head 1, block 0: UE8M0 2^3 -> UE8M0 NaN"
    ]


def test_diff_of_raw_bytes_and_bad_input():
    pool = filled(kvlab.page_major(G, torch.bfloat16))
    raw = {"raw": pool.buffers["raw"].clone()}
    pool.view("k", 0)[2, 1] += 1
    assert {(r.field, r.slots) for r in kvlab.diff(raw, pool, pool.layout).ranges} == {("k", (9, 9))}
    assert kvlab.diff(raw, {"raw": raw["raw"].numpy()}, pool.layout).ok
    assert not kvlab.diff(raw, pool).ok
    with pytest.raises(ValueError, match="layout is None"):
        kvlab.diff(raw, raw)
    with pytest.raises(ValueError, match=r"after holds \{'raw': 5\}"):
        kvlab.diff(raw, {"raw": np.zeros(5, np.uint8)}, pool.layout)
    with pytest.raises(TypeError, match="before is a list"):
        kvlab.diff([1], pool)
    other = kvlab.KVPool(kvlab.page_major(kvlab.Geometry(2, 4, 32, page_size=4, pages=6), torch.bfloat16))
    with pytest.raises(ValueError, match="cannot be compared: heads: 2 and 4"):
        kvlab.diff(pool, other)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("builder", [*BUILDERS, zoo.tensorrt_llm], ids=lambda b: b.__name__)
def test_where_finds_addresses_bytes_and_indices(builder, case):
    pool, rng = filled(builder(*case)), np.random.default_rng(3)
    for name, f in pool.layout.fields.items():
        cell = tuple(int(rng.integers(f.extents[c])) for c in ("layer", "slot", "head", "dim"))
        place = kvlab.where(pool, (name, *cell))
        assert (place.buffer, place.byte) == pool.layout.locate(name, *cell)
        assert place.pointer == pool.buffers[place.buffer].data_ptr() + place.byte
        again = [kvlab.where(pool, x) for x in (place.pointer, (place.buffer, place.byte))]
        again.append(
            kvlab.where(pool, dict(zip(("field", "layer", "slot", "head", "dim"), (name, *cell), strict=True)))
        )
        assert all(x == place for x in again)
        terms = str(place).splitlines()[1].replace(",", "").partition(" = ")[2].split(" + ")
        assert sum(np.prod([int(n) for n in t.split(" ")[0].split("*")]) for t in terms) == place.byte
    view = pool.get_key_buffer(1)
    assert kvlab.where(pool, view.data_ptr()).cell.slot == 0


def test_where_bad_input():
    pool = filled(kvlab.token_major(G, torch.bfloat16))
    start = pool.buffers["k"].data_ptr()
    with pytest.raises(
        ValueError, match=r"outside every buffer; the nearest is '[kv]', 0x.*: it lies [\d,]+ bytes before"
    ):
        kvlab.where(pool, min(b.data_ptr() for b in pool.buffers.values()) - 24)
    with pytest.raises(ValueError, match="byte 12 of which buffer"):
        kvlab.where(pool, 12)
    with pytest.raises(IndexError, match="slot=24 is outside 0 … 23"):
        kvlab.where(pool, ("k", 0, 24))
    with pytest.raises(KeyError, match="field='q'"):
        kvlab.where(pool, ("q", 0, 1))
    for bad in ("k", ("k",), {"field": "k"}, 1.5):
        with pytest.raises(TypeError, match="where: what"):
            kvlab.where(pool, bad)
    one = filled(kvlab.page_major(G, torch.bfloat16))
    assert kvlab.where(one, 1000).byte == 1000 and kvlab.where(pool, start + 5).byte == 5
    with pytest.raises(ValueError, match="outside every buffer"):
        kvlab.where(one, -1)


def test_k_and_v_of_a_page_in_one_tensor():
    """The buffers of K and of V span each other's rows: a byte is found and counted once, where it is a cell."""
    fused = torch.zeros(6, 2, 4, 2, 32).bfloat16()
    pool = kvlab.KVPool.adopt([fused[:, 0]], [fused[:, 1]])
    before = {n: x.clone() for n, x in pool.buffers.items()}
    fused[2, 1, 3] = 1.5
    place = kvlab.where(pool, fused[2, 1, 3].data_ptr())
    assert (place.cell.field, place.cell.slot) == ("v", 11) and "1.5 as bfloat16" in str(place)
    found = kvlab.diff(before, pool)
    assert [str(r) for r in found.ranges] == ["layer 0, V, slot 11, heads 0-1, dims 0-31"] and found.nbytes == 128
