"""What is wrong in a pool, by its bytes alone: NaNs, lost scales, rows that nobody wrote, content in the pad slot."""

from __future__ import annotations

import numpy as np
import torch

from ..backends import one_thread
from ..formats import E8M0_NAN, MXFP8
from ..pool import KVPool
from .findings import Scan
from .marks import Marks
from .scale_rule import largest_elements
from .survey import SPECIAL, Survey, elements, scales, survey

# An element of all ones is poison: no rounding makes this NaN. In E4M3 it is -NaN itself, so only whole heads count.
ONES = {torch.bfloat16: -1, torch.float16: -1, torch.float32: -1, torch.float8_e5m2: 0xFF, torch.float8_e4m3fn: None}
BATCH = 1 << 12  # rows whose elements are looked at one by one together


def scan(pool: KVPool, written=None) -> Scan:
    """Look through every byte of a pool for what cannot be right.

    Parameters
    ----------
    pool : KVPool
        Of any layout, format and device; adopted ones too. Nothing is changed.
    written : int array or tensor ``(N,)`` or ``(B, W)``, or bool ``(slots,)``, optional
        The slots that should have content, such as every ``loc`` that was committed; 0 and negative ones are padding.
        Then slots of it without content are findings, and so are others with content. Without it a slot can only be
        compared with its page, its other layers, and its other one of K and V.

    Returns
    -------
    Scan
        ``.findings``, one for each kind in :data:`kvlab.debug.findings.KINDS`, in its order, worst first; ``.ok``.

    Raises
    ------
    TypeError
        No KVPool; slots that are neither integers nor bools.
    IndexError, ValueError
        A slot at or beyond ``slots``; a bool array of another length.

    Notes
    -----
    "Still the fill" means that all bytes of a head of a slot are 0x00, as in a fresh pool, or 0xFF, as poison mode
    leaves them (:mod:`kvlab.debug.guard`), which is no NaN finding then. A row of zeros that was committed looks the
    same, and so does a head of plain E4M3 whose elements are all -NaN. Slots without any content are free, not faulty.

    1 GiB takes about 1 s of one core in bf16 and 4 s in MXFP8, 5 and 9 where tokens lie inside dims (vLLM's first V),
    and a minute or so where all of it is NaN; with up to 200 MB besides the pool.
    """
    if not isinstance(pool, KVPool):
        raise TypeError(f"scan: pool is a {type(pool).__name__}; wrap the tensors of an engine with kvlab.KVPool.adopt")
    g, fmt = pool.layout.geometry, pool.layout.format
    named = _named(written, g.slots)
    marks = Marks(pool.layout)
    content = np.zeros((2, g.layers, g.slots), bool)
    with one_thread():
        for layer in range(g.layers):
            for i, name in enumerate("kv"):
                content[i, layer] = _look(pool, marks, name, layer)
    for kind, rows in _rows(content, named, g).items():
        for layer in range(g.layers):
            for i, name in enumerate("kv"):
                marks.add_slots(kind, name, layer, rows[i, layer])
    live = int(content[..., 1:].any((0, 1)).sum())
    looked = (
        f"{pool.layout.nbytes:,} bytes: {'K, V and scales' if isinstance(fmt, MXFP8) else 'K and V'} of {g.layers} "
    )
    looked += f"layer{'s' * (g.layers != 1)}; {live:,} of {g.slots - 1:,} slots have content, and slot 0 is the sink"
    return Scan(tuple(marks.findings(_words(fmt))), pool.layout.nbytes, g.slots, live, looked)


def _named(written, slots: int) -> np.ndarray | None:
    """Bool ``(slots,)``: slots that should have content."""
    if written is None:
        return None
    x = written.cpu().numpy() if isinstance(written, torch.Tensor) else np.asarray(written)
    if x.dtype == bool:
        if x.shape != (slots,):
            raise ValueError(f"scan: written is bool of shape {x.shape}; for this pool it has shape ({slots},)")
        return x & (np.arange(slots) > 0)
    if x.size and x.dtype.kind not in "iu":
        raise TypeError(f"scan: written must be slots (integers) or a bool for each slot, not {x.dtype}")
    x = x.reshape(-1).astype(np.int64)
    if (x >= slots).any():
        raise IndexError(f"scan: written={x[x >= slots][0]} is outside 0 … {slots - 1}")
    named = np.zeros(slots, bool)
    named[x[x > 0]] = True
    return named


def _look(pool, marks: Marks, name: str, layer: int) -> np.ndarray:
    """Faults that K or V of one layer shows by itself. Returns bool ``(slots,)``: it has content."""
    scaled = isinstance(pool.layout.format, MXFP8)
    seen = survey(pool, name, layer, blocks=scaled)
    _elements(pool, marks, name, layer, seen)
    has = _scales(pool, marks, name, layer, seen) if scaled else ~seen.fill
    content = has.any(1)
    part = content[:, None] & (~has | seen.ones)
    part[0] = False  # all of slot 0 is told as "pad"
    marks.add("part", name, layer, *np.nonzero(part))
    return content


def _elements(pool, marks: Marks, name: str, layer: int, seen: Survey) -> None:
    """NaN and infinity element by element, in the rows that have any."""
    infinity, nan = SPECIAL[pool.dtype]
    slots, heads = np.nonzero(seen.special & ~seen.ones)
    for first in range(0, len(slots), BATCH):
        slot, head = slots[first : first + BATCH], heads[first : first + BATCH]
        bits = elements(pool, name, layer, slot, head)
        magnitude = bits & np.iinfo(f"int{8 * bits.itemsize}").max
        fill = np.zeros(bits.shape, bool) if ONES[pool.dtype] is None else bits == ONES[pool.dtype]
        for kind, at in (("nan", (magnitude >= nan) & ~fill), ("infinity", magnitude == infinity), ("part", fill)):
            marks.add_elements(kind, name, layer, slot, head, at)


def _scales(pool, marks: Marks, name: str, layer: int, seen: Survey) -> np.ndarray:
    """Every block's scale against its payload. Returns bool ``(slots, heads)``: payload or scale has content."""
    scale = scales(pool, f"{name}_scale", layer)
    amax, ones = seen.amax, seen.ones[..., None]
    low, high = largest_elements(pool.layout.format.rounding)
    real, finite = (scale != 0) & (scale != E8M0_NAN), amax < SPECIAL[pool.dtype][1]
    off = (amax < low[scale]) | (amax > high[scale])
    faults = {
        "nan scale": (scale == E8M0_NAN) & ~ones,
        "zero scale": (scale == 0) & (amax > 0) & finite,
        "mismatch": real & finite & (amax > 0) & off,
        "bare scale": real & (amax == 0),
    }
    for kind, at in faults.items():
        if kind != "nan scale":
            at[0] = False  # slot 0 is told as "pad"
        marks.add(kind, f"{name}_scale", layer, *np.nonzero(at))
    return ~seen.fill | real.any(-1)


def _rows(content: np.ndarray, named: np.ndarray | None, g) -> dict[str, np.ndarray]:
    """Faults of whole rows, bool ``(2, layers, slots)`` each, from the rows that have content."""
    pad = np.arange(g.slots) == 0
    live = content.any((0, 1))
    gone = live & ~content & ~pad
    rows = {"pad": content & pad, "half": gone & content[::-1], "layers": gone & ~content[::-1]}
    if named is not None:
        return {**rows, "missing": np.broadcast_to(named & ~live, content.shape), "unexpected": content & ~named & ~pad}
    pages = live.reshape(g.pages, g.page_size)
    later = np.maximum.accumulate(pages[:, ::-1], axis=1)[:, ::-1].reshape(-1)
    return {**rows, "hole": np.broadcast_to(later & ~live & ~pad, content.shape)}


def _words(fmt) -> dict[str, str]:
    """What a kind's words do not say by themselves."""
    if not isinstance(fmt, MXFP8):
        return {}
    low, high = largest_elements(fmt.rounding)
    codes = torch.tensor([low[127], high[127]], dtype=torch.uint8)
    least, most = codes.view(torch.float8_e4m3fn).float().tolist()
    small = "" if fmt.rounding == "rceil" else "; numbers below 2^-117 are stored so too"  # they read back halved
    rule = f": with rounding {fmt.rounding!r} the largest element of a block is stored as {least:g} to {most:g}"
    return {
        "zero scale": small,
        "mismatch": f"{rule}. They are of different commits, or came quantised, by another rule",
    }
