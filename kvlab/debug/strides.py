"""A tensor reduced to what its strides say, and whether it overlaps itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Strides:
    """Sizes and strides of a tensor, in bytes; ``offset`` is its first byte in a storage of ``storage`` bytes."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    dtype: torch.dtype
    storage: int

    @property
    def outermost(self) -> int:
        """Bytes that the axis with the largest stride steps over in all."""
        return max(s * n for s, n in zip(self.strides, self.sizes, strict=True))

    @property
    def run(self) -> int:
        """Bytes that lie side by side: the innermost axes, as far as they are dense."""
        span = self.dtype.itemsize
        for stride, size in sorted((s, n) for s, n in zip(self.strides, self.sizes, strict=True) if n > 1):
            if stride != span:
                break
            span *= size
        return span

    @property
    def order(self) -> tuple[int, ...]:
        """The axes as they lie in memory, outermost first."""
        return tuple(sorted(range(len(self.sizes)), key=lambda i: -self.strides[i]))

    def permuted(self, order) -> Strides:
        """The same tensor with its axes in another order."""
        sizes, strides = (tuple(x[i] for i in order) for x in (self.sizes, self.strides))
        return replace(self, sizes=sizes, strides=strides)


def strides_of(tensor: torch.Tensor, caller: str) -> Strides:
    """Read a tensor's strides.

    Raises
    ------
    TypeError
        No tensor, or one without strides (sparse).
    ValueError
        Two of its elements are the same bytes; the message names the axes.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{caller}: tensor is a {type(tensor).__name__}, not a torch.Tensor")
    if tensor.layout != torch.strided:
        raise TypeError(f"{caller}: tensor is {tensor.layout}; only strided tensors have places to describe")
    if tensor.numel():
        _refuse_overlap(tensor, caller)
    item = tensor.element_size()
    strides = tuple(s * item for s in tensor.stride())
    storage = tensor.untyped_storage().nbytes()
    return Strides(tuple(tensor.shape), strides, tensor.storage_offset() * item, tensor.dtype, storage)


def _refuse_overlap(tensor: torch.Tensor, caller: str) -> None:
    axes = [(i, n, s) for i, (n, s) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)) if n > 1]
    for i, size, stride in axes:
        if stride == 0:
            raise ValueError(
                f"{caller}: tensor overlaps itself: axis {i} has stride 0, so its {size} entries are the same memory; "
                "pass the tensor as it was before expand()"
            )
    axes.sort(key=lambda axis: -axis[2])
    steps = _collision([n for _, n, _ in axes], [s for _, _, s in axes])
    if steps is None:
        return
    first, second = [0] * tensor.dim(), [0] * tensor.dim()
    for (i, _, _), step in zip(axes, steps, strict=True):
        (first if step > 0 else second)[i] = abs(step)
    named = " and ".join(f"{i} (size {n}, stride {s})" for (i, n, s), step in zip(axes, steps, strict=True) if step)
    raise ValueError(
        f"{caller}: tensor overlaps itself along axes {named}: elements {tuple(first)} and {tuple(second)} are the "
        "same memory"
    )


def _collision(sizes: list[int], strides: list[int]) -> list[int] | None:
    """Steps along each axis, not all 0, that lead to the byte they start from; None where there are none.

    Strides fall. An axis is followed only as far as the axes inside it can lead back, which is a step or two.
    """
    reach = [0] * (len(sizes) + 1)  # of the axes from i on
    for i in reversed(range(len(sizes))):
        reach[i] = reach[i + 1] + (sizes[i] - 1) * strides[i]

    def search(i: int, at: int, moved: bool) -> list[int] | None:
        if i == len(sizes):
            return [] if moved and at == 0 else None
        lowest = max(-(sizes[i] - 1) if moved else 0, -((reach[i + 1] + at) // strides[i]))
        highest = min(sizes[i] - 1, (reach[i + 1] - at) // strides[i])
        for step in sorted(range(lowest, highest + 1), key=abs):
            rest = search(i + 1, at + step * strides[i], moved or step != 0)
            if rest is not None:
                return [step, *rest]
        return None

    return search(0, 0, False)
