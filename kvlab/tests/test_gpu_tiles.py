"""Plain pools with the tiles that a GPU gets: many programs, each looping over a wide row. The interpreter's own tiles
are so large that those loops would never run here."""

import pytest
import torch

import kvlab

from .helpers import (
    BUILDERS,
    assert_same_bytes,
    bits,
    check_commit,
    geometry,
    poisoned,
    randomised,
    rows_for,
    slots,
)
from .mx_helpers import gpu_tiles, reference_backend

WIDE = {"layers": 1, "heads": 12, "head_dim": 192, "v_head_dim": 80}  # K rows of 2304 elements: three tiles of 1024


@pytest.mark.parametrize("name", BUILDERS)
@pytest.mark.parametrize("kinds", [(torch.bfloat16, torch.bfloat16), (torch.float32, torch.float8_e4m3fn)])
def test_commit_and_gather(monkeypatch, name, kinds):
    gpu_tiles(monkeypatch)
    source, stored = kinds
    layout = BUILDERS[name](geometry(**WIDE), stored)
    k, v = rows_for(layout.geometry, 6, source, layers=1)
    loc = slots([[5, 6, 7], [0, 63, 12]])
    pool = check_commit(layout, loc, k.nan_to_num(), v.nan_to_num(), commit_lens=slots([2, 3]))
    got = pool.gather(loc)
    with reference_backend():
        want = pool.gather(loc)
    for a, b in zip(got, want, strict=True):
        assert torch.equal(bits(a), bits(b))


@pytest.mark.parametrize("name", BUILDERS)
def test_copy(monkeypatch, name):
    gpu_tiles(monkeypatch)
    source = randomised(kvlab.page_major(geometry(**WIDE), torch.bfloat16))
    kernel, reference = (poisoned(BUILDERS[name](geometry(**WIDE), torch.bfloat16)) for _ in range(2))
    loc, to = slots([5, 6, 7, 20, 63]), slots([63, 1, -1, 9, 0])
    kvlab.copy(source, loc, kernel, to)
    with reference_backend():
        kvlab.copy(source, loc, reference, to)
    assert_same_bytes(kernel, reference)
