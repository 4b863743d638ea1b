"""What a case may say: a file is data from a stranger, so every number is checked before memory is taken.

A description that passes cannot address a byte outside its own buffers, and what it asks for is bounded.
"""

from __future__ import annotations

from math import prod

from .. import checks
from ..builders import contents, extents
from ..field import COORDINATES
from ..formats import check_format
from ..geometry import Geometry
from ..layout import Layout

LARGEST_POOL = 1 << 38  # 256 GiB: more than a GPU holds
LONGEST_NAME = 80
MOST_BUFFERS = 4096  # four for each of 1,024 layers


class CaseError(ValueError):
    """A case file that cannot be read: the message names the file, what is wrong, and what to do."""


def parse_layout(d) -> Layout:
    """``Layout.from_dict`` of a description that may be hostile.

    Raises
    ------
    ValueError
        Naming the entry, its value and what is legal: wrong types, sizes beyond the limits, fields that the format
        does not have, that leave their buffers, or whose cells share bytes.
    """
    _keys("layout", d, {"name": str, "geometry": dict, "format": str, "fields": list, "buffers": dict})
    _keys("geometry", d["geometry"], dict.fromkeys(Geometry(1, 1, 1).to_dict(), int))
    for name, size in d["geometry"].items():
        _between(f"geometry {name}", size, 1, LARGEST_POOL)
    if not 1 <= len(d["buffers"]) <= MOST_BUFFERS:
        raise ValueError(f"it has {len(d['buffers'])} buffers; legal are 1 … {MOST_BUFFERS}")
    for name in (d["name"], *d["buffers"]):
        if not name.isprintable() or not 1 <= len(name) <= LONGEST_NAME:  # it will be shown in a terminal
            raise ValueError(f"name {name!r:.100} must be 1 … {LONGEST_NAME} printable characters")
    for name, size in d["buffers"].items():
        _between(f"the size of buffer {name!r}", size, 1, LARGEST_POOL)
    if sum(d["buffers"].values()) > LARGEST_POOL:
        raise ValueError(f"its buffers take {sum(d['buffers'].values()):,} bytes; at most {LARGEST_POOL:,} are read")
    for field in d["fields"]:
        _field_types(field)
    names = [f["name"] for f in d["fields"]]
    if len(set(names)) < len(names):
        raise ValueError(f"a field is described twice: {names}")
    layout = Layout.from_dict(d)  # raises where cells of one field share bytes
    check_format(layout.format, layout.geometry)
    expected = contents(layout.geometry, layout.format)
    if names != [name for name, _, _ in expected]:
        raise ValueError(f"fields are {names}; this format has {[name for name, _, _ in expected]}, in this order")
    for name, item, dims in expected:
        _check_field(layout, name, item, dims)
    return layout


def _field_types(d) -> None:
    """The entries of one field have the right types."""
    kinds = {"name": str, "buffer": (str, list), "offset": int, "item": int, "extents": dict, "axes": list}
    _keys("a field", d, kinds)
    what = f"field {d['name']!r}"
    if isinstance(d["buffer"], list) and not all(isinstance(b, str) for b in d["buffer"]):
        raise ValueError(f"{what}: buffer={d['buffer']!r:.80} must be a name, or a list of names")
    _between(f"{what}: offset", d["offset"], 0, LARGEST_POOL)
    digits = {c: [] for c in COORDINATES}
    for axis in d["axes"]:
        if not isinstance(axis, list) or len(axis) != 4 or axis[0] not in COORDINATES:
            raise ValueError(f"{what}: axis {axis!r:.80} is not [coordinate, digit, size, stride in bytes]")
        _between(f"{what}: digit of axis {axis[0]}", axis[1], 0, 15)
        _between(f"{what}: size of axis {axis[0]}", axis[2], 1, LARGEST_POOL)
        _between(f"{what}: stride of axis {axis[0]}", axis[3], 0, LARGEST_POOL)
        digits[axis[0]].append(axis[1])
    for coordinate, have in digits.items():
        if sorted(have) != list(range(len(have))) or not have:
            raise ValueError(f"{what}: the digits of {coordinate} are {sorted(have)}; legal are 0, 1, … each once")


def _check_field(layout: Layout, name: str, item: int, dims: int) -> None:
    """The field holds what geometry and format ask for, and stays within its buffers."""
    g, f, what = layout.geometry, layout.fields[name], f"field {name!r}"
    if f.item != item or f.extents != extents(g, dims):
        asked = f"geometry and format ask for {item} and {extents(g, dims)}"
        raise ValueError(f"{what} has {f.item}-byte items and extents {f.extents}; {asked}")
    own = not isinstance(f.buffer, str)
    for coordinate, modes in f.modes.items():
        count, reach = f.extents[coordinate], prod(size for size, _ in modes)
        if coordinate == "layer" and own:
            if len(f.buffer) != g.layers or reach != 1:
                raise ValueError(
                    f"{what} has {len(f.buffer)} buffers of its own for {g.layers} layers of one step each"
                )
        elif reach < count:
            raise ValueError(f"{what}: the {coordinate} axes reach {reach} of {count}")
        if len(modes) > 1 and coordinate == "layer":
            raise ValueError(f"{what}: the layer axis has {len(modes)} digits; legal is 1")
    if any(x % f.item for x in (f.offset, *(a.stride for a in f.axes))):
        raise ValueError(f"{what}: offset and strides must be multiples of its {f.item}-byte items")
    for buffer in f.buffer if own else (f.buffer,):
        size = layout.buffers.get(buffer)
        if size is None:
            raise ValueError(f"{what} lies in buffer {buffer!r}; the file has {', '.join(layout.buffers)[:200]}")
        if f.reach > size or size % f.item:
            raise ValueError(f"{what} reaches byte {f.reach:,} of buffer {buffer!r}, which has {size:,}")


def _keys(what: str, d, kinds: dict) -> None:
    """``d`` is a dict with these keys and no others, of these types."""
    if not isinstance(d, dict) or set(d) != set(kinds):
        have = sorted(map(str, d)) if isinstance(d, dict) else type(d).__name__
        raise ValueError(f"{what} is described by {have!s:.200}; legal is {sorted(kinds)}")
    for key, kind in kinds.items():
        if not isinstance(d[key], kind) or isinstance(d[key], bool):
            raise ValueError(f"{what}: {key}={d[key]!r:.80} is {type(d[key]).__name__}")


def _between(what: str, value, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ValueError(f"{what} is {value!r:.80}; legal are ints {low} … {high:,}")


def check_call(layout: Layout, device, layer: int | None, call: dict) -> None:
    """Shapes and dtypes of a commit; its values may be the very fault, so they are not looked at."""
    g, loc = layout.geometry, call["loc"]
    given = [name for name, x in call.items() if x is not None]
    if loc is None:
        if given:
            raise ValueError(f"loc is missing, but {given[0]} is given")
        return
    flat = checks.slots_2d("loc", loc, device)
    if call["commit_lens"] is not None:
        checks.commit_lens_ok(call["commit_lens"], flat, loc.dim(), check=False)
    if call["row_mask"] is not None:
        checks.row_mask_2d(call["row_mask"], flat, tuple(loc.shape))
    if (call["k"] is None) != (call["v"] is None):
        raise ValueError(f"{'k' if call['k'] is None else 'v'} is missing, but the other of K and V is given")
    if call["k"] is None:
        if call["k_scale"] is not None or call["v_scale"] is not None:
            raise ValueError("k_scale or v_scale is given without k and v")
        return
    _, layers = checks.layer_range(layer, g.layers)
    k, v = checks.source_rows(g, device, layer, layers, flat.numel(), call["k"], call["v"])
    checks.commit_scales(
        layout.format, g, device, layer, layers, k, v, flat.numel(), call["k_scale"], call["v_scale"], False
    )
