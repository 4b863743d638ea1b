"""The primitives as Triton kernels, one file each; :mod:`kvlab.reference` has the same functions in plain torch.

Loaded when first used, so that :mod:`kvlab.kernels.launch` can be imported where Triton is missing.
"""

from importlib import import_module

_HOME = {"commit_rows": "commit", "copy_rows": "copy", "gather_rows": "gather"}


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
