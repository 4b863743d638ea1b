"""Compiled kernels, seen without a GPU: access widths, registers, spills, machine code, and the sectors of a layout.

The compiler runs in a subprocess, because a process in interpreter mode cannot compile. Nothing is launched and no
memory of a pool is allocated.

>>> import torch, kvlab
>>> from kvlab import lens
>>> g = kvlab.Geometry(layers=2, heads=8, head_dim=128)
>>> report = lens.inspect("commit", kvlab.page_major(g, torch.bfloat16), arch="sm_90")   # doctest: +SKIP
>>> report.payload_load_bits, report.payload_store_bits, report.spill_bytes              # doctest: +SKIP
(128, 128, 0)
"""

from .ask import inspect, inspect_kernel, inspect_many
from .cases import ARCHES, OPERATIONS, standard_cases
from .report import Access, CompileError, Report
from .traffic import Footprint, footprint, sectors

__all__ = [
    "ARCHES",
    "OPERATIONS",
    "Access",
    "CompileError",
    "Footprint",
    "Report",
    "footprint",
    "inspect",
    "inspect_kernel",
    "inspect_many",
    "sectors",
    "standard_cases",
]
