"""The lines of a buffer that were touched, and the worst that happened in each of its parts. No drawing here."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..debug.expect import Verdict
from .grid import choose_columns

STATES = ("untouched", "written", "missing", "unexpected", "wrong")  # of two in one place the later one shows
UNTOUCHED, WRITTEN, MISSING, UNEXPECTED, WRONG = range(5)
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
    """One buffer: a mask ``(nbytes,)`` for each state but UNTOUCHED; ``columns`` bytes are a line of it."""

    name: str
    masks: dict[int, np.ndarray]
    layout: object
    columns: int

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return len(self.masks[WRITTEN])

    @cached_property
    def counts(self) -> dict[int, int]:
        """Bytes in each state."""
        return {state: int(np.count_nonzero(mask)) for state, mask in self.masks.items()}

    @property
    def worst(self) -> int:
        """The worst state of any byte."""
        return max((state for state, count in self.counts.items() if count), default=UNTOUCHED)

    def parts(self, edges: np.ndarray) -> np.ndarray:
        """The worst state from each edge to the next, or to the end: uint8."""
        codes = np.zeros(len(edges), np.uint8)
        for state in sorted(self.masks):
            codes[np.logical_or.reduceat(self.masks[state], edges)] = state
        return codes

    def groups(self) -> list[Group]:
        """Every touched line, those that follow each other and look alike as one."""
        touched = np.flatnonzero(self.parts(np.arange(0, self.nbytes, self.columns)))
        if not len(touched):
            return []
        opens = np.concatenate([[True], (np.diff(touched) > 1) | ~self._alike(touched)])
        firsts, lasts = touched[opens], touched[np.concatenate([opens[1:], [True]])]
        return [Group(a, b, self._states(a)) for a, b in zip(firsts.tolist(), lasts.tolist(), strict=True)]

    def _alike(self, lines: np.ndarray) -> np.ndarray:
        """Whether lines ``i`` and ``i + 1`` of the given ones are equal; the buffer may end inside the last one."""
        whole = self.nbytes // self.columns
        out = lines[1:] < whole
        step = max(1, CHUNK // self.columns)
        for mask in self.masks.values():
            table = mask[: whole * self.columns].reshape(whole, self.columns)
            for at in range(0, len(out), step):
                pairs = np.flatnonzero(out[at : at + step]) + at
                out[pairs] = (table[lines[pairs]] == table[lines[pairs + 1]]).all(1)
        return out

    def _states(self, line: int) -> np.ndarray:
        part = slice(line * self.columns, min((line + 1) * self.columns, self.nbytes))
        codes = np.zeros(part.stop - part.start, np.uint8)
        for state in sorted(self.masks):
            codes[self.masks[state][part]] = state
        return codes


def written_buffers(found) -> list[Written]:
    """The buffers of a :class:`Watch <kvlab.debug.watch.Watch>`, or of its :class:`Verdict
    <kvlab.debug.expect.Verdict>`."""
    if isinstance(found, Verdict):
        kinds = {"right": WRITTEN, "missing": MISSING, "unexpected": UNEXPECTED, "wrong": WRONG}
        masks, layout = {state: found.masks[kind] for kind, state in kinds.items()}, found.layout
    else:
        masks, layout = {WRITTEN: found.masks}, found.pool.layout if found.pool is not None else None
    out = []
    for name, mask in masks[WRITTEN].items():
        columns = choose_columns(layout, name, len(mask)) if layout else _row(found.tensors, name)
        out.append(Written(name, {state: each[name] for state, each in masks.items()}, layout, columns))
    return [b for b in out if b.nbytes]


def _row(tensors: dict, buffer: str) -> int:
    """Bytes of a line of a storage without a layout: a row of its tensor, where that is neither short nor long."""
    steps = [s for at in tensors.values() if at.buffer == buffer for s in at.stride if 0 < s <= 1024]
    row = max(steps, default=256)
    return row * -(-64 // row)
