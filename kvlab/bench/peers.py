"""The same work by others: torch's indexed reads and writes, torch.compile, sglang's kernels, one tile per program."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator

import torch

from ..formats import FP8_MAX, INT_VIEW, MXFP8, dequantize, quantize
from .work import Work, attend

STORE_CACHE = ("sglang.kernels.ops.kvcache.kvcache", "sglang.jit_kernel.kvcache")
CACHE_MOVE = ("sglang.kernels.ops.kvcache.cache_move", "sglang.srt.mem_cache.triton_ops.cache_move")
# The arguments of set_kv_buffer_prefix_valid_tiled that this file knows; a kernel with others is left out.
TILED = (
    *("src_k_ptr", "src_v_ptr", "dst_k_ptr", "dst_v_ptr", "loc_2d_ptr", "commit_len_ptr"),
    *("src_k_row_stride", "src_v_row_stride", "dst_k_row_stride", "dst_v_row_stride", "block_size"),
    *("ROW_BYTES", "BYTES_PER_TILE"),
)


def peers(work: Work) -> Iterator[tuple[str, Callable]]:
    """``(name, call)`` of everyone who can do this work here; ``call`` does it as ``Work.call`` does."""
    yield "torch index_put_" if work.case.operation == "commit" else "torch indexing", torch_call(work)
    if work.device.type != "cuda":
        return
    if work.case.operation == "commit" and work.case.format == torch.bfloat16:
        if work.lens is None:
            yield "torch.compile", torch.compile(torch_call(work))
        elif flat_rows(work.pool, "k"):
            yield "one program a tile", tile_call(work)
        yield from sglang_calls(work)


# -------------------------------------------------------------------------------------------------------------- torch


def rows_view(pool, name: str) -> torch.Tensor:
    """A field as a zero-copy view ``(layers, slot digits …, heads, dim digits …)``, the slow digit of each first."""
    f = pool.layout.fields[name]
    axes = [*f.modes["layer"], *f.modes["slot"][::-1], *f.modes["head"], *f.modes["dim"][::-1]]
    items = pool.buffers[f.buffer].view(INT_VIEW[f.item])
    return items.as_strided([n for n, _ in axes], [s // f.item for _, s in axes], f.offset // f.item)


def digits(pool, name: str, loc: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The slots' digits, the slow one first: the indices into :func:`rows_view`."""
    sizes, out, x = [n for n, _ in pool.layout.fields[name].modes["slot"]], [], loc
    for n in sizes[:-1]:
        out.append(x % n)
        x = x // n
    return (x, *out[::-1])


def torch_call(work: Work) -> Callable:
    """The work in plain torch: one indexed read or write for each field. Slots are split into digits beforehand."""
    case, loc = work.case, work.loc.reshape(-1)
    layers = slice(None) if case.layer is None else slice(case.layer, case.layer + 1)
    fields = list(work.pool.layout.fields)
    at = {name: (layers, *digits(work.pool, name, loc)) for name in fields}
    source = {name: rows_view(work.pool, name) for name in fields}
    target = {name: rows_view(work.target, name) for name in fields}

    def put(name, values, index):
        to = target[name]
        values = values.view(to.dtype) if values.dtype != to.dtype else values
        to[index] = values.reshape(*values.shape[:3], *to.shape[len(index) + 1 :])

    def commit():
        k, v = (x if case.layer is None else x[None] for x in (work.k, work.v))
        index = at
        if work.lens is not None:  # torch writes the rows that it is given: pick the accepted ones
            width = work.loc.shape[1]
            kept = (torch.arange(width, device=loc.device) < work.lens[:, None]).reshape(-1).nonzero().squeeze(1)
            k, v = k[:, kept], v[:, kept]
            index = {name: (layers, *(d[kept] for d in at[name][1:])) for name in fields}
        for name, values in (("k", k), ("v", v)):
            if isinstance(case.format, MXFP8):
                values, scales = quantize(values, case.format.rounding)
                put(f"{name}_scale", scales, index[f"{name}_scale"])
            elif case.format != values.dtype:
                limit = FP8_MAX[case.format]
                values = values.clamp(-limit, limit).to(case.format)
            put(name, values, index[name])
        return ()

    def copy():
        for name in fields:
            target[name][at[name]] = source[name][at[name]]
        return ()

    def gather():
        rows = {name: source[name][at[name]].flatten(start_dim=3) for name in fields}
        payload = [rows[name].view(work.pool.dtype) for name in ("k", "v")]
        if isinstance(case.format, MXFP8):
            payload = [dequantize(x, rows[f"{name}_scale"]) for name, x in zip(("k", "v"), payload, strict=True)]
        return tuple(payload)

    calls = {"commit": commit, "copy": copy, "gather": gather, "attention": lambda: (attend(case, *gather()),)}
    return calls[case.operation]


# ------------------------------------------------------------------------------------------------ kernels of one layer


def flat_rows(pool, name: str) -> bool:
    """Whether a layer of this field is ``(slots, heads, dim)``, contiguous: the only pool that some kernels know."""
    return rows_view(pool, name)[0].is_contiguous() and len(pool.layout.fields[name].modes["slot"]) == 1


def layers_of(work: Work) -> list[tuple]:
    """``(k rows, v rows, K cells, V cells)`` of each layer that the case works on."""
    k, v = (x if work.case.layer is None else x[None] for x in (work.k, work.v))
    first = work.case.layer or 0
    cells = [rows_view(work.pool, name).view(work.pool.dtype)[first : first + len(k)] for name in ("k", "v")]
    return list(zip(k, v, *cells, strict=True))


def tile_call(work: Work) -> Callable:
    """Prefix-valid commit by :mod:`kvlab.bench.bare_kernels`, one launch a layer."""
    from .bare_kernels import tile_commit

    def call():
        for k, v, k_cells, v_cells in layers_of(work):
            tile_commit(work.loc, work.lens, k, v, k_cells, v_cells)
        return ()

    return call


def sglang_calls(work: Work) -> Iterator[tuple[str, Callable]]:
    """sglang's own kernels where sglang is installed, one launch a layer, as it launches them.

    Found by reading sglang: its homes for them, their first arguments, and the tile of rows below 4 KiB.
    """
    if importlib.util.find_spec("sglang") is None:
        return
    layers = layers_of(work)
    flat = flat_rows(work.pool, "k") and flat_rows(work.pool, "v")
    if work.lens is not None and flat:
        kernel = _find(CACHE_MOVE, "set_kv_buffer_prefix_valid_tiled")
        if tuple(kernel.arg_names) != TILED:
            raise LookupError(f"set_kv_buffer_prefix_valid_tiled takes {kernel.arg_names}, not what kvlab knows")
        row, blocks, lens = layers[0][0][0].nbytes, *work.loc.shape[:1], work.lens.int()

        def prefix():
            for rows in layers:
                arguments = (*rows, work.loc, lens, row, row, row, row, work.loc.shape[1])
                kernel[blocks, work.loc.shape[1], row // 128](*arguments, ROW_BYTES=row, BYTES_PER_TILE=128)
            return ()

        yield "sglang prefix_valid", prefix
    elif work.lens is None and flat:
        store = _find(STORE_CACHE, "store_cache")

        def plain():
            for rows in layers:
                store(*(x.flatten(1) for x in rows), work.loc.reshape(-1))
            return ()

        yield "sglang store_cache", plain
    elif work.lens is None and layers[0][2].dim() == 4 and layers[0][2].stride(-2) == layers[0][2].shape[-1]:
        store_4d, page_size = _find(CACHE_MOVE, "store_cache_4d"), work.pool.layout.geometry.page_size

        def paged():
            for k, v, k_cells, v_cells in layers:
                store_4d(k_cells, v_cells, k, v, work.loc.reshape(-1), page_size)
            return ()

        yield "sglang store_cache_4d", paged


def _find(homes: tuple[str, ...], name: str):
    for home in homes:
        try:
            return getattr(importlib.import_module(home), name)
        except (ImportError, AttributeError):
            continue
    raise LookupError(f"this sglang has {name} in none of {', '.join(homes)}")
