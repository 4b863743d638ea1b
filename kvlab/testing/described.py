"""Is a layout's description sound? Checked before any kernel runs: a field past its buffer would be written past it."""

from __future__ import annotations

import json

import numpy as np

from ..builders import contents
from ..formats import MXFP8, format_name
from ..layout import Layout


def described(layout, geometry, fmt) -> str | None:
    """The first thing that is wrong with the description, in words; None where it is sound."""
    if not isinstance(layout, Layout):
        return f"the builder returned a {type(layout).__name__}, not a kvlab.Layout"
    if layout.geometry != geometry or layout.format != fmt:
        return f"the layout describes {layout.geometry} {layout.format}, not what was asked for"
    for check in (_fields, _inside, _one_owner, _inverse, _tiles, _json):
        if problem := check(layout):
            return problem
    return None


def cells(layout, name: str):
    """Coordinates of every cell of a field: arrays ``layer, slot, head, dim``, each ``(cells,)``."""
    x = layout.fields[name].extents
    grid = np.indices((x["layer"], x["slot"], x["head"], x["dim"])).reshape(4, -1)
    return tuple(grid)


def _fields(layout) -> str | None:
    wanted = {name: (item, dims) for name, item, dims in contents(layout.geometry, layout.format)}
    if set(layout.fields) != set(wanted):
        return f"it has the fields {sorted(layout.fields)}; this format needs {sorted(wanted)}"
    g = layout.geometry
    for name, (item, dims) in wanted.items():
        f, want = layout.fields[name], {"layer": g.layers, "head": g.heads, "slot": g.slots, "dim": dims}
        if f.name != name:
            return f"fields[{name!r}] calls itself {f.name!r}"
        if f.item != item:
            return f"field {name!r} has items of {f.item} bytes; this format stores {item}"
        if f.extents != want:
            return f"field {name!r} has the extents {f.extents}; the geometry asks for {want}"
        for coordinate, modes in f.modes.items():
            own = coordinate == "layer" and not isinstance(f.buffer, str)
            reached = int(np.prod([size for size, _ in modes]))
            if not own and reached < want[coordinate]:
                return f"field {name!r}: its {coordinate} axes reach {reached} of {want[coordinate]}"
        if not isinstance(f.buffer, str) and len(f.buffer) != g.layers:
            return f"field {name!r} names {len(f.buffer)} buffers for {g.layers} layers"
        # kernels address items, not bytes
        odd = [a for a in f.axes if a.size > 1 and a.stride % item]
        if f.offset % item or odd:
            what = f"its offset {f.offset}" if f.offset % item else f"the {odd[0].coordinate} stride {odd[0].stride}"
            return f"field {name!r}: {what} is no multiple of its {item}-byte items"
    return None


def _inside(layout) -> str | None:
    for name, f in layout.fields.items():
        for layer in range(f.extents["layer"]):
            buffer = f.buffer_of(layer)
            if buffer not in layout.buffers:
                return f"field {name!r} of layer {layer} lies in {buffer!r}; the buffers are {list(layout.buffers)}"
            if f.offset < 0 or f.reach > layout.buffers[buffer]:
                return (
                    f"field {name!r} reaches from byte {f.offset} to {f.reach}, but {buffer!r} has "
                    f"{layout.buffers[buffer]} bytes"
                )
    return None


def _places(layout, name: str):
    """Per buffer: first byte of every cell in it, and the cells' coordinates."""
    layer, slot, head, dim = cells(layout, name)
    for buffer in layout.buffers:
        f = layout.fields[name]
        mine = np.array([f.buffer_of(i) == buffer for i in range(f.extents["layer"])])[layer]
        if mine.any():
            at = tuple(x[mine] for x in (layer, slot, head, dim))
            own = at[0] if isinstance(f.buffer, str) else np.zeros_like(at[0])
            yield buffer, f.byte(own, *at[1:]), at


def _one_owner(layout) -> str | None:
    taken = {buffer: np.full(size, -1, np.int64) for buffer, size in layout.buffers.items()}
    for i, (name, f) in enumerate(layout.fields.items()):
        for buffer, start, at in _places(layout, name):
            for byte in range(f.item):
                here = start + byte
                order = np.argsort(here, kind="stable")
                twice = np.flatnonzero(np.diff(here[order]) == 0)
                if len(twice):
                    a, b = order[twice[0]], order[twice[0] + 1]
                    return f"byte {here[a]} of {buffer!r} belongs to {_words(name, at, a)} and to {_words(name, at, b)}"
                before = taken[buffer][here]
                if (before >= 0).any():
                    a = int(np.flatnonzero(before >= 0)[0])
                    other = list(layout.fields)[before[a]]
                    return f"byte {here[a]} of {buffer!r} belongs to {_words(name, at, a)} and to field {other!r}"
                taken[buffer][here] = i
    return None


def _inverse(layout) -> str | None:
    for i, (name, f) in enumerate(layout.fields.items()):
        for buffer, start, at in _places(layout, name):
            for byte in {0, f.item - 1}:
                found = layout.explain(buffer, start + byte)
                got = np.stack([found.field, found.layer, found.slot, found.head, found.dim, found.byte])
                want = np.stack([np.full(len(start), i), *at, np.full(len(start), byte)])
                wrong = np.flatnonzero((got != want).any(0))
                if len(wrong):
                    a = int(wrong[0])
                    return (
                        f"byte {start[a] + byte} of {buffer!r} is {_words(name, at, a)}, but explain says "
                        f"{layout.explain(buffer, int(start[a] + byte))}"
                    )
    return None


def _tiles(layout) -> str | None:
    """Interleaved scales lie in 32x4x4 tiles: 128 rows and 4 columns are 512 bytes, in cuBLAS's order of scale factors.

    Where tiles lie is the layout's business; inside one, its readers (block-scaled matrix products) compute the byte.
    """
    if not isinstance(layout.format, MXFP8) or layout.format.scales != "interleaved":
        return None
    for name in ("k_scale", "v_scale"):
        layer, slot, head, dim = cells(layout, name)
        row = slot % layout.geometry.page_size % 128
        byte = layout.locate(name, layer, slot, head, dim)[1]
        corner = layout.locate(name, layer, slot - row, head, dim // 4 * 4)[1]
        wrong = np.flatnonzero(byte - corner != row % 32 * 16 + row // 32 * 4 + dim % 4)
        if len(wrong):
            i = int(wrong[0])
            want = corner[i] + row[i] % 32 * 16 + row[i] // 32 * 4 + dim[i] % 4
            return (
                f"its scales are no 128x4 tiles, as the format {format_name(layout.format)} promises: "
                f"{_words(name, (layer, slot, head, dim), i)} lies at byte {byte[i]}, and in a tile at byte {want}"
            )
    return None


def _json(layout) -> str | None:
    if Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) != layout:
        return "Layout.from_dict(layout.to_dict()) is another layout"
    return None


def _words(name: str, at, i: int) -> str:
    layer, slot, head, dim = (int(x[i]) for x in at)
    return f"{name} layer {layer} slot {slot} head {head} dim {dim}"
