"""Guards and poison: bytes around a pool that no write may reach, and NaN in every cell that nobody wrote.

A stray write lands in a guard, and a stale read gives NaN, instead of a neighbour's numbers that look plausible.
"""

from __future__ import annotations

import warnings
from dataclasses import asdict, dataclass

import torch

from .. import checks
from ..backends import default_device
from ..formats import INT_VIEW, MXFP8
from ..layout import Layout
from ..pool import KVPool
from .beyond import cell_words, page_axis

# The byte of poison: NaN in bf16, fp16, fp32, e4m3, e5m2 and UE8M0 alike. Zero, the fill of a fresh pool, is a number.
POISON = 0xFF
ALIGNMENT = 256  # of each buffer, as the allocators of GPUs give: an unaligned one would make kernels narrower
SMALLEST = 4096  # bytes of a guard


@dataclass(frozen=True)
class Overwritten:
    """Guard bytes on one side of a buffer that hold something else now.

    Attributes
    ----------
    buffer, side : str
        ``side`` is "before" or "after".
    count : int
        Bytes that changed.
    nearest, farthest : int
        How far they lie from the buffer: 1 is the byte next to it.
    words : str
        All of it, with the cells that these bytes would be if the buffer went on.
    """

    buffer: str
    side: str
    count: int
    nearest: int
    farthest: int
    words: str


@dataclass(frozen=True)
class GuardReport:
    """Result of :meth:`Guarded.check`. ``overwritten``: one entry for each buffer and side; ``nbytes``: guard bytes."""

    overwritten: tuple[Overwritten, ...]
    nbytes: int

    @property
    def ok(self) -> bool:
        """No guard byte has changed."""
        return not self.overwritten

    def to_dict(self) -> dict:
        """JSON-ready."""
        return {"ok": self.ok, "nbytes": self.nbytes, "overwritten": [asdict(o) for o in self.overwritten]}

    def __str__(self) -> str:
        if self.ok:
            return f"all {self.nbytes:,} guard bytes are as they were"
        return "\n".join(["guard bytes were overwritten:", *(f"- {o.words}" for o in self.overwritten)])

    __repr__ = __str__


class Guarded:
    """A pool between guards, from :func:`guarded`; as a context manager it checks them at the end.

    Attributes
    ----------
    pool : KVPool
        Like any other; its buffers are slices of larger allocations.
    guard_bytes : int
        On each side of each buffer.
    """

    def __init__(self, layout: Layout, device: torch.device, fill: int, guard_bytes: int):
        self.guard_bytes = guard_bytes
        self._pattern = _pattern(guard_bytes, device)
        self._guards: dict[str, dict[str, torch.Tensor]] = {}
        buffers = {}
        for name, size in layout.buffers.items():
            whole = torch.empty(ALIGNMENT + guard_bytes + size + guard_bytes, dtype=torch.uint8, device=device)
            start = -whole.data_ptr() % ALIGNMENT
            before, buffer, after = whole[start:].split([guard_bytes, size, len(whole) - start - guard_bytes - size])
            buffers[name] = buffer.fill_(fill)
            self._guards[name] = {"before": before, "after": after[:guard_bytes]}
            for guard in self._guards[name].values():
                guard.copy_(self._pattern)
        self.pool = KVPool.over(layout, buffers)

    def check(self) -> GuardReport:
        """Which guard bytes were overwritten since the pool was made; waits for a GPU to finish."""
        found = []
        for name, sides in self._guards.items():
            for side, guard in sides.items():
                changed = (guard != self._pattern).nonzero().squeeze(1)
                if len(changed):
                    found.append(self._told(name, side, len(changed), int(changed[0]), int(changed[-1])))
        return GuardReport(tuple(found), 2 * self.guard_bytes * len(self._guards))

    def _told(self, buffer: str, side: str, count: int, first: int, last: int) -> Overwritten:
        """``first`` and ``last`` count from the guard's own first byte."""
        layout = self.pool.layout
        size = layout.buffers[buffer]
        if side == "before":
            nearest, farthest, edge = self.guard_bytes - last, self.guard_bytes - first, "first"
        else:
            nearest, farthest, edge = first + 1, last + 1, "last"
        start = -self.guard_bytes if side == "before" else size
        far = f"{nearest:,} byte{'s' * (nearest > 1)}" if nearest == farthest else f"{nearest:,} to {farthest:,} bytes"
        words = f"{buffer!r} ({size:,} bytes): {count:,} overwritten, {far} {side} its {edge} byte"
        cells = [cell_words(layout, buffer, start + at) for at in ((first,) if first == last else (first, last))]
        words += f"; if the buffer went on, that would be {' to '.join(cells)}"
        if farthest == self.guard_bytes:
            words += "; the guard ends there, so more may have been hit"
        return Overwritten(buffer, side, count, nearest, farthest, words)

    def __enter__(self) -> Guarded:
        return self

    def __exit__(self, kind, error, trace) -> None:
        report = self.check()
        if report.ok:
            return
        if kind is None:
            raise RuntimeError(str(report))
        warnings.warn(str(report), RuntimeWarning, stacklevel=2)  # the error that ended the block must stay visible

    def __repr__(self) -> str:
        return f"{self.guard_bytes:,} guard bytes on each side of each buffer of\n{self.pool!r}"


def guarded(layout: Layout, device=None, poison: bool = True, guard_bytes: int | None = None) -> Guarded:
    """A pool whose buffers lie between guard bytes, filled with NaN: for tests and for hunting stray writes.

    Parameters
    ----------
    layout : Layout
    device : torch.device or str, optional
        As for :class:`kvlab.KVPool`.
    poison : bool
        True fills every byte with 0xFF, which is NaN in every format and as a scale: a row that is read before it was
        written reads as NaN. Slot 0 too: it holds whatever padded rows left there, so no reader may depend on it. False
        fills with zeros, as a fresh pool.
    guard_bytes : int, optional
        On each side of each buffer, rounded up to a multiple of 256. By default what a page, or a slot of a layout
        without pages, steps over, and at least 4,096: a write to slot -1, or to one page too many, lies inside.

    Returns
    -------
    Guarded
        ``.pool``, and ``.check()``, which names the overwritten bytes. A ``with`` block raises RuntimeError at its end
        where there are any; if it ends with another error, they become a RuntimeWarning.

    Raises
    ------
    TypeError, ValueError
        No layout; guard_bytes that is no int, or below 1.

    Notes
    -----
    A guard cannot see a byte that was overwritten with the value it had, about 1 in 254; zeros and 0xFF are always
    seen. A write that jumps over the guard, or to a wrong place inside the pool, is for :func:`kvlab.watch`.

    Examples
    --------
    >>> import kvlab, torch
    >>> from kvlab.debug import guarded
    >>> g = kvlab.Geometry(layers=2, heads=2, head_dim=64, page_size=4, pages=16)
    >>> safe = guarded(kvlab.token_major(g, torch.bfloat16), device="cpu")
    >>> k = safe.pool.get_key_buffer(0)
    >>> row = k.as_strided((128,), (1,), k.storage_offset() - 128)  # slot -1, unmasked
    >>> _ = row.fill_(1)
    >>> print(safe.check())
    guard bytes were overwritten:
    - 'k' (32,768 bytes): 256 overwritten, 1 to 256 bytes before its first byte; if the buffer went on, that would be \
K of layer 0, slot -1, head 0, dim 0 to K of layer 0, slot -1, head 1, dim 63
    """
    if not isinstance(layout, Layout):
        raise TypeError(f"guarded: layout is a {type(layout).__name__}, not a Layout such as kvlab.token_major makes")
    if guard_bytes is None:
        guard_bytes = max(SMALLEST, *(page_axis(field).stride for field in layout.fields.values()))
    if isinstance(guard_bytes, bool) or not isinstance(guard_bytes, int):
        raise TypeError(f"guarded: guard_bytes={guard_bytes!r} must be an int, not {type(guard_bytes).__name__}")
    if guard_bytes < 1:
        raise ValueError(f"guarded: guard_bytes={guard_bytes} must be at least 1")
    device = torch.device(device) if device is not None else default_device()
    return Guarded(layout, device, POISON if poison else 0, -(-guard_bytes // ALIGNMENT) * ALIGNMENT)


def poison(pool: KVPool, slots: torch.Tensor) -> None:
    """Fill rows of freed slots with 0xFF, NaN in every format: whoever still reads them gets NaN at once.

    Parameters
    ----------
    pool : KVPool
    slots : int32 or int64 tensor, ``(N,)`` or ``(B, W)``, on the pool's device
        K, V and scales of all layers are filled. Slot 0 and negative ones are padding, and skipped as in a commit: a
        list of slots is padded with them, and nobody frees the sink.

    Raises
    ------
    TypeError
        No KVPool; slots of another type.
    IndexError
        A slot at or beyond the pool's.
    ValueError
        A slot twice, which is a double free; slots on another device. In every case nothing was written.
    """
    if not isinstance(pool, KVPool):
        raise TypeError(f"poison: pool is a {type(pool).__name__}, not a KVPool")
    slots = checks.slots_2d("slots", slots, pool.device)
    chosen = slots > 0
    checks.slots_in_range("slots", slots, chosen, pool.layout.geometry.slots)
    checks.no_duplicates("slots", slots, chosen)
    g = pool.layout.geometry

    def rows(field: str, dtype: torch.dtype) -> torch.Tensor:
        """One item of all ones, seen as rows of all slots and layers: a commit reads it by its strides of 0."""
        f = pool.layout.fields[field]
        ones = ~torch.zeros(1, dtype=INT_VIEW[f.item], device=pool.device)
        return ones.view(dtype).expand(g.layers, slots.numel(), f.extents["head"], f.extents["dim"])

    scales = {}
    if isinstance(pool.layout.format, MXFP8):
        scales = {name: rows(name, torch.uint8) for name in ("k_scale", "v_scale")}
    pool.commit(slots, rows("k", pool.dtype), rows("v", pool.dtype), **scales, check=False)


def _pattern(count: int, device: torch.device) -> torch.Tensor:
    """Bytes 1 … 254 in no order: writes of zeros and of 0xFF, the commonest, always change them."""
    return torch.randint(1, 255, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(6)).to(device)
