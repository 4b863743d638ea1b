"""Where one field lies: a coordinate splits into digits, and every digit moves a fixed number of bytes.

    byte = offset + sum over the axes of digit(coordinate) * stride

This is CuTe's shape:stride idea. It is the only place in kvlab that turns a coordinate into a byte or back;
the Triton kernels do the same sum on the same numbers (:mod:`kvlab.kernels.addressing`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

COORDINATES = ("layer", "head", "slot", "dim")


@dataclass(frozen=True)
class Axis:
    """One digit of one coordinate: ``size`` steps of ``stride`` bytes.

    ``digit`` 0 is the fastest digit of its coordinate. A slot that is split into (page, offset) has two axes:
    digit 0 of size page_size, and digit 1 of size pages.
    """

    coordinate: str
    digit: int
    size: int
    stride: int


@dataclass(frozen=True)
class Field:
    """One kind of content ("k", "v", "k_scale", "v_scale") and where each of its cells lies.

    Parameters
    ----------
    name : str
        What the field holds.
    buffer : str or tuple of str
        The buffer that holds it; one name per layer where the layers were allocated one by one (adopted pools).
    offset : int
        Byte of cell (layer 0, head 0, slot 0, dim 0) in its buffer.
    item : int
        Bytes of one element: 1, 2 or 4. For scales ``dim`` counts 32-element blocks of 1 byte.
    extents : dict
        How many layers, heads, slots and dims are real. The axes may reach further: interleaved scales pad their
        columns to a multiple of 4, and what lies between is padding.
    axes : tuple of Axis
        Outermost first: the shape of the zero-copy view, the layer's axis included.

    Raises
    ------
    ValueError
        Two cells share a byte, or the axes interleave so that a byte has no single owner.
    """

    name: str
    buffer: str | tuple[str, ...]
    offset: int
    item: int
    extents: dict[str, int]
    axes: tuple[Axis, ...]

    def __post_init__(self):
        span = self.item
        for axis in sorted(self.axes, key=lambda a: a.stride):
            if axis.size > 1 and axis.stride < span:
                raise ValueError(
                    f"field {self.name!r}: the {axis.coordinate} axis (size {axis.size}, stride {axis.stride} bytes) "
                    f"overlaps the {span} bytes inside it; every axis must step over all that lies within"
                )
            if axis.size > 1:
                span += (axis.size - 1) * axis.stride

    @cached_property
    def modes(self) -> dict[str, tuple[tuple[int, int], ...]]:
        """Per coordinate its ``(size, stride)`` digits, fastest digit first."""
        split = {c: sorted((a for a in self.axes if a.coordinate == c), key=lambda a: a.digit) for c in COORDINATES}
        return {c: tuple((a.size, a.stride) for a in axes) for c, axes in split.items()}

    @property
    def layer_stride(self) -> int:
        """Bytes from one layer to the next inside a buffer (0 where each layer has a buffer of its own)."""
        return self.modes["layer"][0][1]

    def buffer_of(self, layer: int) -> str:
        """Name of the buffer that holds this layer."""
        return self.buffer if isinstance(self.buffer, str) else self.buffer[layer]

    def byte(self, layer, slot, head, dim):
        """Byte of a cell in its buffer. Ints, or numpy arrays or torch tensors of one broadcastable shape."""
        total = self.offset
        for coordinate, x in (("layer", layer), ("head", head), ("slot", slot), ("dim", dim)):
            modes = self.modes[coordinate]
            for size, stride in modes[:-1]:
                total = total + (x % size) * stride
                x = x // size
            total = total + x * modes[-1][1]
        return total

    @property
    def reach(self) -> int:
        """First byte after the last one that any axis can address."""
        return self.offset + sum((a.size - 1) * a.stride for a in self.axes) + self.item

    def invert(self, byte: np.ndarray) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Coordinates of each byte, the inverse of :meth:`byte`.

        Peels the digits in order of falling stride. Returns ``{layer, head, slot, dim, byte}`` (``byte`` counts
        inside the element) and a mask of the bytes that this field owns; elsewhere the coordinates mean nothing.
        """
        rest = np.asarray(byte, dtype=np.int64) - self.offset
        mine = rest >= 0
        coordinates = {c: np.zeros_like(rest) for c in COORDINATES}
        radix = {}
        for coordinate in COORDINATES:
            step = 1
            for digit, (size, _) in enumerate(self.modes[coordinate]):
                radix[coordinate, digit] = step
                step *= size
        for axis in sorted((a for a in self.axes if a.size > 1), key=lambda a: -a.stride):
            digit = rest // axis.stride
            mine &= digit < axis.size
            rest = rest - digit * axis.stride
            coordinates[axis.coordinate] += digit * radix[axis.coordinate, axis.digit]
        mine &= rest < self.item
        for coordinate, x in coordinates.items():
            mine &= x < self.extents[coordinate]
        return {**coordinates, "byte": rest}, mine

    def to_dict(self) -> dict:
        """A JSON-ready description; :meth:`from_dict` is the inverse."""
        axes = [[a.coordinate, a.digit, a.size, a.stride] for a in self.axes]
        buffer = self.buffer if isinstance(self.buffer, str) else list(self.buffer)
        return {
            "name": self.name,
            "buffer": buffer,
            "offset": self.offset,
            "item": self.item,
            "extents": dict(self.extents),
            "axes": axes,
        }

    @classmethod
    def from_dict(cls, d: dict) -> Field:
        buffer = d["buffer"] if isinstance(d["buffer"], str) else tuple(d["buffer"])
        axes = tuple(Axis(*a) for a in d["axes"])
        return cls(d["name"], buffer, d["offset"], d["item"], dict(d["extents"]), axes)


def nest(item: int, *axes: tuple) -> tuple[Axis, ...]:
    """Axes of a dense block, outermost first: each stride is the product of all that lies inside.

    An axis is ``("slot", size)``, ``("slot1", size)`` for digit 1, or ``("slot1", size, stride)`` where the stride is
    not dense (a page envelope that holds other fields as well); the next one outward then continues from there.

    >>> axes = nest(2, ("slot1", 4), ("head", 3), ("slot0", 8), ("dim", 64))
    >>> [(a.coordinate, a.digit, a.size, a.stride) for a in axes]
    [('slot', 1, 4, 3072), ('head', 0, 3, 1024), ('slot', 0, 8, 128), ('dim', 0, 64, 2)]
    """
    built, dense = [], item
    for name, size, *given in reversed(axes):
        coordinate = name.rstrip("0123456789")
        stride = given[0] if given else dense
        built.append(Axis(coordinate, int(name[len(coordinate) :] or 0), size, stride))
        dense = stride * size
    return tuple(reversed(built))
