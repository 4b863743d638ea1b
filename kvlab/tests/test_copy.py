"""copy: rows from pool to pool, any layout to any layout, whole buffers over poison; each row compared, never a sum."""

from itertools import product

import pytest
import torch

import kvlab
from kvlab import slices

from .helpers import BUILDERS, DEVICE, slots
from .moving_helpers import FLAT, FORMATS, TILED, check_copy, check_move, content, layout_of, pool_with

PAIRS = list(product(BUILDERS, BUILDERS))
KINDS = [(f, f) for f in FORMATS] + [("flat", "tiled"), ("tiled", "flat")]


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
@pytest.mark.parametrize("source, target", PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_any_layout_to_any_layout(source, target, kinds):
    a, b = (FORMATS[k] for k in kinds)
    large = TILED in (a, b)  # whole tiles, parts of tiles, and single rows
    sizes = ({"page_size": 128, "pages": 3}, {"page_size": 128, "pages": 4}) if large else ({}, {"page_size": 8})
    a, b = (layout_of(*x, heads=2, **y) for x, y in zip(((source, a), (target, b)), sizes, strict=True))
    if large:
        rows = [*range(128, 256), *range(256, 300), 7, 0, 5, 9, 3]
        to = [*range(384, 512), *range(130, 174), 9, 8, 0, -1, 1]
    else:
        rows = [*range(4, 12), *range(17, 27), 31, 0, 5, 9, 3]
        to = [*range(24, 32), *range(40, 50), 9, 8, 0, -1, 1]
    check_copy(a, slots(rows), b, slots(to))


@pytest.mark.parametrize("builder", BUILDERS)
def test_pages_of_several_tiles(builder):
    """Pages of 256 slots to pages of 128: the digits of a tile's slot differ, so no slice holds both."""
    a, b = layout_of("token_major", TILED, 256, 2, heads=2), layout_of(builder, TILED, 128, 3, heads=2)
    check_copy(a, slots([*range(256, 512), 3]), b, slots([*range(128, 384), 5]))
    check_copy(b, slots([*range(128, 384), 5]), a, slots([*range(256, 512), 3]))


@pytest.mark.parametrize("kinds", KINDS, ids="-".join)
def test_whole_pages_are_slices(kinds):
    """The plain path leaves no row of a whole page to the index formula, whatever the pair of layouts."""
    rows = torch.arange(128, 256).numpy()
    for source, target in PAIRS:
        a, b = (layout_of(x, FORMATS[k], 128, 3, heads=2) for x, k in zip((source, target), kinds, strict=True))
        a, b = pool_with(a, content(a)), pool_with(b, content(b))
        if DEVICE.type == "cpu":
            left = [f for f in b.layout.fields if slices.copy_field(a, b, f, rows, rows).any()]
            assert not left, f"{source} -> {target}: {left}"


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("builder", BUILDERS)
def test_overlap_inside_one_pool(builder, kind):
    """Chains down and up, a swap, a cycle, a fan-out: as if all rows were read first."""
    layout = layout_of(builder, FORMATS[kind])
    up = torch.arange(4, 20, device=DEVICE)
    check_move(layout, up, up + 1)
    check_move(layout, up + 1, up)
    check_move(layout, slots([5, 22, 7, 8, 9, 30, 30, 5, 6]), slots([22, 5, 8, 9, 7, 3, 4, 0, -1]))


@pytest.mark.parametrize("builder", BUILDERS)
def test_move_is_copy_with_the_target_first(builder):
    layout = layout_of(builder, torch.bfloat16)
    one, two = (pool_with(layout, content(layout)) for _ in range(2))
    source, target = slots([6, 7, 8, 5], torch.int32), slots([5, 6, 7, 8])
    one.move_kv_cache(target, source)
    kvlab.copy(two, source, two, target)
    assert all(torch.equal(one.buffers[n], two.buffers[n]) for n in one.buffers)


def test_one_slot_moves_alone():
    """Two tokens that swap places leave every sum of their page as it was: rows are compared, each with its own."""
    layout = layout_of("page_major", torch.bfloat16)
    dense = content(layout)
    pool = pool_with(layout, dense)
    pool.move_kv_cache(slots([5, 6]), slots([6, 5]))
    k = pool.gather(slots([5, 6]))[0].view(torch.uint8)
    assert torch.equal(k, dense["k"][:, [6, 5]]) and not torch.equal(k, dense["k"][:, [5, 6]])


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_strided_locs(dtype):
    """Every second entry, a column of a table, a transposed block: read by their strides."""
    a, b = layout_of("page_major", FLAT), layout_of("head_major", FLAT)
    spread = torch.arange(32, dtype=dtype, device=DEVICE)
    check_copy(a, spread[2::4], b, spread.flip(0)[::4])
    table = torch.arange(1, 31, dtype=dtype, device=DEVICE).view(5, 6)
    check_copy(a, table[:, 2], b, table[:, 1])
    check_copy(a, table.T, b, table.view(6, 5))
    check_copy(a, slots([9], dtype).expand(4), b, table[0, :4])


def test_nothing_to_do():
    layout = layout_of("page_major", FLAT)
    none = slots([])
    check_copy(layout, none, layout, none, launches=0)
    check_move(layout, none, none, launches=0)
    check_copy(layout, slots([-1, 3]), layout, slots([-1, 0]))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_offsets_beyond_32_bits(path, dtype):
    """Slot 2,100,001 of 1 KiB rows lies beyond 2^31 bytes. The pool is zeros: the memory is not really there."""
    g = kvlab.Geometry(layers=1, heads=8, head_dim=128, page_size=16, pages=137_500)
    pool = kvlab.KVPool(kvlab.token_major(g, torch.float8_e4m3fn), device=DEVICE)
    row = torch.arange(1024, device=DEVICE).to(torch.uint8)
    pool.buffers["k"].view(-1, 1024)[2_100_001] = row
    kvlab.copy(pool, slots([2_100_001], dtype), pool, slots([2_150_003], dtype))
    for slot, want in ((2_100_001, row), (2_150_003, row), (2_150_002, 0), (2_150_004, 0), (2_150_003 - 2**21, 0)):
        assert (pool.buffers["k"].view(-1, 1024)[slot] == want).all(), slot


def test_adopted_pools_that_share_memory(path):
    """Two pools over one engine's tensors: staged like one pool, even where the addresses have no common start."""
    memory = torch.arange(2 * 64 * 3 * 32, device=DEVICE).to(torch.uint8).view(2, 64, 3, 32)
    views = [(memory, memory)]
    if DEVICE.type == "cpu":
        views.append((memory, torch.from_numpy(memory[:, 4:].numpy()[0])[None]))  # a storage of its own inside it
    for first, second in views:
        skip = (second.data_ptr() - first.data_ptr()) // 96
        keep = memory.clone()
        a = kvlab.KVPool.adopt([first[0].view(torch.float8_e4m3fn)], [first[1].view(torch.float8_e4m3fn)])
        v = torch.zeros_like(second[0]).view(torch.float8_e4m3fn)
        b = kvlab.KVPool.adopt([second[0].view(torch.float8_e4m3fn)], [v])
        chain = torch.arange(10, 30, device=DEVICE)
        kvlab.copy(a, chain, b, chain + 1 - skip)
        want = keep.clone()
        want[0, 11:31] = keep[0, 10:30]
        assert torch.equal(memory, want)
        memory.copy_(keep)
