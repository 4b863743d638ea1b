"""Any pair of layouts, any rows, any overlap: kernel, reference and a loop over rows agree on every byte."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlab

from .helpers import BUILDERS, PLAIN, slots
from .moving_helpers import FLAT, check_copy, check_move


@st.composite
def pairs(draw):
    """Two layouts of one geometry per row, of unlike pages."""
    fmt = draw(st.sampled_from([*PLAIN, FLAT]))
    dim = st.sampled_from([32, 64, 96]) if fmt == FLAT else st.sampled_from([1, 5, 8, 24, 64, 72])
    small = st.integers(1, 3)
    row = dict(layers=draw(small), heads=draw(small), head_dim=draw(dim), v_head_dim=draw(dim))
    out = []
    for _ in range(2):
        g = kvlab.Geometry(**row, page_size=draw(st.integers(1, 9)), pages=draw(st.integers(2, 6)))
        out.append(draw(st.sampled_from(list(BUILDERS.values())))(g, fmt))
    return out


def rows(draw, source, target):
    """Source slots with repeats, distinct target slots, pads; in stretches, so that runs occur as well."""
    to = draw(st.permutations(range(1, target.geometry.slots)))[: draw(st.integers(0, 24))]
    if draw(st.booleans()):
        to = sorted(to)
    start = draw(st.integers(0, source.geometry.slots - 1))
    if draw(st.booleans()):
        source_slots = [(start + i) % source.geometry.slots for i in range(len(to))]
    else:
        pick = st.integers(0, source.geometry.slots - 1)
        source_slots = draw(st.lists(pick, min_size=len(to), max_size=len(to)))
    pads = draw(st.lists(st.sampled_from([None, None, None, 0, -1]), min_size=len(to), max_size=len(to)))
    to = [t if p is None else p for t, p in zip(to, pads, strict=True)]
    kind = st.sampled_from([torch.int32, torch.int64])
    return strided(draw, slots(source_slots, draw(kind))), strided(draw, slots(to, draw(kind)))


def strided(draw, loc):
    step = draw(st.integers(1, 3))
    wide = loc.repeat_interleave(step) if step > 1 else loc
    return wide[::step] if step > 1 else wide


@pytest.mark.slow
@settings(max_examples=50)
@given(st.data())
def test_copy(data):
    source, target = data.draw(pairs())
    source_loc, target_loc = rows(data.draw, source, target)
    check_copy(source, source_loc, target, target_loc, launches=int(len(source_loc) > 0))


@pytest.mark.slow
@settings(max_examples=40)
@given(st.data())
def test_move(data):
    """Any map of slots inside one pool; a permutation of all of them in a part of the cases."""
    layout, _ = data.draw(pairs())
    if data.draw(st.booleans()):
        order = list(range(1, layout.geometry.slots))
        source_loc, target_loc = slots(order), slots(data.draw(st.permutations(order)))
    else:
        source_loc, target_loc = rows(data.draw, layout, layout)
    check_move(layout, source_loc, target_loc, launches=2 * int(len(source_loc) > 0))
