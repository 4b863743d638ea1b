"""Hypothesis: any MXFP8 pool, any ragged commit, any bit pattern: kernel, reference and oracle agree on every byte."""

import pytest
import torch
from hypothesis import event, given, settings
from hypothesis import strategies as st

import kvlab
from kvlab.backends import reference_backend

from .helpers import BUILDERS, DEVICE, bits, one_launch, random_bytes, randomised, saved, slots
from .mx_helpers import FIELDS, PLACEMENTS, ROUNDINGS, canonical, check_mx_commit, exact_mx, exact_values, mx_rows

pytest.importorskip("torchao.prototype.mx_formats.utils")
SOURCES = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn)


@st.composite
def layouts(draw):
    scales = draw(st.sampled_from(PLACEMENTS))
    page_size = draw(st.sampled_from([128, 256] if scales == "interleaved" else [1, 3, 4, 16]))
    heads, head_dim, v_head_dim = (draw(st.integers(1, n)) for n in (4, 5, 5))
    pages = draw(st.integers(1, 3)) + (page_size == 1)
    g = kvlab.Geometry(draw(st.integers(1, 2)), heads, head_dim * 32, v_head_dim * 32, page_size, pages)
    return BUILDERS[draw(st.sampled_from(sorted(BUILDERS)))](g, kvlab.MXFP8(scales, draw(st.sampled_from(ROUNDINGS))))


@st.composite
def commits(draw):
    """A layout, loc (B, W) whose written slots differ, and what else a commit takes."""
    layout = draw(layouts())
    g = layout.geometry
    blocks, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
    lens = draw(st.one_of(st.none(), st.lists(st.integers(0, width), min_size=blocks, max_size=blocks)))
    mask = draw(st.one_of(st.none(), st.lists(st.booleans(), min_size=blocks * width, max_size=blocks * width)))
    pool = draw(st.permutations(range(1, min(g.slots, 40)))) if g.slots > 1 else []
    far = [s for s in (g.slots - 1, g.slots - 2) if s >= 40]
    fresh, loc = iter([*far, *pool]), []
    for row in range(blocks * width):
        kept = (lens is None or row % width < lens[row // width]) and (mask is None or mask[row])
        if kept:
            loc.append(draw(st.sampled_from([0, -1, -7])) if draw(st.integers(0, 4)) == 0 else next(fresh, 0))
        else:  # a row that is not written may name any slot, the same one again, or one beyond the pool
            loc.append(draw(st.sampled_from([0, -1, g.slots - 1, g.slots, 2**31 - 1])))
    event(f"{layout.format.scales}, page {g.page_size}")
    return layout, torch.tensor(loc).view(blocks, width), lens, mask


@given(commits(), st.sampled_from(SOURCES), st.booleans(), st.booleans(), st.integers(0, 2**20))
@settings(max_examples=20)
def test_any_commit(commit, dtype, all_layers, strange, seed):
    """``strange``: random bit patterns, so NaN, infinity and subnormals; else finite numbers of all magnitudes."""
    layout, loc, lens, mask = commit
    g, rows = layout.geometry, loc.numel()
    layers = g.layers if all_layers else None
    lead = (rows, g.heads) if layers is None else (layers, rows, g.heads)

    def random(dim, dtype, seed):
        return random_bytes(torch.Size((*lead, dim)).numel() * dtype.itemsize, seed).view(dtype).view(*lead, dim)

    scales = {}
    if dtype == torch.float8_e4m3fn:
        dims = zip(("k_scale", "v_scale"), (g.head_dim, g.v_head_dim), strict=True)
        scales = {f: random(d // 32, torch.uint8, seed + i) for i, (f, d) in enumerate(dims, 2)}
    if strange or scales:
        k, v = random(g.head_dim, dtype, seed), random(g.v_head_dim, dtype, seed + 1)
    else:
        k, v = mx_rows(g, rows, dtype, layers, seed)
    options = {"layer": None if all_layers else g.layers - 1}
    if lens is not None:
        options["commit_lens"] = slots(lens)
    if mask is not None:
        options["row_mask"] = torch.tensor(mask, device=DEVICE)
    loc = loc.to(torch.int32 if seed % 2 else torch.int64).to(DEVICE)
    loc = loc.T.contiguous().T if seed % 3 else loc
    check_mx_commit(layout, loc, k, v, oracle=exact_mx, **scales, **options)


@given(layouts(), st.data(), st.integers(0, 2**20))
@settings(max_examples=10)
def test_any_gather(layout, data, seed):
    """A pool of random bytes: raw rows and scales as the layout locates them, and their product as ml_dtypes has it."""
    pool, g = randomised(layout, seed), layout.geometry
    loc = data.draw(st.lists(st.integers(-2, g.slots - 1), min_size=1, max_size=12))
    before = saved(pool)
    with one_launch():
        read = pool.gather(slots(loc))
    with reference_backend():
        twin = pool.gather(slots(loc))
    slot, head = (torch.tensor(loc).clamp(min=0)[:, None, None].numpy(), torch.arange(g.heads)[:, None].numpy())
    for i, (got, other) in enumerate(zip(read, twin, strict=True)):
        assert torch.equal(bits(got), bits(other))
        for layer in range(g.layers):
            stored = []
            for field in (FIELDS[i], FIELDS[i + 2]):
                dim = torch.arange(layout.fields[field].extents["dim"]).numpy()
                buffer, byte = layout.locate(field, layer, slot, head, dim)
                stored.append(before[buffer][torch.from_numpy(byte).to(DEVICE)])
            want = exact_values(*stored)
            want[torch.tensor(loc) < 0] = 0
            assert torch.equal(bits(canonical(got[layer])), bits(want))
