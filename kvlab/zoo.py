"""A zoo of other engines' layouts. Each is one function, and commit, gather and copy work on it as on any other.

Nearly all of them are one tensor with an axis of 2 for K and V somewhere in it; what differs is the order of the
axes, where the 2 stands, and whether the layers share an allocation. So a builder is its upstream shape, spelled in
words, and a docstring that says where upstream defines it. Engines have no place for MXFP8 scales in these tensors:
here they lie in buffers of their own (:func:`kvlab.builders.scales_apart`), so that every format works.

Engines that give K and V one tensor give them one head_dim. Here each of the two keeps its own size, and the halves
are then of different length; where the dims are equal the bytes are upstream's.

Pages and slots are numbered as everywhere in kvlab: slot 0 is the padding sink, and a commit skips it. vLLM and
nano-vllm mark padding with slot -1, which is skipped too; nano-vllm's block 0 is an ordinary block.
"""

from __future__ import annotations

from .builders import contents, extents, scales_apart
from .field import Field, nest
from .formats import check_format, payload_dtype
from .geometry import Geometry
from .layout import Layout


def vllm_first(geometry: Geometry, fmt) -> Layout:
    """vLLM's first: K ``(blocks, heads, head_dim/x, block, x)``, V ``(blocks, heads, head_dim, block)``, x = 16 bytes.

    Where: vllm-project/vllm, vllm/worker/cache_engine.py, ``CacheEngine.get_key_block_shape`` and
    ``get_value_block_shape`` of the first releases: a tensor each for K and V of every layer. Later
    ``PagedAttention.split_kv_cache`` (vllm/attention/ops/paged_attn.py) viewed one tensor for both so.

    Surprise: V lies transposed. Tokens are its innermost axis, so a commit writes V one element at a time, a whole
    block apart, while a reader of many tokens takes them in one run. ValueError where x does not divide head_dim.
    """
    g = geometry
    check_format(fmt, g)
    item = payload_dtype(fmt).itemsize
    x = 16 // item
    if g.head_dim % x:
        raise ValueError(
            f"vllm_first: head_dim={g.head_dim} must be a multiple of x={x}, the {item}-byte elements in 16 bytes"
        )
    block = (("layer", 1, 0), ("slot1", g.pages), ("head", g.heads))
    k = nest(item, *block, ("dim1", g.head_dim // x), ("slot0", g.page_size), ("dim0", x))
    v = nest(item, *block, ("dim", g.v_head_dim), ("slot0", g.page_size))
    fields = {
        "k": Field("k", _per_layer("k", g), 0, item, extents(g, g.head_dim), k),
        "v": Field("v", _per_layer("v", g), 0, item, extents(g, g.v_head_dim), v),
    }
    return _layout("vllm_first", g, fmt, fields)


def vllm_nhd(geometry: Geometry, fmt) -> Layout:
    """vLLM's NHD: a tensor ``(2, blocks, block, heads, head_dim)`` for each layer.

    Where: vllm-project/vllm, vllm/v1/attention/backends/flash_attn.py, ``FlashAttentionBackend.get_kv_cache_shape``,
    for most of version 1's life; then blocks stood before the 2, and now K and V are packed (:func:`vllm_packed`).

    Surprise: K and V of a block lie half the tensor apart, so a layer's block is two runs, and code that wants blocks
    outermost has to know which of the three it got.
    """
    return _one_tensor("vllm_nhd", geometry, fmt, "kv page offset head", per_layer=True)


def vllm_hnd(geometry: Geometry, fmt) -> Layout:
    """vLLM's HND: a tensor ``(2, blocks, heads, block, head_dim)`` for each layer, in memory.

    Where: as :func:`vllm_nhd`, with ``FlashAttentionBackend.get_kv_cache_stride_order`` where VLLM_KV_CACHE_LAYOUT is
    HND.

    Surprise: ``tensor.shape`` still says NHD. The backend hands out the NHD shape as a permuted view, so only the
    strides tell; code that calls ``.view`` on it, or multiplies shapes into offsets, reads other tokens.
    """
    return _one_tensor("vllm_hnd", geometry, fmt, "kv page head offset", per_layer=True)


def vllm_packed(geometry: Geometry, fmt) -> Layout:
    """vLLM's packed: a tensor ``(blocks, heads, block, 2*head_dim)`` for each layer; a token's V follows its K.

    Where: vllm-project/vllm pull request 44455 (in 0.28), ``get_kv_cache_shape`` of the attention backends, such as
    vllm/v1/attention/backends/flash_attn.py. ``FlashAttentionDiffKVBackend`` (flash_attn_diffkv.py) packs head_dim +
    v_head_dim.

    Surprise: the axis of 2 is gone. V of a head follows its K, so K alone is no longer a run of more than one head of
    one token. This is the order that the shape spells, HND; where VLLM_KV_CACHE_LAYOUT is NHD the shape stays, and
    memory has a block's tokens outside its heads.
    """
    return _one_tensor("vllm_packed", geometry, fmt, "page head offset kv", per_layer=True)


def flashinfer_nhd(geometry: Geometry, fmt) -> Layout:
    """FlashInfer's 5-D NHD: a tensor ``(pages, 2, page_size, heads, head_dim)`` for each layer.

    Where: flashinfer-ai/flashinfer, docs/tutorials/kv_layout.rst, section Page Table Layout, and the kernels' struct
    ``paged_kv_t`` in include/flashinfer/page.cuh.

    Surprise: FlashInfer allocates no cache. It takes this tensor or a pair of 4-D ones, so its kernels, like the ones
    here, get the page stride from the caller: twice a page's K in this layout.
    """
    return _one_tensor("flashinfer_nhd", geometry, fmt, "page kv offset head", per_layer=True)


def flashinfer_hnd(geometry: Geometry, fmt) -> Layout:
    """FlashInfer's 5-D HND: a tensor ``(pages, 2, heads, page_size, head_dim)`` for each layer.

    Where: as :func:`flashinfer_nhd`, with ``kv_layout="HND"``.

    Surprise: a layer's page, K and V, is one run in both orders: a copy of whole pages cannot tell them apart, and
    moves HND pages into an NHD pool without an error.
    """
    return _one_tensor("flashinfer_hnd", geometry, fmt, "page kv head offset", per_layer=True)


def tensorrt_llm(geometry: Geometry, fmt) -> Layout:
    """TensorRT-LLM's: one tensor ``(blocks, layers, 2, heads, tokens of a block, head_dim)``.

    Where: NVIDIA/TensorRT-LLM, cpp/tensorrt_llm/batch_manager/kvCacheManager.cpp, ``WindowBlockManager::allocatePools``
    for the first three axes; cpp/tensorrt_llm/kernels/kvCacheUtils.h, ``KVBlockArray::getKVLocalIdx`` for the rest.

    Surprise: the pool does not know its last three axes, it allocates them as one number. The C++ kernels make them
    HND; ``KVCacheManager.get_buffers`` in Python shows the same bytes as NHD unless told ``kv_layout="HND"``.
    """
    return _one_tensor("tensorrt_llm", geometry, fmt, "page layer kv head offset")


def mini_sglang(geometry: Geometry, fmt) -> Layout:
    """mini-sglang's: one tensor ``(2, layers, pages, page_size, heads, head_dim)``.

    Where: sgl-project/mini-sglang, python/minisgl/kvcache/mha_pool.py, ``MHAKVCache``.

    Surprise: the store kernel sees ``(slots, heads, head_dim)``, and page_size is nowhere in its arithmetic: pages
    that follow each other are a view, not a layout of their own.
    """
    return _one_tensor("mini_sglang", geometry, fmt, "kv layer page offset head")


def nano_vllm(geometry: Geometry, fmt) -> Layout:
    """nano-vllm's: one tensor ``(2, layers, blocks, block_size, heads, head_dim)``; mini-sglang's bytes.

    Where: GeeeekExplorer/nano-vllm, nanovllm/engine/model_runner.py, ``ModelRunner.allocate_kv_cache``.

    Surprise: its 15-line store kernel moves a row of heads * head_dim elements as one ``tl.arange``, so a row must be
    a power of two; the layout asks for no such thing.
    """
    return _one_tensor("nano_vllm", geometry, fmt, "kv layer page offset head")


def hicache_layer_first(geometry: Geometry, fmt) -> Layout:
    """sglang's host pool, "layer_first": one tensor ``(2, layers, slots, heads, head_dim)``.

    Where: sgl-project/sglang, python/sglang/srt/mem_cache/pool_host/mha.py, ``MHATokenToKVPoolHost.init_kv_buffer``.

    Surprise: the device pool's order, so a whole layer moves in one run; but what a cache stores is pages, and those
    fall into 2 * layers runs.
    """
    return _one_tensor("hicache_layer_first", geometry, fmt, "kv layer slot head")


def hicache_page_first(geometry: Geometry, fmt) -> Layout:
    """sglang's host pool, "page_first": one tensor ``(2, slots, layers, heads, head_dim)``.

    Where: as :func:`hicache_layer_first`.

    Surprise: it has no page axis. Tokens come first, each with all its layers, and a page is a run only because its
    tokens follow each other. The one with pages outside the layers is called "page_first_direct".
    """
    return _one_tensor("hicache_page_first", geometry, fmt, "kv slot layer head")


def hicache_page_head(geometry: Geometry, fmt) -> Layout:
    """sglang's host pool, "page_head": one tensor ``(2, pages, heads, page_size, layers, head_dim)``.

    Where: as :func:`hicache_layer_first`.

    Surprise: layers are the innermost axis but one, so that one head of a page with all its layers is one run, which
    a rank that holds other heads can fetch alone. A page of one layer falls into a run per head and token.
    """
    return _one_tensor("hicache_page_head", geometry, fmt, "kv page head offset layer")


ALL = {
    builder.__name__: builder
    for builder in (
        vllm_first,
        vllm_nhd,
        vllm_hnd,
        vllm_packed,
        flashinfer_nhd,
        flashinfer_hnd,
        tensorrt_llm,
        mini_sglang,
        nano_vllm,
        hicache_layer_first,
        hicache_page_first,
        hicache_page_head,
    )
}


def _one_tensor(name: str, g: Geometry, fmt, shape: str, per_layer: bool = False) -> Layout:
    """K and V in one tensor, or one per layer: ``shape`` names its axes, outermost first, dim left out.

    "kv" is the axis of 2. What stands right of it is one part, K's or V's; an axis left of it steps over both.
    """
    check_format(fmt, g)
    axes = {
        "layer": ("layer", g.layers),
        "page": ("slot1", g.pages),
        "offset": ("slot0", g.page_size),
        "slot": ("slot", g.slots),
        "head": ("head", g.heads),
    }
    outer, inner = ([axes[word] for word in side.split()] for side in shape.split("kv"))
    (_, item, k_dim), (_, _, v_dim), *_ = contents(g, fmt)
    part = {"k": item * k_dim, "v": item * v_dim}
    for _, size in inner:
        part = {field: size * length for field, length in part.items()}
    if outer:
        outer[-1] = (*outer[-1], part["k"] + part["v"])
    if per_layer:
        outer.insert(0, ("layer", 1, 0))
    buffer = _per_layer("layer", g) if per_layer else "kv"
    fields = {}
    for field, dims, start in (("k", k_dim, 0), ("v", v_dim, part["k"])):
        fields[field] = Field(field, buffer, start, item, extents(g, dims), nest(item, *outer, *inner, ("dim", dims)))
    return _layout(name, g, fmt, fields)


def _per_layer(name: str, g: Geometry) -> tuple[str, ...]:
    return tuple(f"{name}.{i}" for i in range(g.layers))


def _layout(name: str, g: Geometry, fmt, fields: dict[str, Field]) -> Layout:
    """The layout of K and V with the scales beside them; every buffer ends with its last field."""
    fields = fields | scales_apart(g, fmt)
    buffers = {}
    for field in fields.values():
        for buffer in (field.buffer,) if isinstance(field.buffer, str) else field.buffer:
            buffers[buffer] = max(field.reach, buffers.get(buffer, 0))
    return Layout(name, g, fmt, fields, buffers)
