"""A pool in which every slot but 0 holds a real row, put there by one real commit."""

from __future__ import annotations

import torch

from ..geometry import Geometry
from ..pool import KVPool
from ..samples import load_kv


def sample_rows(geometry: Geometry) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of SmolLM2's sample text, repeated and cut to the geometry: a row for each of the slots 1, 2, 3 …

    Returns
    -------
    k, v : bf16 ``(layers, slots - 1, heads, head_dim)`` and ``(…, v_head_dim)``
        Row i is for slot i + 1 and holds token ``i % tokens`` of the text.
    """
    g, sample = geometry, load_kv()
    sizes = (g.layers, g.slots - 1, g.heads)
    return _fit(sample.k, (*sizes, g.head_dim)), _fit(sample.v, (*sizes, g.v_head_dim))


def sample_pool(layout) -> KVPool:
    """A new pool of this layout with :func:`sample_rows` committed, one launch for all layers. Slot 0 stays zero.

    >>> import torch, kvlab
    >>> g = kvlab.Geometry(layers=1, heads=1, head_dim=4, page_size=2, pages=2)
    >>> pool = sample_pool(kvlab.token_major(g, torch.bfloat16))
    >>> pool.buffers["k"][:8].tolist()
    [0, 0, 0, 0, 0, 0, 0, 0]
    """
    pool = KVPool(layout)
    k, v = (rows.to(pool.device) for rows in sample_rows(layout.geometry))
    pool.commit(torch.arange(1, layout.geometry.slots, device=pool.device), k, v)
    return pool


def _fit(x: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    for axis, size in enumerate(shape):
        x = x.index_select(axis, torch.arange(size) % x.shape[axis])
    return x
