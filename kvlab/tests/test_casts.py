"""Every conversion of a kernel, bit for bit: all inputs of the small formats, dense sweeps of fp32."""

import numpy as np
import pytest
import torch

from kvlab.backends import backend
from kvlab.formats import cast

from .helpers import BITS, DEVICE

triton = pytest.importorskip("triton")
ml_dtypes = pytest.importorskip("ml_dtypes")
tl = triton.language

from kvlab.kernels.casts import decode, encode  # noqa: E402

# torch dtype -> numpy dtype, codes of the canonical NaN, largest finite number where overflow saturates
KINDS = {
    torch.bfloat16: (ml_dtypes.bfloat16, 0x7FC0, None),
    torch.float16: (np.float16, 0x7E00, None),
    torch.float8_e4m3fn: (ml_dtypes.float8_e4m3fn, 0x7F, 448.0),
    torch.float8_e5m2: (ml_dtypes.float8_e5m2, 0x7E, 57344.0),
    torch.float32: (np.float32, 0x7FC00000, None),
}
UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32}
each_kind = pytest.mark.parametrize("dtype", KINDS, ids=str)


@triton.jit
def decode_all(source, out, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, decode(tl.load(source + i, mask=i < n), KIND).to(tl.int32, bitcast=True), mask=i < n)


@triton.jit
def encode_all(source, out, n, KIND: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, encode(tl.load(source + i, mask=i < n).to(tl.uint32, bitcast=True), KIND), mask=i < n)


def run(kernel, codes: np.ndarray, kind: torch.dtype, item: int) -> np.ndarray:
    """Launch over integer codes; unsigned codes of ``item`` bytes come back."""
    if backend(DEVICE) == "reference":
        pytest.skip("no kernel runs on this device")
    width = codes.dtype.itemsize
    signed = codes.view({1: np.uint8, 2: np.int16, 4: np.int32}[width])
    source = torch.from_numpy(signed).to(DEVICE)
    out = torch.empty(len(codes), dtype=BITS[item], device=DEVICE)
    block = 2**18 if backend(DEVICE) == "interpreter" else 1024
    name = str(kind).removeprefix("torch.")
    kernel[(triton.cdiv(len(codes), block),)](source, out, len(codes), KIND=name, BLOCK=block)
    return out.cpu().numpy().view(UNSIGNED[item])


def assert_codes(got: np.ndarray, want: np.ndarray, inputs: np.ndarray) -> None:
    wrong = np.flatnonzero(got != want)
    if len(wrong):
        i = wrong[0]
        pytest.fail(f"{len(wrong)} of {len(got)} differ; {inputs[i]:#x} became {got[i]:#x}, not {want[i]:#x}")


def fp32_sweep() -> np.ndarray:
    """4.7 million fp32 patterns: sign, exponent and the 11 leading mantissa bits in full, so every value and every tie
    of bf16, fp16 and fp8 is there, and beside each its neighbours; then random bits."""
    high = np.arange(2**20, dtype=np.uint32) << 12
    near = [high | low for low in (0, 1, 0x800, 0xFFF)]
    return np.concatenate([*near, np.random.default_rng(0).integers(0, 2**32, 500_000, dtype=np.uint32)])


SWEEP = fp32_sweep()


def narrowed(codes: np.ndarray, dtype: torch.dtype) -> np.ndarray:
    """The oracle: numpy or ml_dtypes rounds, after a clamp where the format saturates; NaNs as kvlab documents them."""
    kind, nan, limit = KINDS[dtype]
    x = codes.view(np.float32)
    with np.errstate(all="ignore"):
        rounded = (x if limit is None else np.clip(x, -limit, limit)).astype(kind).view(UNSIGNED[dtype.itemsize])
    sign = (codes >> 31) << (8 * dtype.itemsize - 1)
    return np.where(np.isnan(x), sign | nan, rounded).astype(UNSIGNED[dtype.itemsize])


def test_the_sweep_holds_what_it_should():
    x = SWEEP.view(np.float32)
    assert len(SWEEP) > 4_500_000
    landmarks = [np.inf, -np.inf, 0.0, 448.0, 464.0, 480.0, 57344.0, 65520.0, 2.0**-10, 2.0**-25, 2.0**-149]
    assert np.isin(np.array(landmarks, np.float32), x).all()
    assert np.isnan(x).sum() > 10_000
    assert ((x != 0) & (np.abs(x) < 2.0**-126)).sum() > 10_000


@each_kind
def test_kernel_encode_of_a_dense_sweep(dtype):
    assert_codes(run(encode_all, SWEEP, dtype, dtype.itemsize), narrowed(SWEEP, dtype), SWEEP)


@each_kind
def test_reference_cast_of_a_dense_sweep(dtype):
    stored = cast(torch.from_numpy(SWEEP.view(np.float32)), dtype)
    assert stored.dtype == dtype
    assert_codes(
        stored.view(BITS[dtype.itemsize]).numpy().view(UNSIGNED[dtype.itemsize]), narrowed(SWEEP, dtype), SWEEP
    )


@each_kind
def test_kernel_decode_of_every_code(dtype):
    kind, _, _ = KINDS[dtype]
    unsigned = UNSIGNED[dtype.itemsize]
    codes = SWEEP if dtype == torch.float32 else np.arange(2 ** (8 * dtype.itemsize)).astype(unsigned)
    with np.errstate(all="ignore"):
        numbers = codes.view(kind).astype(np.float32)
    want = numbers.view(np.uint32)
    if dtype in (torch.bfloat16, torch.float32):  # the same exponent: bits only move
        want = codes.astype(np.uint32) << (8 * (4 - dtype.itemsize))
    else:
        sign = (codes.astype(np.uint32) >> (8 * dtype.itemsize - 1)) << 31
        want = np.where(np.isnan(numbers), sign | np.uint32(0x7FC00000), want)
    assert_codes(run(decode_all, codes, dtype, 4), want.astype(np.uint32), codes)


@pytest.mark.parametrize("source", KINDS, ids=str)
@each_kind
def test_decode_then_encode_is_what_the_reference_stores(dtype, source):
    """The reference widens with torch, kernels with :func:`decode`: NaN payloads must not tell them apart."""
    count = 2 ** (8 * min(source.itemsize, 2))
    codes = SWEEP[-500_000:] if source == torch.float32 else np.arange(count).astype(UNSIGNED[source.itemsize])
    signed = codes.view({1: np.uint8, 2: np.int16, 4: np.int32}[source.itemsize])
    stored = cast(torch.from_numpy(signed).view(source).float(), dtype).view(BITS[dtype.itemsize])
    through = run(encode_all, run(decode_all, codes, source, 4), dtype, dtype.itemsize)
    assert_codes(through, stored.numpy().view(UNSIGNED[dtype.itemsize]), codes)
