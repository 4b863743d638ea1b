"""Ranges hold exactly the touched bytes, in every layout: rebuilt byte by byte from the field formula."""

import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlab
from kvlab import zoo
from kvlab.debug.boxes import PART, WHOLE, boxes
from kvlab.debug.ranges import IndexRange, Range, Stray, fold
from kvlab.figures import expected_mask

BUILDERS = [kvlab.token_major, kvlab.page_major, kvlab.head_major, *zoo.ALL.values()]
PLAIN = kvlab.Geometry(layers=2, heads=2, head_dim=32, v_head_dim=64, page_size=3, pages=4)
TILED = kvlab.Geometry(layers=2, heads=2, head_dim=64, page_size=128, pages=2)
CASES = [(PLAIN, torch.bfloat16), (PLAIN, kvlab.MXFP8("flat")), (TILED, kvlab.MXFP8("interleaved"))]


def adopted(geometry, fmt):
    """Layers in tensors of their own, K and V slices of a wider row."""
    g = geometry
    if fmt != torch.bfloat16:
        raise ValueError("adopted here only as bf16")
    wide = [torch.zeros(g.slots, g.heads * (g.head_dim + g.v_head_dim) + 8).bfloat16() for _ in range(g.layers)]
    k = [w[:, : g.heads * g.head_dim].view(g.slots, g.heads, g.head_dim) for w in wide]
    v = [w[:, g.heads * g.head_dim : -8].view(g.slots, g.heads, g.v_head_dim) for w in wide]
    return kvlab.KVPool.adopt(k, v, page_size=g.page_size).layout


def rebuilt(layout, ranges):
    """Masks of the bytes in whole ranges and in strays, and of those in ranges with ``whole`` False."""
    whole = {n: np.zeros(size, bool) for n, size in layout.buffers.items()}
    part = {n: np.zeros(size, bool) for n, size in layout.buffers.items()}
    for r in ranges:
        if isinstance(r, Stray):
            at = slice(r.bytes[0], r.bytes[1] + 1)
            assert not r.whole or not whole[r.buffer][at].any(), "named twice"
            (whole if r.whole else part)[r.buffer][at] = True
            continue
        f = layout.fields[r.field]
        slot, head, dim = np.ix_(*(np.arange(a, b + 1) for a, b in (r.slots, r.heads, r.dims)))
        for layer in range(r.layers[0], r.layers[1] + 1):
            buffer, byte = layout.locate(r.field, layer, *np.broadcast_arrays(slot, head, dim))
            at = byte[..., None] + np.arange(f.item)
            target = whole if r.whole else part
            assert not target[buffer][at].any(), "named twice"
            target[buffer][at] = True
    return whole, part


@pytest.mark.parametrize("builder", [*BUILDERS, adopted], ids=lambda b: b.__name__)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 1 << 30), share=st.sampled_from([0.0, 0.002, 0.5, 0.98, 1.0]), case=st.sampled_from(CASES))
def test_ranges_hold_exactly_the_touched_bytes(builder, seed, share, case):
    try:
        layout = builder(*case)
    except ValueError:
        return
    rng = np.random.default_rng(seed)
    masks = {name: np.zeros(size, bool) for name, size in layout.buffers.items()}
    for mask in masks.values():  # a stretch of each buffer: many thousand ranges would take their time to rebuild
        first = rng.integers(len(mask))
        part = mask[first : first + 3000]
        part[:] = rng.random(len(part)) < share
    whole, part = rebuilt(layout, fold(layout, masks))
    for name, mask in masks.items():
        assert not (whole[name] & ~mask).any(), "a whole range holds a byte that was not touched"
        assert ((whole[name] | part[name]) | ~mask).all(), "a touched byte is in no range"
    whole, part = rebuilt(layout, fold(layout, masks, elements=True))
    for name, mask in masks.items():
        assert ((whole[name] | part[name]) | ~mask).all(), "a changed byte is in no range"


@pytest.mark.parametrize("builder", [*BUILDERS, adopted], ids=lambda b: b.__name__)
def test_a_commit_folds_to_one_line_for_each_field(builder):
    for geometry, fmt in CASES:
        try:
            layout = builder(geometry, fmt)
        except ValueError:
            continue
        found = fold(layout, expected_mask(layout, np.arange(4, 9)))
        assert [str(r) for r in found if isinstance(r, Range)] == [
            f"layers 0-1, {'KV'[i % 2]}{' scale' * (i > 1)}, slots 4-8, heads 0-1, {unit}s 0-{f.extents['dim'] - 1}"
            if f.extents["dim"] > 1
            else f"layers 0-1, {'KV'[i % 2]}{' scale' * (i > 1)}, slots 4-8, heads 0-1, {unit} 0"
            for i, f in enumerate(layout.fields.values())
            for unit in (["dim", "block"][i > 1],)
        ]


def test_words():
    assert str(Range("v", (2, 2), (12, 15), (0, 7), (0, 127))) == "layer 2, V, slots 12-15, heads 0-7, dims 0-127"
    one = Range("k_scale", (0, 3), (5, 5), (1, 1), (2, 3), whole=False)
    assert str(one) == "layers 0-3, K scale, slot 5, head 1, blocks 2-3, some bytes only"
    assert str(Stray("raw", (1200, 1215))) == "no cell, bytes 1,200-1,215 of 'raw'"
    assert str(IndexRange("out", ((0, 3), (5, 5)))) == "out[0:4, 5]"
    assert one.to_dict() == {
        "kind": "cells", "field": "k_scale", "layers": [0, 3], "slots": [5, 5], "heads": [1, 1], "dims": [2, 3],
        "whole": False,
    }  # fmt: skip


def test_a_half_touched_element_is_not_called_whole():
    layout = kvlab.token_major(PLAIN, torch.bfloat16)
    mask = np.zeros(layout.buffers["k"], bool)
    at = layout.locate("k", 1, 7, 1, 3)[1]
    mask[at + 1 : at + 6] = True  # the second byte of dim 3, dims 4 and 5
    assert fold(layout, {"k": mask}) == [
        Range("k", (1, 1), (7, 7), (1, 1), (3, 3), whole=False),
        Range("k", (1, 1), (7, 7), (1, 1), (4, 5)),
    ]


def test_boxes_of_any_rank():
    rng = np.random.default_rng(0)
    for shape in ((7,), (3, 5), (2, 3, 4), (2, 2, 3, 4, 2)):
        states = rng.integers(0, 3, shape).astype(np.uint8)
        again = np.zeros_like(states)
        for spans, whole in boxes(states):
            again[tuple(slice(a, b + 1) for a, b in spans)] += WHOLE if whole else PART
        assert np.array_equal(again, states)
    assert boxes(np.zeros((3, 4), np.uint8)) == []


def test_a_large_pool_is_folded_without_a_list_of_its_bytes():
    """64 MiB, all written: a list of coordinates would take gigabytes and minutes."""
    g = kvlab.Geometry(layers=4, heads=8, head_dim=128, page_size=16, pages=256)
    layout = kvlab.page_major(g, torch.bfloat16)
    start = time.process_time()
    found = fold(layout, {"raw": np.ones(layout.nbytes, bool)})
    assert [(r.field, r.layers, r.slots) for r in found] == [("k", (0, 3), (0, 4095)), ("v", (0, 3), (0, 4095))]
    assert time.process_time() - start < 10


def test_values_that_stayed_by_chance_do_not_tear_a_commit_apart():
    layout = kvlab.head_major(kvlab.Geometry(2, 2, 64, page_size=16, pages=8), torch.float8_e4m3fn)
    rng = np.random.default_rng(0)
    masks = expected_mask(layout, np.arange(20, 100), layer=1)
    lane = [layout.locate("v", 1, slot, 1, 40)[1] for slot in range(20, 100)]
    half = [layout.locate("v", 1, 50, head, dim)[1] for head in range(2) for dim in range(33)]
    masks["v"][lane] = masks["v"][half] = False  # what a kernel left out
    for mask in masks.values():
        mask &= rng.random(len(mask)) > 0.01
    assert len(fold(layout, masks)) > 200
    assert [str(r) for r in fold(layout, masks, elements=True) if r.field == "k"] == [
        "layer 1, K, slots 20-99, heads 0-1, dims 0-63, some bytes only"
    ]
    found = [r for r in fold(layout, masks, elements=True) if r.field == "v"]
    assert {(r.heads, r.dims) for r in found if r.slots != (50, 50)} == {
        ((0, 0), (0, 63)),
        ((1, 1), (0, 39)),
        ((1, 1), (41, 63)),
    }
    assert {r.slots for r in found} == {(20, 49), (50, 50), (51, 99)}
    assert all(r.dims[0] >= 33 for r in found if r.slots == (50, 50))


def test_few_gaps_are_told_exactly():
    layout = kvlab.token_major(PLAIN, torch.float8_e4m3fn)
    masks = expected_mask(layout, np.arange(4, 8))
    masks["k"][layout.locate("k", 0, 5, 1, 7)[1]] = False
    assert fold(layout, masks, elements=True) == fold(layout, masks)
    assert Range("k", (0, 0), (5, 5), (1, 1), (8, 31)) in fold(layout, masks)


def test_the_padding_of_tiles_is_told_in_one_line():
    layout = kvlab.token_major(TILED, kvlab.MXFP8("interleaved"))  # 2 of 4 columns are real: 2 bytes of padding each
    found = fold(layout, {name: np.ones(size, bool) for name, size in layout.buffers.items()})
    last = layout.buffers["k_scale"] - 1
    assert found[4:] == [Stray(name, (2, last), whole=False) for name in ("k_scale", "v_scale")]
    assert str(found[4]) == f"no cell, bytes 2-{last:,} of 'k_scale', some of them"
