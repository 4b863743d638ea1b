"""Oracles for MXFP8 that share no line with kvlab: what a block becomes, and where each byte of a pool must lie.

Numbers come from exact arithmetic on float64 with ml_dtypes, and from torchao's to_mx. Places come from torchao's
to_blocked for the tile and from plain reshapes for the rest, one page after another.
"""

import functools
import importlib

import numpy as np
import pytest
import torch

import kvlab
from kvlab.backends import reference_backend

from .helpers import BUILDERS, DEVICE, POISON, assert_same_bytes, bits, one_launch, poisoned, random_bytes

ml_dtypes = pytest.importorskip("ml_dtypes")

ROUNDINGS = ("rceil", "floor", "even")
PLACEMENTS = ("flat", "interleaved")
FIELDS = ("k", "v", "k_scale", "v_scale")


def exact_scale(amax: np.ndarray, rounding: str) -> np.ndarray:
    """Scale byte of blocks with this finite largest magnitude (float64), from the definitions: no bits, no log2."""
    mantissa, exponent = np.frexp(amax)  # amax = mantissa * 2^exponent, mantissa in [0.5, 1)
    if rounding == "rceil":  # the smallest power with amax <= 448 * power; 448 is 0.875 * 2^9
        byte = exponent - 9 + (mantissa > 0.875) + 127
        # below 2^-126 the fp32 quotient has steps of 2^-149: up to half a step over 2^-127 it is 2^-127
        byte = np.where(amax <= 448.0 * (2.0**-127 + 2.0**-150), 0, byte)
    else:
        up = (
            (mantissa >= 1.9375 / 2) if rounding == "even" else 0
        )  # 3 bits of mantissa, half up: from 1.9375 on it is 2
        byte = exponent - 1 + up - 8 + 127
    return np.where(amax == 0, 0, np.clip(byte, 0, 254)).astype(np.uint8)


def exact_mx(x: torch.Tensor, rounding: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Payload and scale bytes of ``(..., dim)`` rows, NaN and infinity included."""
    with np.errstate(invalid="ignore"):  # signalling NaNs
        blocks = x.float().cpu().numpy().astype(np.float64).reshape(*x.shape[:-1], -1, 32)
    amax = np.abs(blocks).max(-1)
    bad = ~np.isfinite(amax)
    byte = np.where(bad, 255, exact_scale(np.where(bad, 0, amax), rounding))
    # byte 0 as TransformerEngine and torchao do it: divided by 1 (rceil), or by 2^-126
    power = np.where(byte == 0, 0 if rounding == "rceil" else -126, byte.astype(int) - 127)
    with np.errstate(all="ignore"):
        ratio = np.clip(np.ldexp(blocks, -power[..., None]), -448, 448)
        payload = ratio.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)
    payload = np.where(bad[..., None], 0x7F, payload).astype(np.uint8).reshape(x.shape)
    return torch.from_numpy(payload).to(x.device), torch.from_numpy(byte.astype(np.uint8)).to(x.device)


def torchao_mx(x: torch.Tensor, rounding: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Payload and scale bytes of torchao; fp16, which it does not take, widened first."""
    mx_tensor = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    x = x.float() if x.dtype == torch.float16 else x
    mode = mx_tensor.ScaleCalculationMode[rounding.upper()]
    scales, payload = mx_tensor.to_mx(x.contiguous(), torch.float8_e4m3fn, 32, mode)
    return payload.view(torch.uint8), scales.view(torch.uint8)


def exact_values(payload: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """fp32 numbers that payload and scale bytes stand for, after ml_dtypes; every NaN is 0x7FC00000."""
    number = payload.cpu().numpy().view(ml_dtypes.float8_e4m3fn).astype(np.float64)
    power = scales.cpu().numpy().view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
    with np.errstate(all="ignore"):
        value = (number.reshape(*power.shape, 32) * power[..., None]).astype(np.float32).reshape(number.shape)
    return canonical(torch.from_numpy(value)).to(payload.device)


def canonical(x: torch.Tensor) -> torch.Tensor:
    return torch.where(x.isnan(), torch.full_like(x, float("nan")), x)


def spread_blocks(blocks: int, dtype=torch.float32, seed: int = 0, low: int = -140, high: int = 120) -> torch.Tensor:
    """``(blocks, 32)`` finite numbers, magnitudes over 2^low … 2^high: exponents mixed within a block, some blocks
    small or empty, zeros of both signs."""
    rng = np.random.default_rng(seed)
    top = rng.uniform(low + min(40, (high - low) / 2) * rng.random(blocks), high)
    exponent = np.maximum(top[:, None] - rng.choice([1, 12, 60], (blocks, 1)) * rng.random((blocks, 32)), low)
    x = np.exp2(exponent) * rng.choice([-1, 1], (blocks, 32))
    x[rng.random((blocks, 32)) < 0.05] = 0.0
    x[rng.random((blocks, 32)) < 0.05] = -0.0
    x[rng.random(blocks) < 0.02] = -0.0
    return torch.from_numpy(x.astype(np.float32)).to(dtype).to(DEVICE)


def near_powers(rounding: str) -> torch.Tensor:
    """Blocks whose amax lies within 32 fp32 steps of where the scale changes, for every exponent; both signs."""
    edge = {"rceil": 1.75, "floor": 1.0, "even": 1.9375}[rounding]
    at = (np.exp2(np.arange(-126, 127.0)) * edge).astype(np.float32).view(np.int32)
    amax = (at[:, None] + np.arange(-32, 32, dtype=np.int32)).reshape(-1).view(np.float32)
    x = np.zeros((len(amax), 32), np.float32)
    x[:, ::5] = (amax / 3)[:, None]
    x[np.arange(len(amax)), np.arange(len(amax)) % 32] = amax * np.where(np.arange(len(amax)) % 2, -1, 1)
    return torch.from_numpy(x).to(DEVICE)


def log2_rounds_down(x: torch.Tensor) -> torch.Tensor:
    """Blocks where log2 of the fp32 quotient amax/448 is just above an integer, but that integer rounded to fp32."""
    ratio = (x.abs().amax(-1).float().cpu().numpy() / np.float32(448)).astype(np.float64)
    with np.errstate(divide="ignore"):
        log2 = np.log2(ratio).astype(np.float32)
    return torch.from_numpy((log2 == np.round(log2)) & (ratio > np.exp2(np.round(log2).astype(np.float64)))).to(
        x.device
    )


def mx_rows(geometry, rows: int, dtype, layers: int | None = None, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V rows to quantise; fp16 within its range."""
    low, high = (-24, 15) if dtype == torch.float16 else (-140, 120)
    lead = (rows,) if layers is None else (layers, rows)
    shapes = [(*lead, geometry.heads, geometry.head_dim), (*lead, geometry.heads, geometry.v_head_dim)]
    make = [spread_blocks(torch.Size(s).numel() // 32, dtype, seed + i, low, high) for i, s in enumerate(shapes)]
    return make[0].view(shapes[0]), make[1].view(shapes[1])


def mx_bytes(geometry, rows: int, layers: int | None = None, seed: int = 0):
    """Rows that are quantised already, any payload byte, any scale byte: k, v, and their scales by name."""
    lead = (rows, geometry.heads) if layers is None else (layers, rows, geometry.heads)
    dims = (geometry.head_dim, geometry.v_head_dim, geometry.head_dim // 32, geometry.v_head_dim // 32)
    shapes = [torch.Size((*lead, d)) for d in dims]
    k, v, k_scale, v_scale = (random_bytes(s.numel(), seed + i).view(s) for i, s in enumerate(shapes))
    return k.view(torch.float8_e4m3fn), v.view(torch.float8_e4m3fn), {"k_scale": k_scale, "v_scale": v_scale}


def page_bytes(layout, field: str, dense: torch.Tensor) -> torch.Tensor:
    """One layer's ``(slots, heads, dims)`` as the bytes of each page, ``(pages, bytes)``, in the layout's order."""
    g = layout.geometry
    paged = dense.view(g.pages, g.page_size, g.heads, -1)
    if field.endswith("_scale") and layout.format.scales == "interleaved":
        to_blocked = pytest.importorskip("torchao.prototype.mx_formats.utils").to_blocked
        tiles = [to_blocked(page[:, head].contiguous()) for page in paged for head in range(g.heads)]
        return torch.stack(tiles).view(g.pages, -1)
    return (paged.transpose(1, 2) if layout.name == "head_major" else paged).reshape(g.pages, -1)


def whole_buffers(layout, dense: dict[str, torch.Tensor], fill) -> dict[str, torch.Tensor]:
    """Every buffer of a pool whose fields hold ``dense[field]``, ``(layers, slots, heads, dims)``; ``fill`` between."""
    layers = range(layout.geometry.layers)
    if layout.name != "page_major":
        return {f: torch.cat([page_bytes(layout, f, x[i]).reshape(-1) for i in layers]) for f, x in dense.items()}
    parts = []  # the envelope: [L0_K | L0_V | L0_Ks | L0_Vs | L1_K | ...], scale parts padded up to 16 bytes
    for i in layers:
        for field, x in dense.items():
            part = page_bytes(layout, field, x[i])
            pad = -part.shape[1] % 16 if field.endswith("_scale") else 0
            parts.append(torch.nn.functional.pad(part, (0, pad), value=fill))
    return {"raw": torch.cat(parts, 1).reshape(-1)}


def selected_rows(layout, loc, commit_lens, row_mask) -> list[tuple[int, int]]:
    """(row, slot) of every row that a commit must write, as a loop."""
    mask = None if row_mask is None else row_mask.reshape(-1).tolist()
    blocks, chosen, row = (loc.tolist() if loc.dim() == 2 else [loc.tolist()]), [], -1
    for b, block in enumerate(blocks):
        for w, slot in enumerate(block):
            row += 1
            accepted = commit_lens is None or w < int(commit_lens[b])
            if accepted and (mask is None or mask[row]) and 0 < slot < layout.geometry.slots:
                chosen.append((row, slot))
    return chosen


def expected(layout, loc, rows: dict[str, torch.Tensor], layer=None, commit_lens=None, row_mask=None):
    """Every byte of a poisoned pool after a commit of ``rows``, bytes ``(layers, N, heads, dims)`` of all fields."""
    g, chosen = layout.geometry, selected_rows(layout, loc, commit_lens, row_mask)
    values, written = {}, {}
    for field, x in rows.items():
        values[field] = torch.zeros(g.layers, g.slots, g.heads, x.shape[-1], dtype=torch.uint8, device=DEVICE)
        written[field] = torch.zeros_like(values[field])
        for i, source in enumerate(x):
            for row, slot in chosen:
                values[field][i if layer is None else layer, slot] = source[row]
                written[field][i if layer is None else layer, slot] = 1
    values, written = whole_buffers(layout, values, 0), whole_buffers(layout, written, 0)
    return {name: torch.where(written[name] == 1, x, POISON) for name, x in values.items()}


def check_mx_commit(layout, loc, k, v, *, oracle=torchao_mx, k_scale=None, v_scale=None, launches=1, **options):
    """Commit through kernel and reference into poison: every byte as the oracles say, the sources as they were."""
    layer = options.get("layer")
    if k_scale is None:
        (k_bytes, k_made), (v_bytes, v_made) = (oracle(x, layout.format.rounding) for x in (k, v))
        made = (k_bytes, v_bytes, k_made, v_made)
    else:
        made = tuple(x.view(torch.uint8) for x in (k, v, k_scale, v_scale))
    rows = {f: x if layer is None else x[None] for f, x in zip(FIELDS, made, strict=True)}
    want = expected(layout, loc, rows, **{n: x for n, x in options.items() if n != "check"})
    given = [x for x in (k, v, loc, k_scale, v_scale) if x is not None]
    before = [bits(x).clone() for x in given]
    kernel, reference = poisoned(layout), poisoned(layout)
    scales = {"k_scale": k_scale, "v_scale": v_scale} if k_scale is not None else {}
    with one_launch(launches):
        kernel.commit(loc, k, v, **scales, **options)
    with reference_backend(), one_launch(0):
        reference.commit(loc, k, v, **scales, **options)
    assert_same_bytes(reference, want, "reference")
    assert_same_bytes(kernel, want, "kernel")
    assert all(torch.equal(bits(x), old) for x, old in zip(given, before, strict=True)), "a source was changed"
    return kernel


def gpu_tiles(monkeypatch) -> None:
    """Launch with the tiles that a GPU gets: a program loops over a wide row. The interpreter's tiles never do."""
    tiles = pytest.importorskip("kvlab.kernels.tiles")
    for module in ("commit", "copy", "gather"):
        one = importlib.import_module(f"kvlab.kernels.{module}")
        monkeypatch.setattr(one, "tile_of", functools.partial(tiles.tile_of, interpreted=False))


def mx_layout(name: str, scales: str = "flat", rounding: str = "rceil", **sizes):
    """2 layers, 2 heads, head_dim 64, 3 pages of 4 slots (128 where interleaved), but for what is given."""
    page_size = 128 if scales == "interleaved" else 4
    geometry = kvlab.Geometry(**{"layers": 2, "heads": 2, "head_dim": 64, "page_size": page_size, "pages": 3, **sizes})
    return BUILDERS[name](geometry, kvlab.MXFP8(scales, rounding))
