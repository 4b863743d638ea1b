"""What is stored: a torch dtype, or MXFP8 (E4M3 elements with one UE8M0 scale for every 32 of them)."""

from __future__ import annotations

from dataclasses import dataclass

import torch

# OCP Microscaling Formats (MX) v1.0, sections 5.2 and 5.4.1: block size 32, scale format E8M0.
BLOCK = 32
E4M3_MAX = 448.0
E4M3_EMAX = 8  # exponent of 256, the largest power of two of E4M3 (section 6.3)
E8M0_BIAS = 127
E8M0_NAN = 255

PLAIN = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
}
FP8_MAX = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}

# A kernel moves bits, not numbers: each payload is read through an integer dtype of its own width.
INT_VIEW = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


@dataclass(frozen=True)
class MXFP8:
    """E4M3 payload with UE8M0 block scales (OCP MX v1.0, MXFP8).

    Parameters
    ----------
    scales : "flat" or "interleaved"
        Where the scale bytes lie: beside each other per head, or in the 128x4 tile that block-scaled tensor-core
        kernels read (needs page_size to be a multiple of 128).
    rounding : "rceil", "floor" or "even"
        How a block's amax becomes a power of two; see :func:`quantize`.
    """

    scales: str = "flat"
    rounding: str = "rceil"

    def __post_init__(self):
        for name, value, legal in (
            ("scales", self.scales, ("flat", "interleaved")),
            ("rounding", self.rounding, ("rceil", "floor", "even")),
        ):
            if value not in legal:
                raise ValueError(f"MXFP8: {name}={value!r} is not one of {', '.join(map(repr, legal))}")


def check_format(fmt, geometry) -> None:
    """Raise where ``fmt`` is no format, or cannot be stored with these sizes."""
    if isinstance(fmt, torch.dtype) and fmt in PLAIN.values():
        return
    if not isinstance(fmt, MXFP8):
        raise TypeError(
            f"fmt={fmt!r} is no format of a KV pool; use kvlab.MXFP8(...) or one of "
            + ", ".join(f"torch.{name}" for name in PLAIN)
        )
    for name in ("head_dim", "v_head_dim"):
        value = getattr(geometry, name)
        if value % BLOCK:
            raise ValueError(f"MXFP8: {name}={value} must be a multiple of {BLOCK}, the elements that share a scale")
    if fmt.scales == "interleaved" and geometry.page_size % 128:
        raise ValueError(
            f"MXFP8(scales='interleaved'): page_size={geometry.page_size} must be a multiple of 128, "
            "the rows of a scale tile; use scales='flat' for smaller pages"
        )


def payload_dtype(fmt) -> torch.dtype:
    """The dtype of K and V elements: the format itself, or E4M3 for MXFP8."""
    return torch.float8_e4m3fn if isinstance(fmt, MXFP8) else fmt


def format_name(fmt) -> str:
    """``"bfloat16"`` … or ``"mxfp8(flat, rceil)"``; :func:`parse_format` is the inverse."""
    return f"mxfp8({fmt.scales}, {fmt.rounding})" if isinstance(fmt, MXFP8) else str(fmt).removeprefix("torch.")


def parse_format(name: str):
    """The format that :func:`format_name` named."""
    if name in PLAIN:
        return PLAIN[name]
    if name.startswith("mxfp8(") and name.endswith(")"):
        parts = [p.strip() for p in name[6:-1].split(",")]
        if len(parts) == 2:
            return MXFP8(*parts)
    raise ValueError(f"format {name!r} is not known; legal are {', '.join(PLAIN)} and 'mxfp8(scales, rounding)'")


def cast(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Round float32 numbers to nearest even in ``dtype``: what a plain commit stores.

    FP8 saturates to its largest finite number (an infinity too); bf16 and fp16 overflow to infinity. A NaN becomes
    the dtype's canonical quiet NaN with its sign kept, so that all backends store the same bytes.
    """
    if dtype == torch.float32:
        return torch.where(x.isnan(), x.new_tensor(float("nan")).copysign(x), x)
    limit = FP8_MAX.get(dtype)
    bits = (x if limit is None else x.clamp(-limit, limit)).to(dtype).view(INT_VIEW[dtype.itemsize])
    quiet = torch.where(torch.signbit(x), _NEGATIVE_NAN[dtype], _NAN[dtype]).to(bits.dtype)
    return torch.where(x.isnan(), quiet, bits).view(dtype)


_NAN = {
    torch.bfloat16: 0x7FC0,
    torch.float16: 0x7E00,
    torch.float8_e4m3fn: 0x7F,
    torch.float8_e5m2: 0x7E,
}
_NEGATIVE_NAN = {dtype: code - 0x8000 if dtype.itemsize == 2 else code + 0x80 for dtype, code in _NAN.items()}


def quantize(x: torch.Tensor, rounding: str = "rceil") -> tuple[torch.Tensor, torch.Tensor]:
    """MXFP8 of rows: what a commit into an MXFP8 pool stores.

    Parameters
    ----------
    x : tensor ``(..., dim)``, dim a multiple of 32; bf16, fp16 or fp32
    rounding : "rceil", "floor" or "even"
        How the largest magnitude of a block, amax, becomes its scale 2^(byte - 127).
        "rceil": amax/448 rounded up to a power of two, so that nothing saturates (cuBLAS' 1D block quantization; what
        Blackwell's converter, sglang and FlashInfer store). "floor": 2^(floor(log2 amax) - 8), OCP MX v1.0 section
        6.3; amax between 448 and 512 saturates. "even": amax's mantissa rounded to 3 bits first, then as "floor".

    Returns
    -------
    payload : float8_e4m3fn ``(..., dim)``
        Rounded to nearest even, saturated at +-448.
    scales : uint8 ``(..., dim/32)``
        UE8M0 bytes. A block with a NaN or an infinity gets 255, and NaN in every element.

    Raises
    ------
    ValueError
        Another rounding; rows that are not whole blocks.

    Notes
    -----
    Byte 0 (amax up to about 2^-118) follows TransformerEngine and torchao, so that the bytes agree with theirs: its
    elements are divided by 1 (rceil: they become 0) or by 2^-126 (floor, even: they read back halved).
    """
    MXFP8(rounding=rounding)  # raises for a rounding that is none
    if x.shape[-1] % BLOCK:
        raise ValueError(f"quantize: x has rows of {x.shape[-1]} elements; a multiple of {BLOCK} is needed")
    blocks = x.float().unflatten(-1, (-1, BLOCK))
    bits = blocks.abs().amax(-1).contiguous().view(torch.int32)
    if rounding == "rceil":
        descale = (bits.view(torch.float32) * (1.0 / E4M3_MAX)).view(torch.int32)
        exponent = descale >> 23
        # up to a power of two by the bits; 0x400000 is 2^-127, below which fp32 has no normal numbers
        above = torch.where(exponent > 0, (descale & 0x7FFFFF) > 0, descale > 0x400000)
        byte = exponent + above
    else:
        rounded = bits + (1 << 19) if rounding == "even" else bits
        byte = ((rounded >> 23) - E4M3_EMAX).clamp(min=0)
    bad = bits >= 0x7F800000
    byte = byte.where(~bad, E8M0_NAN)
    smallest = E8M0_BIAS if rounding == "rceil" else 253
    factor = (torch.where(byte == 0, smallest, 254 - byte) << 23).view(torch.float32)
    payload = cast(blocks * factor[..., None], torch.float8_e4m3fn)
    payload = payload.view(torch.uint8).where(~bad[..., None], 0x7F).view(torch.float8_e4m3fn)
    return payload.flatten(-2), byte.to(torch.uint8)


def dequantize(payload: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Payload times its block scale, in fp32, exact: ``(..., dim)`` E4M3 and ``(..., dim/32)`` uint8 UE8M0.

    The inverse of :func:`quantize` up to rounding. Scale 255 gives NaN for its 32 elements.
    """
    byte = scales.int()[..., None]
    power = torch.where(byte == 0, 0x400000, byte << 23).view(torch.float32)  # 0x400000 is 2^-127
    number = payload.float().unflatten(-1, (-1, BLOCK))
    nan = number.new_tensor(float("nan"))
    value = torch.where(number.isnan(), nan.copysign(number), number * power)
    return torch.where(byte == E8M0_NAN, nan, value).flatten(-2)
