"""The pool under test beside a token-major twin that holds the same rows and runs on the reference path."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from ..backends import reference_backend
from ..builders import token_major
from ..formats import MXFP8
from ..layout import Padding
from ..pool import KVPool


class Twin:
    """``pool`` of the layout under test, filled with random bytes, and ``twin`` with the same rows.

    The twin's scales are flat: what an operation means does not depend on where scales lie.
    """

    def __init__(self, layout, seed: int):
        self.layout, self.seed = layout, seed
        self.pool = KVPool(layout)
        rng = np.random.default_rng(seed)
        for buffer in self.pool.buffers.values():
            buffer.copy_(torch.from_numpy(rng.integers(0, 256, buffer.numel(), dtype=np.uint8)))
        fmt = replace(layout.format, scales="flat") if isinstance(layout.format, MXFP8) else layout.format
        self.twin = KVPool(token_major(layout.geometry, fmt), self.pool.device)
        write_rows(self.twin, read_rows(self.pool))

    def run(self, operation) -> str | None:
        """``operation(pool, rng)`` on both; what differs, in words: what it returned, then what the pool holds."""
        before = {name: buffer.cpu().numpy().copy() for name, buffer in self.pool.buffers.items()}
        got = operation(self.pool, np.random.default_rng(self.seed))
        with reference_backend():
            want = operation(self.twin, np.random.default_rng(self.seed))
        for name, value in (want or {}).items():
            if problem := _differs(name, got[name], value):
                return problem
        put(self.layout, before, read_rows(self.twin))
        for name, buffer in self.pool.buffers.items():
            wrong = np.flatnonzero(buffer.cpu().numpy() != before[name])
            if len(wrong):
                byte = int(wrong[0])
                holds, should = int(buffer[byte]), int(before[name][byte])
                return (
                    f"byte {byte:,} of {name!r} holds 0x{holds:02X} and should hold 0x{should:02X}: "
                    f"{words(self.layout.explain(name, byte))} ({len(wrong):,} bytes are wrong in this buffer)"
                )
        return None


def places(layout, name: str, layer: int) -> np.ndarray:
    """First byte of each cell of one field and layer, ``(slots, heads, dims)``: the formula, no kernel."""
    x = layout.fields[name].extents
    slot, head, dim = np.ogrid[: x["slot"], : x["head"], : x["dim"]]
    return layout.locate(name, layer, *np.broadcast_arrays(slot, head, dim))[1]


def read_rows(pool) -> dict[str, np.ndarray]:
    """Every cell's bytes by coordinate: per field ``(layers, slots, heads, dims, item)`` uint8."""
    rows = {}
    for name, f in pool.layout.fields.items():
        each = []
        for layer in range(f.extents["layer"]):
            raw = pool.buffers[f.buffer_of(layer)].cpu().numpy()
            each.append(raw[places(pool.layout, name, layer)[..., None] + np.arange(f.item)])
        rows[name] = np.stack(each)
    return rows


def write_rows(pool, rows: dict[str, np.ndarray]) -> None:
    """The inverse of :func:`read_rows`; bytes between the cells stay."""
    raw = {name: buffer.cpu().numpy().copy() for name, buffer in pool.buffers.items()}
    put(pool.layout, raw, rows)
    for name, buffer in pool.buffers.items():
        buffer.copy_(torch.from_numpy(raw[name]))


def put(layout, raw: dict[str, np.ndarray], rows: dict[str, np.ndarray]) -> None:
    """Write rows by coordinate into numpy buffers, in place."""
    for name, f in layout.fields.items():
        for layer, values in enumerate(rows[name]):
            raw[f.buffer_of(layer)][places(layout, name, layer)[..., None] + np.arange(f.item)] = values


def words(cell) -> str:
    """A cell or padding as words."""
    if isinstance(cell, Padding):
        return "padding, which nothing may write"
    return f"{cell.field} layer {cell.layer} slot {cell.slot} head {cell.head} dim {cell.dim} byte {cell.byte}"


def _differs(name: str, got, want) -> str | None:
    got, want = (x.cpu() if isinstance(x, torch.Tensor) else torch.as_tensor(x) for x in (got, want))
    if got.shape != want.shape or got.dtype != want.dtype:
        return f"{name} is {got.dtype} {tuple(got.shape)} and should be {want.dtype} {tuple(want.shape)}"
    a, b = (x.contiguous().view(torch.uint8).reshape(*x.shape, -1) for x in (got, want))
    wrong = (a != b).any(-1).nonzero()
    if len(wrong):
        at = tuple(wrong[0].tolist())
        return f"{name}{list(at)} is {got[at].item()} and should be {want[at].item()} ({len(wrong):,} elements differ)"
    return None
