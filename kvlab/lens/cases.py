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


def request(operation="commit", layout=None, source=None, arch="sm_90") -> dict:
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
    name = str(source).removeprefix("torch.")
    return {"operation": operation, "layout": layout.to_dict(), "source": name, "arch": arch}


def check_arch(arch) -> None:
    """Raise where ``arch`` is not a target that is known to compile here."""
    if arch not in ARCHES:
        raise ValueError(f"lens: arch={arch!r} is not a known target; legal are {', '.join(ARCHES)}")
