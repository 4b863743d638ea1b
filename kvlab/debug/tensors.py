"""Plain tensors under watch: their storages as bytes, and written bytes as index ranges of their own axes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import as_strided

from .boxes import boxes, smooth, states_of
from .ranges import IndexRange, Stray, strays


@dataclass(frozen=True)
class Placed:
    """Where a tensor's elements lie in a storage; ``stride`` and ``offset`` in bytes."""

    buffer: str
    offset: int
    item: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def view(self, x: np.ndarray) -> np.ndarray:
        """Its bytes in an array of the storage's ``(nbytes,)``: its shape, and a last axis for an element's bytes."""
        return as_strided(x[self.offset :], (*self.shape, self.item), (*self.stride, 1))


def storages(tensors: dict[str, torch.Tensor]) -> tuple[dict[str, Placed], dict[str, torch.Tensor]]:
    """Where each tensor lies, and the storages as 1-D uint8 tensors; one that several share appears once.

    Raises
    ------
    ValueError
        A tensor that overlaps itself.
    """
    placed, found, names = {}, {}, {}
    for name, x in tensors.items():
        if x.layout != torch.strided or x.device.type == "meta":
            kind = x.layout if x.layout != torch.strided else "a meta tensor"
            raise TypeError(f"{name} is {kind}: it has no bytes at strides to watch")
        refuse_overlap(name, x)
        storage = x.untyped_storage()
        key = (storage.data_ptr(), x.device)
        if key not in names:
            names[key] = f"storage of {name}"
            found[names[key]] = torch.empty(0, dtype=torch.uint8, device=x.device).set_(storage)
        item = x.element_size()
        stride = tuple(s * item for s in x.stride())
        placed[name] = Placed(names[key], x.storage_offset() * item, item, tuple(x.shape), stride)
    return placed, found


def refuse_overlap(name: str, x: torch.Tensor) -> None:
    """ValueError where two indices of a tensor share memory (an expanded axis, windows of an unfold)."""
    span = 1
    for axis in sorted((i for i in range(x.dim()) if x.shape[i] > 1), key=lambda i: x.stride(i)):
        if x.stride(axis) < span:
            raise ValueError(
                f"{name} overlaps itself: axis {axis} has size {x.shape[axis]} and stride {x.stride(axis)}, but the "
                f"axes inside it reach over {span} elements, so one byte has several indices; use the tensor it was "
                "made from"
            )
        span += (x.shape[axis] - 1) * x.stride(axis)


def fold_tensors(
    placed: dict[str, Placed], masks: dict[str, np.ndarray], elements: bool = False
) -> list[IndexRange | Stray]:
    """As :func:`kvlab.debug.ranges.fold`; what lies in a storage outside its tensors comes last, as bytes."""
    out: list[IndexRange | Stray] = []
    left = {name: mask.copy() for name, mask in masks.items()}
    for name, at in placed.items():
        if 0 in at.shape:
            continue
        touched = at.view(masks[at.buffer])
        states = np.atleast_1d(states_of(touched, elements))
        smooth(states.reshape(-1, 1, states.shape[-1]))
        for index, whole in boxes(states, joined=elements):
            out.append(IndexRange(name, index[: len(at.shape)], whole))
        at.view(left[at.buffer])[...] = False
    return out + [stray for name, mask in left.items() for stray in strays(name, mask)]
