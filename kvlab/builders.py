"""The three layouts of serving engines. A layout is one function: it says in which order the axes nest."""

from __future__ import annotations

from .field import Field, nest
from .formats import BLOCK, MXFP8, check_format, payload_dtype
from .geometry import Geometry
from .layout import Layout

# A scale part inside a page envelope is padded to this, so that the payload after it keeps its 16-byte accesses.
PART_ALIGNMENT = 16


def token_major(geometry: Geometry, fmt) -> Layout:
    """3-D: K of a layer is ``(slots, heads, head_dim)``, contiguous. sglang's default MHA pool.

    One buffer per field; the layers follow each other in it.
    """
    g = geometry

    def axes(name, item, dims):
        if _is_tile(name, fmt):
            return nest(1, ("layer", g.layers), *_tile_page(g, dims))
        return nest(item, ("layer", g.layers), ("slot", g.slots), ("head", g.heads), ("dim", dims))

    return _one_buffer_per_field("token_major", g, fmt, axes)


def head_major(geometry: Geometry, fmt) -> Layout:
    """HND: K of a layer is ``(pages, heads, page_size, head_dim)``. FlashInfer's and TensorRT-LLM's page order.

    One buffer per field; the layers follow each other in it.
    """
    g = geometry

    def axes(name, item, dims):
        if _is_tile(name, fmt):
            return nest(1, ("layer", g.layers), *_tile_page(g, dims))
        page = (("slot1", g.pages), ("head", g.heads), ("slot0", g.page_size), ("dim", dims))
        return nest(item, ("layer", g.layers), *page)

    return _one_buffer_per_field("head_major", g, fmt, axes)


def page_major(geometry: Geometry, fmt) -> Layout:
    """4-D strided: one raw buffer in which the envelope of a page holds every layer of that page.

    The envelope is ``[L0_K | L0_V | L1_K | …]``, each part page_size slots; with scales
    ``[L0_K | L0_V | L0_Ks | L0_Vs | L1_K | …]``, so that payload and scales of a page travel as one byte run. K of a
    layer is the strided view ``(pages, page_size, heads, head_dim)``. Without scales this is, byte for byte, the
    page-major pool of sglang's ``MHATokenToKVPool``.
    """
    g = geometry
    check_format(fmt, g)
    parts, layer_bytes = [], 0
    for name, item, dims in contents(g, fmt):
        page, *inside = _page(name, fmt, g, dims)
        parts.append((name, item, dims, layer_bytes, page, inside))
        part_bytes = nest(item, page, *inside)[0].stride
        align = PART_ALIGNMENT if name.endswith("_scale") else 1
        layer_bytes += -(-part_bytes // align) * align
    envelope = g.layers * layer_bytes
    fields = {}
    for name, item, dims, offset, page, inside in parts:
        axes = nest(item, (*page, envelope), ("layer", g.layers, layer_bytes), *inside)
        fields[name] = Field(name, "raw", offset, item, extents(g, dims), axes)
    return Layout("page_major", g, fmt, fields, {"raw": g.pages * envelope})


def _one_buffer_per_field(name: str, g: Geometry, fmt, axes) -> Layout:
    check_format(fmt, g)
    fields = {f: Field(f, f, 0, item, extents(g, dims), axes(f, item, dims)) for f, item, dims in contents(g, fmt)}
    return Layout(name, g, fmt, fields, {f: field.reach for f, field in fields.items()})


def contents(g: Geometry, fmt) -> list[tuple[str, int, int]]:
    """``(field, bytes of an item, dims)`` of everything a pool of this format stores."""
    item = payload_dtype(fmt).itemsize
    payload = [("k", item, g.head_dim), ("v", item, g.v_head_dim)]
    if not isinstance(fmt, MXFP8):
        return payload
    return [*payload, ("k_scale", 1, g.head_dim // BLOCK), ("v_scale", 1, g.v_head_dim // BLOCK)]


def scales_apart(g: Geometry, fmt) -> dict[str, Field]:
    """Scales in buffers of their own, for layouts whose engines store none; empty where the format has none either.

    Flat ``(layers, pages, page_size, heads, blocks)``, or ``layers`` times the tiles of :func:`_tile_page`.
    """
    fields = {}
    for name, item, dims in contents(g, fmt):
        if name.endswith("_scale"):
            axes = nest(item, ("layer", g.layers), *_page(name, fmt, g, dims))
            fields[name] = Field(name, name, 0, item, extents(g, dims), axes)
    return fields


def extents(g: Geometry, dims: int) -> dict[str, int]:
    """How many layers, heads, slots and dims of a field are real."""
    return {"layer": g.layers, "head": g.heads, "slot": g.slots, "dim": dims}


def _is_tile(name: str, fmt) -> bool:
    return name.endswith("_scale") and fmt.scales == "interleaved"


def _page(name: str, fmt, g: Geometry, dims: int) -> tuple:
    """Axes of one field over the pages of one layer, outermost first: tokens outside heads, or the tile."""
    if _is_tile(name, fmt):
        return _tile_page(g, dims)
    return ("slot1", g.pages), ("slot0", g.page_size), ("head", g.heads), ("dim", dims)


def _tile_page(g: Geometry, blocks: int) -> tuple:
    """Axes of interleaved scales: ``(pages, heads, chunks, tiles, 32, 4, 4)`` bytes.

    Row r and column c of a head's ``(page_size, blocks)`` matrix lie at
    ``(r//128)*tiles*512 + (c//4)*512 + (r%32)*16 + ((r%128)//32)*4 + c%4``: the 128x4 tile of cuBLAS's block scaling
    (32 lanes of 16 bytes), which FlashAttention 4 reads. Columns are padded to a multiple of 4. A page of one chunk
    and one tile is ``(pages, heads, 32, 4, 4)``, the shape that readers expect then.
    """
    chunks, tiles = g.page_size // 128, -(-blocks // 4)
    tile = (("slot0", 32), ("slot1", 4), ("dim0", 4))
    if chunks == tiles == 1:
        return (("slot2", g.pages), ("head", g.heads), *tile)
    return (("slot3", g.pages), ("head", g.heads), ("slot2", chunks), ("dim1", tiles), *tile)
