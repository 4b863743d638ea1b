"""What bad input gets: an error that names the argument, its value and the legal range, before anything is written."""

from __future__ import annotations

from operator import index

import numpy as np
import torch

from .formats import BLOCK, FP8_MAX, MXFP8, PLAIN, format_name


def layer_range(layer, layers: int) -> tuple[int, int]:
    """``(first layer, count)`` of ``layer``: an int, any object with ``.layer_id``, or None for all."""
    if layer is None:
        return 0, layers
    layer = getattr(layer, "layer_id", layer)
    if isinstance(layer, bool) or not hasattr(layer, "__index__"):
        raise TypeError(f"layer={layer!r} must be an int, an object with .layer_id, or None for all layers")
    layer = index(layer)
    if not 0 <= layer < layers:
        raise IndexError(f"layer={layer} is outside 0 … {layers - 1}")
    return layer, 1


def slots_2d(name: str, loc, device: torch.device) -> torch.Tensor:
    """``loc`` as ``(B, W)``; ``(N,)`` is one block of N rows. A view, whatever the strides."""
    if not isinstance(loc, torch.Tensor):
        raise TypeError(f"{name} must be an int32 or int64 tensor of slots, not {type(loc).__name__}")
    if loc.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"{name} is {loc.dtype}; slots are int32 or int64")
    if loc.dim() not in (1, 2):
        raise ValueError(f"{name} has shape {tuple(loc.shape)}; legal are (N,) and (B, W)")
    same_device(name, loc, device)
    return loc[None, :] if loc.dim() == 1 else loc


def same_device(name: str, x: torch.Tensor, device: torch.device) -> None:
    """Raise where a tensor lies on another device than the pool."""
    if x.device != device:
        raise ValueError(f"{name} is on {x.device}, the pool is on {device}; move it with {name}.to({str(device)!r})")


def source_rows(geometry, device, layer, layers: int, rows: int, k, v) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V as ``(layers, rows, heads, dim)`` views, checked against the pool and each other."""
    g = geometry
    out = []
    for name, x in (("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a tensor, not {type(x).__name__}")
        lead = (rows,) if layer is not None else (layers, rows)
        want = (*lead, g.heads, g.dim(name))
        if tuple(x.shape) != want:
            names = "(rows, heads, head_dim)" if layer is not None else "(layers, rows, heads, head_dim)"
            raise ValueError(f"{name} has shape {tuple(x.shape)}, but loc and the pool ask for {names} = {want}")
        same_device(name, x, device)
        out.append(x[None] if layer is not None else x)
    if k.dtype != v.dtype:
        raise TypeError(f"k is {k.dtype} and v is {v.dtype}; both rows of a token have one dtype")
    if k.dtype not in PLAIN.values():
        raise TypeError(f"k is {k.dtype}; a commit takes {', '.join(f'torch.{n}' for n in PLAIN)}")
    return out[0], out[1]


def commit_lens_ok(commit_lens, loc: torch.Tensor, given_dim: int, check: bool) -> None:
    """``commit_lens``: ints ``(B,)`` within 0 … W."""
    if not isinstance(commit_lens, torch.Tensor):
        raise TypeError(f"commit_lens must be an int32 or int64 tensor, not {type(commit_lens).__name__}")
    if given_dim != 2:
        raise ValueError(
            f"commit_lens needs loc of shape (B, W), one block of W rows for each request; loc is {given_dim}-D"
        )
    if commit_lens.dtype not in (torch.int32, torch.int64):
        raise TypeError(f"commit_lens is {commit_lens.dtype}; it must be int32 or int64")
    blocks, width = loc.shape
    if tuple(commit_lens.shape) != (blocks,):
        raise ValueError(f"commit_lens has shape {tuple(commit_lens.shape)}, but loc has {blocks} blocks: ({blocks},)")
    same_device("commit_lens", commit_lens, loc.device)
    if check and blocks:
        bad = ((commit_lens < 0) | (commit_lens > width)).nonzero()
        if len(bad):
            b = int(bad[0])
            raise ValueError(f"commit_lens[{b}]={int(commit_lens[b])} is outside 0 … {width}, the rows of a block")


def row_mask_2d(row_mask, loc: torch.Tensor, given_shape: tuple[int, ...]) -> torch.Tensor:
    """``row_mask`` as a bool ``(B, W)`` view; it may come as loc's shape or as ``(rows,)``."""
    if not isinstance(row_mask, torch.Tensor) or row_mask.dtype != torch.bool:
        kind = row_mask.dtype if isinstance(row_mask, torch.Tensor) else type(row_mask).__name__
        raise TypeError(f"row_mask must be a bool tensor, not {kind}")
    if tuple(row_mask.shape) not in (given_shape, (loc.numel(),)):
        raise ValueError(f"row_mask has shape {tuple(row_mask.shape)}; legal are {given_shape} and ({loc.numel()},)")
    same_device("row_mask", row_mask, loc.device)
    return row_mask.view(loc.shape) if row_mask.dim() == 1 else row_mask


def commit_scales(fmt, geometry, device, layer, layers: int, k, v, rows: int, k_scale, v_scale, check: bool):
    """What goes with the rows: divisors of a plain FP8 pool, UE8M0 bytes ``(layers, rows, heads, dim/32)``, or None."""
    if not isinstance(fmt, MXFP8):
        return tuple(
            plain_scale(fmt, name, scale, k.dtype, device, check)
            for name, scale in (("k_scale", k_scale), ("v_scale", v_scale))
        )
    if (k_scale is None) != (v_scale is None):
        missing = "k_scale" if k_scale is None else "v_scale"
        raise ValueError(f"{missing} is None, but the other scale is given; E4M3 rows carry scales for both K and V")
    if k.dtype not in (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn):
        raise TypeError(
            f"k is {k.dtype}; an MXFP8 pool takes bf16, fp16 or fp32 rows, or float8_e4m3fn rows with scales"
        )
    if k_scale is None:
        if k.dtype == torch.float8_e4m3fn:
            raise ValueError(
                "k is float8_e4m3fn, but k_scale and v_scale are None: E4M3 rows mean nothing without their UE8M0 "
                "scales; give them, or commit bf16, fp16 or fp32 rows, which are quantised on the way"
            )
        return None, None
    if k.dtype != torch.float8_e4m3fn:
        raise ValueError(
            f"k_scale is given, but k is {k.dtype}; such rows are quantised in the commit, which makes the scales"
        )
    out = []
    for name, scale, dim in (("k_scale", k_scale, geometry.head_dim), ("v_scale", v_scale, geometry.v_head_dim)):
        if not isinstance(scale, torch.Tensor) or scale.dtype not in (torch.uint8, torch.float8_e8m0fnu):
            have = scale.dtype if isinstance(scale, torch.Tensor) else type(scale).__name__
            raise TypeError(f"{name} is {have}; UE8M0 scales are a uint8 or float8_e8m0fnu tensor")
        want = (rows, geometry.heads, dim // BLOCK)
        want = want if layer is not None else (layers, *want)
        if tuple(scale.shape) != want:
            raise ValueError(
                f"{name} has shape {tuple(scale.shape)}; legal is one byte per 32 elements of a row, {want}. "
                "Interleaved scales belong to whole pages, not to rows: adopt them, or copy the pages"
            )
        same_device(name, scale, device)
        scale = scale.view(torch.uint8)
        out.append(scale if layer is None else scale[None])
    return tuple(out)


def plain_scale(fmt, name: str, scale, source: torch.dtype, device, check: bool = True):
    """The divisor of a plain FP8 commit, or None where rows are moved as they are. ``check`` reads a tensor's value."""
    if scale is None:
        return None
    if isinstance(scale, torch.Tensor):
        if scale.dim() or not scale.dtype.is_floating_point:
            raise ValueError(
                f"{name} has shape {tuple(scale.shape)} and dtype {scale.dtype}; use a float or a 0-d float tensor"
            )
        same_device(name, scale, device)
    elif isinstance(scale, bool) or not isinstance(scale, (int, float)):
        raise TypeError(f"{name}={scale!r} must be a float or a 0-d float tensor")
    if (check or not isinstance(scale, torch.Tensor)) and not 0 < float(scale) < float("inf"):
        raise ValueError(f"{name}={float(scale)} must be a positive finite number")
    if fmt not in FP8_MAX:
        raise ValueError(
            f"{name} is given, but a {format_name(fmt)} pool stores rows unscaled; only FP8 pools take a scale"
        )
    if source == fmt:
        return None  # rows that are FP8 already were divided by whoever made them
    return scale if isinstance(scale, torch.Tensor) else float(scale)


def slots_in_range(name: str, loc: torch.Tensor, chosen: torch.Tensor, slots: int, low: int | None = None) -> None:
    """IndexError for the first chosen slot at or beyond ``slots`` (or below ``low``)."""
    bad = chosen & (loc >= slots)
    if low is not None:
        bad |= chosen & (loc < low)
    if bad.any():
        at = bad.nonzero()[0].tolist()
        where = at[1:] if loc.shape[0] == 1 else at
        value = int(loc[tuple(at)])
        raise IndexError(f"{name}{where}={value} is outside the pool's slots 0 … {slots - 1}")


def no_duplicates(name: str, loc: torch.Tensor, written: torch.Tensor) -> None:
    """ValueError where two written rows share a slot: the kernel's programs would race for it."""
    # numpy, on the host: a few thousand numbers are sorted before torch's threads have woken up
    rows = np.flatnonzero(written.reshape(-1).cpu().numpy())
    slots = loc.reshape(-1).cpu().numpy()[rows]
    order = np.argsort(slots, kind="stable")
    slots = slots[order]
    same = np.flatnonzero(slots[1:] == slots[:-1])
    if len(same):
        i = same[0]
        first, second = rows[order[i]], rows[order[i + 1]]
        raise ValueError(
            f"{name}: slot {slots[i]} is given twice, by rows {first} and {second}; "
            "each written row needs a slot of its own"
        )


def chosen_ok(loc: torch.Tensor, commit_lens, row_mask, slots: int) -> None:
    """The rows that a commit writes have slots of the pool, and each one of its own."""
    chosen = selected(loc, commit_lens, row_mask)
    slots_in_range("loc", loc, chosen, slots)
    no_duplicates("loc", loc, chosen)


def selected(loc: torch.Tensor, commit_lens, row_mask) -> torch.Tensor:
    """Bool ``(B, W)``: the rows that a commit addresses, padding left out."""
    chosen = loc > 0
    if commit_lens is not None:
        chosen &= torch.arange(loc.shape[1], device=loc.device) < commit_lens[:, None]
    return chosen if row_mask is None else chosen & row_mask
