"""The lines of a buffer that were touched, and the worst that happened in each of its parts. No drawing here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..debug.commit_data import STATES, UNTOUCHED
from ..debug.expect import Verdict
from .grid import choose_columns

STATES = (*STATES, "wrong")  # of two in one place the later one shows
CHUNK = 1 << 24  # bytes compared at a time


@dataclass(frozen=True)
class Group:
    """Lines ``first`` … ``last`` of a buffer, which follow each other and look alike: the state of each byte of one."""

    first: int
    last: int
    states: np.ndarray

    @property
    def worst(self) -> int:
        """The worst state of any byte."""
        return int(self.states.max())

    @property
    def lines(self) -> int:
        """How many lines."""
        return self.last - self.first + 1


@dataclass(frozen=True, eq=False)
class Written:
    """One buffer: the state of every byte, ``(nbytes,)`` uint8; ``columns`` bytes are a line of it."""

    name: str
    states: np.ndarray
    layout: object
    columns: int

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return len(self.states)

    @cached_property
    def counts(self) -> dict[int, int]:
        """Bytes in each state but UNTOUCHED."""
        return {state: int(np.count_nonzero(self.states == state)) for state in range(1, len(STATES))}

    @property
    def worst(self) -> int:
        """The worst state of any byte."""
        return max((state for state, count in self.counts.items() if count), default=UNTOUCHED)

    def parts(self, edges: np.ndarray) -> np.ndarray:
        """The worst state from each edge to the next, or to the end: uint8."""
        return np.maximum.reduceat(self.states, edges)

    def groups(self) -> list[Group]:
        """Every touched line, those that follow each other and look alike as one."""
        touched = np.flatnonzero(self.parts(np.arange(0, self.nbytes, self.columns)))
        if not len(touched):
            return []
        opens = np.concatenate([[True], (np.diff(touched) > 1) | ~self._alike(touched)])
        firsts, lasts = touched[opens], touched[np.concatenate([opens[1:], [True]])]
        lines = zip(firsts.tolist(), lasts.tolist(), strict=True)
        return [Group(a, b, self.states[a * self.columns : (a + 1) * self.columns]) for a, b in lines]

    def _alike(self, lines: np.ndarray) -> np.ndarray:
        """Whether lines ``i`` and ``i + 1`` of the given ones are equal; the buffer may end inside the last one."""
        whole = self.nbytes // self.columns
        out = lines[1:] < whole
        table = self.states[: whole * self.columns].reshape(whole, self.columns)
        step = max(1, CHUNK // self.columns)
        for at in range(0, len(out), step):
            pairs = np.flatnonzero(out[at : at + step]) + at
            out[pairs] = (table[lines[pairs]] == table[lines[pairs + 1]]).all(1)
        return out


def written_buffers(found) -> list[Written]:
    """The buffers of a :class:`Watch <kvlab.debug.watch.Watch>`, or of its :class:`Verdict
    <kvlab.debug.expect.Verdict>`."""
    if isinstance(found, Verdict):
        states, layout = found.states, found.layout
    else:
        states = {name: mask.view(np.uint8) for name, mask in found.masks.items()}  # True is WRITTEN
        layout = None if found.pool is None else found.pool.layout
    out = []
    for name, own in states.items():
        columns = choose_columns(layout, name, len(own)) if layout else _row(found.tensors, name)
        out.append(Written(name, own, layout, columns))
    return [b for b in out if b.nbytes]


def _row(tensors: dict, buffer: str) -> int:
    """Bytes of a line of a storage without a layout: a row of its tensor, where that is neither short nor long."""
    steps = [s for at in tensors.values() if at.buffer == buffer for s in at.stride if 0 < s <= 1024]
    row = max(steps, default=256)
    return row * -(-64 // row)
