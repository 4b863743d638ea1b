"""What the playground's figure shows of each slot: states of its bytes, their place, labels and hover. No drawing."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import groupby

import numpy as np

from ..debug.commit_data import MISSING, STATES, UNEXPECTED, row_bytes
from ..figures import palette

LINES = 4  # picture lines per slot, the first one a border
LABEL = 14  # pixels that a run's label needs
STRIPE = {MISSING: 4, UNEXPECTED: 5}
WHITE, BLACK = 6, 7
WORDS = dict(zip(STATES, ("untouched", "expected and written", "expected but missing", "unexpected"), strict=True))
COLORS = [palette.STATES[s] for s in STATES]
COLORS += [palette.mix(palette.STATES["missing"], palette.BLACK, 0.35), "#7a2d00", palette.WHITE, palette.BLACK]
GAP = 10  # white columns between two fields


@dataclass(frozen=True)
class Panel:
    """One field's part of the picture: states ``(slots, bytes of a row)``, and where its columns begin."""

    field: object
    states: np.ndarray
    wide: int  # columns per byte: a row has few scales
    start: int

    @property
    def stop(self) -> int:
        """First column after the panel."""
        return self.start + self.states.shape[1] * self.wide


class Rows:
    """The slots of one layer that are worth showing, each with a line of the picture.

    ``owners``: for each slot that loc_2d names, its ``(request, row)`` pairs. Slots of one page and request are a run;
    a short run keeps free lines around it, so that its label has room.
    """

    def __init__(self, layout, layer: int, states: dict[str, np.ndarray], owners: dict, pixels: float):
        self.layout, self.layer, self.owners = layout, layer, owners
        self.page_size = layout.geometry.page_size
        self.slots = _shown(layout, layer, states, owners)
        self.panels = _panels(layout, layer, states, self.slots)
        keys = [(s // self.page_size, self._who(s)) for s in self.slots.tolist()]
        self.runs = [list(run) for _, run in groupby(range(len(keys)), key=keys.__getitem__)]
        least = self._least(pixels)
        self.place = np.zeros(len(self.slots), np.int64)  # line of each slot
        self.starts, self.lines = [], 0  # first line of each run, and the number of all lines
        for run in self.runs:
            room = max(len(run), least)
            self.starts.append(self.lines)
            self.place[run] = self.lines + (room - len(run)) // 2 + np.arange(len(run))
            self.lines += room
        self.apart = LABEL * self.lines / pixels

    def _least(self, pixels: float) -> int:
        """Lines of a run at least, so that labels do not overlap; 1 where there is no room for all of them."""
        for least in range(1, 8):
            total = sum(max(len(run), least) for run in self.runs)
            if pixels / total * least >= LABEL:
                return least
        return 1

    def _who(self, slot: int) -> str:
        return "+".join(dict.fromkeys(f"b{b}" for b, _ in self.owners.get(slot, [])))

    def picture(self) -> np.ndarray:
        """Palette codes for COLORS: LINES picture lines per line, black where a page begins."""
        out = np.full((self.lines, LINES, self.panels[-1].stop), WHITE, np.uint8)
        for p in self.panels:
            out[self.place, 1:, p.start : p.stop] = p.states.repeat(p.wide, 1)[:, None]
        first = self.slots[[run[0] for run in self.runs]] // self.page_size
        out[np.array(self.starts)[1:][first[1:] != first[:-1]], 0] = BLACK
        return striped(out.reshape(-1, out.shape[2]))

    def labels(self) -> tuple[list[float], list[str]]:
        """Per run its request, page, slots and one letter for each slot; where runs are too many, not of all."""
        worst = np.max([p.states.max(1) for p in self.panels], axis=0)
        letters = [palette.STATE_LETTERS[STATES[i]] for i in worst.tolist()]
        ticks, words = [], []
        for run, start, stop in zip(self.runs, self.starts, [*self.starts[1:], self.lines], strict=True):
            middle = (start + stop - 1) / 2
            if ticks and middle - ticks[-1] < self.apart * 0.9:
                continue
            first, last = int(self.slots[run[0]]), int(self.slots[run[-1]])
            who, page = self._who(first), first // self.page_size
            span = f"{first}" if first == last else f"{first}-{last}"
            shown = "".join(letters[i] for i in run)
            shown = shown if len(shown) <= 8 else shown[:7] + "…"
            ticks.append(middle)
            words.append(f"{who[:8]} p{page} {span} {shown:<8}")
        return ticks, words

    def columns(self) -> tuple[list[float], list[str]]:
        """Ticks of each field's heads; scales have only room for their name."""
        ticks, words = [], []
        for p in self.panels:
            name = palette.LETTERS[p.field.name]
            if p.field.name.endswith("_scale"):
                ticks.append((p.start + p.stop) / 2)
                words.append(name)
                continue
            heads = p.field.extents["head"]
            ticks += [p.start + (head + 0.5) * (p.stop - p.start) / heads for head in range(heads)]
            words += [f"{name} head {head}" for head in range(heads)]
        return ticks, words

    def hover(self) -> dict:
        """What :class:`kvlab.widgets.panels.Panels` says of each row: whose it is and where, not its state."""
        heads = []
        for s in self.slots.tolist():
            who = " and ".join(f"b{b} row {w}" for b, w in self.owners.get(s, [])) or "not in loc_2d"
            heads.append(f"slot {s} = page {s // self.page_size} offset {s % self.page_size}: {who}")
        words = zip(*(self._field_words(p) for p in self.panels), strict=True)
        return {
            "columns": [[p.start, p.stop] for p in self.panels],
            "lines": [[line * LINES, (line + 1) * LINES] for line in self.place.tolist()],
            "heads": heads,
            "words": [list(w) for w in words],
        }

    def _field_words(self, p: Panel) -> list[str]:
        at = row_bytes(p.field, self.layer, self.slots)
        runs = 1 + (np.diff(at, axis=1) != 1).sum(1)
        name, buffer = palette.NAMES[p.field.name], p.field.buffer_of(self.layer)
        return [
            f"{name} in '{buffer}' from byte {first:,}: {at.shape[1]} bytes in {n} run{'s' * (n > 1)}"
            for first, n in zip(at[:, 0].tolist(), runs.tolist(), strict=True)
        ]


def striped(codes: np.ndarray) -> np.ndarray:
    """Palette codes with diagonal stripes over missing and unexpected bytes, in place."""
    rows, columns = np.indices(codes.shape, sparse=True)
    for state, stripe in STRIPE.items():
        if not (codes == state).any():
            continue
        codes[(codes == state) & ((rows + columns) % 8 < 3)] = stripe
    return codes


def _shown(layout, layer: int, states, owners) -> np.ndarray:
    """Slots that loc_2d names, and any others where a byte of any layer is not untouched; in slot order."""
    slots = {s for s in owners if 0 < s < layout.geometry.slots}
    named = np.array(list(slots), np.int64)
    own = [states[f.buffer_of(layer)][row_bytes(f, layer, named)] for f in layout.fields.values()]
    if sum(map(np.count_nonzero, own)) < sum(map(np.count_nonzero, states.values())):
        for buffer, codes in states.items():
            cells = layout.explain(buffer, np.flatnonzero(codes))
            slots.update(np.unique(cells.slot[cells.field >= 0]).tolist())
    return np.array(sorted(slots) or [0])


def _panels(layout, layer: int, states, slots) -> list[Panel]:
    panels, start = [], 0
    for field in layout.fields.values():
        part = states[field.buffer_of(layer)][row_bytes(field, layer, slots)]
        wide = max(1, panels[0].states.shape[1] // 6 // part.shape[1]) if panels else 1
        panels.append(Panel(field, part, wide, start))
        start = panels[-1].stop + GAP
    return panels
