"""kvlab: KV-cache layouts of LLM serving engines, as data; their commits, as Triton kernels; and how to see both."""

from .backends import backend, describe_backend
from .builders import head_major, page_major, token_major
from .debug import describe, diff, scan, watch, where
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
