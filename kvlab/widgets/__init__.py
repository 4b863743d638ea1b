"""Widgets that run the real kernels: one import and one call each."""

from importlib import import_module

# Loaded at the first use: each widget costs an import of its figures.
_HOMES = {
    "CommitPlayground": "commit_playground",
    "KernelExplorer": "kernel_explorer",
    "LayoutExplorer": "layout_explorer",
    "ScaleExplorer": "scale_explorer",
}

__all__ = list(_HOMES)


def __getattr__(name: str):
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
