"""Boxes of touched elements: neighbours that look alike become one, so that a whole commit is one line of a table."""

from __future__ import annotations

from math import prod

import numpy as np

NONE, PART, WHOLE = range(3)  # of an element: no byte touched, some, all
CHUNK = 1 << 24  # bytes looked at together
SCATTERED = 16  # runs of a row, or looks of rows, from which on they are not named one by one
Span = tuple[int, int]  # first and last, both included


def boxes(states: np.ndarray, joined: bool = False) -> list[tuple[tuple[Span, ...], bool]]:
    """Boxes that together hold all elements of ``states`` that are not NONE, and whether each is WHOLE all over.

    Parameters
    ----------
    states : uint8 array of any rank
        NONE, PART or WHOLE of every element. Rows (the last two axes) must not be too ragged, see :func:`smooth`.
    joined : bool
        Rows that look alike but for a few elements are told as one: where elements kept their value by chance, a table
        of all the gaps would hide what happened. ``states`` is changed for that.
    """
    if joined and _join(states.reshape(-1, prod(states.shape[-2:]) if states.ndim > 2 else states.shape[-1])):
        found = _boxes((states != NONE).view(np.uint8))
        slices = (tuple(slice(first, last + 1) for first, last in spans) for spans, _ in found)
        return [(spans, bool((states[at] == WHOLE).all())) for (spans, _), at in zip(found, slices, strict=True)]
    return [(spans, state == WHOLE) for spans, state in _boxes(states)]


def _join(rows: np.ndarray) -> bool:
    """Fill gaps in rows ``(rows, elements)`` of more than 16 looks; whether there were that many.

    A gap is filled as PART in a row that has at least 3 in 4 of the elements that any row has. So an element that no
    row touched, as where a kernel leaves out a lane, stays visible, and so does a row of which half is missing.
    """
    live = np.flatnonzero(rows.any(1))
    if len(live) < 2:
        return False
    if np.count_nonzero((np.diff(live) > 1) | ~_equal_neighbours(rows, live)) < SCATTERED:
        return False
    parts = np.array_split(live, -(-len(live) * rows.shape[1] // CHUNK))
    every = np.logical_or.reduce([rows[part].any(0) for part in parts])
    for part in parts:
        here = rows[part]
        dense = np.count_nonzero(here, axis=1) * 4 >= np.count_nonzero(every) * 3
        here[dense[:, None] & every & (here == NONE)] = PART
        rows[part] = here
    return True


def _boxes(states: np.ndarray) -> list[tuple[tuple[Span, ...], int]]:
    """Boxes of equal nonzero state: neighbours along the first axis that look alike become one; then inside each."""
    if states.ndim == 1:
        cuts = np.flatnonzero(np.diff(states)) + 1
        firsts, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(states)]
        return [(((a, b - 1),), int(states[a])) for a, b in zip(firsts, ends, strict=True) if states[a]]
    flat = states.reshape(len(states), -1)
    live = np.flatnonzero(flat.any(1))
    out, i = [], 0
    if not len(live):
        return out
    alike = np.concatenate([(np.diff(live) == 1) & _equal_neighbours(flat, live), [False]])
    while i < len(live):
        j = i + int(np.argmin(alike[i:]))  # the first that differs from the one after it
        span = (int(live[i]), int(live[j]))
        out += [((span, *rest), state) for rest, state in _boxes(states[live[i]])]
        i = j + 1
    return out


def _equal_neighbours(flat: np.ndarray, live: np.ndarray) -> np.ndarray:
    """Whether rows ``live[i]`` and ``live[i + 1]`` are equal, in chunks: comparing all at once would copy them all."""
    out = np.empty(len(live) - 1, bool)
    step = max(1, CHUNK // flat.shape[1])
    for at in range(0, len(out), step):
        here, after = live[at : at + step + 1][:-1], live[at + 1 : at + step + 1]
        out[at : at + step] = (flat[here[: len(after)]] == flat[after]).all(1)
    return out


def states_of(touched: np.ndarray, elements: bool) -> np.ndarray:
    """NONE, PART or WHOLE of every element, from its bytes on the last axis."""
    item = touched.shape[-1]
    if item > 8:  # complex128: no integer is as wide
        some = touched.any(-1).view(np.uint8)
        return some * np.uint8(WHOLE) if elements else some + touched.all(-1)
    bits = touched.view(f"u{item}")[..., 0]  # an element's bytes as one number: far quicker than any() and all()
    some = (bits != 0).view(np.uint8)
    if elements:
        return some * np.uint8(WHOLE)
    return some + (bits == int.from_bytes(b"\1" * item, "little"))


def smooth(rows: np.ndarray) -> None:
    """Rows ``(rows, heads, dims)`` with many runs become one box each: all dims of the heads that were touched."""
    runs = np.count_nonzero(np.diff(rows, axis=2), axis=(1, 2))
    for row in rows[runs > SCATTERED]:
        heads = np.flatnonzero(row.any(1))
        row[heads[0] : heads[-1] + 1] = PART


def spans(at: np.ndarray) -> list[Span]:
    """(first, last) of each stretch of consecutive numbers in a rising array."""
    if not len(at):
        return []
    cuts = np.flatnonzero(np.diff(at) != 1)
    return list(zip(at[np.r_[0, cuts + 1]].tolist(), at[np.r_[cuts, -1]].tolist(), strict=True))
