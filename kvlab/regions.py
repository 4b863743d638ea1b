"""Regions of a pool that a byte transfer can address by page: pointer, length and bytes of one page."""

from __future__ import annotations

from itertools import pairwise


def buf_infos(pool, names: tuple[str, str]) -> tuple[list[int], list[int], list[int]]:
    """See :meth:`kvlab.KVPool.get_contiguous_buf_infos`.

    Raises
    ------
    ValueError
        Pages of a field that are not evenly spaced byte runs (a strided view of an engine's tensor): no item length
        describes them. ``kvlab.copy`` and :mod:`kvlab.transfer` move such pages.
    """
    g = pool.layout.geometry
    envelope = envelope_bytes(pool.layout)
    if envelope:
        if names[0] not in ("k", "v"):
            return [], [], []
        (buffer,) = pool.buffers.values()
        return [buffer.data_ptr()], [buffer.numel()], [envelope]
    regions = []
    for name in names:
        field = pool.layout.fields.get(name)
        if field is None:
            continue
        item = page_bytes(field, g)
        if item is None:
            raise ValueError(
                f"get_contiguous_buf_infos: a page of {name!r} is not one byte run at a fixed distance from the next; "
                "move its pages with kvlab.copy or kvlab.transfer"
            )
        for layer in range(g.layers):
            start = pool.buffers[field.buffer_of(layer)].data_ptr() + field.offset + layer * field.layer_stride
            regions.append((start, item * g.pages, item))
    return tuple(list(x) for x in zip(*regions, strict=True)) if regions else ([], [], [])


def envelope_bytes(layout) -> int | None:
    """Bytes of a page where all fields of all layers of a page fill one evenly divided buffer, else None."""
    g = layout.geometry
    if len(layout.buffers) != 1 or layout.nbytes % g.pages:
        return None
    envelope = layout.nbytes // g.pages
    for field in layout.fields.values():
        inside = field.reach - (g.pages - 1) * envelope
        if page_stride(field, g) != envelope or inside > envelope or not isinstance(field.buffer, str):
            return None
    return envelope


def page_stride(field, g) -> int | None:
    """Bytes from one page of a field to the next, or None where pages are not evenly spaced."""
    starts = [field.byte(0, page * g.page_size, 0, 0) for page in range(min(g.pages, 3))]
    steps = {b - a for a, b in pairwise(starts)}
    if g.pages == 1:
        return field.reach - field.offset - (g.layers - 1) * field.layer_stride
    return steps.pop() if len(steps) == 1 else None


def page_bytes(field, g) -> int | None:
    """Bytes of one page of one layer of a field where that page is one run and the next one follows it, else None."""
    stride = page_stride(field, g)
    in_layer = field.reach - field.offset - (g.layers - 1) * field.layer_stride
    return stride if stride is not None and stride * g.pages == in_layer else None
