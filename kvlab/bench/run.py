"""Run cases on what there is, a GPU or a CPU, and give everything that was found as one JSON-ready dict."""

from __future__ import annotations

import datetime
import gc
import platform
from collections.abc import Callable
from importlib import metadata

import torch

from ..backends import backend, one_thread
from .cases import STEP, Case, cpu_cases, gpu_cases, traffic
from .peers import peers
from .timing import Cpu, Gpu, Times, copy_bandwidth, host_samples, measure
from .work import Work, same

NOTES = {
    "interpreter": "interpreter: these say nothing about a GPU",
    "reference": "plain torch on a CPU: these say nothing about a GPU, nor about the kernels",
}


def run(cases: list[Case] | None = None, quick: bool = False, device=None, say: Callable = lambda words: None) -> dict:
    """Time ``cases``, by kvlab and by everyone else who can do them here.

    Parameters
    ----------
    cases : list of Case, optional
        ``gpu_cases(quick)`` or ``cpu_cases(quick)`` where not given.
    quick : bool
        Fewer cases and samples.
    device : Gpu or Cpu, optional
        The GPU where kernels compile for one, else the CPU.
    say : function of a string
        Told what is being measured.

    Returns
    -------
    dict
        ``results``: one dict for each case, implementation and mode. Times are microseconds: median, 10th and 90th
        percentile. ``same_bytes`` says whether the implementation left the same bytes as kvlab. On a GPU also
        ``of_copy``, the share of the bandwidth of torch's ``copy_`` in this run, and ``of_bound``: the time over that
        of an empty launch and of the bytes at that bandwidth. ``left_out``: what could not be measured, and why.
    """
    name = backend()
    device = device or (Gpu() if name in ("cuda", "hip") else Cpu())
    cases = cases if cases is not None else (gpu_cases if device.is_gpu else cpu_cases)(quick)
    found = {**facts(device, name), "copy_gb_per_s": None, "empty_launch_us": None, "left_out": [], "results": []}
    if device.is_gpu:
        size = min(2**30, device.free_bytes() // 8)
        found["copy_gb_per_s"] = copy_bandwidth(device, size, "cold") / 1e9
        found["empty_launch_us"] = empty_launches(device)
    seconds = (0.01 if quick else 0.04) if device.is_gpu else (0.2 if quick else 0.4)
    with one_thread():
        for case in cases:
            say(words_of(case))
            try:
                measure_case(case, device, seconds, found)
            except torch.cuda.OutOfMemoryError as error:
                found["left_out"].append(f"{words_of(case)}: {str(error).splitlines()[0]}")
            gc.collect()  # a pool of the next size may need the memory of this one
    return found


def facts(device, name: str) -> dict:
    """Where and when, and with what."""
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    for package in ("triton", "kvlab", "sglang"):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = None
    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "device": device.name,
        "backend": name,
        "note": None if device.is_gpu else NOTES[name],
        "versions": versions,
        "date": now.isoformat(timespec="seconds"),
    }


def empty_launches(device) -> dict[str, float]:
    """Microseconds of an empty kernel in each mode."""
    from .bare_kernels import launch_empty

    return {mode: measure(launch_empty, device, mode).median * 1e6 for mode in device.short_modes}


def words_of(case: Case) -> str:
    """A case in one line."""
    w = case.words()
    share = "" if case.accepted is None else f", {case.accepted:.0%} accepted"
    return f"{w['operation']}, {w['layout']}, {w['format']}, {w['rows']} rows, {w['layers']} layers{share}"


def measure_case(case: Case, device, seconds: float, found: dict) -> None:
    """Add the results of one case to ``found``."""
    work, moved = Work(case, device.torch_device), traffic(case)
    wanted = work.outcome(work.call)
    modes = device.short_modes if case.rows == STEP else device.modes
    for by, call in everyone(work, found):
        try:
            same_bytes = by == "kvlab" or same(work.outcome(call), wanted, case.operation)
            for mode in modes:
                if mode == "graph" and by != "kvlab" and case.accepted is not None and by.startswith("torch"):
                    continue  # it asks the host which rows were accepted: no graph can hold that
                times = measure(call, device, mode, seconds)
                row = {**case.words(), "by": by, "mode": mode, "bytes": moved.total, "same_bytes": same_bytes}
                found["results"].append({**row, **rates(times, moved.total, mode, found)})
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:
            # a peer's failure is a fact to report; kvlab's own is a bug
            if by == "kvlab":
                raise
            reason = str(error).strip().splitlines() or [type(error).__name__]
            found["left_out"].append(f"{by}: {words_of(case)}: {type(error).__name__}: {reason[0][:200]}")


def everyone(work: Work, found: dict):
    """kvlab, then the others; one that cannot be found is noted once."""
    yield "kvlab", work.call
    try:
        yield from peers(work)
    except LookupError as error:
        if str(error) not in found["left_out"]:
            found["left_out"].append(str(error))


def rates(times, nbytes: int, mode: str, found: dict) -> dict:
    """Times in microseconds, and what they mean beside the copy and the empty launch of the same run."""
    out = {
        "median_us": times.median * 1e6,
        "p10_us": times.low * 1e6,
        "p90_us": times.high * 1e6,
        "samples": times.samples,
        "gb_per_s": nbytes / times.median / 1e9,
        "of_copy": None,
        "of_bound": None,
    }
    if found["copy_gb_per_s"]:
        out["of_copy"] = out["gb_per_s"] / found["copy_gb_per_s"]
        bound = found["empty_launch_us"][mode] + nbytes / found["copy_gb_per_s"] / 1e3
        out["of_bound"] = out["median_us"] / bound
    return out


def tile_claim(device, quick: bool = False) -> dict:
    """The standard prefix-valid commit, 8 requests x 8 rows x 2 KiB, against one program a request, row and tile.

    Every row is accepted, K and V of one layer are written, and both leave the same bytes.

    Returns
    -------
    dict
        ``kvlab_us`` and ``tile_us`` (medians), their programs, and ``ratio``.
    """
    from ..kernels.launch import record_launches
    from .bare_kernels import TILE
    from .peers import tile_call

    work = Work(
        Case("commit", "token_major", torch.bfloat16, STEP, layers=1, layer=0, accepted=1.0), device.torch_device
    )
    with record_launches() as launches:
        wanted = work.outcome(work.call)
    tiled = tile_call(work)
    same_bytes = same(work.outcome(tiled), wanted, "commit")
    kvlab = measure(work.call, device, "host", 1.0)
    tile = Times.of(host_samples(tiled, device, 1 if quick else 3))
    row_bytes = work.k[0].nbytes
    return {
        "kvlab_us": kvlab.median * 1e6,
        "tile_us": tile.median * 1e6,
        "kvlab_programs": sum(x.programs for x in launches),
        "tile_programs": STEP * row_bytes // TILE,
        "same_bytes": same_bytes,
        "ratio": tile.median / kvlab.median,
    }


def is_quantising(row: dict) -> bool:
    """Whether a result is of a commit that makes scales."""
    return row["operation"] == "commit" and row["format"].startswith("mxfp8")
