"""Bytes that lie in two buffers: an engine that keeps K and V of a layer in one tensor gives two spans that cross."""

from __future__ import annotations

import numpy as np


def held_elsewhere(layout, spans: dict[str, tuple[int, int]], buffer: str, at: np.ndarray) -> np.ndarray:
    """Which bytes ``at`` of a buffer no field owns there, while another buffer holds them too.

    Parameters
    ----------
    spans : dict of buffer to (address, nbytes)
    at : int array
        Bytes of ``buffer``.
    """
    address = at + spans[buffer][0]
    out = np.zeros(len(at), bool)
    for other, (start, nbytes) in spans.items():
        if other != buffer:
            out |= (address >= start) & (address < start + nbytes)
    if out.any():
        out[out] = layout.explain(buffer, at[out]).field < 0
    return out
