"""What a tensor can show of a layout: one field of one layer, or more axes than that."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from ..geometry import Geometry
from ..layout import Layout

# One geometry has a scale tile alone in its page, the other several; the names of a view's axes depend on no more.
PROBES = (Geometry(2, 3, 64, page_size=128, pages=5), Geometry(2, 3, 256, page_size=256, pages=5))


@dataclass(frozen=True)
class View:
    """What a tensor can show of a field: one layer of it, or more axes than that.

    ``layers``: with the layer axis. ``both``: K and V, on an "axis" of 2 or "packed" in one head, V after K. ``slots``:
    its "own" digits, pages and offsets "merged" into one axis, or one axis "split" into pages.
    """

    field: str
    layers: bool
    both: str | None
    slots: str

    def axes(self, layout: Layout, page_size: int) -> list[tuple[str, int, int]] | None:
        """``(coordinate and digit, size, stride)`` in memory order, or None where this layout has no such view."""
        f = layout.fields[self.field]
        shared = isinstance(f.buffer, str)
        axes = [
            (f"{a.coordinate}{a.digit}", a.size, a.stride) for a in f.axes if a.coordinate != "layer" or self.layers
        ]
        if self.both:
            v = layout.fields["v"]
            if self.field != "k" or v.buffer != f.buffer:
                return None
            step = v.offset - f.offset
            if self.both == "axis":
                at = next((i for i, (_, _, stride) in enumerate(axes) if stride < step), len(axes))
                axes.insert(at, ("kv0", 2, step))
            else:
                name, dims, stride = axes.pop()
                if (name, dims * stride) != ("dim0", step):
                    return None
                axes.append(("dims of K and V", 2 * dims, stride))
        if self.layers and not shared:
            return None
        if self.slots == "own":
            return axes
        names = [name for name, _, _ in axes]
        if self.slots == "split" and "slot1" not in names:
            at = names.index("slot0")
            _, size, stride = axes[at]
            return [
                *axes[:at],
                ("slot1", size // page_size, stride * page_size),
                ("slot0", page_size, stride),
                *axes[at + 1 :],
            ]
        if self.slots == "merged" and "slot1" in names and "slot2" not in names:
            at = names.index("slot1")
            (_, pages, step), (inner, size, stride) = axes[at : at + 2]
            if inner == "slot0" and step == size * stride:
                return [*axes[:at], ("slot0", pages * size, stride), *axes[at + 2 :]]
        return None


@cache
def views_of(builder, fmt) -> list[tuple[View, tuple[str, ...]]]:
    """Every view that a builder's layouts have, and the names of its axes."""
    found = {}
    for probe in PROBES:
        layout = builder(probe, fmt)
        for field in layout.fields:
            for layers in (False, True):
                for both in (None, "axis", "packed"):
                    for slots in ("own", "merged", "split"):
                        view = View(field, layers, both, slots)
                        axes = view.axes(layout, probe.page_size)
                        if axes:
                            found[view, tuple(name for name, _, _ in axes)] = None
    return list(found)
