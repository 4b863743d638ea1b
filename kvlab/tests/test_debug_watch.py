"""watch names exactly what code wrote: any code, any layout, also bytes rewritten with their own value."""

from functools import partial

import numpy as np
import pytest
import torch

import kvlab
from kvlab import zoo
from kvlab.debug.commit_data import expected_mask
from kvlab.debug.ranges import IndexRange, Range, Stray

BUILDERS = [kvlab.token_major, kvlab.page_major, kvlab.head_major, zoo.vllm_first, zoo.nano_vllm, zoo.hicache_page_head]
G = kvlab.Geometry(layers=2, heads=2, head_dim=32, v_head_dim=64, page_size=4, pages=6)
TILED = kvlab.Geometry(layers=2, heads=2, head_dim=64, page_size=128, pages=2)
CASES = [(G, torch.bfloat16), (G, torch.float8_e5m2), (G, kvlab.MXFP8("flat")), (TILED, kvlab.MXFP8("interleaved"))]
LOC, LENS = torch.tensor([[5, 6, 9], [0, 14, -1]]), torch.tensor([2, 3])


def filled(layout, seed=0):
    pool, rng = kvlab.KVPool(layout, device="cpu"), np.random.default_rng(seed)
    for buffer in pool.buffers.values():
        buffer.copy_(torch.from_numpy(rng.integers(0, 256, buffer.numel(), dtype=np.uint8)))
    return pool


def rows(g, count=6, layers=None):
    lead = (count, g.heads) if layers is None else (layers, count, g.heads)
    return [torch.randn(*lead, d).bfloat16() for d in (g.head_dim, g.v_head_dim)]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("builder", BUILDERS, ids=lambda b: b.__name__)
def test_a_callable_is_seen_byte_for_byte_even_where_nothing_changes(builder, case):
    pool = filled(builder(*case))
    k, v = rows(case[0], layers=2)
    pool.commit(LOC, k, v, commit_lens=LENS)  # so that the watched one rewrites every byte with its own value
    before = {n: x.clone() for n, x in pool.buffers.items()}
    w = kvlab.watch(pool, lambda: pool.commit(LOC, k, v, commit_lens=LENS))
    expected = expected_mask(pool.layout, LOC.numpy(), LENS.numpy())
    for name, mask in expected.items():
        assert np.array_equal(w.masks[name], mask)
        assert torch.equal(pool.buffers[name], before[name]), "the first run's result is not left in place"
    assert w.nbytes == sum(int(m.sum()) for m in expected.values()) and w.both_fills
    verdict = w.expect(LOC, LENS, k=k, v=v)
    assert verdict.ok and verdict.counts["right"] == w.nbytes, verdict
    with kvlab.watch(pool) as quiet:
        pool.commit(LOC, k, v, commit_lens=LENS)
    assert quiet.ranges == [] and str(quiet).startswith("nothing changed in")
    assert quiet.expect(LOC, LENS, k=k, v=v).ok  # the bytes are right, though none of them changed


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda b: b.__name__)
def test_a_block_names_the_values_that_changed(builder):
    pool = filled(builder(G, torch.bfloat16))
    k, v = rows(G)
    with kvlab.watch(pool) as w:
        pool.set_kv_buffer(1, LOC, k, v)
    slots = [((5, 6),), ((9, 9),), ((14, 14),)]
    found = {(r.field, r.layers, r.slots) for r in w.ranges}
    assert found == {(f, (1, 1), s) for f in "kv" for (s,) in slots}
    assert w.to_dict()["ranges"][0]["kind"] == "cells" and f"{w.nbytes:,} bytes changed" in w._repr_html_()


@pytest.mark.parametrize("builder", BUILDERS, ids=lambda b: b.__name__)
def test_missing_unexpected_and_wrong(builder):
    pool = filled(builder(G, torch.bfloat16))
    k, v = rows(G)
    w = kvlab.watch(pool, lambda: pool.set_kv_buffer(0, torch.tensor([5, 6, 7]), k[:3], v[:3] + 4))
    verdict = w.expect(torch.tensor([5, 6, 8]), layer=0, k=k[:3], v=v[:3])
    assert not verdict.ok
    assert {(r.field, r.slots) for r in verdict.missing} == {("k", (8, 8)), ("v", (8, 8))}
    assert {(r.field, r.slots) for r in verdict.unexpected} == {("k", (7, 7)), ("v", (7, 7))}
    assert [str(r) for r in verdict.wrong] == ["layer 0, V, slots 5-6, heads 0-1, dims 0-63"]
    at = (0, 0, 0)
    assert f"{float(v[at] + 4):g} as bfloat16, should be {float(v[at]):g} as bfloat16" in verdict.first
    assert "V, layer 0, slot 5 (page 1, offset 1), head 0, dim 0" in str(verdict)
    shapes = w.expect(torch.tensor([5, 6, 8]), layer=0)
    assert shapes.wrong == [] and len(shapes.missing) == len(shapes.unexpected) == 2
    assert verdict.to_dict()["counts"] == verdict.counts
    total = verdict.counts["right"] + verdict.counts["wrong"] + verdict.counts["unexpected"]
    assert total == w.nbytes


def test_scales_that_are_left_behind_are_missing():
    from kvlab.widgets.commit_run import payload_pool

    pool = filled(kvlab.page_major(G, kvlab.MXFP8("flat")))
    k, v = rows(G)
    w = kvlab.watch(pool, lambda: payload_pool(pool).set_kv_buffer_prefix_valid(1, LOC, LENS, k, v))
    verdict = w.expect(LOC, LENS, layer=1)
    assert {r.field for r in verdict.missing} == {"k_scale", "v_scale"} and not verdict.unexpected
    assert str(verdict.missing[0]) == "layer 1, K scale, slots 5-6, heads 0-1, block 0"


def test_a_foreign_write_is_named_as_padding():
    pool = filled(kvlab.page_major(kvlab.Geometry(2, 1, 32, page_size=5, pages=3), kvlab.MXFP8("flat")))
    byte = int(np.flatnonzero(pool.layout.explain("raw", np.arange(pool.layout.nbytes)).field < 0)[0])
    with kvlab.watch(pool) as w:
        pool.buffers["raw"][byte] += 1
    assert w.ranges == [Stray("raw", (byte, byte))]


def test_a_call_that_raises_leaves_everything_as_it_was():
    pool = filled(kvlab.head_major(G, torch.float16))
    before = {n: x.clone() for n, x in pool.buffers.items()}
    calls = []

    def broken(fails):
        calls.append(1)
        pool.buffers["k"].fill_(1)
        if len(calls) == fails:
            raise RuntimeError("half-way")

    for fails in (1, 2):
        calls.clear()
        with pytest.raises(RuntimeError, match="half-way"):
            kvlab.watch(pool, partial(broken, fails))
        assert len(calls) == fails
        assert all(torch.equal(pool.buffers[n], x) for n, x in before.items())


def test_a_block_that_raises_still_says_what_was_written():
    pool = filled(kvlab.token_major(G, torch.bfloat16))
    with pytest.raises(RuntimeError), kvlab.watch(pool) as w:
        pool.view("k", 1)[7].view(torch.int16).bitwise_not_()
        raise RuntimeError("late")
    assert [(r.field, r.layers, r.slots) for r in w.ranges] == [("k", (1, 1), (7, 7))]


def test_an_adopted_pool_has_coordinates():
    storage = torch.zeros(2, 24, 2, 80)
    k, v = [x[..., :32] for x in storage], [x[..., 32:] for x in storage]
    pool = kvlab.KVPool.adopt(k, v, page_size=4)
    with kvlab.watch(pool) as w:
        storage[1, 9, 1, 30:34] = 1
    assert w.ranges == [Range("k", (1, 1), (9, 9), (1, 1), (30, 31)), Range("v", (1, 1), (9, 9), (1, 1), (0, 1))]


def test_a_byte_of_two_buffers_is_told_once_under_its_owner():
    """K and V of a page in one tensor: the buffers of K and of V span each other's rows."""
    fused = [torch.zeros(6, 2, 4, 2, 32).bfloat16() for _ in range(2)]
    pool = kvlab.KVPool.adopt([x[:, 0] for x in fused], [x[:, 1] for x in fused])
    k, v = (torch.randn(6, 2, 32).bfloat16() for _ in range(2))
    w = kvlab.watch(pool, lambda: pool.set_kv_buffer_prefix_valid(1, LOC, LENS, k, v))
    assert all(isinstance(r, Range) for r in w.ranges) and w.nbytes == 2 * 3 * 2 * 32 * 2
    assert w.expect(LOC, LENS, layer=1, k=k, v=v).ok


def test_tensors_of_any_strides():
    a = torch.zeros(10, 20)
    view, other = a[2:5, ::2], torch.zeros(6, dtype=torch.int64)
    with kvlab.watch({"x": view, "loc": other}) as w:
        view[1, 3:5] = 1
        a[9, 19] = 2
        other[4] = 7
    assert [str(r) for r in w.ranges] == ["x[1, 3:5]", "loc[4]", "no cell, byte 799 of 'storage of x'"]
    w = kvlab.watch([view], lambda: view[0].zero_())
    assert w.ranges == [IndexRange("tensor 0", ((0, 0), (0, 9)))] and w.nbytes == 40
    with pytest.raises(ValueError, match="tensors have no slots"):
        w.expect(LOC)
    wide = torch.zeros(3, dtype=torch.complex128)
    with kvlab.watch({"wide": wide}) as w:
        wide[1] = 2j
    assert [str(r) for r in w.ranges] == ["wide[1]"]
    scalar = torch.tensor(1.0)
    with kvlab.watch(scalar) as w:
        scalar += 1
    assert [str(r) for r in w.ranges] == ["tensor[]"]


def test_two_tensors_of_one_storage():
    raw = torch.zeros(4, 2, 6, dtype=torch.uint8)
    with kvlab.watch({"k": raw[:, 0], "v": raw[:, 1]}) as w:
        raw[2, 1, 3] = 1
    assert [str(r) for r in w.ranges] == ["v[2, 3]"]


def test_a_block_of_padding_alone_expects_nothing():
    pool = filled(kvlab.page_major(G, torch.bfloat16))
    w = kvlab.watch(pool, lambda: None)
    assert w.ranges == [] and w.expect(torch.tensor([0, -1])).ok


def test_bad_input():
    pool = filled(kvlab.token_major(G, torch.bfloat16))
    with pytest.raises(ValueError, match=r"x overlaps itself: axis 1 has size 4 and stride 0"):
        kvlab.watch({"x": torch.zeros(3, 1).expand(3, 4)})
    with pytest.raises(ValueError, match="overlaps itself: axis 1 has size 2 and stride 1"):
        kvlab.watch(torch.zeros(10).unfold(0, 2, 1))
    with pytest.raises(TypeError, match="what is a str"):
        kvlab.watch("pool")
    with pytest.raises(TypeError, match="what is empty"):
        kvlab.watch([])
    for x, words in ((torch.eye(3).to_sparse(), "sparse"), (torch.zeros(2, device="meta"), "a meta tensor")):
        with pytest.raises(TypeError, match=words):
            kvlab.watch(x)
    with pytest.raises(ValueError, match="k is given and v is not"):
        kvlab.watch(pool, lambda: None).expect(LOC, k=rows(G)[0])
    with pytest.raises(TypeError, match="call=3 cannot be called"):
        kvlab.watch(pool, 3)
    with kvlab.watch(pool) as w:
        assert str(w) == "still watching: the block has not ended"
        with pytest.raises(ValueError, match="has not ended"):
            w.expect(LOC)
    with pytest.raises(IndexError, match=r"loc\[0\]=24 is outside the pool's slots 0 … 23"):
        w.expect(torch.tensor([24]))
    with pytest.raises(ValueError, match=r"commit_lens\[1\]=4 is outside 0 … 3"):
        w.expect(LOC, torch.tensor([1, 4]))


def test_a_long_table_says_how_much_more_there_is():
    pool = filled(kvlab.token_major(G, torch.bfloat16))
    with kvlab.watch(pool) as w:
        for slot in range(0, 24, 2):
            pool.view("k", 0)[slot].view(torch.int16).bitwise_not_()
            pool.view("v", 1)[slot].view(torch.int16).bitwise_not_()
    lines = str(w).splitlines()
    assert len(w.ranges) == 24 and len(lines) == 22 and lines[-1] == "  … and 4 more ranges"
