"""Whose a byte outside its buffer would be, if the slots went on: that tells which wrong slot led there."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from ..field import Axis, Field
from ..layout import Layout

FAR = 1 << 20  # pages beyond either end that a byte is traced to


def cell_words(layout: Layout, buffer: str, byte: int) -> str:
    """The cell that a byte outside its buffer would be, if slots went on in both directions."""
    nearest, words = None, "padding"
    for field in layout.fields.values():
        here = [i for i in range(layout.geometry.layers) if field.buffer_of(i) == buffer]
        if not here:
            continue
        page, after = page_axis(field), byte >= 0
        # what lies outside the pages, such as the layers of a token-major pool, stays at the end that is next
        outside = [a for a in field.axes if a.stride > page.stride]
        held = {a: a.size - 1 if after else 0 for a in outside}
        origin = field.offset + sum(digit * a.stride for a, digit in held.items())
        axes = tuple(replace(a, size=2 * FAR if a == page else 1 if a in held else a.size) for a in field.axes)
        slots = {**field.extents, "slot": 1 << 62}
        endless = Field(field.name, buffer, origin - FAR * page.stride, field.item, slots, axes)
        found, mine = endless.invert(np.array([byte]))
        if not mine[0]:
            continue
        at = {name: int(x[0]) for name, x in found.items()}
        for axis, digit in {**held, page: -FAR}.items():
            at[axis.coordinate] += digit * prod(n for n, _ in field.modes[axis.coordinate][: axis.digit])
        beyond = at["slot"] - field.extents["slot"] if after else -at["slot"]
        if nearest is None or beyond < nearest:
            layer = at["layer"] if isinstance(field.buffer, str) else here[0]
            nearest = beyond
            what = f"{field.name[0].upper()}{' scales' * field.name.endswith('_scale')}"
            dim = "block" if field.name.endswith("_scale") else "dim"
            words = f"{what} of layer {layer}, slot {at['slot']}, head {at['head']}, {dim} {at['dim']}"
    return words


def page_axis(field: Field) -> Axis:
    """The slowest digit of the slot: pages, or the slots themselves where a layout has no pages."""
    return max((a for a in field.axes if a.coordinate == "slot"), key=lambda a: a.digit)
