"""Adopting the tensors of a live engine: a layout read off shapes and strides, over memory that is not ours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch

from .builders import contents, extents
from .field import Axis, Field
from .formats import MXFP8, PLAIN, check_format
from .geometry import Geometry
from .layout import Layout

# What each axis of a tensor means, by the tensor's rank: coordinate and digit (digit 0 is the fastest).
TOKEN_MAJOR = {3: ("slot0", "head0", "dim0"), 4: ("slot1", "slot0", "head0", "dim0")}
HEAD_MAJOR = {4: ("slot1", "head0", "slot0", "dim0")}
TILE = {
    5: ("slot2", "head0", "slot0", "slot1", "dim0"),
    7: ("slot3", "head0", "slot2", "dim1", "slot0", "slot1", "dim0"),
}


def adopt_tensors(k_tensors, v_tensors, k_scales, v_scales, head_major: bool, page_size: int):
    """Layout and buffers of existing tensors, zero-copy, from their own shapes and strides.

    Parameters
    ----------
    k_tensors, v_tensors : sequences of tensors, one per layer
        ``(slots, heads, dim)``, ``(pages, page_size, heads, dim)``, or ``(pages, heads, page_size, dim)`` where
        ``head_major``. Any strides: a page stride is never rebuilt as page_size * row, since a layer is often a view
        of a larger tensor.
    k_scales, v_scales : sequences of uint8 or float8_e8m0fnu tensors, one per layer, or None
        UE8M0 scales, flat (K's shape with dim/32 blocks) or interleaved ``(pages, heads, 32, 4, 4)`` or
        ``(pages, heads, chunks, tiles, 32, 4, 4)``. K and V are then E4M3 (or its bytes as uint8).
    page_size : int
        Slots of a page where neither K nor the scales say it (3-D K).

    Returns
    -------
    Layout, dict of str to uint8 tensor

    Raises
    ------
    TypeError, ValueError
        Tensors that do not fit each other; one that overlaps itself; K and V that share bytes.
    """
    given = {"k": k_tensors, "v": v_tensors}
    if (k_scales is None) != (v_scales is None):
        missing = "k_scales" if k_scales is None else "v_scales"
        raise ValueError(f"adopt: {missing} is missing; scales come for both K and V, or for neither")
    if k_scales is not None:
        given |= {"k_scale": k_scales, "v_scale": v_scales}
    tensors = {name: _list_of(name, x) for name, x in given.items()}
    for name, layers in tensors.items():
        if len(layers) != len(tensors["k"]):
            raise ValueError(f"adopt: {name} has {len(layers)} layers, k has {len(tensors['k'])}")
    names = {name: _axis_names(name, layers[0], head_major) for name, layers in tensors.items()}
    fmt = _format(tensors, names)
    geometry = _geometry(tensors, names, fmt, page_size)
    check_format(fmt, geometry)
    buffers, places = _places(tensors)
    fields = {}
    for name, item, dims in contents(geometry, fmt):
        first = tensors[name][0]
        _check_shape(name, first, names[name], geometry, dims)
        steps = zip(names[name], first.shape, first.stride(), strict=True)
        axes = [Axis(n[:-1], int(n[-1]), size, stride * item) for n, size, stride in steps]
        buffer, offset, layer_stride = places[name]
        many = 1 if isinstance(buffer, tuple) else geometry.layers
        axes.insert(0, Axis("layer", 0, many, layer_stride))
        fields[name] = Field(name, buffer, offset, item, extents(geometry, dims), tuple(axes))
    layout = Layout("adopted", geometry, fmt, fields, {n: b.numel() for n, b in buffers.items()})
    _no_shared_bytes(layout, buffers)
    return layout, buffers


def _list_of(name: str, layers) -> list[torch.Tensor]:
    layers = list(layers)
    if not layers or not all(isinstance(x, torch.Tensor) for x in layers):
        raise TypeError(f"adopt: {name} must be a sequence of tensors, one per layer")
    if name.endswith("_scale"):
        layers = [x.view(torch.uint8) if x.dtype == torch.float8_e8m0fnu else x for x in layers]
    first = layers[0]
    for i, x in enumerate(layers):
        same = (x.shape, x.stride(), x.dtype, x.device) == (first.shape, first.stride(), first.dtype, first.device)
        if not same:
            raise ValueError(
                f"adopt: {name}[{i}] is {tuple(x.shape)} stride {x.stride()} {x.dtype} on {x.device}, {name}[0] is "
                f"{tuple(first.shape)} stride {first.stride()} {first.dtype} on {first.device}; layers must agree"
            )
    return layers


def _axis_names(name: str, x: torch.Tensor, head_major: bool) -> tuple[str, ...]:
    legal = HEAD_MAJOR if head_major else TOKEN_MAJOR
    if name.endswith("_scale"):
        legal = legal | TILE
    if x.dim() not in legal:
        raise ValueError(
            f"adopt: {name} has shape {tuple(x.shape)}; legal ranks are {sorted(legal)} (head_major={head_major})"
        )
    return legal[x.dim()]


def _format(tensors, names):
    dtype = tensors["k"][0].dtype
    if tensors["v"][0].dtype != dtype:
        raise TypeError(f"adopt: k is {dtype} and v is {tensors['v'][0].dtype}; they must be of one dtype")
    if "k_scale" not in tensors:
        if dtype not in PLAIN.values():
            raise TypeError(f"adopt: k is {dtype}; view it as what its bytes are, such as x.view(torch.float8_e4m3fn)")
        return dtype
    if dtype not in (torch.uint8, torch.float8_e4m3fn):
        raise TypeError(f"adopt: k is {dtype} but comes with scales; MXFP8 payload is float8_e4m3fn (or uint8)")
    placements = {name: names[name] in TILE.values() for name in ("k_scale", "v_scale")}
    if len(set(placements.values())) > 1:
        raise ValueError("adopt: k_scales and v_scales must both be flat or both interleaved")
    for name in placements:
        if tensors[name][0].dtype != torch.uint8:
            raise TypeError(f"adopt: {name} is {tensors[name][0].dtype}; UE8M0 scales are uint8 or float8_e8m0fnu")
    return MXFP8(scales="interleaved" if placements["k_scale"] else "flat")


def _geometry(tensors, names, fmt, page_size: int) -> Geometry:
    k, v = tensors["k"][0], tensors["v"][0]
    sizes = dict(zip(names["k"], k.shape, strict=True))
    if "slot1" in sizes:
        page_size, pages = sizes["slot0"], sizes["slot1"]
    else:
        if isinstance(fmt, MXFP8) and fmt.scales == "interleaved":
            tile = dict(zip(names["k_scale"], tensors["k_scale"][0].shape, strict=True))
            page_size = 128 * (tile["slot2"] if "slot3" in tile else 1)
        if sizes["slot0"] % page_size:
            raise ValueError(f"adopt: k has {sizes['slot0']} slots, which is no multiple of page_size={page_size}")
        pages = sizes["slot0"] // page_size
    return Geometry(len(tensors["k"]), sizes["head0"], sizes["dim0"], v.shape[-1], page_size, pages)


def _check_shape(name: str, x: torch.Tensor, names: tuple[str, ...], g: Geometry, dims: int) -> None:
    have = dict(zip(names, x.shape, strict=True))
    tile = names in TILE.values()
    slots = int(np.prod([n for a, n in have.items() if a.startswith("slot")]))
    blocks = int(np.prod([n for a, n in have.items() if a.startswith("dim")]))
    # a tile pads its columns to a multiple of 4, so its blocks alone say less than dims
    want_blocks = -(-dims // 4) * 4 if tile else dims
    tiled = not tile or tuple(x.shape[-3:]) == (32, 4, 4)  # a tile with axes swapped has as many bytes
    in_pages = have.get("slot1", g.pages) == g.pages or tile
    if (slots, have["head0"], blocks) != (g.slots, g.heads, want_blocks) or not tiled or not in_pages:
        raise ValueError(
            f"adopt: {name} has shape {tuple(x.shape)}, which does not fit {g.slots} slots in pages of {g.page_size}, "
            f"{g.heads} heads and {dims} elements or blocks"
        )


def _places(tensors) -> tuple[dict[str, torch.Tensor], dict[str, tuple]]:
    """Buffers, and per field ``(buffer or one per layer, offset in bytes, layer stride in bytes)``.

    A field whose layers are evenly spaced in one storage gets that storage as its buffer; else each layer has its own.
    """
    storages = {}
    for name, layers in tensors.items():
        for x in layers:
            storages.setdefault(x.untyped_storage().data_ptr(), set()).add(name)
    shared = [key for key, users in storages.items() if len(users) > 1]
    buffers, places = {}, {}
    for name, layers in tensors.items():
        item = layers[0].element_size()
        offsets = [x.storage_offset() * item for x in layers]
        keys = [x.untyped_storage().data_ptr() for x in layers]
        steps = {b - a for a, b in pairwise(offsets)} or {0}
        if len(set(keys)) == 1 and len(steps) == 1 and (len(layers) == 1 or min(steps) > 0):
            buffer = name if keys[0] not in shared else "raw" if len(shared) == 1 else f"raw{shared.index(keys[0])}"
            whole = _bytes_of(layers[0])
            buffers[buffer] = whole[: len(whole) // item * item]  # so that it can be viewed as items
            places[name] = (buffer, offsets[0], steps.pop())
            continue
        own = tuple(f"{name}.{i}" for i in range(len(layers)))
        for buffer, x, offset in zip(own, layers, offsets, strict=True):
            span = (sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1) * item
            buffers[buffer] = _bytes_of(x)[offset : offset + span]
        places[name] = (own, 0, 0)
    return buffers, places


def _bytes_of(x: torch.Tensor) -> torch.Tensor:
    """All bytes of a tensor's storage, as a 1-D uint8 tensor on the same memory."""
    return torch.empty(0, dtype=torch.uint8, device=x.device).set_(x.untyped_storage())


def _no_shared_bytes(layout: Layout, buffers: dict[str, torch.Tensor]) -> None:
    """ValueError where two fields, or two layers of one, share a byte: a commit of one would overwrite the other.

    Compares addresses, since one memory can lie behind two buffers. Looks at the first and last slot of every layer;
    fields that interleave do so in every slot, and of two ranges that cross, one begins or ends inside the other.
    """
    g = layout.geometry
    parts = []
    for name, f in layout.fields.items():
        for buffer in (f.buffer,) if isinstance(f.buffer, str) else f.buffer:
            start = buffers[buffer].data_ptr()
            parts.append((name if isinstance(f.buffer, str) else buffer, f, start, start + f.reach))
    slot = np.array([0, g.slots - 1])[None, :, None, None]
    head = np.arange(g.heads)[None, None, :, None]
    for i, (name, f, start, end) in enumerate(parts):
        near = [p for j, p in enumerate(parts) if j != i and p[2] < end and start < p[3]]
        if not near:
            continue
        layer = np.arange(f.modes["layer"][0][0])[:, None, None, None]
        address = start + f.byte(layer, slot, head, np.arange(f.extents["dim"])).reshape(-1)
        for other_name, other, other_start, _ in near:
            if other.invert(address - other_start)[1].any():
                raise ValueError(f"adopt: {name} and {other_name} share bytes; each field needs memory of its own")
