"""What a layout costs in memory traffic: 32-byte sectors, the unit in which a GPU reads and writes DRAM."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..layout import Layout

SECTOR = 32


@dataclass(frozen=True)
class Footprint:
    """Some cells in memory: their bytes, in how many contiguous runs, in how many 32-byte sectors, and how few could
    hold them."""

    nbytes: int
    runs: int
    sectors: int
    minimum: int


def footprint(layout: Layout, field: str, slots, heads=None, layer: int = 0) -> Footprint:
    """What a reader or writer of these cells of one layer touches.

    Parameters
    ----------
    layout : Layout
    field : str
        "k", "v", "k_scale" or "v_scale".
    slots, heads : ints
        Such as one token's slot, or the slots of a page; all heads where not given.
    layer : int

    Raises
    ------
    KeyError, IndexError
        As :meth:`kvlab.Layout.locate`.
    """
    f = layout._field(field)  # in its own words where there is none
    slot, head, dim = np.ix_(slots, range(f.extents["head"]) if heads is None else heads, range(f.extents["dim"]))
    first = np.sort(layout.locate(field, layer, slot, head, dim)[1].reshape(-1))
    runs = 1 + int((np.diff(first) > f.item).sum())
    nbytes = len(first) * f.item
    return Footprint(nbytes, runs, len(np.unique(first // SECTOR)), -(-nbytes // SECTOR))


def sectors(layout: Layout) -> tuple[float, int]:
    """Sectors that one committed row touches, and how few could hold it.

    A row is everything of one token in one layer: K, V and their scales, committed alone. Buffers start at a multiple
    of 32 bytes, as torch allocates them.

    Returns
    -------
    touched : float
        Mean over the slots of pages 0 and 1 and over the layers.
    minimum : int
        Each field's bytes of the row in as few sectors as hold them, beside each other and aligned.
    """
    g = layout.geometry
    minimum, found = 0, {}
    for field in layout.fields.values():
        minimum += -(-field.extents["head"] * field.extents["dim"] * field.item // SECTOR)
        # fields that share a buffer (page-major) can share a sector: count by buffer, not by field
        buffer = field.buffer if isinstance(field.buffer, str) else "one per layer, " + field.name
        found.setdefault(buffer, []).append(field)
    slots = min(2 * g.page_size, g.slots)
    touched = sum(_touched(fields, g.layers, slots) for fields in found.values())
    return touched / (g.layers * slots), minimum


def _touched(fields: list, layers: int, slots: int) -> int:
    """Sectors that the rows of these fields touch in their buffer, over all layers and the first slots."""
    alike: dict[tuple, list[int]] = {}
    for layer in range(layers):
        starts = [f.byte(layer, 0, 0, 0) for f in fields]
        shift = starts[0] // SECTOR * SECTOR
        alike.setdefault(tuple(s - shift for s in starts), []).append(layer)
    total, slot = 0, np.arange(slots)[:, None, None]
    for same in alike.values():  # whole sectors apart: one of them is counted for all
        parts = []
        for f in fields:
            head, dim = np.arange(f.extents["head"])[:, None], np.arange(f.extents["dim"])
            parts.append((f.byte(same[0], slot, head, dim) // SECTOR).reshape(slots, -1))
        rows = np.sort(np.concatenate(parts, axis=1), axis=1)
        total += len(same) * (slots + int((np.diff(rows, axis=1) > 0).sum()))
    return total
