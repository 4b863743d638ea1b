"""One commit over two fills by the backend's kernel, and by the reference: what happened to every byte."""

from __future__ import annotations

import platform
import time
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from importlib.metadata import PackageNotFoundError, version

import numpy as np
import torch

from ..backends import backend, one_thread, reference_backend
from ..debug.commit_data import STATES, classify, expected_mask
from ..field import Axis
from ..formats import payload_dtype
from ..layout import Layout
from ..pool import KVPool

FILLS = (0x5A, 0xA5)  # they differ in every bit, so one of the two shows each written byte
CALLS = ("prefix_valid", "set_kv_buffer", "payload_only")


@dataclass(frozen=True)
class Commit:
    """Arguments of one call. ``row_mask`` may be None."""

    call: str
    layer: int
    loc: torch.Tensor  # (B, W)
    commit_lens: torch.Tensor  # (B,)
    row_mask: torch.Tensor | None  # (B, W)
    k: torch.Tensor  # (B*W, heads, dim)
    v: torch.Tensor

    def on(self, pool: KVPool) -> None:
        """Run the call on a pool; its checks come first, so an error means that nothing was written."""
        if self.call == "payload_only":
            pool = payload_pool(pool)
        if self.call == "set_kv_buffer":
            pool.set_kv_buffer(self.layer, self.loc, self.k, self.v, dcp_kv_mask=self.row_mask)
        elif self.row_mask is None:
            pool.set_kv_buffer_prefix_valid(self.layer, self.loc, self.commit_lens, self.k, self.v)
        else:
            lens, mask = self.commit_lens, self.row_mask
            pool.commit(self.loc, self.k, self.v, layer=self.layer, commit_lens=lens, row_mask=mask)

    def twice(self, slots: int) -> Commit:
        """The same rows for both halves of a :func:`twin_layout`, as twice as many requests."""
        second = torch.where(self.loc > 0, self.loc + slots, self.loc)
        mask = None if self.row_mask is None else torch.cat([self.row_mask] * 2)
        rows = (torch.cat([self.loc, second]), torch.cat([self.commit_lens] * 2), mask)
        return Commit(self.call, self.layer, *rows, torch.cat([self.k] * 2), torch.cat([self.v] * 2))


@dataclass(frozen=True)
class Outcome:
    """What a commit did. ``error`` is the library's refusal, with nothing written, or None."""

    states: dict[str, np.ndarray]  # of every byte of every buffer, see STATES
    error: Exception | None
    differing: int  # bytes in which kernel and reference differ, over both fills
    compared: int
    launches: tuple
    seconds: float
    backend: str

    @cached_property
    def counts(self) -> dict[str, int]:
        """Bytes in each state."""
        counts = {
            s: sum(int(np.count_nonzero(x == i)) for x in self.states.values()) for i, s in enumerate(STATES) if i
        }
        return {STATES[0]: sum(x.size for x in self.states.values()) - sum(counts.values()), **counts}


def payload_pool(pool: KVPool) -> KVPool:
    """The payload of ``pool`` as a pool without scales, on the same memory: what a scale-blind engine writes to."""
    layout, fields = pool.layout, {n: pool.layout.fields[n] for n in ("k", "v")}
    plain = Layout(layout.name, layout.geometry, payload_dtype(layout.format), fields, layout.buffers)
    return KVPool.over(plain, pool.buffers)


def twin_layout(layout: Layout) -> Layout:
    """Two copies of every buffer, one after the other: each field gets one more slot digit, the copy.

    Slot ``s`` lies where ``layout`` has it, and slot ``s + slots`` at the same byte of the second copy. So one launch
    commits over both fills; in Triton's interpreter a second launch would cost as much again.
    """
    g, fields = layout.geometry, {}
    for name, f in layout.fields.items():
        copy = Axis("slot", len(f.modes["slot"]), 2, layout.buffers[f.buffer_of(0)])
        extents = {**f.extents, "slot": 2 * g.slots}
        fields[name] = replace(f, axes=(copy, *f.axes), extents=extents)
    sizes = {name: 2 * size for name, size in layout.buffers.items()}
    return Layout(layout.name, replace(g, pages=2 * g.pages), layout.format, fields, sizes)


class Bench:
    """Pools of one layout, kept from step to step: two of the reference, one per fill, and the kernel's twin."""

    def __init__(self, layout: Layout):
        self.layout = layout
        self.references = [KVPool(layout) for _ in FILLS]
        self.twin = KVPool(twin_layout(layout))
        self.device = self.twin.device
        self.before = [{n: np.full(size, fill, np.uint8) for n, size in layout.buffers.items()} for fill in FILLS]

    def run(self, commit: Commit) -> Outcome:
        """The reference first: it is the plain call on the plain layout, so what it refuses is refused in its words."""
        seconds, launches, error = 0.0, [], None
        with one_thread():
            self._fill()
            try:
                with reference_backend():
                    for pool in self.references:
                        commit.on(pool)
                with _launches(self.device) as launches:
                    seconds = self._timed(commit.twice(self.layout.geometry.slots))
            except (ValueError, IndexError, TypeError) as refused:
                error = refused
        kernel = self._halves()
        plain = [_numpy(pool.buffers) for pool in self.references]
        compared = sum(x.size for half in plain for x in half.values())
        pairs = [(a[n], b[n]) for a, b in zip(kernel, plain, strict=True) for n in a]
        differing = sum(0 if np.array_equal(a, b) else int(np.count_nonzero(a != b)) for a, b in pairs)
        states = self._states(commit, kernel, error)
        return Outcome(states, error, differing, compared, tuple(launches), seconds, backend(self.device))

    def _fill(self) -> None:
        for pool, fill in zip(self.references, FILLS, strict=True):
            for buffer in pool.buffers.values():
                buffer.fill_(fill)
        for name, buffer in self.twin.buffers.items():
            for fill, half in zip(FILLS, buffer.split(self.layout.buffers[name]), strict=True):
                half.fill_(fill)

    def _timed(self, commit: Commit) -> float:
        self._wait()
        start = time.perf_counter()
        commit.on(self.twin)
        self._wait()
        return time.perf_counter() - start

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _halves(self) -> list[dict[str, np.ndarray]]:
        whole = _numpy(self.twin.buffers)
        return [{n: x.reshape(2, -1)[i] for n, x in whole.items()} for i in range(2)]

    def _states(self, commit: Commit, kernel, error) -> dict[str, np.ndarray]:
        layout = self.layout
        if error is None:
            given = (x if x is None else x.cpu().numpy() for x in (commit.loc, commit.commit_lens, commit.row_mask))
            expected = expected_mask(layout, *given, layer=commit.layer)
        else:
            expected = {n: np.zeros(size, bool) for n, size in layout.buffers.items()}
        (a, b), (x, y) = self.before, kernel
        return {n: classify(expected[n], a[n], x[n], b[n], y[n]) for n in layout.buffers}


def proof(outcome: Outcome, commit: Commit, bench: Bench) -> str:
    """The proof line: what was compared and with what result, and what ran where. Plain text."""
    counts, g = outcome.counts, bench.layout.geometry
    if outcome.error is not None:
        total = sum(counts.values())
        return f"Refused before anything was written: {total - counts['untouched']} of {total:,} bytes changed."
    if outcome.backend == "reference":
        verdict = f"No kernel ran (reference backend), so there is nothing to prove; {outcome.compared:,} bytes agree."
    elif outcome.differing:
        verdict = f"KERNEL != REFERENCE in {outcome.differing:,} of {outcome.compared:,} bytes, both fills."
    else:
        verdict = f"Proof: kernel == reference on {outcome.compared:,} bytes (all buffers, fills 0x5A and 0xA5)."
    rows, kind = commit.k.shape[0], str(commit.k.dtype).removeprefix("torch.")
    grids = " + ".join(f"{launch.kernel} grid {launch.grid}" for launch in outcome.launches) or "no launch"
    written = counts["written"] + counts["unexpected"]
    return (
        f"{verdict} Backend {outcome.backend} on {device_name(bench.device)}; {grids}, "
        f"{len(outcome.launches)} launch{'es' * (len(outcome.launches) != 1)} for both fills; "
        f"{written:,} bytes written per fill, of {rows} rows of {g.heads} x ({g.head_dim} + {g.v_head_dim}) {kind}; "
        f"{outcome.seconds * 1e3:.0f} ms; {versions()}."
    )


def device_name(device: torch.device) -> str:
    """The GPU's name, or the CPU's as far as Python knows it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"cpu ({platform.processor() or platform.machine()})"


@cache
def versions() -> str:
    """Versions that decide what ran."""
    names = ("kvlab", "torch", "triton")
    found = []
    for name in names:
        with suppress(PackageNotFoundError):
            found.append(f"{name} {version(name)}")
    return ", ".join([*found, f"Python {platform.python_version()}"])


def _launches(device: torch.device):
    """What records the kernel launches of a block; the reference launches none, and Triton may be missing there."""
    if backend(device) == "reference":
        return nullcontext([])
    from ..kernels.launch import record_launches

    return record_launches()


def _numpy(buffers) -> dict[str, np.ndarray]:
    return {n: x.cpu().numpy() for n, x in buffers.items()}
