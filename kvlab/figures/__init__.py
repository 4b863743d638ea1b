"""Figures of layouts, buffers and commits: data in, ``go.Figure`` out. Every figure has a text twin, :func:`text`."""

from ..debug.commit_data import classify, expected_mask
from .before_after import before_after, changed_runs
from .bench_plot import bench_plot
from .commit_diff import commit_diff, commit_diff_bytes
from .memory_map import memory_map
from .owners import owner_map
from .programs import programs_figure
from .quantization_error import error_table, quantization_error
from .roofline import roofline, roofline_table
from .runs_figure import runs_figure, runs_table
from .scale_atom import atom, scale_atom
from .scale_counts import scale_counts
from .scale_formulas import general_offsets, scale_formulas, tile_offsets
from .scale_shift import scale_shift
from .stride_ladder import rungs, stride_ladder
from .style import text
from .writes import writes_figure

__all__ = [
    "atom",
    "before_after",
    "bench_plot",
    "changed_runs",
    "classify",
    "commit_diff",
    "commit_diff_bytes",
    "error_table",
    "expected_mask",
    "general_offsets",
    "memory_map",
    "owner_map",
    "programs_figure",
    "quantization_error",
    "roofline",
    "roofline_table",
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
    "writes_figure",
]
