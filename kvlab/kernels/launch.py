"""Every launch goes through here, so that a test, a widget or a bench can count what really ran."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

_recorders: list[list[Launch]] = []
_takers: list = []


@dataclass(frozen=True)
class Launch:
    """One kernel launch: its name and its grid."""

    kernel: str
    grid: tuple[int, ...]

    @property
    def programs(self) -> int:
        """Program instances of the grid."""
        total = 1
        for n in self.grid:
            total *= n
        return total


def launch(kernel, grid: tuple[int, ...], *args, **meta) -> None:
    """``kernel[grid](*args, **meta)``, noted in every open recorder; an empty grid launches nothing."""
    if 0 in grid:
        return
    for recorder in _recorders:
        recorder.append(Launch(kernel.fn.__name__, grid))
    if _takers:
        _takers[-1](kernel, grid, args, meta)
    else:
        # Triton's interpreter is numpy, which warns of a NaN in a sum or a product; a row may hold one
        with np.errstate(all="ignore"):
            kernel[grid](*args, **meta)


@contextmanager
def instead_of_launching(take):
    """Give every launch of the block to ``take(kernel, grid, args, meta)`` and run none: to compile ahead of time."""
    _takers.append(take)
    try:
        yield
    finally:
        _takers.remove(take)


@contextmanager
def record_launches():
    """List the kernel launches of the block.

    >>> with record_launches() as launches:     # doctest: +SKIP
    ...     pool.commit(loc, k, v)
    >>> len(launches)                           # doctest: +SKIP
    1
    """
    launches: list[Launch] = []
    _recorders.append(launches)
    try:
        yield launches
    finally:
        _recorders.remove(launches)
