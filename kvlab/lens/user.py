"""A kernel of the user's: where it lies, and whether its signature can be compiled."""

from __future__ import annotations

import re
import sys
from pathlib import Path

from .cases import check_arch

INTEGERS = ("i1", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")
TYPES = (*INTEGERS, "fp16", "bf16", "fp32", "fp64", "fp8e4nv", "fp8e5")
_TYPE = re.compile(rf"\*?({'|'.join(TYPES)})(:1|:16)?")


def kernel_request(kernel, signature: dict, constexprs=None, arch: str = "sm_90", num_warps: int = 4) -> dict:
    """Check the arguments of ``inspect_kernel`` and make them JSON-ready."""
    check_arch(arch)
    constexprs = constexprs or {}
    if num_warps not in (1, 2, 4, 8, 16, 32):
        raise ValueError(f"inspect_kernel: num_warps={num_warps!r} must be a power of two from 1 to 32")
    for name, kind in signature.items():
        _check_type(f"signature[{name!r}]", kind)
    for name, value in constexprs.items():
        _check_constexpr(f"constexprs[{name!r}]", value)
    return {
        "kernel": locate(kernel),
        "signature": signature,
        "constexprs": constexprs,
        "arch": arch,
        "num_warps": num_warps,
    }


def _check_type(where: str, kind) -> None:
    if isinstance(kind, (tuple, list)):
        for i, part in enumerate(kind):
            _check_type(f"{where}[{i}]", part)
    elif not (isinstance(kind, str) and _TYPE.fullmatch(kind)):
        raise ValueError(
            f"inspect_kernel: {where}={kind!r} is no type; legal are {', '.join(TYPES)}, with * in front for a "
            "pointer, and :16 behind for a multiple of 16"
        )


def _check_constexpr(where: str, value) -> None:
    if isinstance(value, (tuple, list)):
        for i, part in enumerate(value):
            _check_constexpr(f"{where}[{i}]", part)
    elif not isinstance(value, (bool, int, float, str, type(None))):
        raise TypeError(
            f"inspect_kernel: {where}={value!r} must be a number, a string, a bool, None or a tuple of such"
        )


def locate(kernel) -> str:
    """``module:name`` or ``path.py:name``, from either or from a decorated function."""
    if isinstance(kernel, str):
        where, colon, name = kernel.rpartition(":")
        if not colon or not name.isidentifier():
            raise ValueError(f"inspect_kernel: kernel={kernel!r} must read 'path/to/file.py:name' or 'module:name'")
        if where.endswith(".py"):
            if not Path(where).is_file():
                raise ValueError(f"inspect_kernel: kernel={kernel!r}: there is no file {where}")
            where = str(Path(where).resolve())
        return f"{where}:{name}"
    if not hasattr(kernel, "fn"):
        raise TypeError(f"inspect_kernel: kernel={kernel!r} must be a @triton.jit function or a string that names one")
    while hasattr(kernel, "fn"):  # @triton.jit, and @triton.autotune around it
        kernel = kernel.fn
    path = Path(kernel.__code__.co_filename)
    if not path.is_file():
        raise ValueError(
            f"inspect_kernel: kernel={kernel.__name__!r} was not imported from a file, and another process must read "
            "it; in a notebook write it with %%writefile my_kernel.py, then pass kernel='my_kernel.py:name'"
        )
    module = sys.modules.get(kernel.__module__)
    importable = kernel.__module__ != "__main__" and getattr(module, "__file__", None) == str(path)
    return f"{kernel.__module__ if importable else path.resolve()}:{kernel.__name__}"
