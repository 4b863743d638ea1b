"""What a commit should have written, and what it did to every byte. No drawing here."""

from __future__ import annotations

import numpy as np

STATES = ("untouched", "written", "missing", "unexpected")
UNTOUCHED, WRITTEN, MISSING, UNEXPECTED = range(4)


def expected_mask(layout, loc, commit_lens=None, row_mask=None, layer: int | None = None) -> dict[str, np.ndarray]:
    """Bytes that a right commit writes, in every buffer, payload and scales alike.

    Parameters
    ----------
    loc : int array ``(N,)`` or ``(B, W)``
        Slots; 0 and below are padding and expect nothing.
    commit_lens : int array ``(B,)``, optional
        Rows of block b that count, from its first on.
    row_mask : bool array of loc's shape or ``(N,)``, optional
    layer : int or None for all

    Returns
    -------
    dict of buffer to ``(buffer bytes,)`` bool
    """
    loc = np.asarray(loc, dtype=np.int64)
    chosen = loc > 0
    if commit_lens is not None:
        if loc.ndim != 2:
            raise ValueError(f"expected_mask: commit_lens needs loc of shape (B, W), not {loc.shape}")
        chosen &= np.arange(loc.shape[1])[None, :] < np.asarray(commit_lens)[:, None]
    if row_mask is not None:
        chosen &= np.asarray(row_mask, dtype=bool).reshape(loc.shape)
    slots = loc[chosen]
    masks = {name: np.zeros(size, bool) for name, size in layout.buffers.items()}
    for field in layout.fields.values():
        for one in range(layout.geometry.layers) if layer is None else (layer,):
            masks[field.buffer_of(one)][row_bytes(field, one, slots).reshape(-1)] = True
    return masks


def row_bytes(field, layer: int, slots: np.ndarray) -> np.ndarray:
    """Byte of every byte of the rows of ``slots``: ``(slots, heads * dim * item)``, heads outermost."""
    slot = np.asarray(slots, dtype=np.int64)[:, None, None, None]
    head = np.arange(field.extents["head"])[None, :, None, None]
    dim = np.arange(field.extents["dim"])[None, None, :, None]
    own = 0 if isinstance(field.buffer, tuple) else layer
    row = head.size * dim.size * field.item
    return (field.byte(own, slot, head, dim) + np.arange(field.item)).reshape(len(slots), row)


def classify(expected, before_a, after_a, before_b=None, after_b=None) -> np.ndarray:
    """State of every byte, an index into ``STATES``: ``(nbytes,)`` uint8.

    A byte that is rewritten with the value it had looks untouched. So run the same commit over two buffers whose
    fills differ in every byte (0x00 and 0xFF, or ``x`` and ``~x``): one of the two then shows each write.

    Parameters
    ----------
    expected : ``(nbytes,)`` bool
        From :func:`expected_mask`.
    before_a, after_a, before_b, after_b : ``(nbytes,)`` uint8
        The buffer before and after, over the first and over the second fill.

    Raises
    ------
    ValueError
        Shapes that differ; fills that agree in some byte, where a write could go unseen.
    """
    expected = np.asarray(expected)
    fills = [np.asarray(x) for x in (before_a, after_a, before_b, after_b) if x is not None]
    for x in fills:
        if x.shape != expected.shape or x.dtype != np.uint8:
            raise ValueError(f"classify: a snapshot is {x.dtype} {x.shape}, not uint8 {expected.shape} like expected")
    touched = fills[0] != fills[1]
    if len(fills) == 4:
        same = np.flatnonzero(fills[0] == fills[2])
        if len(same):
            at = same[0]
            raise ValueError(f"classify: both fills hold {fills[0][at]} at byte {at}; they must differ in every byte")
        touched |= fills[2] != fills[3]
    states = np.full(expected.shape, UNTOUCHED, np.uint8)
    np.copyto(states, UNEXPECTED, where=touched)
    np.copyto(states, MISSING, where=expected)
    np.copyto(states, WRITTEN, where=touched & expected)
    return states
