"""The bytes of some pages of a pool, in a fixed order: what a case file holds where it does not hold everything."""

from __future__ import annotations

from math import prod

import numpy as np
import torch

from .accesses import expand


class PageBytes:
    """Bytes of ``pages``, page by page, each page's runs in address order: payload, scales and a tile's padding."""

    def __init__(self, layout, pages: list[int]):
        _whole_pages(layout)
        self._parts = {name: [] for name in layout.buffers}  # a page at a time: its indices take 8 times its bytes
        for page in pages:
            runs = layout.runs("page", page)
            names = np.array(runs.buffers)
            for name, parts in self._parts.items():
                parts.append((runs.starts[names == name], runs.lengths[names == name]))

    @staticmethod
    def least(layout, pages: int) -> int:
        """A lower bound of the bytes of so many pages, by arithmetic alone: checked before any list is made."""
        g, total = layout.geometry, 0
        for f in layout.fields.values():
            per_slot = prod(size for c in ("head", "dim") for size, _ in f.modes[c]) * f.item
            total += pages * g.page_size * g.layers * per_slot
        return total

    def nbytes(self, buffer: str) -> int:
        """Bytes of the pages in one buffer."""
        return sum(int(lengths.sum()) for _, lengths in self._parts[buffer])

    def mark(self, mask: np.ndarray, buffer: str) -> None:
        """Set the bytes of the pages in a bool array ``(nbytes,)``."""
        for first, lengths in self._parts[buffer]:
            mask[expand(first, first + lengths)] = True

    def read(self, data: torch.Tensor, buffer: str) -> torch.Tensor:
        """The bytes of the pages, one after another, out of a whole buffer."""
        parts = [data[_index(x, data.device)] for x in self._parts[buffer]]
        return torch.cat(parts) if parts else data[:0].clone()

    def write(self, data: torch.Tensor, buffer: str, values: torch.Tensor) -> None:
        """The inverse of :meth:`read`, into a whole buffer."""
        at = 0
        for part in self._parts[buffer]:
            index = _index(part, data.device)
            data[index] = values[at : at + len(index)]
            at += len(index)


def _index(part, device) -> torch.Tensor:
    first, lengths = part
    return torch.from_numpy(expand(first, first + lengths)).to(device)


def _whole_pages(layout) -> None:
    """ValueError where a page is no whole number of the slot's fast digits: it has no runs of its own then."""
    for f in layout.fields.values():
        left = layout.geometry.page_size
        for size, _ in f.modes["slot"]:
            inside = min(size, left)
            if size % inside or left % inside:
                raise ValueError(
                    f"field {f.name!r} splits slots by {size}, across pages of {layout.geometry.page_size}"
                )
            left //= inside
