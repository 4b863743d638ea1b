"""The loads and stores of program instances as they happen: runs of bytes, and the last writer of every byte."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

Runs = tuple[np.ndarray, np.ndarray]  # first bytes, and the bytes after the last ones


@dataclass(frozen=True)
class Region:
    """A named run of addresses: a watched buffer, or memory that ``also`` names.

    ``line``: bytes of a row of it, 0 where it has no rows.
    """

    name: str
    start: int
    nbytes: int
    watched: bool
    line: int


@dataclass(frozen=True)
class Launch:
    """One kernel launch. ``number`` counts from 0; ``first`` is the index of its first program."""

    number: int
    kernel: str
    grid: tuple[int, ...]
    first: int


class Recorder:
    """Takes every access of every program, in the order in which the interpreter runs them.

    Attributes
    ----------
    launches : list of Launch
    programs : list of (Launch, coordinate)
    loads, stores : dict of (program, region) to list of Runs
        Offsets in the region. Region -1 is memory without a name, as addresses.
    races : dict of (region, program, later program) to list of int arrays
        Offsets that both stored in one launch; twice the same program where one store had two lanes for a byte.
    """

    def __init__(self, regions: list[Region]):
        self.regions = regions
        self.launches: list[Launch] = []
        self.programs: list[tuple[Launch, tuple[int, ...]]] = []
        self.loads: dict = defaultdict(list)
        self.stores: dict = defaultdict(list)
        self.races: dict = defaultdict(list)
        # 2 * (program + 1), and 1 more where a store that is not atomic came in that launch. Zeroed by the system when
        # touched: a large pool of which a kernel writes little costs little.
        self._last = [np.zeros(r.nbytes, np.int32) for r in regions]
        self._gaps = _gaps(regions)

    def launch(self, kernel: str, grid: tuple[int, ...], rank: int | None) -> None:
        """A launch begins; ``rank`` None: the grid is a function, its last axes of size 1 are left out."""
        if rank is None:
            rank = max([1, *(i + 1 for i, n in enumerate(grid) if n > 1)])
        self.launches.append(Launch(len(self.launches), kernel, tuple(grid[:rank]), len(self.programs)))

    def program(self, coordinate: tuple[int, ...]) -> None:
        """A program instance begins."""
        launch = self.launches[-1]
        self.programs.append((launch, tuple(coordinate[: len(launch.grid)])))

    def loaded(self, addresses: np.ndarray, item: int) -> None:
        """The running program loaded ``item`` bytes at each address."""
        self._note(self.loads, *_runs(np.sort(addresses), item))

    def stored(self, addresses: np.ndarray, item: int, atomic: bool = False) -> None:
        """The running program stored ``item`` bytes at each address, all in one instruction."""
        addresses = np.sort(addresses)
        for region, first, stop in self._note(self.stores, *_runs(addresses, item)):
            self._written(region, expand(first, stop), atomic)
        twice = np.flatnonzero(np.diff(addresses) < item)
        if len(twice) and not atomic:
            self._same_lane(*joined([(addresses[twice + 1], addresses[twice] + item)]))

    def last_writer(self, region: int) -> np.ndarray:
        """Index of the program that stored each byte last, -1 where none did: ``(nbytes,)`` int32."""
        return (self._last[region] >> 1) - 1

    def _note(self, kept, first: np.ndarray, stop: np.ndarray) -> list:
        """Keep runs of addresses, region by region; returns ``(region, first, stop)`` as offsets."""
        if not len(first):
            return []
        program, found = len(self.programs) - 1, []
        for i, r in enumerate(self.regions):
            inside = _clipped(first, stop, r.start, r.start + r.nbytes)
            if inside:
                found.append((i, inside[0] - r.start, inside[1] - r.start))
                kept[program, i].append(found[-1][1:])
        for low, high in self._gaps:
            outside = _clipped(first, stop, low, high)
            if outside:
                kept[program, -1].append(outside)
        return found

    def _written(self, region: int, at: np.ndarray, atomic: bool) -> None:
        """Note the last writer of bytes, and a race where another program of this launch had stored one."""
        me, begin = len(self.programs), self.launches[-1].first  # me: the program's index, plus 1
        before = self._last[region][at]
        this_launch = (before >> 1) > begin
        plain = this_launch & ((before & 1) == 1)
        other = this_launch & ((before >> 1) != me)
        race = other if not atomic else other & plain
        for program in np.unique(before[race] >> 1).tolist():
            self.races[region, program - 1, me - 1].append(at[race & ((before >> 1) == program)])
        self._last[region][at] = 2 * me + (plain if atomic else 1)

    def _same_lane(self, first: np.ndarray, stop: np.ndarray) -> None:
        """Two lanes of one store had the same address: on a GPU either may win."""
        program = len(self.programs) - 1
        for i, r in enumerate(self.regions):
            inside = _clipped(first, stop, r.start, r.start + r.nbytes)
            if inside:
                self.races[i, program, program].append(expand(inside[0] - r.start, inside[1] - r.start))


def expand(first: np.ndarray, stop: np.ndarray) -> np.ndarray:
    """Every byte of runs, in their order."""
    lengths = stop - first
    before = np.cumsum(lengths) - lengths
    return np.repeat(first - before, lengths) + np.arange(lengths.sum())


def joined(runs: list[Runs]) -> Runs:
    """Runs sorted, and joined where they touch or overlap."""
    if not any(len(first) for first, _ in runs):
        return np.zeros(0, np.int64), np.zeros(0, np.int64)
    first, stop = (np.concatenate(x) for x in zip(*runs, strict=True))
    order = np.argsort(first, kind="stable")
    first, stop = first[order], np.maximum.accumulate(stop[order])
    opens = np.concatenate([[True], first[1:] > stop[:-1]])
    return first[opens], stop[np.concatenate([opens[1:], [True]])]


def _runs(addresses: np.ndarray, item: int) -> Runs:
    """Sorted addresses of items as runs of bytes."""
    return joined([(addresses, addresses + item)])


def _clipped(first: np.ndarray, stop: np.ndarray, low: int, high: int) -> Runs | None:
    """What of the runs lies in ``low`` … ``high``-1."""
    if not len(first) or stop[-1] <= low or first[0] >= high:
        return None
    a, b = np.maximum(first, low), np.minimum(stop, high)
    return (a[a < b], b[a < b]) if (a < b).any() else None


def _gaps(regions: list[Region]) -> list[tuple[int, int]]:
    """The addresses between all regions, as runs."""
    ends = np.array([[r.start, r.start + r.nbytes] for r in regions if r.nbytes], np.int64).reshape(-1, 2)
    first, stop = joined([(ends[:, 0], ends[:, 1])])
    info = np.iinfo(np.int64)
    return list(zip([info.min, *stop.tolist()], [*first.tolist(), info.max], strict=True))
