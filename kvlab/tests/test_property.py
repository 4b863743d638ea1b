"""Any geometry, layout, dtype pair, batch and stride: kernel, reference and a loop over rows agree on every byte."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlab
from kvlab.backends import reference_backend

from .helpers import BUILDERS, DEVICE, FP8, PLAIN, bits, check_commit, converted, numbers, raw_rows, slots


@st.composite
def geometries(draw):
    size = st.integers(1, 4)
    dim = st.sampled_from([1, 2, 5, 8, 16, 24, 64, 72])
    heads, pages = draw(st.integers(1, 5)), draw(st.integers(1, 6))
    return kvlab.Geometry(draw(size), heads, draw(dim), draw(dim), page_size=draw(st.integers(1, 9)), pages=pages)


@st.composite
def commits(draw):
    """A layout and the arguments of one legal commit into it."""
    g = draw(geometries())
    dtype, source = draw(st.sampled_from(PLAIN)), draw(st.sampled_from(PLAIN))
    layout = draw(st.sampled_from(list(BUILDERS.values())))(g, dtype)
    blocks, width = draw(st.integers(0, 4)), draw(st.integers(0, 5))
    count = blocks * width
    lens = draw(st.none() | st.lists(st.integers(0, width), min_size=blocks, max_size=blocks))
    mask = draw(st.none() | st.lists(st.booleans(), min_size=count, max_size=count))
    real = draw(st.permutations(range(1, g.slots)))[:count]
    pads = draw(st.lists(st.sampled_from([None, None, None, 0, -1, -9]), min_size=count, max_size=count))
    pads = [(-1 if p is None and i >= len(real) else p) for i, p in enumerate(pads)]
    loc = [real[i] if p is None else p for i, p in enumerate(pads)]
    for i in range(count):  # rows that are not written may hold anything: duplicates, slots beyond the pool
        accepted = lens is None or i % width < lens[i // width]
        if not (accepted and (mask is None or mask[i])):
            loc[i] = draw(st.sampled_from([loc[i], g.slots, g.slots + 100, 1]))
    two_d = lens is not None or draw(st.booleans())
    loc = slots(loc, draw(st.sampled_from([torch.int32, torch.int64])))
    loc = loc.reshape(blocks, width) if two_d else loc
    layer = draw(st.none() | st.integers(0, g.layers - 1))
    make = raw_rows if dtype == source else numbers
    lead = (g.layers, count) if layer is None else (count,)
    seed, order = draw(st.integers(0, 99)), draw(st.sampled_from(["dense", "fused", "transposed", "stepped"]))
    k, v = sources(make, lead, g, source, seed, order)
    options = {"layer": layer, "commit_lens": None if lens is None else slots(lens, torch.int32)}
    if mask is not None:
        options["row_mask"] = torch.tensor(mask, dtype=torch.bool, device=DEVICE)
    if dtype in FP8 and draw(st.booleans()):
        options["k_scale"] = draw(st.sampled_from([0.25, 0.3, 17.0]))
        options["v_scale"] = torch.tensor(draw(st.sampled_from([0.011, 3.0])), device=DEVICE)
    if two_d and draw(st.booleans()):
        loc = loc.T.contiguous().T
    return layout, loc, k, v, options


def sources(make, lead, g, dtype, seed, order):
    """K and V of the wanted strides."""
    h, dk, dv = g.heads, g.head_dim, g.v_head_dim
    if order == "fused":
        qkv = make((*lead, h * (dk + dv) + 3), dtype, seed)
        return qkv[..., 1 : 1 + h * dk].unflatten(-1, (h, dk)), qkv[..., 2 + h * dk : 2 + h * (dk + dv)].unflatten(
            -1, (h, dv)
        )
    if order == "transposed":
        return tuple(
            make((d, h, *lead[::-1]), dtype, seed + d).permute(*range(len(lead) + 1, -1, -1)) for d in (dk, dv)
        )
    step = 2 if order == "stepped" else 1
    return tuple(make((*lead, h, d * step), dtype, seed + d)[..., ::step] for d in (dk, dv))


@settings(max_examples=120)
@given(commits())
def test_commit_then_gather(case):
    layout, loc, k, v, options = case
    g = layout.geometry
    pool = check_commit(layout, loc, k, v, launches=int(loc.numel() > 0), **options)

    # then the round trip, token by token
    flat = loc.reshape(-1)
    lens, mask = options["commit_lens"], options.get("row_mask")
    written = (flat > 0) & (flat < g.slots)
    if lens is not None and loc.numel():
        written &= (torch.arange(loc.shape[1], device=DEVICE) < lens[:, None]).reshape(-1)
    if mask is not None:
        written &= mask
    rows = written.nonzero().squeeze(1)
    layer = options["layer"]
    got = pool.gather(flat[rows], layer=layer)
    with reference_backend():
        twin = pool.gather(flat[rows], layer=layer)
    for name, source, stored, other in zip(("k_scale", "v_scale"), (k, v), got, twin, strict=True):
        want = converted(source[:, rows] if layer is None else source[rows], layout.format, options.get(name))
        assert torch.equal(bits(stored), bits(want))
        assert torch.equal(bits(other), bits(want))


@settings(max_examples=30)
@given(geometries(), st.sampled_from(list(BUILDERS.values())), st.sampled_from(PLAIN), st.integers(0, 99))
def test_unchecked_commit_of_any_slots(g, builder, dtype, seed):
    """Any 64-bit integers as slots: only real slots are ever touched."""
    edges = [-(2**63), -(2**31), -1, 0, g.slots, g.slots + 1, 2**31, 2**32 + 1, 2**63 - 1]
    loc = slots([x for i, x in enumerate(edges) if (seed >> i) & 1] + ([g.slots - 1] if seed % 2 else []))
    k, v = (raw_rows((len(loc), g.heads, d), dtype, seed) for d in (g.head_dim, g.v_head_dim))
    check_commit(builder(g, dtype), loc, k, v, launches=int(len(loc) > 0), layer=0, check=False)
