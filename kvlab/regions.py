"""Regions of a pool that a byte transfer can address by page: pointer, length and bytes of one page."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from .runs import ALIGNMENT


@dataclass
class Region:
    """``pages`` items of ``item`` bytes from ``start`` on; item p holds page p of the parts in it."""

    buffer: str
    start: int
    item: int
    owned: int = 0
    parts: list[tuple[str, int]] = field(default_factory=list)


def buf_infos(pool, scales: bool) -> tuple[list[int], list[int], list[int]]:
    """See :meth:`kvlab.KVPool.get_contiguous_buf_infos`; ``scales`` asks for the regions that hold nothing else.

    Raises
    ------
    ValueError
        Pages that no region describes: not evenly spaced, or with foreign bytes between them (a view of a larger
        tensor). ``kvlab.copy`` and :mod:`kvlab.transfer` move such pages.
    """
    pages = pool.layout.geometry.pages
    chosen = [r for r in regions(pool.layout) if all(name.endswith("_scale") for name, _ in r.parts) == scales]
    pointers = [pool.buffers[r.buffer].data_ptr() + r.start for r in chosen]
    return pointers, [r.item * pages for r in chosen], [r.item for r in chosen]


def regions(layout) -> list[Region]:
    """The fewest regions that hold every field of every layer: parts whose pages lie in one item share a region."""
    g = layout.geometry
    found: list[Region] = []
    parts = [(name, layer) for name in layout.fields for layer in range(g.layers)]
    for name, layer in sorted(parts, key=lambda part: _origin(layout.fields[part[0]], part[1])):
        f = layout.fields[name]
        buffer, origin, stride = f.buffer_of(layer), _origin(f, layer), page_stride(f, g)
        if stride is None:
            raise ValueError(f"get_contiguous_buf_infos: pages of {name!r} are not evenly spaced; use kvlab.copy")
        home = next((r for r in found if r.buffer == buffer and r.item == stride and origin < r.start + stride), None)
        if home is None:
            home = Region(buffer, origin, stride)
            found.append(home)
        home.owned += _page_cells(f, g) * f.item
        home.parts.append((name, layer))
    for r in found:
        gap = r.item - r.owned
        if gap >= ALIGNMENT * len(r.parts) or r.start + r.item * g.pages > layout.buffers[r.buffer]:
            raise ValueError(
                f"get_contiguous_buf_infos: between two pages of {r.parts[0][0]!r} lie {gap} bytes that are not the "
                "pool's; move its pages with kvlab.copy or kvlab.transfer"
            )
    return sorted(found, key=lambda r: parts.index(min(r.parts, key=parts.index)))


def page_stride(f, g) -> int | None:
    """Bytes from one page of a field to the next, or None where pages are not evenly spaced."""
    if g.pages == 1:
        return _page_cells(f, g) * f.item
    steps = {b - a for a, b in pairwise(f.byte(0, page * g.page_size, 0, 0) for page in range(min(g.pages, 3)))}
    return steps.pop() if len(steps) == 1 else None


def _origin(f, layer: int) -> int:
    return f.offset + layer * f.layer_stride


def _page_cells(f, g) -> int:
    """Cells that one page of one layer takes up, a tile's unused columns included."""
    cells = 1
    for axis in f.axes:
        if axis.coordinate in ("head", "dim"):
            cells *= axis.size
    return cells * g.page_size
