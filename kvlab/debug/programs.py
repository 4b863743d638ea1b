"""Program instances and what they did to memory: the entries of a :class:`kvlab.debug.trace.Trace`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from .accesses import Launch

if TYPE_CHECKING:
    from .trace import Trace


@dataclass(frozen=True)
class Bytes:
    """Bytes of memory that no layout describes: ``runs`` of (first, last), both inclusive."""

    buffer: str
    runs: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        words = [f"{a:,}-{b:,}" if b > a else f"{a:,}" for a, b in self.runs[:4]]
        more = f" and {len(self.runs) - 4:,} more runs" if len(self.runs) > 4 else ""
        return f"{self.buffer} bytes {', '.join(words)}{more}"

    def to_dict(self) -> dict:
        """A JSON-ready description."""
        return {"buffer": self.buffer, "runs": [list(r) for r in self.runs]}


class Program:
    """One program instance of one launch.

    Attributes
    ----------
    index : int
        Place in ``Trace.programs``: the order in which the interpreter ran them.
    launch : Launch
        ``.number``, ``.kernel`` and ``.grid``.
    coordinate : tuple of int
        ``tl.program_id`` along each axis of the grid.
    """

    def __init__(self, trace: Trace, index: int, launch: Launch, coordinate: tuple[int, ...]):
        self._trace = trace
        self.index, self.launch, self.coordinate = index, launch, coordinate

    @property
    def kernel(self) -> str:
        """Name of the kernel."""
        return self.launch.kernel

    @cached_property
    def stored(self) -> int:
        """Bytes stored to named memory, each counted once."""
        return self._trace._count(self._trace._recorder.stores, self.index)

    @cached_property
    def loaded(self) -> int:
        """Bytes loaded from named memory, each counted once."""
        return self._trace._count(self._trace._recorder.loads, self.index)

    @cached_property
    def stores(self) -> list:
        """What it stored, as coordinates: ranges of the layout, and :class:`Bytes` where there is none."""
        return self._trace._ranges(self._trace._recorder.stores, self.index)

    @cached_property
    def loads(self) -> list:
        """What it loaded, likewise."""
        return self._trace._ranges(self._trace._recorder.loads, self.index)

    def __str__(self) -> str:
        return f"{self.kernel}{label(self.coordinate)}, launch {self.launch.number}"

    __repr__ = __str__

    def to_dict(self) -> dict:
        """A JSON-ready description."""
        return {
            "kernel": self.kernel,
            "launch": self.launch.number,
            "coordinate": list(self.coordinate),
            "stored": self.stored,
            "loaded": self.loaded,
            "stores": [{"text": str(r), **r.to_dict()} for r in self.stores],
            "loads": [{"text": str(r), **r.to_dict()} for r in self.loads],
        }


@dataclass(frozen=True)
class Byte:
    """Who touched one byte. ``cell`` is its owner (Cell or Padding), None where no layout describes the buffer."""

    buffer: str
    byte: int
    cell: object
    writers: tuple[Program, ...]
    readers: tuple[Program, ...]

    @property
    def last(self) -> Program | None:
        """The program whose store the byte holds now, None where none stored it."""
        return self.writers[-1] if self.writers else None


@dataclass(frozen=True)
class Race:
    """Bytes that two programs of one launch stored: on a GPU either value may stay.

    ``programs`` holds the same program twice where two lanes of one of its stores had the same address. Bytes that
    programs share by atomics alone are no race.
    """

    programs: tuple[Program, Program]
    buffer: str
    bytes: np.ndarray
    ranges: list

    def __str__(self) -> str:
        first, second = self.programs
        who = f"programs {label(first.coordinate)} and {label(second.coordinate)} of {first.kernel}"
        if first is second:
            who = f"two lanes of one store of program {label(first.coordinate)} of {first.kernel}"
        where = "; ".join(map(str, self.ranges))
        return f"{who}, launch {first.launch.number}, both stored {len(self.bytes):,} bytes of {self.buffer}: {where}"

    def to_dict(self) -> dict:
        """A JSON-ready description."""
        first = self.programs[0]
        return {
            "kernel": first.kernel,
            "launch": first.launch.number,
            "programs": [list(p.coordinate) for p in self.programs],
            "buffer": self.buffer,
            "nbytes": len(self.bytes),
            "ranges": [str(r) for r in self.ranges],
        }


@dataclass(frozen=True)
class Outside:
    """Bytes that a program stored to memory without a name.

    ``nearest`` is the named memory closest by, ``distance`` the bytes between: negative before its first byte, and
    positive behind its last (1 is the very next byte).
    """

    program: Program
    nbytes: int
    nearest: str
    distance: int

    def __str__(self) -> str:
        side = "before" if self.distance < 0 else "behind"
        return (
            f"{self.program} stored {self.nbytes:,} bytes elsewhere, {abs(self.distance):,} bytes {side} {self.nearest}"
        )

    def to_dict(self) -> dict:
        """A JSON-ready description."""
        p = self.program
        where = {"nbytes": self.nbytes, "nearest": self.nearest, "distance": self.distance}
        return {"kernel": p.kernel, "launch": p.launch.number, "coordinate": list(p.coordinate), **where}


def label(coordinate: tuple[int, ...]) -> str:
    """A grid or a program's place in it: ``(3, 0)``, ``(3)``."""
    return f"({', '.join(map(str, coordinate))})"
