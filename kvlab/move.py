"""copy: rows from pool to pool, between any two layouts; and what engines build on it: moves and host offload."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from . import checks
from .backends import operations
from .builders import token_major
from .formats import MXFP8, format_name, payload_dtype
from .geometry import Geometry
from .layout import Layout


def copy(src, src_loc, dst, dst_loc) -> None:
    """``dst[dst_loc[r]] = src[src_loc[r]]`` for every row r: payload and scales, all layers, K and V.

    Layouts, pages, page sizes and scale placements may differ: rows go by their coordinates. Inside one pool the result
    is as if all rows were read first, so chains, swaps and cycles are right (one more launch, for staging).

    Parameters
    ----------
    src, dst : KVPool
        Of the same layers, heads, head dims and format, on one device.
    src_loc, dst_loc : int32 or int64 tensors ``(N,)``, any strides
        A row whose ``dst_loc`` is slot 0 or negative is padding and skipped.

    Raises
    ------
    ValueError
        Unequal lengths, pools that do not match (naming the difference), one destination for two rows.
    IndexError
        A slot outside its pool. In every case nothing was moved.
    """
    _copy(src, src_loc, dst, dst_loc)


def _copy(src, src_loc, dst, dst_loc, source_name: str = "src_loc", target_name: str = "dst_loc") -> None:
    """:func:`copy`, under the names that the caller has for its two locs."""
    difference = mismatch(src.layout, dst.layout)
    if difference:
        raise ValueError(f"copy: src and dst differ in {difference}")
    if src.device != dst.device:
        raise ValueError(
            f"copy: src is on {src.device}, dst is on {dst.device}; use get_cpu_copy to go through the host"
        )
    src_loc, dst_loc = _pair(source_name, src_loc, src, target_name, dst_loc, dst)
    written = dst_loc > 0
    checks.slots_in_range(source_name, src_loc, written, src.layout.geometry.slots, low=0)
    checks.slots_in_range(target_name, dst_loc, written, dst.layout.geometry.slots)
    checks.no_duplicates(target_name, dst_loc, written)
    run = operations(src.device).copy_rows
    if not _share_memory(src, dst):
        run(src, src_loc[0], dst, dst_loc[0])
        return
    stage = _rows_pool(src.layout, src_loc.numel(), src.device)
    rows = torch.arange(1, src_loc.numel() + 1, device=src.device)
    run(src, src_loc[0].where(written[0], -1), stage, rows)
    run(stage, rows, dst, dst_loc[0])


def move(pool, tgt_loc, src_loc) -> None:
    """``pool[tgt_loc[r]] = pool[src_loc[r]]``, as sglang's ``move_kv_cache``; see :func:`copy`."""
    _copy(pool, src_loc, pool, tgt_loc, target_name="tgt_loc")


@dataclass(frozen=True)
class HostCopy:
    """Rows of a pool on the host: compact, self-describing, and on their way until :meth:`wait` returns.

    Attributes
    ----------
    layout : Layout
        Token-major rows ``1 … N`` (slot 0 of it is the sink), of the pool's format, scales flat.
    format : torch.dtype or MXFP8
        Of the pool it came from, scale placement included.
    buffers : dict of str to uint8 tensor
        The bytes, pinned where the pool was on a GPU.
    """

    layout: Layout
    format: object
    buffers: dict[str, torch.Tensor]
    event: object = field(default=None, compare=False)

    @property
    def rows(self) -> int:
        """Number of rows, N."""
        return self.layout.geometry.slots - 1

    @property
    def nbytes(self) -> int:
        """Bytes on the host."""
        return sum(b.numel() for b in self.buffers.values())

    def wait(self) -> None:
        """Return when the bytes have arrived; a copy of a CPU pool has arrived already."""
        if self.event is not None:
            self.event.synchronize()


def get_cpu_copy(pool, indices) -> HostCopy:
    """Rows of all layers, payload and scales, to the host; see :meth:`kvlab.KVPool.get_cpu_copy`."""
    indices = checks.slots_2d("indices", indices, pool.device)
    checks.slots_in_range(
        "indices", indices, torch.ones_like(indices, dtype=torch.bool), pool.layout.geometry.slots, low=0
    )
    stage = _rows_pool(pool.layout, indices.numel(), pool.device)
    rows = torch.arange(1, indices.numel() + 1, device=pool.device)
    operations(pool.device).copy_rows(pool, indices.reshape(-1), stage, rows)
    if pool.device.type != "cuda":
        return HostCopy(stage.layout, pool.layout.format, stage.buffers)
    host = {n: torch.empty(b.shape, dtype=b.dtype, pin_memory=True) for n, b in stage.buffers.items()}
    for name, buffer in stage.buffers.items():
        host[name].copy_(buffer, non_blocking=True)
    event = torch.cuda.Event()
    event.record()
    return HostCopy(stage.layout, pool.layout.format, host, event)


def load_cpu_copy(pool, copied: HostCopy, indices) -> None:
    """Rows from the host into slots; see :meth:`kvlab.KVPool.load_cpu_copy`."""
    if not isinstance(copied, HostCopy):
        raise TypeError(f"load_cpu_copy: copy is a {type(copied).__name__}; it must come from get_cpu_copy")
    difference = mismatch(copied.layout, pool.layout)
    if not difference and _stored(copied.format) != _stored(pool.layout.format):
        difference = f"format: {_stored(copied.format)} and {_stored(pool.layout.format)}"
    if difference:
        raise ValueError(f"load_cpu_copy: copy and pool differ in {difference}")
    indices = checks.slots_2d("indices", indices, pool.device)
    if indices.numel() != copied.rows:
        raise ValueError(f"load_cpu_copy: indices has {indices.numel()} slots, copy has {copied.rows} rows")
    copied.wait()
    stage = _rows_pool(pool.layout, copied.rows, pool.device)
    for name, buffer in stage.buffers.items():
        buffer.copy_(copied.buffers[name], non_blocking=True)
    rows = torch.arange(1, copied.rows + 1, device=pool.device)
    _copy(stage, rows, pool, indices.reshape(-1), target_name="indices")


def mismatch(a: Layout, b: Layout) -> str | None:
    """In what rows of two layouts differ, as ``"heads: 8 and 4"``; None where rows of one fit the other."""
    for name in ("layers", "heads", "head_dim", "v_head_dim"):
        x, y = getattr(a.geometry, name), getattr(b.geometry, name)
        if x != y:
            return f"{name}: {x} and {y}"
    if payload_dtype(a.format) != payload_dtype(b.format) or set(a.fields) != set(b.fields):
        return f"format: {format_name(a.format)} and {format_name(b.format)}"
    return None


def _stored(fmt) -> str:
    """A format without its rounding, which says how bytes were made and not what they mean."""
    return f"mxfp8({fmt.scales} scales)" if isinstance(fmt, MXFP8) else format_name(fmt)


def _rows_pool(layout: Layout, rows: int, device):
    """A compact token-major pool for ``rows`` rows, slots 1 … rows."""
    from .pool import KVPool

    g = layout.geometry
    sizes = Geometry(g.layers, g.heads, g.head_dim, g.v_head_dim, page_size=1, pages=rows + 1)
    fmt = MXFP8("flat", layout.format.rounding) if isinstance(layout.format, MXFP8) else layout.format
    return KVPool(token_major(sizes, fmt), device)


def _share_memory(a, b) -> bool:
    """Whether two pools may have bytes in common: one pool, or pools that adopted memory whose addresses meet."""
    spans = [[(x.data_ptr(), x.data_ptr() + x.numel()) for x in pool.buffers.values()] for pool in (a, b)]
    return any(start < other_end and other < end for start, end in spans[0] for other, other_end in spans[1])


def _pair(name_a: str, a, pool_a, name_b: str, b, pool_b):
    a, b = checks.slots_2d(name_a, a, pool_a.device), checks.slots_2d(name_b, b, pool_b.device)
    a, b = (x if x.shape[0] == 1 else x.reshape(1, -1) for x in (a, b))
    if a.numel() != b.numel():
        raise ValueError(f"{name_a} has {a.numel()} slots, {name_b} has {b.numel()}; they must be equally many")
    return a, b
