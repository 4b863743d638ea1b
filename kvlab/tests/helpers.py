"""Pools full of poison, commits and gathers written out as loops, and comparisons that answer in coordinates.

Nothing here uses kvlab's field arithmetic: where a row lies is worked out again from what upstream engines document.
"""

from __future__ import annotations

from contextlib import contextmanager

import torch

import kvlab
from kvlab.backends import default_device, reference_backend

POISON = 0xA5
DEVICE = default_device()
BUILDERS = {"token_major": kvlab.token_major, "page_major": kvlab.page_major, "head_major": kvlab.head_major}
PLAIN = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2)
FP8 = {torch.float8_e4m3fn: 448.0, torch.float8_e5m2: 57344.0}
BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def geometry(**sizes) -> kvlab.Geometry:
    """A small pool (2 layers, 2 heads, head_dim 64, 16 pages of 4 slots), but for what is given."""
    return kvlab.Geometry(**{"layers": 2, "heads": 2, "head_dim": 64, "page_size": 4, "pages": 16, **sizes})


def poisoned(layout, byte: int = POISON) -> kvlab.KVPool:
    """A pool whose every byte is ``byte``."""
    pool = kvlab.KVPool(layout, device=DEVICE)
    for buffer in pool.buffers.values():
        buffer.fill_(byte)
    return pool


def randomised(layout, seed: int = 0) -> kvlab.KVPool:
    """A pool full of random bytes: every bit pattern of its dtype, NaNs included."""
    pool = kvlab.KVPool(layout, device=DEVICE)
    for i, buffer in enumerate(pool.buffers.values()):
        buffer.copy_(random_bytes(buffer.numel(), seed + i))
    return pool


def random_bytes(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed)).to(DEVICE)


def raw_rows(shape, dtype, seed: int = 0) -> torch.Tensor:
    """Random bit patterns: for commits that must only move bytes."""
    count = torch.Size(shape).numel()
    return random_bytes(count * dtype.itemsize, seed).view(dtype).view(shape)


def numbers(shape, dtype, seed: int = 0, spread: float = 200.0) -> torch.Tensor:
    """Random finite numbers, some beyond the range of E4M3."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * spread
    limit = FP8.get(dtype, float("inf"))
    return x.clamp(-limit, limit).to(dtype).to(DEVICE)


def rows_for(geometry, rows: int, dtype, *, layers: int | None = None, seed: int = 0, make=raw_rows):
    """K and V of ``rows`` tokens, with a leading layer axis where ``layers`` is given."""
    lead = (rows,) if layers is None else (layers, rows)
    shape = (*lead, geometry.heads)
    return make((*shape, geometry.head_dim), dtype, seed), make((*shape, geometry.v_head_dim), dtype, seed + 1)


def slots(values, dtype=torch.int64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def bits(x: torch.Tensor) -> torch.Tensor:
    """The bits of a tensor as integers, so that NaNs compare."""
    return x.contiguous().view(BITS[x.element_size()])


def placed(layout, items: dict[str, torch.Tensor], field: str, layer: int) -> torch.Tensor:
    """``(pages, page_size, heads, dim)`` of a plain pool's field, as a view of its 1-D buffers of items."""
    g = layout.geometry
    dim = g.v_head_dim if field == "v" else g.head_dim
    if layout.name == "token_major":  # sglang MHATokenToKVPool: (slots, heads, dim) for each layer
        return items[field].view(g.layers, g.pages, g.page_size, g.heads, dim)[layer]
    if layout.name == "head_major":  # FlashInfer "HND": (pages, heads, page_size, dim) for each layer
        return items[field].view(g.layers, g.pages, g.heads, g.page_size, dim)[layer].transpose(1, 2)
    # sglang's page-major pool: the envelope of a page is [L0_K | L0_V | L1_K | L1_V | ...]
    part = {f: g.page_size * g.heads * d for f, d in (("k", g.head_dim), ("v", g.v_head_dim))}
    start = layer * (part["k"] + part["v"]) + (part["k"] if field == "v" else 0)
    pages = items["raw"].view(g.pages, -1)[:, start : start + part[field]]
    return pages.unflatten(1, (g.page_size, g.heads, dim))


def rows_of(pool, field: str, layer: int) -> torch.Tensor:
    """:func:`placed` over a pool's own memory."""
    return placed(pool.layout, {name: b.view(pool.dtype) for name, b in pool.buffers.items()}, field, layer)


def naive_commit(pool, loc, k, v, *, layer=None, commit_lens=None, row_mask=None, k_scale=None, v_scale=None):
    """What a commit means, row by row."""
    g = pool.layout.geometry
    blocks = loc.tolist() if loc.dim() == 2 else [loc.tolist()]
    mask = None if row_mask is None else row_mask.reshape(-1).tolist()
    row = -1
    for b, block in enumerate(blocks):
        for w, slot in enumerate(block):
            row += 1
            accepted = commit_lens is None or w < int(commit_lens[b])
            if not accepted or (mask is not None and not mask[row]) or not 0 < slot < g.slots:
                continue
            for field, source, scale in (("k", k, k_scale), ("v", v, v_scale)):
                for i in range(g.layers) if layer is None else [layer]:
                    value = source[i, row] if layer is None else source[row]
                    target = rows_of(pool, field, i)[slot // g.page_size, slot % g.page_size]
                    target.view(BITS[target.element_size()]).copy_(bits(converted(value, pool.dtype, scale)))


def converted(value: torch.Tensor, dtype: torch.dtype, scale) -> torch.Tensor:
    """One row as a pool of ``dtype`` stores it; for finite numbers."""
    if value.dtype == dtype:
        return value
    x = value.float()
    if scale is not None:
        x = x / torch.as_tensor(scale, dtype=torch.float32, device=x.device)
    return x.clamp(-FP8[dtype], FP8[dtype]).to(dtype) if dtype in FP8 else x.to(dtype)


def naive_gather(pool, loc, layer: int, field: str) -> torch.Tensor:
    """Stored rows, one by one; zeros for padding."""
    view, page_size = rows_of(pool, field, layer), pool.layout.geometry.page_size
    rows = [view[s // page_size, s % page_size] for s in loc.reshape(-1).clamp(min=0).tolist()]
    out = torch.stack(rows) if rows else view[:0, 0]
    out = out.clone()
    out.view(BITS[out.element_size()])[loc.reshape(-1) < 0] = 0
    return out


@contextmanager
def one_launch(count: int = 1):
    """Asserts that the block launches ``count`` kernels (the plain torch path launches none)."""
    if kvlab.backend(DEVICE) == "reference":
        yield
        return
    from kvlab.kernels.launch import record_launches

    with record_launches() as launches:
        yield
    assert len(launches) == count, f"{len(launches)} launches, expected {count}: {launches}"


def check_commit(layout, loc, k, v, *, launches: int = 1, **options) -> kvlab.KVPool:
    """Commit through kernel, reference and loops into poison; every byte must agree, and the source stay as it was."""
    kernel, reference, loops = (poisoned(layout) for _ in range(3))
    before = [bits(x).clone() for x in (k, v, loc)]
    with one_launch(launches):
        kernel.commit(loc, k, v, **options)
    with reference_backend(), one_launch(0):
        reference.commit(loc, k, v, **options)
    options.pop("check", None)
    naive_commit(loops, loc, k, v, **options)
    assert_same_bytes(reference, loops, "reference")
    assert_same_bytes(kernel, loops, "kernel")
    for name, x, old in zip(("k", "v", "loc"), (k, v, loc), before, strict=True):
        assert torch.equal(bits(x), old), f"the caller's {name} was changed"
    return kernel


def assert_same_bytes(pool, want, what: str = "pool") -> None:
    """Every byte of every buffer; the message names the first wrong one by its owner. ``want``: pool or byte dict."""
    want = want if isinstance(want, dict) else want.buffers
    for name, buffer in pool.buffers.items():
        wrong = (buffer != want[name]).nonzero()
        if len(wrong):
            byte = int(wrong[0])
            raise AssertionError(
                f"{what}: {len(wrong)} wrong bytes in {name!r}; byte {byte} is {int(buffer[byte]):#04x}, not "
                f"{int(want[name][byte]):#04x}: {pool.layout.explain(name, byte)}"
            )


def saved(pool) -> dict[str, torch.Tensor]:
    """A copy of every buffer."""
    return {name: b.clone() for name, b in pool.buffers.items()}
