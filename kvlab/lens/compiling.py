"""Compile one operation or one kernel, for a GPU that is not here.

A stand-in driver says which GPU there is, so that a launch specialises its arguments as it would there, and Triton
then only compiles.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from math import prod
from pathlib import Path

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import JITFunction, driver

from .. import kernels
from ..formats import format_name, parse_format
from ..kernels.launch import instead_of_launching
from ..layout import Layout
from .cases import ARCHES, OPERATIONS, Batch
from .describe import describe


class Refused(Exception):
    """The request cannot be compiled as it is; the message says what to change."""


class StandInDriver:
    """What Triton asks of a GPU's driver before a launch, answered for a GPU that is not here."""

    def __init__(self, arch: str):
        self.arch = arch

    def get_current_target(self) -> GPUTarget:
        return target_of(self.arch)

    def get_current_device(self) -> int:
        return ARCHES.index(self.arch)  # Triton keeps its compiled kernels by device number

    def get_current_stream(self, device=None) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")


def target_of(arch: str) -> GPUTarget:
    if arch.startswith("gfx"):
        return GPUTarget("hip", arch, 64)
    return GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def compile_operation(operation: str, layout: dict, source: str, arch: str, tile: dict) -> dict:
    """Call the operation's own launcher, and compile what it would launch: the fields of a Report."""
    driver.set_active(StandInDriver(arch))
    layout, source = Layout.from_dict(layout), parse_format(source)
    batch = Batch.standard(layout, source)
    compiled, programs, meta = [], 0, {}

    def take(kernel, grid, args, launched):
        nonlocal programs, meta
        grid, meta = retiled(grid, launched, batch.loc.numel(), **tile)
        programs += prod(grid)
        found = kernel.warmup(*args, grid=grid, **meta)
        compiled.append((found, contents_of(dict(zip(kernel.arg_names, args, strict=False)), batch)))

    with instead_of_launching(take):
        OPERATIONS[operation].call(kernels, batch)
    return describe(compiled, arch) | {
        "kernel": operation,
        "layout": layout.name,
        "format": format_name(layout.format),
        "arch": arch,
        "launches": len(compiled),
        "programs": programs,
        "tile": (meta["ROWS"], columns_of(meta), meta["num_warps"]),
    }


def retiled(grid: tuple, meta: dict, total: int, rows, columns, num_warps) -> tuple[tuple, dict]:
    """A launch over ``total`` rows with another tile; what is None stays as kvlab chose it."""
    meta = dict(meta)
    if rows:
        meta["ROWS"], grid = rows, (triton.cdiv(total, rows), *grid[1:])
    if columns:
        chosen = meta["COLUMNS"]
        widest = columns_of(meta)  # copy has one width for each field: a scale for every 32 elements of payload
        meta["COLUMNS"] = tuple(c * columns // widest for c in chosen) if isinstance(chosen, tuple) else columns
    if num_warps:
        meta["num_warps"] = num_warps
    return grid, meta


def columns_of(meta: dict) -> int:
    """Payload elements of a row that a program's tile holds."""
    return meta["COLUMNS"][0] if isinstance(meta["COLUMNS"], tuple) else meta["COLUMNS"]


def contents_of(arguments: dict, batch: Batch) -> dict[str, tuple[str, str]]:
    """``{argument: (what, role)}`` of every tensor that a launch was given; ``cells.2.0`` names one in a tuple."""
    pools = (batch.pool, batch.other)
    fields = {id(cells.args): name for pool in pools for name, cells in pool._cells.items()}
    inputs = {x.untyped_storage()._cdata: name for name, x in batch.contents().items() if x is not None}
    found = {}

    def walk(path, value):
        if isinstance(value, torch.Tensor):
            what = inputs.get(value.untyped_storage()._cdata, path)
            bookkeeping = what in ("loc", "commit_lens")
            found[path] = what, "bookkeeping" if bookkeeping else "scale" if "scale" in what else "payload"
        elif isinstance(value, tuple):
            for i, part in enumerate(value):
                walk(f"{path}.{i}", part)
            if name := fields.get(id(value)):
                found[f"{path}.0"] = name, "scale" if name.endswith("_scale") else "payload"
                found[f"{path}.1"] = f"{name} origins", "bookkeeping"

    for name, value in arguments.items():
        walk(name, value)
    return found


def compile_kernel(kernel: str, signature: dict, constexprs: dict, arch: str, num_warps: int) -> dict:
    """Compile a user's kernel with the signature that was given: the fields of a Report."""
    driver.set_active(StandInDriver(arch))
    function = import_kernel(kernel)
    signature = {name: as_tuples(kind) for name, kind in signature.items()}
    constexprs = {name: as_tuples(value) for name, value in constexprs.items()}
    given = signature.keys() | constexprs.keys()
    for name, legal in (("signature", signature), ("constexprs", constexprs)):
        if unknown := legal.keys() - set(function.arg_names):
            raise Refused(f"{name} names {sorted(unknown)}, but the arguments are {function.arg_names}")
    if absent := [name for name in function.arg_names if name not in given]:
        raise Refused(f"{absent} have no type: name them in signature, or in constexprs with a value")
    types, attributes, contents = dict.fromkeys(function.arg_names, "constexpr"), {}, {}
    for i, name in enumerate(function.arg_names):
        if name not in constexprs:
            types[name] = plain_types(signature[name], (i,), name, attributes, contents)
    source = ASTSource(fn=function, signature=types, constexprs=constexprs, attrs=attributes)
    compiled = triton.compile(source, target=target_of(arch), options={"num_warps": num_warps})
    return describe([(compiled, contents)], arch) | {
        "kernel": function.fn.__name__,
        "layout": None,
        "format": None,
        "arch": arch,
        "launches": None,
        "programs": None,
        "tile": None,
    }


def plain_types(kind, position: tuple, name: str, attributes: dict, contents: dict):
    """A type without its hint; notes divisibility in ``attributes`` and each pointer's role in ``contents``."""
    if isinstance(kind, tuple):
        parts = enumerate(kind)
        return tuple(plain_types(k, (*position, i), f"{name}.{i}", attributes, contents) for i, k in parts)
    bare, _, hint = kind.partition(":")
    if hint == "16" or (bare.startswith("*") and hint != "1"):
        attributes[position] = [["tt.divisibility", 16]]
    if bare.startswith("*"):
        index = bare in ("*i32", "*i64")
        contents[name] = name, "scale" if "scale" in name else "bookkeeping" if index else "payload"
    return bare


def as_tuples(value):
    """JSON's lists as the tuples they were."""
    return tuple(as_tuples(x) for x in value) if isinstance(value, list) else value


def import_kernel(kernel: str) -> JITFunction:
    where, _, name = kernel.rpartition(":")
    try:
        if where.endswith(".py"):
            sys.path.insert(0, str(Path(where).parent))
            spec = importlib.util.spec_from_file_location(Path(where).stem, where)
            module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(where)
    except Exception as error:
        raise Refused(f"kernel={kernel!r}: importing it raised {type(error).__name__}: {error}") from error
    function = getattr(module, name, None)
    while function is not None and not isinstance(function, JITFunction):
        function = getattr(function, "fn", None)  # @triton.autotune and @triton.heuristics wrap one
    if function is None:
        raise Refused(f"kernel={kernel!r}: {where} has no @triton.jit function of that name")
    return function
