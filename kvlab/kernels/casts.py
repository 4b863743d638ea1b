"""Conversions on bits: the same bytes in the interpreter, on every GPU, and in the reference.

Triton's own casts can't be trusted for that. Hardware before sm_89 has no E4M3 conversion, and the interpreter of
Triton 3.9 truncates fp32 -> bf16, rounds ties of fp32 -> e4m3 away from even, and decodes E4M3's NaN as 480.
Everything here is integer arithmetic on uint32, but for one exact multiplication by a power of two.
"""

import triton
import triton.language as tl


@triton.jit
def decode(raw, KIND: tl.constexpr):
    """Bits of a KIND number (in an integer tensor of its width) as the bits of the equal fp32 number, uint32."""
    if KIND == "float32":
        return raw.to(tl.uint32, bitcast=True)
    elif KIND == "bfloat16":
        return raw.to(tl.uint32) << 16
    elif KIND == "float16":
        return _widen(raw.to(tl.uint32) & 0xFFFF, 15, 10, 15, 0x7C00)
    elif KIND == "float8_e5m2":
        return _widen(raw.to(tl.uint32) & 0xFF, 7, 2, 15, 0x7C)
    else:
        tl.static_assert(KIND == "float8_e4m3fn", "decode: KIND is not a payload dtype")
        # E4M3 has no infinity: the largest exponent holds numbers, and only 0x7F is NaN
        return _widen(raw.to(tl.uint32) & 0xFF, 7, 3, 7, 0x7F)


@triton.jit
def _widen(code, SIGN: tl.constexpr, MANTISSA: tl.constexpr, BIAS: tl.constexpr, SPECIAL: tl.constexpr):
    """Decode one small float; codes from SPECIAL on are infinity and NaN."""
    magnitude = code & ((1 << SIGN) - 1)
    # Read the code as a tiny fp32 number and scale it up: exact, subnormals included.
    scale: tl.constexpr = 2.0 ** (127 - BIAS)
    finite = ((magnitude << (23 - MANTISSA)).to(tl.float32, bitcast=True) * scale).to(tl.uint32, bitcast=True)
    mantissa = magnitude & ((1 << MANTISSA) - 1)
    is_nan = (mantissa != 0) if SPECIAL != 0x7F else (magnitude == 0x7F)
    special = tl.where(is_nan, 0x7FC00000, 0x7F800000).to(tl.uint32)
    return tl.where(magnitude >= SPECIAL, special, finite) | ((code >> SIGN) << 31)


@triton.jit
def encode(bits, KIND: tl.constexpr):
    """fp32 numbers, as uint32 bits, rounded to nearest even to KIND; returned as an integer of its width.

    FP8 saturates to its largest finite number, as torch does after a clamp; bf16 and fp16 overflow to infinity, as
    torch does. A NaN becomes the canonical quiet NaN of KIND with its sign kept.
    """
    if KIND == "float32":
        return bits.to(tl.int32, bitcast=True)
    elif KIND == "bfloat16":
        return _narrow(bits, 15, 7, 127, 0x7F80, 0x7FC0).to(tl.int16)
    elif KIND == "float16":
        return _narrow(bits, 15, 10, 15, 0x7C00, 0x7E00).to(tl.int16)
    elif KIND == "float8_e5m2":
        return _narrow(bits, 7, 2, 15, 0x7B, 0x7E).to(tl.uint8)
    else:
        tl.static_assert(KIND == "float8_e4m3fn", "encode: KIND is not a payload dtype")
        return _narrow(bits, 7, 3, 7, 0x7E, 0x7F).to(tl.uint8)


@triton.jit
def _narrow(
    bits,
    SIGN: tl.constexpr,
    MANTISSA: tl.constexpr,
    BIAS: tl.constexpr,
    LARGEST: tl.constexpr,
    NAN: tl.constexpr,
):
    """Round fp32 bits to a float of MANTISSA bits: ``((exponent-1) << MANTISSA) + rounded mantissa``, so that a carry
    out of the mantissa moves to the next exponent by itself, and subnormals need no case of their own."""
    magnitude = bits & 0x7FFFFFFF
    exponent = (magnitude >> 23).to(tl.int32)
    mantissa = (magnitude & 0x7FFFFF) | tl.where(exponent > 0, 0x800000, 0).to(tl.uint32)
    target = tl.maximum(exponent, 1) - 127 + BIAS
    drop = tl.minimum(23 - MANTISSA + tl.maximum(1 - target, 0), 25).to(tl.uint32)
    kept = mantissa >> drop
    half = tl.full(bits.shape, 1, tl.uint32) << (drop - 1)
    rest = mantissa & (2 * half - 1)
    up = (rest > half) | ((rest == half) & ((kept & 1) == 1))
    code = ((tl.maximum(target, 1) - 1).to(tl.uint32) << MANTISSA) + kept + up.to(tl.uint32)
    code = tl.minimum(code, LARGEST)
    code = tl.where(magnitude > 0x7F800000, NAN, code)
    return code | ((bits >> 31) << SIGN)
