"""kvlab: KV-cache layouts of LLM serving engines, as data; their commits, as Triton kernels; and how to see both."""

from importlib import import_module

from .backends import backend, describe_backend
from .builders import head_major, page_major, token_major
from .formats import MXFP8
from .geometry import Geometry
from .layout import Cell, Layout, Padding
from .move import HostCopy, copy
from .pool import KVPool

__all__ = [
    "MXFP8",
    "Cell",
    "Geometry",
    "HostCopy",
    "KVPool",
    "Layout",
    "Padding",
    "backend",
    "copy",
    "describe",
    "describe_backend",
    "diff",
    "head_major",
    "page_major",
    "scan",
    "token_major",
    "watch",
    "where",
]

_DEBUG = ("describe", "diff", "scan", "watch", "where")


def __getattr__(name: str):
    """The debugging tools load when they are first used: most programs that import kvlab never need them."""
    if name not in ("debug", *_DEBUG):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    debug = import_module(f"{__name__}.debug")
    return debug if name == "debug" else getattr(debug, name)
