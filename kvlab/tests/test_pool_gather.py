"""gather: what lies in the slots comes back bit for bit, through kernel and reference, whatever the layout."""

import pytest
import torch

import kvlab
from kvlab.backends import reference_backend

from .helpers import (
    BUILDERS,
    DEVICE,
    FP8,
    PLAIN,
    assert_same_bytes,
    bits,
    geometry,
    naive_gather,
    one_launch,
    randomised,
    rows_for,
    saved,
    slots,
)

each_builder = pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)


def check_gather(pool, loc, **options):
    """Kernel and reference agree with a loop over rows, and reading changed nothing."""
    g, before = pool.layout.geometry, saved(pool)
    with one_launch(int(loc.numel() > 0)):
        kernel = pool.gather(loc, **options)
    with reference_backend(), one_launch(0):
        reference = pool.gather(loc, **options)
    layer = options.get("layer")
    for field, got, twin in zip(("k", "v"), kernel, reference, strict=True):
        layers = [naive_gather(pool, loc, i, field) for i in (range(g.layers) if layer is None else [layer])]
        want = torch.stack(layers) if layer is None else layers[0]
        assert got.shape == want.shape and got.dtype == want.dtype == twin.dtype
        assert torch.equal(bits(got), bits(want)), f"kernel: {field}"
        assert torch.equal(bits(twin), bits(want)), f"reference: {field}"
    assert_same_bytes(pool, before)
    return kernel


@each_builder
@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@pytest.mark.parametrize("layer", [1, None], ids=["one layer", "all layers"])
def test_rows_come_back_bit_for_bit(builder, dtype, layer):
    pool = randomised(builder(geometry(heads=3, v_head_dim=40), dtype))
    check_gather(pool, slots([5, 63, 0, -1, 5, 31, -7]), layer=layer)  # padding is zeros; slot 0 and repeats are read


@each_builder
@pytest.mark.parametrize("head_dim, v_head_dim, heads", [(72, 72, 6), (80, 96, 6), (192, 128, 3), (1, 3, 5)])
def test_any_head_dim(builder, head_dim, v_head_dim, heads):
    g = geometry(heads=heads, head_dim=head_dim, v_head_dim=v_head_dim)
    check_gather(randomised(builder(g, torch.bfloat16)), slots([5, 6, 7, 63, 33], torch.int32), layer=0)


def test_loc_of_two_dimensions_and_any_strides():
    pool = randomised(kvlab.page_major(geometry(), torch.float16))
    loc = slots([[5, 9, 60], [6, 40, -1]])
    k, _ = check_gather(pool, loc, layer=1)
    assert k.shape == (6, 2, 64)
    check_gather(pool, loc.T, layer=1)
    check_gather(pool, slots([[9, 5], [9, 6], [9, 7]], torch.int32)[:, 1], layer=None)
    check_gather(pool, slots([17]).expand(4), layer=0)


@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)], ids=str)
def test_empty(shape):
    pool = randomised(kvlab.head_major(geometry(v_head_dim=32), torch.bfloat16))
    k, v = check_gather(pool, torch.empty(shape, dtype=torch.int64, device=DEVICE), layer=None)
    assert (k.shape, v.shape) == ((2, 0, 2, 64), (2, 0, 2, 32))


@pytest.mark.parametrize("dtype", FP8, ids=str)
@pytest.mark.parametrize("scales", [(0.37, None), (3, "tensor"), (None, 0.011)], ids=str)
def test_a_given_scale_is_multiplied_back(path, dtype, scales):
    pool = randomised(kvlab.token_major(geometry(v_head_dim=32), dtype))
    loc = slots([5, 6, -1, 63])
    given = [torch.tensor(0.7, device=DEVICE) if s == "tensor" else s for s in scales]
    got = pool.gather(loc, layer=1, k_scale=given[0], v_scale=given[1])
    raw = pool.gather(loc, layer=1, k_scale=given[0], v_scale=given[1], dequantize=False)
    for field, scale, x, stored in zip(("k", "v"), given, got, raw, strict=True):
        want = naive_gather(pool, loc, 1, field)
        assert torch.equal(bits(stored), bits(want))
        if scale is None:
            assert torch.equal(bits(x), bits(want))
            continue
        number = want.float()
        assert x.dtype == torch.float32
        product = number * torch.as_tensor(scale, dtype=torch.float32, device=DEVICE)
        assert torch.equal(x.nan_to_num(nan=7.0), product.nan_to_num(nan=7.0))
        assert torch.equal(x.isnan(), number.isnan())
        assert torch.equal(torch.signbit(x), torch.signbit(number))
        assert set(bits(x)[x.isnan()].tolist()) <= {0x7FC00000, 0x7FC00000 - 2**31}, "one NaN on every backend"


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_commit_then_gather_token_by_token(builder):
    """A sum over a page cannot tell tokens apart; every token is looked at alone."""
    g = geometry()
    pool = kvlab.KVPool(builder(g, torch.bfloat16))
    k, v = rows_for(g, 12, torch.bfloat16, layers=2)
    order = torch.randperm(63, generator=torch.Generator().manual_seed(0))[:12] + 1
    pool.commit(order.to(DEVICE), k, v)
    for row, slot in enumerate(order.tolist()):
        got_k, got_v = (x[:, 0] for x in pool.gather(slots([slot])))
        assert torch.equal(bits(got_k), bits(k[:, row])), slot
        assert torch.equal(bits(got_v), bits(v[:, row])), slot


def test_results_are_fresh_memory():
    pool = randomised(kvlab.token_major(geometry(), torch.bfloat16))
    before = saved(pool)
    for x in pool.gather(slots([5, 6]), layer=0):
        x.zero_()
    assert_same_bytes(pool, before)
