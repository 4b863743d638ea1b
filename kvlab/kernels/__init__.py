"""The primitives as Triton kernels, one file each; :mod:`kvlab.reference` has the same functions in plain torch."""

from .commit import commit_rows
from .copy import copy_rows
from .gather import gather_rows

__all__ = ["commit_rows", "copy_rows", "gather_rows"]
