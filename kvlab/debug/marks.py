"""Cells with a fault, gathered while a scan runs: all are counted, and the places of the first are kept for ranges."""

from __future__ import annotations

import numpy as np

from ..layout import Layout
from .boxes import WHOLE, boxes, smooth, spans
from .findings import KINDS, Finding
from .ranges import Range

KEPT = 1 << 16  # places kept of each kind: a pool that is bad all over needs no list of all its cells


class Marks:
    """Faulty cells of a layout by kind."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.counts = dict.fromkeys(KINDS, 0)
        self._places = dict.fromkeys(KINDS, 0)
        self._kept: dict[str, dict[tuple[str, int], list]] = {kind: {} for kind in KINDS}

    def add(self, kind: str, name: str, layer: int, slots, heads, dims=None) -> None:
        """Mark cells of a field of a layer: int arrays ``(n,)``; without ``dims`` all dims of a head."""
        if not len(slots):
            return
        self.counts[kind] += len(slots) * (self.layout.fields[name].extents["dim"] if dims is None else 1)
        room = max(0, KEPT - self._places[kind])
        self._places[kind] += len(slots)
        if room:
            place = slots[:room], heads[:room], slice(None) if dims is None else dims[:room]
            self._kept[kind].setdefault((name, layer), []).append(place)

    def add_elements(self, kind: str, name: str, layer: int, slots, heads, at: np.ndarray) -> None:
        """Mark elements of the rows ``(slots[i], heads[i])``: bool ``(rows, dims)``."""
        if self._places[kind] < KEPT:
            row, dim = np.nonzero(at)
            self.add(kind, name, layer, slots[row], heads[row], dim)
        else:
            more = int(np.count_nonzero(at))  # far faster than to list places that are not kept
            self.counts[kind] += more
            self._places[kind] += more

    def add_slots(self, kind: str, name: str, layer: int, slots: np.ndarray) -> None:
        """Mark whole rows: bool ``(slots,)``."""
        heads = self.layout.fields[name].extents["head"]
        chosen = np.flatnonzero(slots)
        self.add(kind, name, layer, np.repeat(chosen, heads), np.tile(np.arange(heads), len(chosen)))

    def findings(self, words: dict[str, str]) -> list[Finding]:
        """One finding for each kind that has cells, worst first; ``words`` where a kind's own are not enough."""
        found = []
        for kind, what in KINDS.items():
            if self.counts[kind]:
                text = what + words.get(kind, "")
                if self._places[kind] > KEPT:
                    text += f"; the ranges are of the first {KEPT:,} places"
                found.append(Finding(kind, text, self.counts[kind], self._ranges(kind)))
        return found

    def _ranges(self, kind: str) -> list[Range]:
        """The kept places folded, as :func:`kvlab.debug.ranges.fold` does, which would walk the whole pool."""
        layers: dict[tuple, list[int]] = {}
        for (name, layer), places in self._kept[kind].items():
            for box in self._boxes(name, places):
                layers.setdefault((name, *box), []).append(layer)
        order = list(self.layout.fields)
        ranges = [
            Range(name, span, slots, heads, dims, whole)
            for (name, slots, heads, dims, whole), where in layers.items()
            for span in spans(np.array(where))
        ]
        return sorted(ranges, key=lambda r: (r.layers, order.index(r.field), r.slots, r.heads, r.dims))

    def _boxes(self, name: str, places) -> list[tuple]:
        """``(slots, heads, dims, whole)`` that hold the places of one layer."""
        x = self.layout.fields[name].extents
        slots = np.unique(np.concatenate([slot for slot, _, _ in places]))
        # rows of these slots only, with an empty one wherever slots are left out, so that no box reaches across
        row = np.arange(len(slots)) + np.cumsum(np.diff(slots, prepend=slots[0]) > 1)
        states = np.zeros((row[-1] + 1, x["head"], x["dim"]), np.uint8)
        for slot, head, dim in places:
            states[row[np.searchsorted(slots, slot)], head, dim] = WHOLE
        smooth(states)
        slot_of = np.zeros(len(states), np.int64)
        slot_of[row] = slots
        return [
            ((int(slot_of[first]), int(slot_of[last])), heads, dims, whole)
            for ((first, last), heads, dims), whole in boxes(states)
        ]
