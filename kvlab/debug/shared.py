"""Bytes that lie in two buffers: an engine that keeps K and V of a layer in one tensor gives two spans that cross."""

from __future__ import annotations

from itertools import pairwise

import numpy as np


def each_byte_once(pool, masks: dict[str, np.ndarray]) -> None:
    """Clear, in place, the touched bytes that no field owns in their buffer while another buffer holds them too."""
    spans = {name: (x.data_ptr(), x.numel()) for name, x in pool.buffers.items()}
    if all(start + nbytes <= after for (start, nbytes), (after, _) in pairwise(sorted(spans.values()))):
        return
    for name, mask in masks.items():
        at = np.flatnonzero(mask)
        mask[at[held_elsewhere(pool.layout, spans, name, at)]] = False


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
