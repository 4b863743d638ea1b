"""Figures of layouts, buffers and commits: data in, ``go.Figure`` out. Every figure has a text twin, :func:`text`."""

from .before_after import before_after, changed_runs
from .commit_data import classify, expected_mask
from .commit_diff import commit_diff, commit_diff_bytes
from .memory_map import memory_map
from .owners import owner_map
from .quantization_error import error_table, quantization_error
from .runs_figure import runs_figure, runs_table
from .scale_atom import atom, scale_atom
from .scale_counts import scale_counts
from .scale_formulas import general_offsets, scale_formulas, tile_offsets
from .scale_shift import scale_shift
from .stride_ladder import rungs, stride_ladder
from .style import text

__all__ = [
    "atom",
    "before_after",
    "changed_runs",
    "classify",
    "commit_diff",
    "commit_diff_bytes",
    "error_table",
    "expected_mask",
    "general_offsets",
    "memory_map",
    "owner_map",
    "quantization_error",
    "rungs",
    "runs_figure",
    "runs_table",
    "scale_atom",
    "scale_counts",
    "scale_formulas",
    "scale_shift",
    "stride_ladder",
    "text",
    "tile_offsets",
]
