"""What MXFP8 costs in numbers: signal to noise of a tensor, and the block that came off worst."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from .formats import BLOCK, E4M3_MAX, E8M0_BIAS, E8M0_NAN, dequantize, quantize


@dataclass(frozen=True)
class Quality:
    """How well a tensor survives quantisation. Decibels are 10*log10(sum x^2 / sum (read back - x)^2)."""

    snr_db: float  # of the whole tensor
    worst_snr_db: float  # of the worst block
    worst_block: tuple[int, ...]  # its index, such as (token, head, block)
    saturated: int  # elements beyond 448 times their block's scale, stored as 448
    saturated_blocks: torch.Tensor  # bool (..., dim/32): blocks that have any


def quality(x: torch.Tensor, rounding: str = "rceil") -> Quality:
    """Quantise rows and read them back.

    Parameters
    ----------
    x : tensor ``(..., dim)``, dim a multiple of 32; bf16, fp16 or fp32
        Such as K of one layer, ``(tokens, heads, head_dim)``.
    rounding : "rceil", "floor" or "even"
        How a block's amax becomes its scale; see :func:`kvlab.formats.quantize`.

    Returns
    -------
    Quality
        Errors are summed in fp64. Blocks without error, all-zero ones among them, have infinite SNR; a block with a
        NaN or an infinity has none: it is the worst block, and both ratios are NaN.

    Raises
    ------
    ValueError
        A tensor without elements; a rounding or a dim that MXFP8 does not have.
    """
    if not x.numel():
        raise ValueError(f"quality: x has shape {tuple(x.shape)}, which holds no element")
    payload, scales = quantize(x, rounding)
    exact = x.double().unflatten(-1, (-1, BLOCK))
    error = dequantize(payload, scales).double().unflatten(-1, (-1, BLOCK)) - exact
    signal, noise = exact.square().sum(-1), error.square().sum(-1)
    ratio = torch.where(noise == 0, float("inf"), signal / noise)
    ratio = torch.where(scales == E8M0_NAN, float("nan"), ratio)
    worst = int(ratio.argmin())  # a NaN counts as the smallest
    limit = E4M3_MAX * torch.exp2(scales.double() - E8M0_BIAS)[..., None]
    beyond = (exact.abs() > limit) & (scales != E8M0_NAN)[..., None]
    whole = signal.sum() / noise.sum() if noise.sum() != 0 else torch.tensor(float("inf"))
    return Quality(
        snr_db=float(10 * whole.log10()),
        worst_snr_db=float(10 * ratio.flatten()[worst].log10()),
        worst_block=tuple(int(i) for i in torch.unravel_index(torch.tensor(worst), ratio.shape)),
        saturated=int(beyond.sum()),
        saturated_blocks=beyond.any(-1),
    )
