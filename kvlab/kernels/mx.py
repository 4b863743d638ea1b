"""MXFP8 on bits: a block's shared scale, and its E4M3 elements. The reference is :func:`kvlab.formats.quantize`."""

import triton
import triton.language as tl

from .casts import decode, encode


@triton.jit
def shared_scale(amax, ROUNDING: tl.constexpr):
    """UE8M0 byte of a block, from the bits of its largest magnitude (int32, sign cleared).

    The largest of the magnitudes' bits is the largest magnitude, and NaN and infinity are larger than any number:
    they give byte 255, so that one bad element makes its block read back as NaN.
    """
    if ROUNDING == "rceil":
        descale = (amax.to(tl.float32, bitcast=True) * (1.0 / 448.0)).to(tl.int32, bitcast=True)
        exponent = descale >> 23
        # Up to the next power of two by the bits: log2 in fp32 is wrong just above a power of two. A subnormal
        # has no implicit bit; 0x400000 is 2^-127, the smallest scale.
        above = tl.where(exponent > 0, (descale & 0x7FFFFF) > 0, descale > 0x400000)
        byte = exponent + above.to(tl.int32)
    else:
        # "even" first rounds amax to E4M3's three mantissa bits, half up, so that 1.9375 counts as 2
        rounded = amax + (1 << 19) if ROUNDING == "even" else amax
        byte = tl.maximum((rounded >> 23) - 8, 0)
    return tl.where(amax >= 0x7F800000, 255, byte)


@triton.jit
def quantize_blocks(bits, ROWS: tl.constexpr, COLUMNS: tl.constexpr, ROUNDING: tl.constexpr):
    """fp32 bits ``(ROWS, COLUMNS)`` as E4M3 bytes of that shape and UE8M0 bytes ``(ROWS, COLUMNS/32)``."""
    blocks = tl.reshape(bits, [ROWS, COLUMNS // 32, 32])
    byte = shared_scale(tl.max((blocks & 0x7FFFFFFF).to(tl.int32, bitcast=True), axis=2), ROUNDING)
    # 2^(127 - byte) has the exponent bits 254 - byte. Byte 0 has no normal reciprocal: see kvlab.formats.quantize.
    smallest: tl.constexpr = 127 if ROUNDING == "rceil" else 253
    factor = tl.where(byte == 0, smallest, 254 - byte) << 23
    factor = tl.broadcast_to(factor[:, :, None], [ROWS, COLUMNS // 32, 32]).to(tl.float32, bitcast=True)
    scaled = blocks.to(tl.float32, bitcast=True) * factor
    payload = encode(scaled.to(tl.uint32, bitcast=True), "float8_e4m3fn")
    bad = tl.broadcast_to(byte[:, :, None] == 255, [ROWS, COLUMNS // 32, 32])
    payload = tl.where(bad, 0x7F, payload).to(tl.uint8)
    return tl.reshape(payload, [ROWS, COLUMNS]), byte.to(tl.uint8)


@triton.jit
def dequantize_blocks(payload, scale, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """E4M3 bytes ``(ROWS, COLUMNS)`` times UE8M0 bytes ``(ROWS, COLUMNS/32)``, as fp32; exact."""
    byte = tl.broadcast_to(scale.to(tl.uint32)[:, :, None], [ROWS, COLUMNS // 32, 32])
    byte = tl.reshape(byte, [ROWS, COLUMNS])
    power = tl.where(byte == 0, 0x400000, byte << 23).to(tl.float32, bitcast=True)
    number = decode(payload, "float8_e4m3fn").to(tl.float32, bitcast=True)
    value = tl.where(number == number, number * power, number).to(tl.uint32, bitcast=True)
    return tl.where(byte == 255, 0x7FC00000, value).to(tl.float32, bitcast=True)
