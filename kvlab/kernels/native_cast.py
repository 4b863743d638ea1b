"""Triton's own fp32 -> E4M3 cast, to compare with :mod:`kvlab.kernels.casts`. No operation of a pool uses it."""

import torch
import triton
import triton.language as tl

from .launch import launch


@triton.jit
def native_cast_kernel(source_ptr, out_ptr, N: tl.constexpr):
    """Grid (1,): ``out[i] = bits of E4M3(source[i])``, N a power of two."""
    i = tl.arange(0, N)
    cast = tl.load(source_ptr + i).to(tl.float8e4nv)
    tl.store(out_ptr + i, cast.to(tl.uint8, bitcast=True))


def native_e4m3(x: torch.Tensor) -> torch.Tensor:
    """fp32 ``(N,)`` as E4M3, converted by whatever runs Triton here: its interpreter, or the GPU's own instruction.

    GPUs before sm_89 have no such instruction, and Triton says so when it compiles.
    """
    n = triton.next_power_of_2(x.numel())
    source = torch.nn.functional.pad(x.float().flatten(), (0, n - x.numel()))
    out = torch.empty(n, dtype=torch.uint8, device=x.device)
    launch(native_cast_kernel, (1,), source, out, N=n)
    return out[: x.numel()].view(torch.float8_e4m3fn)
