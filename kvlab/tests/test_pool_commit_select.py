"""Which rows a commit writes: accepted, unmasked, at a real slot; and that all others stay out, at any size."""

import pytest
import torch

import kvlab

from .helpers import BUILDERS, DEVICE, POISON, bits, check_commit, geometry, poisoned, rows_for, rows_of, slots

each_builder = pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)


@each_builder
@pytest.mark.parametrize("lens", [[0, 4, 2], [4, 4, 4], [0, 0, 0]], ids=str)
def test_only_accepted_rows_are_written(builder, lens):
    g = geometry()
    k, v = rows_for(g, 12, torch.bfloat16, layers=2)
    loc = slots([[1, 2, 3, 4], [10, 21, 32, 43], [60, 61, 62, 63]], torch.int32)
    check_commit(builder(g, torch.bfloat16), loc, k, v, commit_lens=slots(lens, torch.int32))


@pytest.mark.parametrize("shape", ["1-D", "2-D"])
def test_row_mask(shape):
    g = geometry()
    k, v = rows_for(g, 6, torch.float16)
    mask = torch.tensor([True, False, True, True, False, True], device=DEVICE)
    strided = torch.zeros(6, 3, dtype=torch.bool, device=DEVICE)
    strided[:, 1] = mask
    layout = kvlab.head_major(g, torch.float16)
    loc = slots([[11, 12, 13], [41, 42, 43]])
    for given in (mask, strided[:, 1]):
        given = given if shape == "1-D" else given.view(2, 3)
        check_commit(layout, loc, k, v, layer=0, row_mask=given, commit_lens=slots([3, 2]))
        check_commit(layout, loc.reshape(-1), k, v, layer=0, row_mask=given.reshape(-1))


@pytest.mark.parametrize("loc", [[0, 5, 0], [3, -1], [0, 0, 0], [-5, -(2**31)]], ids=str)
def test_padding_is_never_written(loc):
    """-1 does not wrap to the last slot, and NaN rows of graph padding stay out of slot 0."""
    g = geometry()
    k, v = rows_for(g, len(loc), torch.bfloat16)
    for row, slot in enumerate(loc):
        if slot <= 0:
            k[row], v[row] = float("nan"), float("nan")
    for dtype in (torch.int32, torch.int64):
        pool = check_commit(kvlab.page_major(g, torch.bfloat16), slots(loc, dtype), k, v, layer=0)
        for slot in (0, 63):
            assert (bits(rows_of(pool, "k", 0)[slot // 4, slot % 4]).view(torch.uint8) == POISON).all()


def test_evicted_blocks_do_not_clobber_block_0():
    """A draft's leading zeros are blocks that were evicted: they are padding, not slot 0."""
    g = geometry()
    k, v = rows_for(g, 4, torch.bfloat16)
    check_commit(kvlab.token_major(g, torch.bfloat16), slots([[0, 0, 7, 8]]), k, v, layer=1, commit_lens=slots([4]))


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("layer", [0, None], ids=["one layer", "all layers"])
def test_empty_batches(shape, layer):
    g = geometry()
    k, v = rows_for(g, 0, torch.bfloat16, layers=None if layer == 0 else 2)
    loc = torch.empty(shape, dtype=torch.int64, device=DEVICE)
    lens = slots([0] * shape[0]) if len(shape) == 2 else None
    check_commit(kvlab.page_major(g, torch.bfloat16), loc, k, v, layer=layer, commit_lens=lens, launches=0)


def test_unchecked_commit_never_leaves_the_pool():
    """check=False is for graph capture: rows that cannot be written are skipped by the kernel itself."""
    g = geometry()
    loc = [64, 5, 65, 2**31 - 1, -(2**31), 2**40, -(2**62), 2**62]
    k, v = rows_for(g, len(loc), torch.bfloat16)
    for builder in BUILDERS.values():
        check_commit(builder(g, torch.bfloat16), slots(loc), k, v, layer=1, check=False)
    loc = slots([loc[:4], [1, 2, 3, 4]])
    check_commit(kvlab.page_major(g, torch.bfloat16), loc, k, v, layer=1, commit_lens=slots([7, -3]), check=False)


def test_the_next_layer_is_not_the_end_of_this_one():
    """Slot 64 of a 64-slot layer is slot 0 of the next one: in range of the memory, and out of range of the pool."""
    k, v = rows_for(geometry(), 1, torch.bfloat16)
    check_commit(kvlab.token_major(geometry(), torch.bfloat16), slots([64]), k, v, layer=0, check=False)


@pytest.mark.parametrize("loc_dtype", [torch.int32, torch.int64], ids=str)
def test_slots_beyond_2_gib(path, loc_dtype):
    """2,100,001 * 1024 bytes is over 2^31."""
    g = kvlab.Geometry(layers=1, heads=8, head_dim=128, page_size=16, pages=137_500)
    pool = huge_pool(kvlab.token_major(g, torch.float8_e4m3fn))
    k, v = rows_for(g, 2, torch.float8_e4m3fn)
    loc = slots([2_100_001, 7], loc_dtype)
    pool.commit(loc, k, v, layer=0)
    for row, slot in enumerate((2_100_001, 7)):
        for name, source in (("k", k), ("v", v)):
            buffer = pool.buffers[name]
            assert torch.equal(buffer[slot * 1024 : (slot + 1) * 1024], bits(source[row]).view(-1))
            assert not buffer[(slot - 1) * 1024 : slot * 1024].any()
            assert not buffer[(slot + 1) * 1024 : (slot + 2) * 1024].any()
    assert torch.equal(bits(pool.gather(loc, layer=0)[0]), bits(k))


def huge_pool(layout):
    """A zero-filled pool; on a CPU its pages stay untouched until someone writes them."""
    if DEVICE.type != "cpu":
        return kvlab.KVPool(layout)
    import numpy as np

    pool = kvlab.KVPool.__new__(kvlab.KVPool)
    pool._set(layout, {name: torch.from_numpy(np.zeros(size, np.uint8)) for name, size in layout.buffers.items()})
    return pool


def test_a_block_table_of_over_2_to_the_31_entries(path, tmp_path):
    """sglang's req_to_token is (requests, context): a block of it can begin beyond 32 bits of entries."""
    if DEVICE.type != "cpu":
        pytest.skip("the sparse file that keeps this table small is a CPU thing")
    table = torch.from_file(str(tmp_path / "table"), shared=True, size=2**31 + 64, dtype=torch.int32)
    loc = table.as_strided((3, 2), (2**30, 1))
    loc.copy_(torch.tensor([[5, 6], [7, 8], [9, 10]]))
    g = geometry()
    pool, want = (poisoned(kvlab.token_major(g, torch.bfloat16)) for _ in range(2))
    k, v = rows_for(g, 6, torch.bfloat16)
    pool.commit(loc, k, v, layer=0, commit_lens=slots([2, 2, 1]))
    want.commit(loc.clone(), k, v, layer=0, commit_lens=slots([2, 2, 1]))
    assert torch.equal(pool.buffers["k"], want.buffers["k"])
    assert torch.equal(bits(pool.gather(loc, layer=0)[1][:5]), bits(v[:5]))
