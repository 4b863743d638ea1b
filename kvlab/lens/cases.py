"""What is compiled: every operation, called as :class:`kvlab.KVPool` calls it, on tensors that have no memory."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..builders import head_major, page_major, token_major
from ..formats import BLOCK, MXFP8, PLAIN, payload_dtype
from ..geometry import Geometry
from ..layout import Layout

# The targets that Triton's wheel compiles for on any Linux machine.
ARCHES = ("sm_80", "sm_89", "sm_90", "sm_100", "gfx942")
# The standard commit: 64 requests of 8 rows each, all layers of the layout.
REQUESTS, ROWS = 64, 8


@dataclass(frozen=True)
class Batch:
    """The inputs of one operation, on the meta device: shapes, strides and dtypes, but no bytes."""

    pool: object
    other: object
    loc: torch.Tensor
    lens: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    k_scale: torch.Tensor | None
    v_scale: torch.Tensor | None

    @classmethod
    def standard(cls, layout: Layout, source: torch.dtype) -> Batch:
        from ..pool import KVPool

        g = layout.geometry

        def rows(dim, dtype):
            return torch.empty(g.layers, REQUESTS * ROWS, g.heads, dim, dtype=dtype, device="meta")

        scaled = isinstance(layout.format, MXFP8) and source.itemsize == 1
        scales = [rows(d // BLOCK, torch.uint8) if scaled else None for d in (g.head_dim, g.v_head_dim)]
        loc = torch.empty(REQUESTS, ROWS, dtype=torch.int64, device="meta")
        lens = torch.empty(REQUESTS, dtype=torch.int64, device="meta")
        pool, other = KVPool(layout, device="meta"), KVPool(layout, device="meta")
        return cls(pool, other, loc, lens, rows(g.head_dim, source), rows(g.v_head_dim, source), *scales)

    def contents(self) -> dict[str, torch.Tensor | None]:
        """The inputs by the name that reports use; a name with "scale" holds scales, one with "rows" payload."""
        return {
            "loc": self.loc,
            "commit_lens": self.lens,
            "k rows": self.k,
            "v rows": self.v,
            "k_scale rows": self.k_scale,
            "v_scale rows": self.v_scale,
        }


@dataclass(frozen=True)
class Operation:
    """How one operation is launched, and for which formats it means something."""

    call: Callable
    fits: Callable = lambda fmt: True
    source: torch.dtype = torch.bfloat16


def _commit(kernels, b: Batch):
    kernels.commit_rows(b.pool, 0, b.loc, b.k, b.v, b.lens, None, b.k_scale, b.v_scale)


def _gather(kernels, b: Batch, dequantize: bool):
    layers = b.pool.layout.geometry.layers
    kernels.gather_rows(b.pool, ("k", "v"), 0, layers, b.loc, None, None, dequantize)


def _copy(kernels, b: Batch):
    slots = b.loc.reshape(-1)
    kernels.copy_rows(b.pool, slots, b.other, slots)


def _is_mx(fmt) -> bool:
    return isinstance(fmt, MXFP8)


# One line per operation. `call` gets the kernels' package and a Batch.
OPERATIONS = {
    "commit": Operation(_commit),
    "commit_with_scales": Operation(_commit, _is_mx, torch.float8_e4m3fn),
    "gather": Operation(lambda kernels, b: _gather(kernels, b, _is_mx(b.pool.layout.format))),
    "gather_raw": Operation(lambda kernels, b: _gather(kernels, b, False), _is_mx),
    "copy": Operation(_copy),
}


FORMATS = (torch.bfloat16, torch.float8_e4m3fn, MXFP8("flat"), MXFP8("interleaved"))
MORE_FORMATS = (torch.float16, torch.float32, torch.float8_e5m2)
# As many as a serving engine has. For buffers below 2 GiB Triton's AMD backend takes other instructions, narrower ones.
SLOTS = 131072
# Rows, columns and warps of kvlab's own tile for rows of 2 KiB.
USUAL_TILE = (4, 1024, 4)
# The compiler unrolls a tile over the elements of each thread: with 512 quantised ones it takes 80 s, with 128 9 s.
MOST_MOVED, MOST_CONVERTED = 512, 128


def standard_cases(arch: str, formats=FORMATS) -> list[dict]:
    """``inspect`` arguments of the command line's table: 32 layers, 8 heads of 128; bf16 rows where none are named."""
    cases = []
    for name, operation in OPERATIONS.items():
        for fmt in formats:
            for build in (token_major, page_major, head_major):
                if not operation.fits(fmt):
                    continue
                page_size = 128 if _is_mx(fmt) and fmt.scales == "interleaved" else 16
                g = Geometry(layers=32, heads=8, head_dim=128, page_size=page_size, pages=SLOTS // page_size)
                cases.append({"operation": name, "layout": build(g, fmt), "source": None, "arch": arch})
    return cases


def request(
    operation="commit", layout=None, source=None, arch="sm_90", rows=None, columns=None, num_warps=None
) -> dict:
    """Check the arguments of ``inspect`` and make them JSON-ready."""
    check_arch(arch)
    if operation not in OPERATIONS:
        raise ValueError(f"lens: operation={operation!r} is not one of {', '.join(OPERATIONS)}")
    if not isinstance(layout, Layout):
        raise TypeError(f"lens: layout={layout!r} must be a Layout, such as kvlab.token_major(geometry, fmt)")
    found = OPERATIONS[operation]
    if not found.fits(layout.format):
        raise ValueError(f"lens: operation={operation!r} needs a layout with scales, of format kvlab.MXFP8(...)")
    source = found.source if source is None else source
    if source not in PLAIN.values():
        raise ValueError(
            f"lens: source={source!r} is no dtype of rows; legal are {', '.join(map(str, PLAIN.values()))}"
        )
    if source.itemsize == 1 and source != payload_dtype(layout.format) and _is_mx(layout.format):
        raise ValueError(f"lens: source={source} does not fit an MXFP8 layout; FP8 rows for it are torch.float8_e4m3fn")
    converts = _is_mx(layout.format) or ("commit" in operation and source != layout.format)
    check_tile(rows, columns, num_warps, least=4 * BLOCK if _is_mx(layout.format) else 1, converts=converts)
    name = str(source).removeprefix("torch.")
    tile = {"rows": rows, "columns": columns, "num_warps": num_warps}
    return {"operation": operation, "layout": layout.to_dict(), "source": name, "arch": arch, "tile": tile}


def check_tile(rows, columns, num_warps, least: int, converts: bool) -> None:
    """Raise where a tile cannot be launched, or not be compiled in a reasonable time. None stands for kvlab's own.

    ``least``: the scales of four MXFP8 blocks leave a tile as one word, so its rows are no narrower than these blocks.
    """
    ranges = (("rows", rows, 1, 1024), ("columns", columns, least, 8192), ("num_warps", num_warps, 1, 32))
    for name, value, low, high in ranges:
        if value is not None and not (_is_power_of_two(value) and low <= value <= high):
            raise ValueError(f"lens: {name}={value!r} must be a power of two from {low} to {high}")
    rows, columns, num_warps = (x or usual for x, usual in zip((rows, columns, num_warps), USUAL_TILE, strict=True))
    each, most = rows * columns // (32 * num_warps), MOST_CONVERTED if converts else MOST_MOVED
    if each > most:
        raise ValueError(
            f"lens: rows={rows} times columns={columns} over num_warps={num_warps} of 32 threads are {each} elements "
            f"for each thread; at most {most} compile in reasonable time: lower rows or columns, or raise num_warps"
        )


def _is_power_of_two(x) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and x > 0 and x & (x - 1) == 0


def check_arch(arch) -> None:
    """Raise where ``arch`` is not a target that is known to compile here."""
    if arch not in ARCHES:
        raise ValueError(f"lens: arch={arch!r} is not a known target; legal are {', '.join(ARCHES)}")
