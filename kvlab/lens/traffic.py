"""What a layout costs in memory traffic: 32-byte sectors, the unit in which a GPU reads and writes DRAM."""

from __future__ import annotations

import numpy as np

from ..layout import Layout

SECTOR = 32


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
    slot = np.arange(min(2 * g.page_size, g.slots))[None, :, None, None]
    layer = np.arange(g.layers)[:, None, None, None]
    touched, minimum = 0, 0
    found: dict = {}  # fields that share a buffer (page-major) can share a sector: count by buffer, not by field
    for field in layout.fields.values():
        heads, dims = field.extents["head"], field.extents["dim"]
        head, dim = np.arange(heads)[:, None], np.arange(dims)
        first = field.byte(layer, slot, head, dim) // SECTOR
        buffer = field.buffer if isinstance(field.buffer, str) else "one per layer, " + field.name
        found.setdefault(buffer, []).append(first.reshape(g.layers * slot.size, heads * dims))
        minimum += -(-heads * dims * field.item // SECTOR)
    for parts in found.values():
        rows = np.sort(np.concatenate(parts, axis=1), axis=1)
        touched += rows.shape[0] + int((np.diff(rows, axis=1) > 0).sum())
    return touched / (g.layers * slot.size), minimum
