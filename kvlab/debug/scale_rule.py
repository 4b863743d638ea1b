"""Which payload a quantising commit can leave under a scale: the range of a block's largest element, for every byte."""

from __future__ import annotations

from functools import cache

import numpy as np
import torch

from ..formats import BLOCK, quantize

LARGEST = 0x7F7FFFFF  # bits of the largest fp32 number


@cache
def largest_elements(rounding: str) -> tuple[np.ndarray, np.ndarray]:
    """Smallest and largest E4M3 code, without its sign, that a block's largest element can have: two ``(256,)`` uint8.

    Found by quantising, with :func:`kvlab.formats.quantize`, the smallest and the largest amax that give each scale
    byte: bytes rise with amax, and under one byte so does the code. A byte that no finite amax gives has (255, 0): no
    code is legal. With "rceil", byte 1 or more, they are 0x76 (224) and 0x7E (448): the scale is the smallest power of
    two that avoids saturation, so the largest element lies in the upper half of the range.

    Only rows that :func:`quantize` made are bound by this. Rows that were E4M3 with scales already may follow another
    rule, such as one scale for many blocks.
    """
    byte = np.arange(256)
    first = _first_amax(byte, rounding)
    last = np.append(first[1:], LARGEST + 1) - 1
    given, lowest = _quantized(np.minimum(first, LARGEST), rounding)
    _, highest = _quantized(np.maximum(last, 0), rounding)
    attained = (given == byte) & (first <= LARGEST)
    return np.where(attained, lowest, 255).astype(np.uint8), np.where(attained, highest, 0).astype(np.uint8)


def _first_amax(byte: np.ndarray, rounding: str) -> np.ndarray:
    """Bits of the smallest amax whose scale is at least ``byte``; one past the largest number where there is none."""
    low, high = np.zeros(byte.shape, np.int64), np.full(byte.shape, LARGEST + 1, np.int64)
    while (low < high).any():
        middle = (low + high) // 2
        reached = _quantized(np.minimum(middle, LARGEST), rounding)[0] >= byte
        low, high = np.where(reached | (low == high), low, middle + 1), np.where(reached & (low < high), middle, high)
    return low


def _quantized(amax_bits: np.ndarray, rounding: str) -> tuple[np.ndarray, np.ndarray]:
    """Scale byte and code of a block whose only element that is not 0 is this one."""
    blocks = np.zeros((len(amax_bits), BLOCK), np.int32)
    blocks[:, 0] = amax_bits
    payload, scales = quantize(torch.from_numpy(blocks).view(torch.float32), rounding)
    return scales[:, 0].numpy().astype(np.int64), payload.view(torch.uint8)[:, 0].numpy()
