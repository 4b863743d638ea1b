"""What :func:`kvlab.debug.who` found: programs, the bytes they stored and loaded, and bytes that two of them stored."""

from __future__ import annotations

from functools import cached_property
from operator import index

import numpy as np

from .accesses import Recorder, Region, Runs, expand, joined
from .programs import Byte, Bytes, Outside, Program, Race, label
from .ranges import fold
from .shared import held_elsewhere

SHOWN = 24  # lines of each table in str(); to_dict() has them all


class Trace:
    """Which program instance loaded and stored which bytes; made by :func:`kvlab.debug.who`.

    Attributes
    ----------
    layout : Layout or None
    programs : list of Program
        Of every launch, in the order in which they ran.
    launches : list of Launch
    result : object
        What ``call`` returned.
    """

    def __init__(self, layout, recorder: Recorder, result=None):
        self.layout, self.result = layout, result
        self.launches = recorder.launches
        self._recorder = recorder
        self._index = {r.name: i for i, r in enumerate(recorder.regions)}
        self.programs = [Program(self, i, *p) for i, p in enumerate(recorder.programs)]

    @property
    def regions(self) -> list[Region]:
        """The watched buffers, then what ``also`` names: address, size, and bytes of a row."""
        return self._recorder.regions

    @property
    def buffers(self) -> dict[str, int]:
        """Bytes of each watched buffer, and of what ``also`` names."""
        return {r.name: r.nbytes for r in self._recorder.regions}

    def of(self, buffer: str, byte: int) -> Byte:
        """Who stored and who loaded one byte.

        Raises
        ------
        KeyError, IndexError, TypeError
            No such buffer; a byte outside it, or no int.
        """
        region, byte = self._region(buffer), index(byte)
        if not 0 <= byte < self.buffers[buffer]:
            raise IndexError(f"of: byte={byte} is outside 0 … {self.buffers[buffer] - 1}, the bytes of {buffer!r}")
        cell = self.layout.explain(buffer, byte) if self.layout and buffer in self.layout.buffers else None
        return Byte(
            buffer,
            byte,
            cell,
            self._at(self._recorder.stores, region, byte),
            self._at(self._recorder.loads, region, byte),
        )

    def last_writer(self, buffer: str) -> np.ndarray:
        """Index in ``programs`` of the last one that stored each byte, -1 where none did: ``(nbytes,)`` int32."""
        return self._recorder.last_writer(self._region(buffer))

    def last_reader(self, buffer: str) -> np.ndarray:
        """The same for loads."""
        region = self._region(buffer)
        out = np.full(self.buffers[buffer], -1, np.int32)
        for (program, where), runs in self._recorder.loads.items():  # in the order in which they came
            if where == region:
                out[expand(*joined(runs))] = program
        return out

    @cached_property
    def races(self) -> list[Race]:
        """Bytes that two programs of one launch stored, or two lanes of one store; the later program second."""
        found = []
        for (region, first, second), parts in self._recorder.races.items():
            at = np.unique(np.concatenate(parts))
            name, pair = self._recorder.regions[region].name, (self.programs[first], self.programs[second])
            found.append(Race(pair, name, at, self._folded({region: _runs_of(at)})))
        return found

    @cached_property
    def outside(self) -> list[Outside]:
        """Stores to memory without a name, a line per program."""
        found = []
        for (program, region), runs in self._recorder.stores.items():
            if region == -1:
                first, stop = joined(runs)
                found.append(Outside(self.programs[program], int((stop - first).sum()), *self._nearest(first, stop)))
        return found

    def __str__(self) -> str:
        stored = [p for p in self.programs if p.stored]
        lines = [f"launch {x.number}: {x.kernel}, grid {label(x.grid)}" for x in self.launches[:SHOWN]]
        lines.append(
            f"{len(stored):,} of {len(self.programs):,} programs stored {sum(p.stored for p in stored):,} bytes"
        )
        for p in self.programs[:SHOWN]:
            what = [f"stored {p.stored:,} bytes: {_few(p.stores)}"] * bool(p.stored)
            what += [f"loaded {p.loaded:,} bytes: {_few(p.loads)}"] * bool(p.loaded)
            lines.append(f"  {p}: {'; '.join(what) or 'nothing'}")
        lines += [f"  … and {len(self.programs) - SHOWN:,} more programs"] * (len(self.programs) > SHOWN)
        for title, found in (("races", self.races), ("stores outside the watched memory", self.outside)):
            lines.append(f"{title}: {len(found) or 'none'}")
            lines += [f"  {x}" for x in found[:SHOWN]]
            lines += [f"  … and {len(found) - SHOWN:,} more"] * (len(found) > SHOWN)
        return "\n".join(lines)

    __repr__ = __str__

    def to_dict(self) -> dict:
        """A JSON-ready description of everything but the arrays."""
        return {
            "launches": [{"number": x.number, "kernel": x.kernel, "grid": list(x.grid)} for x in self.launches],
            "programs": [p.to_dict() for p in self.programs],
            "races": [r.to_dict() for r in self.races],
            "outside": [o.to_dict() for o in self.outside],
        }

    def _region(self, buffer: str) -> int:
        if buffer not in self._index:
            raise KeyError(f"buffer={buffer!r} is not one of {list(self._index)}")
        return self._index[buffer]

    def _at(self, kept, region: int, byte: int) -> tuple[Program, ...]:
        """Programs with an access to a byte, each where its last one came."""
        last = {}
        for (program, where), parts in kept.items():
            if where == region and any(((first <= byte) & (byte < stop)).any() for first, stop in parts):
                last[program] = None
        return tuple(self.programs[p] for p in last)

    def _count(self, kept, program: int) -> int:
        """Bytes of named memory, by address: one byte can lie in two buffers of an adopted pool."""
        runs = []
        for i, r in enumerate(self._recorder.regions):
            runs += [(first + r.start, stop + r.start) for first, stop in kept.get((program, i), ())]
        first, stop = joined(runs)
        return int((stop - first).sum())

    def _ranges(self, kept, program: int) -> list:
        found = {i: joined(kept[program, i]) for i in range(len(self._recorder.regions)) if (program, i) in kept}
        return self._folded(found)

    def _folded(self, found: dict[int, Runs]) -> list:
        """Runs in regions, as ranges of the layout where it has the buffer."""
        masks, rest = {}, []
        spans = {r.name: (r.start, r.nbytes) for r in self._recorder.regions if r.watched}
        for i, (first, stop) in found.items():
            region = self._recorder.regions[i]
            if self.layout and region.watched:
                at = expand(first, stop)
                masks[region.name] = np.zeros(region.nbytes, bool)
                masks[region.name][at[~held_elsewhere(self.layout, spans, region.name, at)]] = True
            else:
                rest.append(Bytes(region.name, tuple(zip(first.tolist(), (stop - 1).tolist(), strict=True))))
        return (fold(self.layout, masks) if masks else []) + rest

    def _nearest(self, first: np.ndarray, stop: np.ndarray) -> tuple[str, int]:
        """Name of the closest region, and how far off the closest byte is."""
        near = []
        for r in self._recorder.regions:
            before, behind = r.start - stop + 1, first - (r.start + r.nbytes) + 1
            near += [(d, -d, r.name) for d in before[before > 0].tolist()]
            near += [(d, d, r.name) for d in behind[behind > 0].tolist()]
        _, distance, name = min(near)
        return name, distance


def _runs_of(at: np.ndarray) -> Runs:
    return joined([(at, at + 1)])


def _few(ranges: list) -> str:
    words = [str(r) for r in ranges[:3]]
    return "; ".join(words) + (f"; and {len(ranges) - 3:,} more" if len(ranges) > 3 else "")
