"""Where each zoo layout keeps a row, worked out with torch views of the upstream shapes: no line of kvlab's arithmetic.

A buffer of items is filled with 0, 1, 2 …, viewed in the upstream shape and indexed as upstream does it: what comes
out is the place of every element.
"""

import torch

from .helpers import BITS, BUILDERS, placed


def places(layout, field: str) -> torch.Tensor:
    """``(layers, pages, page_size, heads, dim)``: which item of :func:`all_items` each element is."""
    item = layout.fields["k"].item
    iota = torch.arange(layout.nbytes // item).split([size // item for size in layout.buffers.values()])
    items = dict(zip(layout.buffers, iota, strict=True))
    return torch.stack([upstream(layout, items, field, i) for i in range(layout.geometry.layers)])


def all_items(pool) -> torch.Tensor:
    """The bits of all buffers of a pool, one after another; a copy."""
    return torch.cat(list(pool.buffers.values())).view(BITS[pool.dtype.itemsize])


def upstream(layout, items: dict[str, torch.Tensor], field: str, layer: int) -> torch.Tensor:
    """``(pages, page_size, heads, dim)`` of one layer of a field, out of 1-D buffers of items."""
    if layout.name in BUILDERS:
        return placed(layout, items, field, layer)
    g, v = layout.geometry, int(field == "v")
    pages, size, heads, dim, layers = g.pages, g.page_size, g.heads, g.head_dim, g.layers
    if field.endswith("_scale"):  # ours, not upstream's
        return items[field].view(layers, pages, size, heads, -1)[layer]
    shape = {
        "vllm_nhd": (2, pages, size, heads, dim),
        "vllm_hnd": (2, pages, heads, size, dim),
        "vllm_packed": (pages, heads, size, 2 * dim),
        "flashinfer_nhd": (pages, 2, size, heads, dim),
        "flashinfer_hnd": (pages, 2, heads, size, dim),
        "tensorrt_llm": (pages, layers, 2, heads, size, dim),
        "mini_sglang": (2, layers, pages, size, heads, dim),
        "nano_vllm": (2, layers, pages, size, heads, dim),
        "hicache_layer_first": (2, layers, pages * size, heads, dim),
        "hicache_page_first": (2, pages * size, layers, heads, dim),
        "hicache_page_head": (2, pages, heads, size, layers, dim),
    }
    if layout.name == "vllm_first":
        x = 16 // layout.fields["k"].item
        buffer = items[f"{field}.{layer}"]
        if field == "v":  # value_cache[block, head, :, offset]
            return buffer.view(pages, heads, g.v_head_dim, size).permute(0, 3, 1, 2)
        cache = buffer.view(pages, heads, dim // x, size, x)  # key_cache[block, head, dim // x, offset, dim % x]
        return torch.stack([cache[:, :, d // x, :, d % x] for d in range(dim)], -1).transpose(1, 2)
    tensor = items[f"layer.{layer}" if f"layer.{layer}" in items else "kv"].view(shape[layout.name])
    match layout.name:
        case "vllm_nhd":
            return tensor[v]
        case "vllm_hnd":
            return tensor[v].permute(0, 2, 1, 3)
        case "vllm_packed":
            return tensor.transpose(1, 2).split(dim, dim=-1)[v]
        case "flashinfer_nhd":
            return tensor[:, v]
        case "flashinfer_hnd":
            return tensor[:, v].permute(0, 2, 1, 3)
        case "tensorrt_llm":
            return tensor[:, layer, v].permute(0, 2, 1, 3)
        case "mini_sglang" | "nano_vllm":
            return tensor[v, layer]
        case "hicache_layer_first":
            return tensor[v, layer].view(pages, size, heads, dim)
        case "hicache_page_first":
            return tensor[v].transpose(0, 1)[layer].unflatten(0, (pages, size))
        case "hicache_page_head":
            return tensor[v, :, :, :, layer].permute(0, 2, 1, 3)
