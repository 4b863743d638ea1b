"""Conversions on bits: the same bytes in the interpreter, on every GPU, and in the reference.

Triton's own casts can't be trusted for that. Hardware before sm_89 has no E4M3 conversion, and the interpreter of
Triton 3.9 truncates fp32 -> bf16, rounds ties of fp32 -> e4m3 away from even, and decodes E4M3's NaN as 480.
Everything here is integer arithmetic on uint32, but for one exact multiplication by a power of two and one addition
that IEEE 754 rounds for us.
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
        quiet = ((bits >> 31) << 31) | 0x7FC00000
        return tl.where((bits & 0x7FFFFFFF) > 0x7F800000, quiet, bits).to(tl.int32, bitcast=True)
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
    """Round fp32 bits to a float with MANTISSA bits of mantissa and this exponent BIAS."""
    DROP: tl.constexpr = 23 - MANTISSA
    magnitude = bits & 0x7FFFFFFF
    # Move the exponent to the new bias and add just under half a unit, or half where the kept part is odd; a carry
    # out of the mantissa moves to the next exponent by itself.
    odd = (magnitude >> DROP) & 1
    code = (magnitude - ((127 - BIAS) << 23) + ((1 << (DROP - 1)) - 1) + odd) >> DROP
    if BIAS != 127:
        # Below the smallest normal number the unit is fixed: adding a float whose last bit is worth that unit rounds
        # to nearest even, in hardware and in numpy alike.
        MAGIC: tl.constexpr = 2.0 ** (24 - BIAS - MANTISSA)
        MAGIC_BITS: tl.constexpr = (151 - BIAS - MANTISSA) << 23
        small = tl.minimum(magnitude, (128 - BIAS) << 23)  # a NaN in the sum would warn in the interpreter
        subnormal = (small.to(tl.float32, bitcast=True) + MAGIC).to(tl.uint32, bitcast=True) - MAGIC_BITS
        code = tl.where(magnitude < ((128 - BIAS) << 23), subnormal, code)
    code = tl.minimum(code, LARGEST)
    code = tl.where(magnitude > 0x7F800000, NAN, code)
    return code | ((bits >> 31) << SIGN)
