"""Reading MXFP8 pools: views, sizes, dequantised and raw rows, and the tensors of a live engine."""

import itertools

import numpy as np
import pytest
import torch

import kvlab
from kvlab.backends import reference_backend
from kvlab.formats import dequantize, quantize

from .helpers import BUILDERS, DEVICE, POISON, assert_same_bytes, bits, one_launch, randomised, saved, slots
from .mx_helpers import (
    FIELDS,
    PLACEMENTS,
    ROUNDINGS,
    canonical,
    exact_values,
    mx_bytes,
    mx_layout,
    mx_rows,
    torchao_mx,
)

to_blocked = pytest.importorskip("torchao.prototype.mx_formats.utils").to_blocked
each_name = pytest.mark.parametrize("name", BUILDERS)
each_placement = pytest.mark.parametrize("scales", PLACEMENTS)


VIEWS = {
    ("token_major", "flat", 4, 64): (12, 2, 2),
    ("page_major", "flat", 4, 64): (3, 4, 2, 2),
    ("head_major", "flat", 4, 64): (3, 2, 4, 2),
    ("page_major", "interleaved", 128, 64): (3, 2, 32, 4, 4),
    ("token_major", "interleaved", 128, 128): (3, 2, 32, 4, 4),
    ("page_major", "interleaved", 128, 128): (3, 2, 32, 4, 4),
    ("head_major", "interleaved", 128, 128): (3, 2, 32, 4, 4),
    ("token_major", "interleaved", 256, 128): (3, 2, 2, 1, 32, 4, 4),
    ("page_major", "interleaved", 128, 160): (3, 2, 1, 2, 32, 4, 4),
    ("head_major", "interleaved", 256, 256): (3, 2, 2, 2, 32, 4, 4),
}


@pytest.mark.parametrize("case", VIEWS, ids=str)
def test_scale_views(case):
    """Shapes of the contract, and a 128x4 tile of a view is the bytes that to_blocked gives for that page and head."""
    name, scales, page_size, head_dim = case
    layout = mx_layout(name, scales, page_size=page_size, head_dim=head_dim)
    pool, g = kvlab.KVPool(layout, device=DEVICE), layout.geometry
    k, v, given = mx_bytes(g, g.slots - 1)
    pool.commit(slots(range(1, g.slots)), k, v, layer=1, **given)
    for field, view in zip(FIELDS[2:], pool.get_kv_scale_buffer(1), strict=True):
        assert tuple(view.shape) == VIEWS[case] and view.dtype == torch.uint8
        assert view.untyped_storage().data_ptr() == pool.buffers[layout.fields[field].buffer].data_ptr()
        rows = torch.nn.functional.pad(given[field], (0, 0, 0, 0, 1, 0)).view(g.pages, page_size, g.heads, -1)
        if scales == "interleaved":
            for page, head in itertools.product(range(g.pages), range(g.heads)):
                assert torch.equal(view[page, head].reshape(-1), to_blocked(rows[page, :, head].contiguous()))
        else:
            rows = rows.transpose(1, 2) if name == "head_major" else rows
            assert torch.equal(view, rows.reshape(view.shape))


@each_name
@pytest.mark.parametrize("scales, head_dim", [("flat", 64), ("flat", 160), ("interleaved", 64), ("interleaved", 128),
                                              ("interleaved", 160)])  # fmt: skip
def test_size_per_token_counts_the_scales(name, scales, head_dim):
    """cases.md 11; and what lies between is what the layout itself calls padding."""
    layout = mx_layout(name, scales, head_dim=head_dim, v_head_dim=32, heads=3)
    pool, g = kvlab.KVPool(layout, device=DEVICE), layout.geometry
    k, v = pool.get_kv_size_bytes()
    assert k == g.layers * g.slots * 3 * (head_dim + head_dim // 32)
    assert v == g.layers * g.slots * 3 * (32 + 1)
    padding = sum(int((layout.explain(n, np.arange(size)).field < 0).sum()) for n, size in layout.buffers.items())
    assert k + v + padding == layout.nbytes


LOC = [9, 1, 11, 5, 4, 8]


def both_paths(read):
    """What ``read`` gives through kernel (one launch) and reference, bit for bit the same."""
    with one_launch():
        kernel = read()
    with reference_backend(), one_launch(0):
        reference = read()
    assert all(torch.equal(bits(x), bits(y)) for x, y in zip(kernel, reference, strict=True))
    return kernel


@each_name
@each_placement
def test_dequantised_rows_are_dequantize_of_quantize(name, scales):
    layout = mx_layout(name, scales, ROUNDINGS[list(BUILDERS).index(name)], heads=3, v_head_dim=32)
    pool, rows = randomised(layout), mx_rows(layout.geometry, 6, torch.bfloat16, 2)
    pool.commit(slots(LOC), *rows)
    before = saved(pool)
    loc = slots([LOC[::-1], [-1, *LOC[1:]]])
    got = both_paths(lambda: pool.gather(loc))
    one = both_paths(lambda: pool.gather(loc, layer=1))
    for x, y, source in zip(got, one, rows, strict=True):
        assert x.dtype == torch.float32 and torch.equal(bits(x[1]), bits(y))
        assert torch.equal(bits(x[:, :6].flip(1)), bits(dequantize(*quantize(source, layout.format.rounding))))
        assert torch.equal(bits(x[:, 7:]), bits(exact_values(*torchao_mx(source[:, 1:], layout.format.rounding))))
        assert not bits(x[:, 6]).any()  # padding reads as +0
    assert_same_bytes(pool, before)


@each_name
@each_placement
def test_any_bytes_read_as_ml_dtypes_says(name, scales):
    """Every payload and scale byte there is, NaNs and overflow included, and slot 0 like any other."""
    pool = randomised(mx_layout(name, scales, v_head_dim=32))
    loc = slots([*range(12), 11, 11])
    raw = both_paths(lambda: pool.gather(loc, dequantize=False))
    made = both_paths(lambda: pool.gather_scales(loc))
    read = both_paths(lambda: pool.gather(loc))
    for payload, scale, x in zip(raw, made, read, strict=True):
        assert payload.dtype == torch.float8_e4m3fn and scale.dtype == torch.uint8
        assert torch.equal(bits(canonical(x)), bits(exact_values(payload.view(torch.uint8), scale)))


@each_name
@each_placement
def test_raw_rows_and_scales_travel_to_any_other_pool(name, scales):
    source = mx_layout(name, scales, v_head_dim=160)
    k, v, given = mx_bytes(source.geometry, 6, 2)
    first = kvlab.KVPool(source, device=DEVICE)
    first.commit(slots(LOC), k, v, **given)
    other = PLACEMENTS[1 - PLACEMENTS.index(scales)]
    second = kvlab.KVPool(mx_layout("head_major", other, v_head_dim=160), device=DEVICE)
    raw, made = first.gather(slots(LOC), dequantize=False), first.gather_scales(slots(LOC))
    second.commit(slots(LOC[::-1]), *raw, k_scale=made[0], v_scale=made[1])
    for got, want in zip(second.gather(slots(LOC[::-1]), dequantize=False), (k, v), strict=True):
        assert torch.equal(bits(got), bits(want))
    for got, want in zip(second.gather_scales(slots(LOC[::-1])), given.values(), strict=True):
        assert torch.equal(got, want)


@each_name
@each_placement
def test_a_new_pool_reads_zero(path, name, scales):
    pool = kvlab.KVPool(mx_layout(name, scales), device=DEVICE)
    for x in pool.gather(slots([0, 1, 11])):
        assert x.shape == (2, 3, 2, 64) and not bits(x).any()


def engines():
    """Tensors as engines hold them: memory, then K, V, K scales, V scales of both layers, and slots of a page."""

    def poison(*shape):
        return torch.full(shape, POISON, dtype=torch.uint8, device=DEVICE)

    apart = [[poison(256, 2, 128) for _ in range(2)] for _ in range(2)]
    tiles = [[poison(2, 2, 32, 4, 4) for _ in range(2)] for _ in range(2)]
    yield "sglang: one tensor per layer", [*apart[0], *apart[1], *tiles[0], *tiles[1]], (*apart, *tiles)
    row = [poison(64, 2, 133) for _ in range(2)]  # K, its scales, V, its scales, and 5 bytes of something else
    cuts = [(0, 64), (64, 66), (67, 99), (99, 100)]
    k, ks, v, vs = ([x[..., a:b] for x in row] for a, b in cuts)
    yield "scales behind their row", row, (k, v, ks, vs)
    pages = poison(3, 2, 2 * 128 * 2 * 160)
    k, v = ([pages[:, i, s : s + 128 * 320].unflatten(1, (128, 2, 160)) for i in range(2)] for s in (0, 128 * 320))
    tiles = poison(3, 2, 2, 2, 1, 2, 32, 4, 4)
    yield "7-D tiles of strided layers", [pages, tiles], (k, v, *([tiles[:, i, j] for i in range(2)] for j in range(2)))


def put(x, page_size: int, slot: int, row) -> None:
    """One row of a payload or scale tensor, where its own shape says."""
    if x.dim() < 5:
        (x[slot] if x.dim() == 3 else x[slot // page_size, slot % page_size]).copy_(row)
        return
    columns = x.shape[-1] * (x.shape[3] if x.dim() == 7 else 1)
    order = to_blocked(torch.arange(128 * columns, device=DEVICE).view(128, columns)).tolist()
    for head, blocks in enumerate(row):
        for c, byte in enumerate(blocks.tolist()):
            at = order.index(slot % 128 * columns + c)
            x[slot // page_size, head].view(-1)[at] = byte


@pytest.mark.parametrize("which", range(3))
def test_commits_land_in_an_engines_tensors(path, which):
    name, memory, tensors = list(engines())[which]
    pool = kvlab.KVPool.adopt(*tensors)
    assert pool.layout.format == kvlab.MXFP8("flat" if which == 1 else "interleaved"), name
    g, loc = pool.layout.geometry, [9, 63, 0, 33]
    rows = mx_rows(g, 4, torch.bfloat16, 2)
    pool.commit(slots(loc), *rows)
    made = [torchao_mx(x, "rceil") for x in rows]
    for x, y, z in zip(pool.gather(slots(loc)), rows, made, strict=True):
        assert y.shape == x.shape and torch.equal(bits(x[:, :2]), bits(exact_values(*z)[:, :2]))
    got = [x.clone() for x in memory]
    for x in memory:
        x.fill_(POISON)
    for field, x in zip(FIELDS, tensors, strict=True):
        bytes_of = made[field[0] == "v"][field.endswith("_scale")]
        for layer in range(2):
            for r in (0, 1, 3):
                put(x[layer], g.page_size, loc[r], bytes_of[layer, r])
    assert all(torch.equal(x, y) for x, y in zip(got, memory, strict=True)), name
