"""The ScaleExplorer in words: how a scale came about, and the 32 elements as a table."""

from __future__ import annotations

import html

import numpy as np

from ..formats import BLOCK, E4M3_MAX
from .scale_page import Block


def how(block: Block, rounding: str) -> str:
    """How amax becomes the scale byte under this rounding."""
    amax = block.amax
    if not np.isfinite(amax):
        return "a NaN or an Inf in the block: scale byte 255, NaN"
    if amax == 0:
        return "an all-zero block: scale byte 0, payload 0"
    mantissa, exponent = np.frexp(amax)  # amax = mantissa * 2^exponent, mantissa in [0.5, 1)
    if rounding == "rceil":
        rule = f"{amax:.6g} / {E4M3_MAX:g} = {amax / E4M3_MAX:.4g}, up to a power of two"
    elif rounding == "floor":
        rule = f"floor(log2 {amax:.6g}) - 8 = {exponent - 1} - 8"
    else:
        near = np.ldexp(np.floor(mantissa * 16 + 0.5) / 16, exponent)
        rule = (
            f"{amax:.6g} to 3 bits of mantissa is {near:.6g}; floor(log2 {near:.6g}) - 8 = {np.frexp(near)[1] - 1} - 8"
        )
    return f"{rule}: {block.power}, <b>scale byte {block.scale}</b>"


def summary(block: Block) -> str:
    """Range, clipping and error of a block."""
    if not np.isfinite(block.amax):
        return "Every element reads back NaN: the bad input stays visible."
    error = np.abs(block.read - block.values)
    clipped = int((np.abs(block.values) > block.limit).sum())
    clip = f"<b>{clipped} clipped</b> (saturated)" if clipped else "nothing saturates"
    snr = "no error at all" if np.isinf(block.snr) else f"SNR {block.snr:.1f} dB"
    return (
        f"Stores up to ±{block.limit:.6g}: {clip}. Largest error {error.max():.4g} (element {error.argmax()}), {snr}."
    )


def table(block: Block, element: int) -> str:
    """All elements, 16 to a half: value, payload byte, E4M3 number, what is read back, error."""
    head = "<th>element</th><th>value</th><th>byte</th><th>E4M3</th><th>reads</th><th>error</th>"
    at = -1 if np.isnan(block.values).all() else int(np.nanargmax(np.abs(block.values)))
    rows = ["".join(_cells(block, i, element, at) for i in (row, row + BLOCK // 2)) for row in range(BLOCK // 2)]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    note = f"reads = E4M3 x {html.escape(block.power)}. Bold: amax. Orange edge: the chosen element."
    return f"<table class='kvlab-block'><tr>{head}{head}</tr>{body}</table><div class='kvlab-words'>{note}</div>"


def _cells(block: Block, i: int, element: int, at: int) -> str:
    value, read = block.values[i], block.read[i]
    words = [str(i), f"{value:.6g}", f"0x{block.payload[i]:02X}", f"{block.numbers[i]:g}", f"{read:.6g}"]
    words.append(f"{read - value:.3g}")
    look = "font-weight:bold;" if i == at else ""
    edge = "border-left:4px solid #D55E00" if i == element else "border-left:4px solid transparent"
    return "".join(f"<td style='{look}{edge if j == 0 else ''}'>{word}</td>" for j, word in enumerate(words))
