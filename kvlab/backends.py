"""Which machinery runs an operation: a GPU's compiler, Triton's interpreter, or plain torch.

Chosen when kvlab is imported, because Triton decides between compiling and interpreting when a kernel is decorated.
"""

from __future__ import annotations

import importlib.util
import os
from contextlib import contextmanager

import torch

_WORDS = {
    "cuda": "a CUDA GPU is here: the Triton kernels run compiled on it",
    "hip": "a ROCm GPU is here: the Triton kernels run compiled on it",
    "interpreter": "no GPU here: the same kernels run in Triton's interpreter, on the CPU",
    "reference": "Triton is not to be had here: plain torch does the same work, byte for byte",
}
_forced: list[str] = []


def _detect() -> str:
    if importlib.util.find_spec("triton") is None:
        return "reference"
    # Triton 3.9 warns at the first import where this is not chosen. No kernel here has a product that feeds a sum,
    # so fusing them changes no byte.
    os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
    gpu = torch.cuda.is_available()
    interpret = os.environ.setdefault("TRITON_INTERPRET", "0" if gpu else "1")
    if interpret == "1":
        return "interpreter"
    if not gpu:
        return "reference"  # the user asked for compiled kernels, and nothing here can run them
    return "hip" if torch.version.hip else "cuda"


_FOUND = _detect()


def backend(device: torch.device | str | None = None) -> str:
    """What runs operations on tensors of ``device`` (default: the device a new pool gets).

    Returns
    -------
    str
        "cuda" or "hip": kernels compiled for the GPU. "interpreter": the same kernels in Triton's interpreter, on the
        CPU. "reference": plain torch, where Triton is missing, or for a CPU pool on a machine whose kernels compile
        for its GPU.
    """
    if _forced:
        return _forced[-1]
    if _FOUND in ("cuda", "hip") and device is not None and torch.device(device).type != "cuda":
        return "reference"
    return _FOUND


def describe_backend() -> str:
    """:func:`backend` in a sentence that a person understands."""
    return _WORDS[backend()]


def default_device() -> torch.device:
    """Where a pool is allocated when nothing is said: the GPU if kernels compile for one, else the CPU."""
    return torch.device("cuda" if _FOUND in ("cuda", "hip") else "cpu")


@contextmanager
def reference_backend():
    """Run everything inside the block on plain torch, to compare with the kernels or to be rid of their cost."""
    _forced.append("reference")
    try:
        yield
    finally:
        _forced.pop()


@contextmanager
def one_thread():
    """Run torch's CPU operations on one thread.

    On small tensors a second one saves little, and where it shares its core with others, waiting for it takes ten times
    as long as the work.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def operations(device: torch.device):
    """The module with the primitives for this device: :mod:`kvlab.kernels`, or :mod:`kvlab.reference`, its twin."""
    if backend(device) == "reference":
        from . import reference

        return reference
    from . import kernels

    return kernels
