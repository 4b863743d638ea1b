"""MXFP8 arithmetic against independent oracles, byte by byte, through the kernels and through kvlab.formats.

``python -m kvlab.tests.test_mx_numbers`` counts the comparisons.
"""

from dataclasses import dataclass

import numpy as np
import pytest
import torch

import kvlab
from kvlab.formats import dequantize, quantize

from .helpers import DEVICE, slots
from .mx_helpers import (
    ROUNDINGS,
    canonical,
    exact_mx,
    exact_scale,
    exact_values,
    log2_rounds_down,
    ml_dtypes,
    near_powers,
    spread_blocks,
    torchao_mx,
)

WAYS = ("formats", "kernel")
each_way = pytest.mark.parametrize("way", WAYS)
each_rounding = pytest.mark.parametrize("rounding", ROUNDINGS)


@dataclass
class Tally:
    comparisons: int = 0  # bytes (or fp32 numbers) held against an oracle
    mismatches: int = 0
    explained: int = 0  # blocks where torchao itself is off, and another oracle was taken

    def add(self, got: torch.Tensor, want: torch.Tensor) -> None:
        assert got.shape == want.shape and got.dtype == want.dtype
        self.comparisons += got.numel()
        self.mismatches += int((got != want).sum())


def block_pool(rows: int, rounding: str = "rceil"):
    """A pool with one block in a row, and the slots of its rows but the padding sink."""
    if kvlab.backend(DEVICE) == "reference":
        pytest.skip("no kernel runs on this device")
    g = kvlab.Geometry(layers=1, heads=1, head_dim=32, page_size=1, pages=rows + 1)
    pool = kvlab.KVPool(kvlab.token_major(g, kvlab.MXFP8("flat", rounding)), device=DEVICE)
    return pool, slots(range(1, rows + 1))


def halves(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """``(2n, width)`` as n K rows and n V rows of one head."""
    return x[: len(x) // 2, None], x[len(x) // 2 :, None]


def quantised(way: str, x: torch.Tensor, rounding: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Payload ``(2n, 32)`` and scale ``(2n,)`` bytes of blocks ``(2n, 32)``: by formula, or by a commit."""
    if way == "formats":
        payload, scales = quantize(x, rounding)
    else:
        pool, loc = block_pool(len(x) // 2, rounding)
        pool.commit(loc, *halves(x), layer=0)
        payload, scales = (
            torch.cat([pool.view(f, 0)[1:, 0] for f in fs]) for fs in (("k", "v"), ("k_scale", "v_scale"))
        )
    return payload.view(torch.uint8), scales[:, 0]


def read_back(way: str, payload: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """fp32 numbers of payload ``(2n, 32)`` and scale ``(2n,)`` bytes: by formula, or by a gather."""
    payload, scales = payload.view(torch.float8_e4m3fn), scales[:, None]
    if way == "formats":
        return dequantize(payload, scales)
    pool, loc = block_pool(len(payload) // 2)
    k_scale, v_scale = halves(scales)
    pool.commit(loc, *halves(payload), layer=0, k_scale=k_scale, v_scale=v_scale)
    return torch.cat(pool.gather(loc, layer=0))[:, 0]


def against_torchao(tally: Tally, way: str, rounding: str, dtype) -> None:
    """to_mx on finite blocks. Its RCEIL takes ceil(log2()) in fp32, one byte too low just above a power of two: those
    blocks, picked from the two oracles alone, are held against exact arithmetic."""
    low, high = (-24, 15) if dtype == torch.float16 else (-140, 120)
    x = spread_blocks(12_000, dtype, seed=len(rounding), low=low, high=high)
    x = torch.cat([x, near_powers(rounding)]) if dtype == torch.float32 else x
    (payload, scales), (exact_payload, exact_scales) = torchao_mx(x, rounding), exact_mx(x, rounding)
    scales = scales.reshape(-1)
    off = log2_rounds_down(x) & (scales.int() + 1 == exact_scales.reshape(-1).int())
    if rounding == "rceil" and dtype == torch.float32:
        tally.explained += int(off.sum())
        scales = torch.where(off, exact_scales.reshape(-1), scales)
        payload = torch.where(off[:, None], exact_payload, payload)
    got = quantised(way, x, rounding)
    tally.add(got[0], payload)
    tally.add(got[1], scales)


def against_exact(tally: Tally, way: str, rounding: str) -> None:
    """The scale of 98,000 amax: every bf16 number (subnormals too) and its two fp32 neighbours; then bad blocks."""
    high = np.arange(0x7F80, dtype=np.int32) << 16
    amax = np.concatenate([high, high + 1, np.maximum(high - 1, 0)]).view(np.float32)
    x = torch.zeros(len(amax), 32, device=DEVICE)
    x[:, 7] = torch.from_numpy(amax).to(DEVICE)
    want = exact_scale(amax.astype(np.float64), rounding)
    tally.add(quantised(way, x, rounding)[1], torch.from_numpy(want).to(DEVICE))
    with_bad = spread_blocks(2000, seed=5)
    bad = [float("nan"), -float("nan"), float("inf"), -float("inf")]
    with_bad[torch.arange(0, 2000, 3), torch.arange(0, 2000, 3) % 32] = torch.tensor(bad * 167, device=DEVICE)[:667]
    for got, want in zip(quantised(way, with_bad, rounding), exact_mx(with_bad, rounding), strict=True):
        tally.add(got, want.view(got.shape))


def against_rne(tally: Tally, way: str, rounding: str) -> None:
    """Elements: both signs, every exponent from 2^-14 to 2^8, 11 bits of mantissa and fp32 neighbours, rounded by
    ml_dtypes; 448 at the head of each block makes its scale 1."""
    high = np.arange(113 << 11, (135 << 11) + 0x601, dtype=np.int32) << 12
    x = np.concatenate([high, high + 1, high - 1, high + 0x800]).view(np.float32)
    x = x[x <= 448][: len(x) // 62 * 62 - 62].reshape(-1, 31)
    x = np.concatenate([x, -x])
    want = np.concatenate([np.full((len(x), 1), 448, np.float32), x], 1)
    payload, scales = quantised(way, torch.from_numpy(want).to(DEVICE), rounding)
    tally.add(payload, torch.from_numpy(want.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).to(DEVICE))
    tally.add(scales, torch.full_like(scales, 127))


def against_decoders(tally: Tally, way: str) -> None:
    """All 256 payload bytes under all 256 scale bytes."""
    payload = torch.arange(256, dtype=torch.uint8, device=DEVICE).view(8, 32).repeat(256, 1)
    scales = torch.arange(256, device=DEVICE).repeat_interleave(8).to(torch.uint8)
    got, want = canonical(read_back(way, payload, scales)), exact_values(payload, scales[:, None])
    tally.add(got.view(torch.int32), want.view(torch.int32))


DTYPES = (torch.float32, torch.bfloat16, torch.float16)
CHECKS = {f"to_mx {r} {d}": (against_torchao, r, d) for r in ROUNDINGS for d in DTYPES}
CHECKS |= {f"exact {r}": (against_exact, r) for r in ROUNDINGS} | {f"RNE {r}": (against_rne, r) for r in ROUNDINGS}
CHECKS["decode"] = (against_decoders,)


def count_oracle_comparisons(ways=WAYS) -> Tally:
    """Run every check; 0 mismatches is the claim."""
    tally = Tally()
    for check, *args in CHECKS.values():
        for way in ways:
            check(tally, way, *args)
    return tally


@pytest.fixture(scope="module")
def total(request):
    """Sums the tests' tallies, and prints them in the terminal."""
    total = Tally()
    yield total
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("\nMXFP8 oracles:", line(total))


def line(tally: Tally) -> str:
    counts = f"{tally.comparisons:,} comparisons, {tally.mismatches} mismatches"
    return f"{counts}; {tally.explained:,} blocks where torchao's log2 is a byte low, held against exact arithmetic"


@each_way
@pytest.mark.parametrize("name", CHECKS)
def test_every_byte_is_the_oracles(name, way, total, record_property):
    tally, (check, *args) = Tally(), CHECKS[name]
    check(tally, way, *args)
    for key in ("comparisons", "mismatches", "explained"):
        record_property(key, getattr(tally, key))
        setattr(total, key, getattr(total, key) + getattr(tally, key))
    assert tally.comparisons > 60_000
    assert tally.mismatches == 0, line(tally)
    assert (tally.explained > 0) == (name == "to_mx rceil torch.float32")


def test_what_the_sweeps_hold():
    """The oracles are asked where it matters: subnormal amax, both zeros, wide blocks, saturation."""
    x = spread_blocks(20_000)
    amax = x.abs().amax(-1)
    assert x.isfinite().all() and amax.max() > 2.0**119 and ((amax > 0) & (amax < 2.0**-126)).sum() > 100
    assert (amax == 0).sum() > 100 and ((x == 0) & x.signbit()).sum() > 1000 and ((x == 0) & ~x.signbit()).sum() > 1000
    small = torch.where(x == 0, float("inf"), x.abs()).amin(-1)
    assert ((amax / small > 2.0**40) & (amax > 0)).sum() > 1000
    for rounding, saturates in (("rceil", False), ("floor", True), ("even", True)):
        payload, scales = exact_mx(x, rounding)
        assert (amax.double() > 448 * torch.exp2(scales[:, 0].double() - 127) * (1 + 2**-20)).any() == saturates
        assert len(scales.unique()) > 200 and len(payload.unique()) == 254


# amax -> (rceil, floor, even); design.md section 5, and the neighbours of every edge
TABLE = {
    0.0: (0, 0, 0),
    1.0: (119, 119, 119),
    150.0: (126, 126, 126),
    256.0: (127, 127, 127),
    448.0: (127, 127, 127),
    448.00003: (128, 127, 127),
    450.0: (128, 127, 127),
    495.99997: (128, 127, 127),
    496.0: (128, 127, 128),
    511.0: (128, 127, 128),
    512.0: (128, 128, 128),
    2.0**-127: (0, 0, 0),
    2.0**-149: (0, 0, 0),
    3.4028234663852886e38: (247, 246, 247),
}  # fmt: skip


@each_way
def test_the_table_of_amax(way):
    x = torch.zeros(len(TABLE), 32, device=DEVICE)
    for i, amax in enumerate(TABLE):
        x[i, 0], x[i, 9], x[i, i + 10] = amax, -amax / 2, -amax
    got = zip(*(quantised(way, x, r)[1].tolist() for r in ROUNDINGS), strict=True)
    assert dict(zip(TABLE, got, strict=True)) == TABLE


def test_quantize_names_what_it_cannot_do():
    with pytest.raises(ValueError, match="rounding='ceil' is not one of 'rceil', 'floor', 'even'"):
        quantize(torch.zeros(2, 64), "ceil")
    with pytest.raises(ValueError, match="x has rows of 72 elements; a multiple of 32"):
        quantize(torch.zeros(2, 72))


@each_way
def test_floor_loses_what_lies_beyond_448(way):
    x = torch.full((2, 32), 511.0, device=DEVICE)
    read = {r: read_back(way, *quantised(way, x, r)) for r in ROUNDINGS}
    assert {r: float(v.unique()) for r, v in read.items()} == {"rceil": 512.0, "floor": 448.0, "even": 512.0}
    assert pytest.approx(0.123, abs=5e-4) == 1 - 448 / 511


@each_way
@each_rounding
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_bad_element_makes_its_block_nan_and_no_other(way, rounding, dtype):
    """NaN, Inf and -Inf at each of the 32 places in turn; every second block is whole."""
    x = spread_blocks(3 * 64, dtype, low=-20, high=10)
    for i, bad in enumerate((float("nan"), float("inf"), -float("inf"))):
        x[torch.arange(64 * i, 64 * i + 64, 2), torch.arange(32)] = bad
    payload, scales = quantised(way, x, rounding)
    assert (scales[::2] == 255).all() and (scales[1::2] != 255).all()
    read = read_back(way, payload, scales)
    assert read[::2].isnan().all() and read[1::2].isfinite().all()


if __name__ == "__main__":
    print(line(count_oracle_comparisons()))
