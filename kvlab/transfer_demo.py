"""Two processes that exchange pages live: what notebook 07 shows, and the starter that the transfer tests use."""

from __future__ import annotations

import os
import sys
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.distributed as dist

from . import samples, transfer
from .builders import head_major, page_major
from .geometry import Geometry
from .pool import KVPool

PAGES_A, PAGES_B = [3, 5, 9, 2], [7, 1, 2, 11]  # the same four pages, as each process numbers them
BACK = [20, 21, 22, 23]
PAGE_SIZE, PAGES = 16, 24


@dataclass(frozen=True)
class Seen:
    """What one process saw of one transfer; ``wire_bytes`` counts what it handed to ``torch.distributed.send``."""

    process: str
    what: str
    layout: str
    pages: tuple[int, ...]
    wire_bytes: int
    seconds: float
    outcome: str


def exchange(timeout: float = 180.0) -> list[Seen]:
    """Start two processes with pools of unlike layouts, and let them send real K/V rows to and fro.

    A (page-major) sends four pages of the sample text to B (head-major, other page ids). B sends them back into
    other pages of A. Then A sends them once more, with one byte flipped on the way, and B refuses.

    Parameters
    ----------
    timeout : float
        Seconds until both are given up. Most of the time goes into starting them.
    """
    outcomes = run_processes(_exchange, 2, timeout=timeout)
    for rank, outcome in enumerate(outcomes):
        if isinstance(outcome, str):
            raise RuntimeError(f"process {'AB'[rank]}: {outcome}")
    return [x for step in zip(*outcomes, strict=True) for x in step]


def run_processes(work, count: int, *args, timeout: float = 180.0) -> list:
    """Run ``work(rank, *args)`` in ``count`` fresh processes, joined in one gloo group over loopback.

    Returns
    -------
    list
        By rank: what ``work`` returned, or a str that says how the process ended without returning.

    Raises
    ------
    TimeoutError
        Some did not end within ``timeout`` seconds; all were stopped.
    """
    context = torch.multiprocessing.get_context("spawn")
    with TemporaryDirectory() as folder:
        processes = [
            context.Process(target=_worker, args=(r, count, folder, timeout, work, args)) for r in range(count)
        ]
        for process in processes:
            process.start()
        end = time.monotonic() + timeout
        for process in processes:
            process.join(max(0.0, end - time.monotonic()))
        hanging = [rank for rank, process in enumerate(processes) if process.is_alive()]
        for rank in hanging:
            processes[rank].kill()
            processes[rank].join()
        if hanging:
            raise TimeoutError(f"processes {hanging} of {count} did not end within {timeout:.0f} s and were stopped")
        return [_outcome(Path(folder, str(rank)), process.exitcode) for rank, process in enumerate(processes)]


def _outcome(path: Path, exitcode: int):
    return torch.load(path, weights_only=False) if path.exists() else f"ended with exit code {exitcode}"


def _worker(rank: int, count: int, folder: str, timeout: float, work, args) -> None:
    loopback = {"linux": "lo", "darwin": "lo0"}.get(sys.platform)
    if loopback:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", loopback)
    torch.set_num_threads(1)
    # a file and not a port: the operating system gives each process a free one
    store = dist.FileStore(str(Path(folder, "store")), count)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=count, timeout=timedelta(seconds=timeout))
    try:
        result = work(rank, *args)
    except Exception:
        result = traceback.format_exc()
    path = Path(folder, str(rank))
    torch.save(result, path.with_suffix(".part"))
    path.with_suffix(".part").rename(path)
    os._exit(0)  # a peer may be gone: no goodbye that waits for it


def _exchange(rank: int) -> list[Seen]:
    text = samples.load_kv()
    layers, _, heads, head_dim = text.k.shape
    layout = (page_major, head_major)[rank](Geometry(layers, heads, head_dim, None, PAGE_SIZE, PAGES), torch.bfloat16)
    pool = KVPool(layout, device="cpu")
    rows = len(PAGES_A) * PAGE_SIZE
    if rank == 0:
        pool.commit(transfer.slots_of(PAGES_A, PAGE_SIZE), text.k[:, :rows], text.v[:, :rows])
    wire = _Tap()
    seen = []

    def step(what: str, sends: bool, pages, expect: int = rows) -> None:
        dist.barrier()
        wire.count, start = 0, time.perf_counter()
        try:
            (transfer.send_pages if sends else transfer.recv_pages)(pool, pages, 1 - rank)
            outcome = "sent, and the other side has published it"
            if not sends:
                k, v = pool.gather(transfer.slots_of(pages, PAGE_SIZE))
                same = (k == text.k[:, :rows]).all(dim=(0, 2, 3)) & (v == text.v[:, :rows]).all(dim=(0, 2, 3))
                outcome = f"{int(same.sum())} of {expect} tokens equal the sample"
        except transfer.TransferError as error:
            outcome = str(error)
        took = time.perf_counter() - start
        seen.append(Seen("AB"[rank], what, layout.name, tuple(pages), wire.count, took, outcome))

    step("A to B", rank == 0, (PAGES_A, PAGES_B)[rank])
    step("B back to A", rank == 1, (BACK, PAGES_B)[rank])
    wire.flip = 4 if rank == 0 else None  # prefix, header, page 0, then page 1
    step("A to B, a byte flipped", rank == 0, (PAGES_A, PAGES_B)[rank])
    return seen


class _Tap:
    """Counts the bytes handed to ``torch.distributed.send``; flips a bit of message number ``flip``."""

    def __init__(self):
        self.count, self.flip, self._send = 0, None, dist.send
        dist.send = self

    def __call__(self, tensor, *args, **options):
        self.count += tensor.nbytes
        if self.flip is not None:
            self.flip -= 1
            if self.flip == 0:
                tensor = tensor.clone()
                tensor[7] ^= 1
        return self._send(tensor, *args, **options)
