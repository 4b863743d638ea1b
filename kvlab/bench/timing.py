"""How a call is timed. The loop is the same on every device; :class:`Gpu` and :class:`Cpu` say what theirs can do."""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

# What a time means. "host" is the only one without a GPU.
MODES = {
    "host": "the calling Python's time for one call",
    "warm": "on the GPU; what fits into L2 is there from the call before",
    "cold": "on the GPU; other bytes have filled L2 in between",
    "graph": "on the GPU; one of 20 calls in one CUDA graph",
}
IN_A_ROW = 20  # calls of one sample, where a single one is too short to tell its time


@dataclass(frozen=True)
class Times:
    """Seconds of a call over ``samples`` samples: the median, and the 10th and 90th percentile."""

    median: float
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, seconds: list[float]) -> Times:
        low, median, high = np.percentile(seconds, [10, 50, 90])
        return cls(float(median), float(low), float(high), len(seconds))


def measure(call: Callable, device, mode: str, seconds: float = 0.04, least: int = 5, most: int = 100) -> Times:
    """Times of ``call``: as many samples as fit into ``seconds``, between ``least`` and ``most``.

    Parameters
    ----------
    call : function without arguments
    device : Gpu or Cpu
    mode : str
        One of ``MODES``.
    """
    call()  # the first one compiles
    device.wait()
    in_a_row = device.in_a_row if mode in ("host", "graph") else 1
    if mode == "graph":
        call = device.graph(call, in_a_row)

    def sample(count: int) -> list[float]:
        if mode == "host":
            return host_samples(call, device, count, in_a_row)
        return [x / in_a_row for x in device_samples(call, device, count, cold=mode == "cold")]

    count = int(seconds / max(sample(1)[0] * in_a_row, 1e-9))
    return Times.of(sample(min(most, max(least, count))))


def host_samples(call: Callable, device, count: int, in_a_row: int = 1) -> list[float]:
    """Seconds of a call by the host's clock, ``count`` times the mean of ``in_a_row`` calls."""
    found = []
    for _ in range(count):
        start = device.clock()
        for _ in range(in_a_row):
            call()
        device.wait()
        found.append((device.clock() - start) / in_a_row)
    return found


def device_samples(call: Callable, device, count: int, cold: bool) -> list[float]:
    """Seconds of a call by marks in the device's own queue, ``count`` times."""
    marks = []
    for _ in range(count):
        if cold:
            device.flush()
        # Python takes longer to launch than a small kernel runs. Without a busy GPU the time between the two marks
        # would be the host's.
        device.occupy()
        start = device.mark()
        call()
        marks.append((start, device.mark()))
    device.wait()
    return [device.between(start, end) for start, end in marks]


class Cpu:
    """A machine without a GPU: a call has ended when it returns."""

    name = platform.processor() or platform.machine()
    is_gpu = False
    torch_device = torch.device("cpu")
    modes = short_modes = ("host",)
    in_a_row = 1
    clock = staticmethod(time.perf_counter)

    def wait(self) -> None:
        pass


class Gpu:
    """The current CUDA or ROCm device. Everything here waits in its stream's queue but :meth:`wait`."""

    is_gpu = True
    modes = ("cold", "warm")
    short_modes = ("cold", "warm", "graph", "host")  # of work whose launches cost more than its bytes
    in_a_row = IN_A_ROW
    clock = staticmethod(time.perf_counter)
    BUSY_CYCLES = 1_000_000  # about half a millisecond, several times what Python takes for a launch

    def __init__(self):
        self.torch_device = torch.device("cuda")
        facts = torch.cuda.get_device_properties(self.torch_device)
        self.name = facts.name
        # twice the L2, so that what was there has to leave; 256 MiB where torch does not say how large it is
        self._other = torch.empty(max(2 * getattr(facts, "L2_cache_size", 0), 2**28), dtype=torch.uint8, device="cuda")

    def free_bytes(self) -> int:
        return torch.cuda.mem_get_info()[0]

    def wait(self) -> None:
        torch.cuda.synchronize()

    def flush(self) -> None:
        self._other.zero_()

    def occupy(self) -> None:
        torch.cuda._sleep(self.BUSY_CYCLES)

    def mark(self):
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, start, end) -> float:
        return start.elapsed_time(end) / 1e3

    def graph(self, call: Callable, count: int) -> Callable:
        """A function that replays ``count`` calls from one CUDA graph."""
        side = torch.cuda.Stream()  # a capture must not be the first use of a stream's resources
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            call()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(count):
                call()
        return graph.replay


def copy_bandwidth(device, nbytes: int, mode: str) -> float:
    """Bytes per second that torch's ``copy_`` of ``nbytes`` moves, read and written ones counted."""
    x = torch.ones(nbytes, dtype=torch.uint8, device=device.torch_device)
    y = torch.empty_like(x)
    return 2 * nbytes / measure(lambda: y.copy_(x), device, mode).median
