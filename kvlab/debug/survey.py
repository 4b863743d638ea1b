"""One field of one layer read through once: which rows still hold a fill, and which have elements that are no numbers.

Rows are read as integers, in chunks, through strided views: nothing of the pool's size is allocated.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

from ..formats import BLOCK, INT_VIEW

CHUNK = 1 << 24  # bytes read at a time

# (infinity, first NaN) as bits without the sign; E4M3 has no infinity (OCP OFP8 v1.0; IEEE 754 for the others)
SPECIAL = {
    torch.bfloat16: (0x7F80, 0x7F81),
    torch.float16: (0x7C00, 0x7C01),
    torch.float32: (0x7F800000, 0x7F800001),
    torch.float8_e5m2: (0x7C, 0x7D),
    torch.float8_e4m3fn: (None, 0x7F),
}


@dataclass(frozen=True)
class Survey:
    """What one head of one slot holds, a bool each: ``(slots, heads)``.

    ``zero``: all bytes 0x00, as in a fresh pool. ``ones``: all bytes 0xFF, as poison mode leaves them. ``special``:
    some element is NaN or infinite. ``amax``: where asked for, the largest element of each block without its sign,
    ``(slots, heads, dim/32)`` uint8.
    """

    zero: np.ndarray
    ones: np.ndarray
    special: np.ndarray
    amax: np.ndarray | None

    @property
    def fill(self) -> np.ndarray:
        """Never written, as far as bytes can tell."""
        return self.zero | self.ones


def survey(pool, name: str, layer: int, blocks: bool) -> Survey:
    """Read payload of one layer; ``blocks``: E4M3 with a scale for every 32 elements."""
    infinity, nan = SPECIAL[pool.dtype]
    first = nan if infinity is None else infinity
    item = pool.layout.fields[name].item
    ones, magnitude = (0xFF, 0x7F) if item == 1 else (-1, torch.iinfo(INT_VIEW[item]).max)
    zero, full, special, amax = [], [], [], []
    for x in chunks(pool, name, layer):
        low, high = x.amin(-1), x.amax(-1)
        zero.append((low == 0) & (high == 0))
        full.append((low == ones) & (high == ones))
        if blocks:
            amax.append((x & magnitude).unflatten(-1, (-1, BLOCK)).amax(-1))
            special.append(amax[-1].amax(-1) >= first)
        elif bool((zero[-1] | full[-1]).all()):  # pages that nobody wrote yet: most of a pool, often
            special.append(full[-1])
        else:
            special.append((x & magnitude).amax(-1) >= first)
    heads = pool.layout.geometry.heads
    joined = [_joined(parts, heads) for parts in (zero, full, special)]
    return Survey(*joined, _joined(amax, heads, amax[0].shape[-1]) if blocks else None)


def scales(pool, name: str, layer: int) -> np.ndarray:
    """Scale bytes of one layer, ``(slots, heads, blocks)``."""
    field = pool.layout.fields[name]
    return _joined(list(chunks(pool, name, layer)), field.extents["head"], field.extents["dim"])


def elements(pool, name: str, layer: int, slots: np.ndarray, heads: np.ndarray) -> np.ndarray:
    """Bits of the rows ``(slots[i], heads[i])``: ``(rows, dims)`` integers."""
    field = pool.layout.fields[name]
    at = field.byte(layer, slots[:, None], heads[:, None], np.arange(field.extents["dim"])) // field.item
    bits = pool.buffers[field.buffer_of(layer)].view(INT_VIEW[field.item])
    return bits[torch.from_numpy(at).to(bits.device)].cpu().numpy()


def chunks(pool, name: str, layer: int) -> Iterator[torch.Tensor]:
    """The layer's items as integers, ``(slots, heads, dims)``, slots rising; each chunk may have several slot axes."""
    field = pool.layout.fields[name]
    slots, heads, dims = (field.modes[c][::-1] for c in ("slot", "head", "dim"))
    bits = pool.buffers[field.buffer_of(layer)].view(INT_VIEW[field.item])
    sizes, strides = zip(*slots, *heads, *dims, strict=True)
    start = bits.storage_offset() + (field.offset + layer * field.layer_stride) // field.item
    whole = bits.as_strided(sizes, [s // field.item for s in strides], start)
    step = max(1, CHUNK * sizes[0] // (whole.numel() * field.item))
    for first in range(0, sizes[0], step):
        x = whole[first : first + step]
        # several digits of dim seldom lie beside each other, so they are copied into one axis
        yield (x if len(dims) == 1 else x.flatten(-len(dims)))[..., : field.extents["dim"]]


def _joined(parts: list[torch.Tensor], *behind: int) -> np.ndarray:
    """Chunks as one array: slots as one axis, then the sizes ``behind`` them."""
    return torch.cat([x.reshape(-1, *behind) for x in parts]).cpu().numpy()
