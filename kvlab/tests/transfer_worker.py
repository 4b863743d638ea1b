"""What the two processes of the transfer tests do: one scenario after another, each with its fault."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from kvlab import KVPool, transfer
from kvlab.backends import reference_backend


@dataclass
class Scenario:
    """Rank 0 sends ``pages[0]`` of a pool with bytes ``sent``; rank 1 takes them as ``pages[1]`` over ``held``."""

    layouts: tuple
    pages: tuple = ([3, 5, 1], [2, 1, 6])
    sent: dict = field(default_factory=dict)
    held: dict = field(default_factory=dict)
    fault: str = ""
    kernel: bool = False


@dataclass
class Report:
    """What one side saw: result or error, its buffers afterwards, and what it handed to ``dist.send``."""

    result: object
    error: str
    buffers: dict
    sends: list
    in_place: int  # how many of them lie in the pool's own memory


class Tap:
    """Stands in for ``torch.distributed.send``: notes what passes, and does what the fault says."""

    def __init__(self):
        self.send, self.sizes, self.starts, self.fault, self.pool = dist.send, [], [], "", None
        dist.send = self

    def reset(self, fault: str, pool) -> None:
        self.sizes, self.starts, self.fault, self.pool = [], [], fault, pool

    def __call__(self, tensor, *args, **options):
        self.sizes.append(tensor.nbytes)
        self.starts.append(tensor.data_ptr())
        number = len(self.sizes)  # 1 prefix, 2 header, then the pages
        if (self.fault, number) in (("flip a header byte", 2), ("flip a page byte", 4), ("flip the last byte", 5)):
            tensor = tensor.clone()
            tensor[-1 if "last" in self.fault else 40] ^= 1
        if self.fault == "written while sent" and number == 3:
            for buffer in self.pool.buffers.values():
                buffer.add_(1)
        if self.fault == "die" and number == 5:
            os._exit(3)
        return self.send(tensor, *args, **options)


def filled(layout, buffers) -> KVPool:
    pool = KVPool(layout, device="cpu")
    for name, x in buffers.items():
        pool.buffers[name].copy_(x)
    return pool


def play(rank: int, scenarios: list[Scenario]) -> list[Report]:
    """All scenarios, in step with the other rank."""
    tap = Tap()
    return [one(rank, s, tap) for s in scenarios]


def one(rank: int, scenario: Scenario, tap: Tap, peer: int | None = None) -> Report:
    pool = filled(scenario.layouts[rank], (scenario.sent, scenario.held)[rank])
    if peer is None:
        dist.barrier()
        peer = 1 - rank
    tap.reset(scenario.fault if rank == 0 else "", pool)
    call = transfer.recv_pages if rank else transfer.send_pages
    version = transfer.VERSION
    if scenario.fault == "other version" and rank == 0:
        transfer.VERSION = 1
    result, error = None, ""
    try:
        if scenario.kernel:
            result = call(pool, scenario.pages[rank], peer)
        else:
            with reference_backend():
                result = call(pool, scenario.pages[rank], peer)
    except Exception as problem:
        error = f"{type(problem).__name__}: {problem}"
    transfer.VERSION = version
    spans = [(b.data_ptr(), b.data_ptr() + b.numel()) for b in pool.buffers.values()]
    inside = sum(any(low <= start < high for low, high in spans) for start in tap.starts)
    return Report(result, error, pool.buffers, tap.sizes, inside)


def deaths(rank: int, scenario: Scenario) -> tuple[Report, Report]:
    """Rank 0 dies in the middle of its pages to rank 1. Then rank 1 sends to rank 2, which dies at the first page.

    Only rank 1 returns.
    """
    tap = Tap()
    if rank == 0:
        one(0, scenario, tap, peer=1)
    if rank == 1:
        first = one(1, scenario, tap, peer=0)
        scenario.fault = ""
        return first, one(0, scenario, tap, peer=2)
    wire = transfer.Wire(1, None)
    header, _ = wire.receive_text("never")
    wire.reply("")
    # gloo ends a process whose buffer is not of the message's size
    wire.receive(torch.empty(json.loads(header)["page_bytes"], dtype=torch.uint8), "never")
    os._exit(4)
