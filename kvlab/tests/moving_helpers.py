"""Pools with known content, as dense bytes ``(layers, slots, heads, bytes of a head)`` per field, and what moving does.

Where those bytes lie comes from :func:`mx_helpers.whole_buffers`: plain reshapes and torchao's tile, nothing of kvlab.
"""

from __future__ import annotations

import numpy as np
import torch

import kvlab
from kvlab.backends import reference_backend

from .helpers import BUILDERS, DEVICE, POISON, assert_same_bytes, one_launch, random_bytes
from .mx_helpers import whole_buffers

FLAT, TILED = kvlab.MXFP8("flat"), kvlab.MXFP8("interleaved")
FOREIGN = 0x3C  # padding of a source: it must not travel
_KNOWN: dict[str, dict[str, np.ndarray]] = {}
FORMATS = {"bf16": torch.bfloat16, "fp32": torch.float32, "e4m3": torch.float8_e4m3fn, "flat": FLAT, "tiled": TILED}


def layout_of(builder: str, fmt, page_size: int = 4, pages: int = 8, **sizes) -> kvlab.Layout:
    """2 layers, 3 heads, K rows of 64 and V rows of 32 elements, but for what is given; tiles: 2 heads, 128 slots."""
    if fmt == TILED and page_size % 128:
        page_size, pages = 128, 3
    if fmt == TILED:
        sizes = {"heads": 2, **sizes}
    sizes = {"layers": 2, "heads": 3, "head_dim": 64, "v_head_dim": 32, **sizes}
    return BUILDERS[builder](kvlab.Geometry(**sizes, page_size=page_size, pages=pages), fmt)


def content(layout, seed: int = 0) -> dict[str, torch.Tensor]:
    """Random bytes for every cell of every field."""
    g = layout.geometry
    item = {torch.float32: 4, torch.bfloat16: 2, torch.float16: 2}.get(layout.format, 1)
    widths = {"k": g.head_dim * item, "v": g.v_head_dim * item}
    if isinstance(layout.format, kvlab.MXFP8):
        widths |= {"k_scale": g.head_dim // 32, "v_scale": g.v_head_dim // 32}
    shapes = {name: (g.layers, g.slots, g.heads, width) for name, width in widths.items()}
    return {f: random_bytes(torch.Size(s).numel(), seed + i).view(s) for i, (f, s) in enumerate(shapes.items())}


def bytes_of(layout, dense: dict[str, torch.Tensor], padding: int = POISON) -> dict[str, torch.Tensor]:
    """Every buffer of a pool that holds ``dense``, with ``padding`` where no field reaches."""
    cells = np.concatenate([np.array([padding], np.uint8), *(x.cpu().numpy().reshape(-1) for x in dense.values())])
    return {name: torch.from_numpy(cells[where]).to(DEVICE) for name, where in _places(layout, dense).items()}


def _places(layout, dense) -> dict[str, np.ndarray]:
    """For each byte of each buffer which byte of ``dense`` it holds, counted from 1; 0 is padding."""
    key = str(layout)
    if key not in _KNOWN:
        counted, first = {}, 1
        for f, x in dense.items():
            counted[f] = torch.arange(first, first + x.numel()).view(x.shape)
            first += x.numel()
        _KNOWN[key] = {name: x.numpy() for name, x in whole_buffers(layout, counted, 0).items()}
    return _KNOWN[key]


def pool_with(layout, dense: dict[str, torch.Tensor], padding: int = POISON) -> kvlab.KVPool:
    pool = kvlab.KVPool(layout, device=DEVICE)
    for name, x in bytes_of(layout, dense, padding).items():
        pool.buffers[name].copy_(x)
    return pool


def moved(source: dict[str, torch.Tensor], source_loc, target: dict[str, torch.Tensor], target_loc) -> dict:
    """``target`` after the copy, row by row, everything read before anything is written."""
    out = {f: x.clone() for f, x in target.items()}
    for a, b in zip(source_loc.reshape(-1).tolist(), target_loc.reshape(-1).tolist(), strict=True):
        for f in out:
            if b > 0:  # slot 0 and what is negative is padding
                out[f][:, b] = source[f][:, a]
    return out


def check_copy(source_layout, source_loc, target_layout, target_loc, launches: int = 1) -> None:
    """Copy between two full pools, by kernel and by reference: every byte of both pools as the loop says."""
    source, target = content(source_layout, 1), content(target_layout, 7)
    want = bytes_of(target_layout, moved(source, source_loc, target, target_loc))
    for way in ("kernel", "reference"):
        a, b = pool_with(source_layout, source, FOREIGN), pool_with(target_layout, target)
        run_copy(way, a, source_loc, b, target_loc, launches)
        assert_same_bytes(b, want, f"{way}: target")
        assert_same_bytes(a, bytes_of(source_layout, source, FOREIGN), f"{way}: source")


def check_move(layout, source_loc, target_loc, launches: int = 2) -> None:
    """The same inside one pool."""
    dense = content(layout)
    want = bytes_of(layout, moved(dense, source_loc, dense, target_loc))
    for way in ("kernel", "reference"):
        pool = pool_with(layout, dense)
        run_copy(way, pool, source_loc, pool, target_loc, launches)
        assert_same_bytes(pool, want, way)


def run_copy(way: str, a, source_loc, b, target_loc, launches: int) -> None:
    before = source_loc.clone(), target_loc.clone()
    if way == "kernel":
        with one_launch(launches):
            kvlab.copy(a, source_loc, b, target_loc)
    else:
        with reference_backend(), one_launch(0):
            kvlab.copy(a, source_loc, b, target_loc)
    assert torch.equal(before[0], source_loc) and torch.equal(before[1], target_loc), "a loc was changed"
