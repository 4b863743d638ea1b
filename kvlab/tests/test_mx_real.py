"""MXFP8 of real K and V: what each rounding costs, and facts about it that can be worked out another way."""

import numpy as np
import pytest
import torch

import kvlab
from kvlab.formats import dequantize, quantize
from kvlab.quality import quality
from kvlab.samples import load_kv

from .helpers import DEVICE, bits, slots
from .mx_helpers import ROUNDINGS, exact_mx, exact_values, ml_dtypes

KV = load_kv()
CASES = [(field, layer) for field in "kv" for layer in range(len(KV.layer_ids))]
each_rounding = pytest.mark.parametrize("rounding", ROUNDINGS)
each_case = pytest.mark.parametrize("field, layer", CASES, ids=[f"{f} of layer {KV.layer_ids[i]}" for f, i in CASES])


def rows(field: str, layer: int) -> torch.Tensor:
    return getattr(KV, field)[layer]


def mantissa(x: torch.Tensor) -> np.ndarray:
    """amax of every block, scaled by a power of two into [1, 2); 0 for empty blocks."""
    amax = x.double().abs().unflatten(-1, (-1, 32)).amax(-1).numpy()
    return 2 * np.frexp(amax)[0]


@each_case
@each_rounding
def test_snr_worked_out_in_numpy(field, layer, rounding):
    x = rows(field, layer)
    got = quality(x, rounding)
    exact = x.double().numpy()
    payload, scales = (b.numpy() for b in exact_mx(x, rounding))
    power = scales.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    read = payload.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * np.repeat(power, 32, axis=-1)
    noise = ((read - exact) ** 2).reshape(*scales.shape, 32).sum(-1)
    signal = (exact**2).reshape(*scales.shape, 32).sum(-1)
    assert got.snr_db == pytest.approx(10 * np.log10(signal.sum() / noise.sum()), abs=1e-9)
    with np.errstate(divide="ignore", invalid="ignore"):
        each = np.where(noise == 0, np.inf, 10 * np.log10(signal / noise))
    assert got.worst_snr_db == pytest.approx(each.min(), abs=1e-9)
    assert got.worst_block == np.unravel_index(each.argmin(), each.shape)
    assert got.worst_snr_db < got.snr_db


@each_case
def test_who_saturates_is_told_by_the_mantissa_of_amax(field, layer):
    """rceil: nobody. floor: amax beyond 1.75 * 2^n, since 448 = 1.75 * 2^8. even: the same, but from 1.9375 on amax is
    counted as the next power of two, and fits."""
    x = rows(field, layer)
    m = mantissa(x)
    assert quality(x, "rceil").saturated == 0
    floor, even = quality(x, "floor"), quality(x, "even")
    assert np.array_equal(floor.saturated_blocks.numpy(), m > 1.75)
    assert np.array_equal(even.saturated_blocks.numpy(), (m > 1.75) & (m < 1.9375))
    assert floor.saturated > even.saturated > 0
    for q in (floor, even):
        assert q.saturated >= q.saturated_blocks.sum() and q.saturated_blocks.shape == m.shape


@each_case
def test_every_element_is_within_half_a_step(field, layer):
    """rceil: E4M3 keeps 3 bits of mantissa, so normal elements are off by 1/16 at most, and by 2^-10 scales below."""
    x = rows(field, layer).double()
    payload, scales = quantize(rows(field, layer))
    scale = torch.exp2(scales.double() - 127).repeat_interleave(32, -1)
    error = (dequantize(payload, scales).double() - x).abs()
    assert (error <= torch.maximum(x.abs() / 16, scale * 2**-10)).all()
    assert (error > x.abs() / 18).any()  # and the bound is met
    assert 24 < quality(rows(field, layer)).snr_db < 36  # an error of 1/16 everywhere is 24 dB


@each_rounding
def test_a_pool_of_the_real_rows_has_the_same_quality(rounding):
    """All tokens of a layer through one commit and one gather: what comes back is what quality() measured."""
    g = kvlab.Geometry(layers=2, heads=3, head_dim=64, page_size=128, pages=4)
    pool = kvlab.KVPool(kvlab.page_major(g, kvlab.MXFP8("interleaved", rounding)), device=DEVICE)
    loc, layer = slots(range(1, KV.k.shape[1] + 1)), 1 + ROUNDINGS.index(rounding)
    pool.commit(loc, KV.k[layer].to(DEVICE), KV.v[layer].to(DEVICE), layer=1)
    for got, x in zip(pool.gather(loc, layer=1), (KV.k[layer], KV.v[layer]), strict=True):
        assert torch.equal(bits(got.cpu()), bits(exact_values(*exact_mx(x, rounding))))
        noise = (got.cpu().double() - x.double()).square().sum()
        snr = 10 * (x.double().square().sum() / noise).log10()
        assert quality(x, rounding).snr_db == pytest.approx(float(snr), abs=1e-9)


def test_edges_of_quality():
    x = torch.ones(3, 2, 64)
    whole = quality(x)
    assert whole.snr_db == whole.worst_snr_db == float("inf") and whole.saturated == 0
    x[2, 1, 40] = float("nan")
    bad = quality(x)
    assert np.isnan([bad.snr_db, bad.worst_snr_db]).all() and bad.worst_block == (2, 1, 1)
    x[2, 1, 40] = 1 + 1 / 32
    assert quality(x).worst_block == (2, 1, 1) and quality(x).snr_db > quality(x).worst_snr_db > 40
    assert quality(torch.full((2, 32), 511.0), "floor").saturated == 64
    with pytest.raises(ValueError, match=r"x has shape \(0, 32\)"):
        quality(torch.zeros(0, 32))
    with pytest.raises(ValueError, match="'ceil' is not one of"):
        quality(x, "ceil")
