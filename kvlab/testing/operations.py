"""Every public operation as a function of a pool: what it writes shows in the pool, what it reads it returns."""

from __future__ import annotations

import numpy as np
import torch

from .. import move
from ..builders import token_major
from ..formats import BLOCK, FP8_MAX, MXFP8
from ..pool import KVPool
from .twin import read_rows, write_rows


def has_scales(layout) -> bool:
    return isinstance(layout.format, MXFP8)


def is_fp8(layout) -> bool:
    return layout.format in FP8_MAX


def always(layout) -> bool:
    return True


def values(rng, pool, rows: int, layers: int | None, dtype):
    """K and V ``(rows, heads, dim)`` of finite numbers of very different size, with a layer axis if ``layers``."""
    g, out = pool.layout.geometry, []
    for dim in (g.head_dim, g.v_head_dim):
        shape = (rows, g.heads, dim) if layers is None else (layers, rows, g.heads, dim)
        x = rng.standard_normal(shape) * 2.0 ** rng.integers(-6, 7, shape)
        out.append(torch.from_numpy(x).float().clamp(-400, 400).to(dtype).to(pool.device))
    return out


def some_slots(rng, pool, count: int) -> np.ndarray:
    """Distinct real slots, the last one among them: an overrun shows there first."""
    slots = pool.layout.geometry.slots
    chosen = 1 + rng.permutation(slots - 2)[: count - 1]
    return np.append(chosen, slots - 1)


def tensor(pool, x) -> torch.Tensor:
    return torch.as_tensor(np.asarray(x), device=pool.device)


def commit_all_layers(pool, rng):
    k, v = values(rng, pool, 5, pool.layout.geometry.layers, torch.float32)
    pool.commit(tensor(pool, some_slots(rng, pool, 5)), k, v)


def commit_same_dtype(pool, rng):
    k, v = values(rng, pool, 4, None, pool.dtype)
    pool.commit(tensor(pool, some_slots(rng, pool, 4)), k, v, layer=0)


def commit_scaled(pool, rng):
    k, v = values(rng, pool, 4, None, torch.bfloat16)
    pool.set_kv_buffer(0, tensor(pool, some_slots(rng, pool, 4)), k, v, k_scale=0.75, v_scale=2.5)


def prefix_valid(pool, rng):
    """Pads (0 and -1), a rejected tail, and a slot that two requests name but only one commits."""
    loc = some_slots(rng, pool, 6).reshape(2, 3)
    loc = np.concatenate([loc, [[0, loc[0, 0], -1]]])
    k, v = values(rng, pool, 9, None, torch.bfloat16)
    lens = tensor(pool, [3, 2, 1])
    pool.set_kv_buffer_prefix_valid(pool.layout.geometry.layers - 1, tensor(pool, loc), lens, k, v)


def masked(pool, rng):
    loc = some_slots(rng, pool, 6)
    k, v = values(rng, pool, 6, None, torch.bfloat16)
    pool.set_kv_buffer(0, tensor(pool, loc), k, v, dcp_kv_mask=tensor(pool, rng.random(6) < 0.5))


def commit_with_scales(pool, rng):
    """E4M3 rows and UE8M0 scales, all bytes distinct as far as bytes go: a scale in another's place shows."""
    g, rows = pool.layout.geometry, 6
    k, v = values(rng, pool, rows, g.layers, torch.float8_e4m3fn)
    scales = []
    for dim in (g.head_dim, g.v_head_dim):
        shape = (g.layers, rows, g.heads, dim // BLOCK)
        scales.append(tensor(pool, (np.arange(np.prod(shape)) % 251).astype(np.uint8).reshape(shape)))
    pool.commit(tensor(pool, some_slots(rng, pool, rows)), k, v, k_scale=scales[0], v_scale=scales[1])


def gather(pool, rng):
    """Raw rows, a padding slot among them."""
    loc = tensor(pool, [*some_slots(rng, pool, 4), -1, 0])
    return dict(zip(("k", "v"), pool.gather(loc, dequantize=False), strict=True))


def gather_scales(pool, rng):
    loc = tensor(pool, [*some_slots(rng, pool, 4), -1])
    return dict(zip(("k_scale", "v_scale"), pool.gather_scales(loc), strict=True))


def read_back(pool, rng):
    """What a commit stored, dequantised."""
    loc = tensor(pool, some_slots(rng, pool, 5))
    k, v = values(rng, pool, 5, None, torch.bfloat16)
    pool.commit(loc, k, v, layer=0)
    return dict(zip(("k", "v"), pool.gather(loc, layer=0), strict=True))


def move_overlapping(pool, rng):
    """A cycle through some slots: wrong where rows are written before they are read."""
    loc = some_slots(rng, pool, 5)
    pool.move_kv_cache(tensor(pool, np.roll(loc, 1)), tensor(pool, loc))


def host_copy(pool, rng):
    loc = some_slots(rng, pool, 6)
    copied = pool.get_cpu_copy(tensor(pool, loc[:3]))
    pool.load_cpu_copy(copied, tensor(pool, loc[3:]))


def copy_out(pool, rng):
    other = other_pool(pool, rng)
    a, b = (tensor(pool, some_slots(rng, pool, 5)) for _ in range(2))
    move.copy(pool, a, other, b)
    return read_rows(other)


def copy_in(pool, rng):
    other = other_pool(pool, rng)
    a, b = (tensor(pool, some_slots(rng, pool, 5)) for _ in range(2))
    move.copy(other, a, pool, b)


def other_pool(pool, rng) -> KVPool:
    """A token-major pool with the same scale placement and random rows."""
    other = KVPool(token_major(pool.layout.geometry, pool.layout.format), pool.device)
    rows = read_rows(other)
    write_rows(other, {name: rng.integers(0, 256, x.shape, dtype=np.uint8) for name, x in rows.items()})
    return other


def page_regions(pool, rng):
    """Page 1 over the last page of a second pool, as the byte runs of the two buf_infos; the rows of that pool."""
    g, other = pool.layout.geometry, KVPool(pool.layout, pool.device)
    for name, buffer in pool.buffers.items():
        other.buffers[name].copy_(buffer)
    for infos in (pool.get_contiguous_buf_infos(), pool.get_kv_scale_buf_infos()):
        for pointer, length, item in zip(*infos, strict=True):
            if length != item * g.pages:
                raise ValueError(f"a region has {length} bytes, not {g.pages} items of {item}")
            name, start = next(
                (n, pointer - b.data_ptr()) for n, b in pool.buffers.items() if 0 <= pointer - b.data_ptr() < b.numel()
            )
            last = start + (g.pages - 1) * item
            other.buffers[name][last : last + item] = pool.buffers[name][start + item : start + 2 * item]
    return read_rows(other)


def views(pool, rng):
    """Each zero-copy view, read by the digits of its axes."""
    found = {}
    for name, f in pool.layout.fields.items():
        x, axes = f.extents, [a for a in f.axes if a.coordinate != "layer"]
        grid = dict(zip(("slot", "head", "dim"), np.indices((x["slot"], x["head"], x["dim"])), strict=True))
        radix = {c: np.cumprod([1, *(size for size, _ in f.modes[c])]) for c in grid}
        digits = [grid[a.coordinate] // radix[a.coordinate][a.digit] % a.size for a in axes]
        for layer in range(x["layer"]):
            view = pool.view(name, layer)
            found[f"{name} layer {layer}"] = view[tuple(tensor(pool, d) for d in digits)]
    return found


def size_in_bytes(pool, rng):
    return {"get_kv_size_bytes": np.array(pool.get_kv_size_bytes())}


# name: (operation, which layouts it applies to)
OPERATIONS = {
    "commit of fp32 rows, all layers": (commit_all_layers, always),
    "commit of rows of the pool's own dtype": (commit_same_dtype, lambda layout: not has_scales(layout)),
    "set_kv_buffer with k_scale and v_scale": (commit_scaled, is_fp8),
    "set_kv_buffer_prefix_valid": (prefix_valid, always),
    "set_kv_buffer with a row mask": (masked, always),
    "commit of E4M3 rows with their scales": (commit_with_scales, has_scales),
    "gather": (gather, always),
    "gather_scales": (gather_scales, has_scales),
    "commit, then gather": (read_back, always),
    "move_kv_cache": (move_overlapping, always),
    "get_cpu_copy and load_cpu_copy": (host_copy, always),
    "copy to a token-major pool": (copy_out, always),
    "copy from a token-major pool": (copy_in, always),
    "page regions": (page_regions, always),
    "zero-copy views": (views, always),
    "get_kv_size_bytes": (size_in_bytes, always),
}
