"""Slots dealt out over ranks: every token on one rank, none lost, padding nowhere; on every layout and format."""

import doctest

import numpy as np
import pytest
import torch

import kvlab
from kvlab import dcp, zoo
from kvlab.backends import reference_backend

from .helpers import BUILDERS, DEVICE, assert_same_bytes, bits, one_launch, poisoned, rows_for, slots
from .mx_helpers import mx_rows

RANKS = (1, 2, 4)
GEOMETRY = kvlab.Geometry(layers=2, heads=2, head_dim=32, page_size=3, pages=4)
FLAT = kvlab.MXFP8("flat")
CASES = [
    *((b, fmt, n) for b in BUILDERS.values() for fmt in (torch.bfloat16, torch.float8_e4m3fn, FLAT) for n in RANKS),
    *((b, fmt, 2) for b in zoo.ALL.values() for fmt in (torch.bfloat16, FLAT)),
]


def rows_of(fmt, count: int):
    """K and V for a pool of this format: bf16, to be moved, cast or quantised."""
    if fmt == torch.bfloat16:
        return rows_for(GEOMETRY, count, fmt)
    return mx_rows(GEOMETRY, count, torch.bfloat16)


@pytest.mark.parametrize("ranks", RANKS)
def test_split_is_one_to_one_and_join_its_inverse(ranks):
    count = GEOMETRY.slots * ranks
    seen = set()
    for slot in range(count):
        owner, local = dcp.split_slots(slot, ranks)
        assert (owner, local) == (slot % ranks, slot // ranks)
        assert dcp.join_slots(owner, local, ranks) == slot
        seen.add((owner, local))
    assert seen == {(r, s) for r in range(ranks) for s in range(GEOMETRY.slots)}, "every rank's pool is used up"
    every = torch.arange(-9, count)
    for make in (torch.Tensor.numpy, lambda x: x, lambda x: x.to(torch.int32)):
        given = make(every)
        owner, local = dcp.split_slots(given, ranks)
        assert owner.dtype == local.dtype == given.dtype
        assert np.array_equal(np.asarray(dcp.join_slots(owner, local, ranks)), every.numpy())


@pytest.mark.parametrize("ranks", RANKS)
def test_a_global_page_is_one_page_of_every_rank(ranks):
    size = GEOMETRY.page_size
    for slot in range(GEOMETRY.slots * ranks):
        assert dcp.split_slots(slot, ranks)[1] // size == slot // (size * ranks)


@pytest.mark.parametrize("ranks", RANKS)
def test_padding_stays_padding_and_every_token_has_a_writable_slot(ranks):
    real = torch.arange(ranks, GEOMETRY.slots * ranks)
    pads = torch.tensor([0, -1, -2, -3, -4, -5, -64])
    owners = torch.zeros(len(real), dtype=torch.int)
    for rank in range(ranks):
        loc, mask = dcp.local_rows(real, ranks, rank)
        assert (loc >= 1).all() and (loc < GEOMETRY.slots).all()
        owners += mask
        assert len(set(loc[mask].tolist())) == int(mask.sum()), "two tokens of a rank share a slot"
        assert (dcp.local_rows(pads, ranks, rank)[0] <= 0).all()
    assert (owners == 1).all()
    for slot in range(1, ranks):  # would be a rank's sink: the token in it would vanish
        with pytest.raises(ValueError, match=rf"slots holds {slot}: slots 1 … {ranks - 1} .* from {ranks} on"):
            dcp.local_rows(torch.tensor([ranks, slot, 0]), ranks, 0)
        assert dcp.local_rows(torch.tensor([slot]), ranks, slot, check=False)[0].tolist() == [0]


@pytest.mark.parametrize(("builder", "fmt", "ranks"), CASES, ids=lambda x: getattr(x, "__name__", str(x)))
def test_commit_under_the_mask(builder, fmt, ranks):
    """Each rank writes its rows and nothing else; together they hold what one pool would."""
    layout = builder(GEOMETRY, fmt)
    given = [ranks * 5, 0, ranks * 3 + 1, ranks, ranks * 12 - 1, -1, ranks * 7 + ranks // 2, ranks * 8]
    k, v = rows_of(fmt, len(given))
    pools = []
    for rank in range(ranks):
        loc, mask = dcp.local_rows(slots(given), ranks, rank)
        pool, want = poisoned(layout), poisoned(layout)
        with one_launch():
            pool.set_kv_buffer(1, loc, k, v, dcp_kv_mask=mask)
        mine = [row for row, slot in enumerate(given) if slot > 0 and slot % ranks == rank]
        with reference_backend():
            want.set_kv_buffer(1, slots([given[row] // ranks for row in mine]), k[mine], v[mine])
        assert_same_bytes(pool, want, f"rank {rank}")
        pools.append(pool)
    with reference_backend():
        whole = poisoned(builder(kvlab.Geometry(2, 2, 32, page_size=3 * ranks, pages=4), fmt))
        whole.commit(slots(given), k, v, layer=1)
        for slot in (s for s in given if s > 0):
            owner, local = dcp.split_slots(slot, ranks)
            have, want = pools[owner].gather(slots([local]), layer=1), whole.gather(slots([slot]), layer=1)
            assert all(torch.equal(bits(x), bits(y)) for x, y in zip(have, want, strict=True))


@pytest.mark.parametrize("ranks", RANKS)
def test_with_prefix_lengths_all_layers_and_vllms_spelling(ranks):
    """Mask and commit_lens together; a slot of -1 instead of a mask says the same."""
    layout = kvlab.page_major(GEOMETRY, torch.bfloat16)
    loc = slots([[ranks * 2 + i for i in range(3)], [ranks * 9 - 1, 0, ranks * 6], [-1, ranks * 11, ranks * 4 + 3]])
    lens = slots([3, 2, 2])
    k, v = rows_for(GEOMETRY, 9, torch.bfloat16, layers=2)
    for rank in range(ranks):
        local, mask = dcp.local_rows(loc, ranks, rank)
        assert local.shape == mask.shape == loc.shape
        masked, minus, loops = poisoned(layout), poisoned(layout), poisoned(layout)
        masked.commit(local, k, v, commit_lens=lens, row_mask=mask)
        minus.commit(local.where(mask, -1), k, v, commit_lens=lens)
        with reference_backend():
            for b, block in enumerate(loc.tolist()):
                for w, slot in enumerate(block[: int(lens[b])]):
                    if slot > 0 and slot % ranks == rank:
                        row = slice(3 * b + w, 3 * b + w + 1)
                        loops.commit(slots([slot // ranks]), k[:, row], v[:, row])
        assert_same_bytes(masked, loops, f"rank {rank}, mask")
        assert_same_bytes(minus, loops, f"rank {rank}, slot -1")


def test_bad_ranks_are_refused_and_the_examples_hold():
    loc = torch.tensor([8], device=DEVICE)
    for ranks in (0, -2):
        with pytest.raises(ValueError, match=f"ranks={ranks}"):
            dcp.split_slots(loc, ranks)
    with pytest.raises(TypeError, match="ranks"):
        dcp.join_slots(0, loc, 2.0)
    for rank in (-1, 2):
        with pytest.raises(ValueError, match=f"rank={rank} is outside 0 … 1"):
            dcp.local_rows(loc, 2, rank)
    assert doctest.testmod(dcp).failed == 0
