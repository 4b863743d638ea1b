"""Where in a pool is this pointer, byte or coordinate? And whose is it?"""

from __future__ import annotations

from dataclasses import dataclass
from operator import index

from ..field import COORDINATES
from ..layout import Cell, Padding
from .values import decoded, formula, owner_words


@dataclass(frozen=True)
class Place:
    """One byte of a pool.

    Attributes
    ----------
    buffer : str
    byte : int
        In the buffer.
    pointer : int
        Its address.
    cell : Cell or Padding
    words : str
        All of it in two lines.
    """

    buffer: str
    byte: int
    pointer: int
    cell: Cell | Padding
    words: str

    def __str__(self) -> str:
        return self.words

    __repr__ = __str__


def where(pool, what) -> Place:
    """Find a byte of a pool by its address, its number or its coordinates.

    Parameters
    ----------
    pool : KVPool
    what : int, tuple or dict
        An address, as ``tensor.data_ptr()`` or a fault report gives it: an int inside a buffer's memory. A byte:
        ``(buffer, byte)``, or an int where the pool has one buffer. A coordinate: ``(field, layer, slot)``, with head
        and dim after that if they are not 0, or a dict of the same names.

    Returns
    -------
    Place

    Raises
    ------
    ValueError
        An address outside every buffer, with the nearest buffer and the distance; a number that is neither; a byte
        number alone where the pool has several buffers.
    IndexError, KeyError, TypeError
        A byte or coordinate outside its range, no such buffer or field; anything else.

    Examples
    --------
    >>> print(kvlab.where(pool, pool.get_value_buffer(1)[2, 3, 1].data_ptr()))     # doctest: +SKIP
    """
    buffer, byte = _buffer_and_byte(pool, what)
    cell = pool.layout.explain(buffer, byte)
    pointer = pool.buffers[buffer].data_ptr() + byte
    head = f"byte {byte:,} of {buffer!r}, address {pointer:#x}: "
    if isinstance(cell, Padding):
        return Place(buffer, byte, pointer, cell, head + "padding, which belongs to no cell")
    words = head + f"{owner_words(pool.layout, cell)}; it holds {decoded(pool.layout, pool.buffers, cell)}"
    return Place(buffer, byte, pointer, cell, f"{words}\n{formula(pool.layout, cell)}")


def _buffer_and_byte(pool, what) -> tuple[str, int]:
    layout = pool.layout
    if isinstance(what, dict):
        unknown = sorted(set(what) - {"field", *COORDINATES})
        if unknown or not {"field", "layer", "slot"} <= set(what):
            raise TypeError(f"where: what={what!r} needs field, layer and slot, and may have head and dim")
        return layout.locate(**what)
    if isinstance(what, tuple):
        if len(what) == 2 and what[0] in layout.buffers:
            return what[0], index(what[1])
        if not 3 <= len(what) <= 5:
            raise TypeError(
                f"where: what={what!r} must be (buffer, byte) with one of {list(layout.buffers)}, or "
                "(field, layer, slot), with head and dim after that"
            )
        return layout.locate(*what)
    try:
        number = index(what)
    except TypeError:
        raise TypeError(
            f"where: what is a {type(what).__name__}; it must be an address, a byte, (buffer, byte), or "
            "(field, layer, slot, head, dim)"
        ) from None
    spans = {name: (x.data_ptr(), x.data_ptr() + x.numel()) for name, x in pool.buffers.items()}
    held = [(name, number - start) for name, (start, stop) in spans.items() if start <= number < stop]
    if held:  # of two buffers that hold it (K and V of an engine in one tensor), the one where it is a cell
        return next((x for x in held if isinstance(layout.explain(*x), Cell)), held[0])
    # no buffer lies at addresses as small as its own size, so a small number is a byte and no address
    if 0 <= number < max(layout.buffers.values()):
        if len(spans) == 1:
            return next(iter(spans)), number
        raise ValueError(f"where: byte {number} of which buffer? Give (buffer, byte), with one of {list(spans)}")
    raise ValueError(f"where: {number:#x} is outside every buffer; {_nearest(spans, number)}")


def _nearest(spans: dict[str, tuple[int, int]], number: int) -> str:
    away = {name: max(start - number, number - stop + 1) for name, (start, stop) in spans.items()}
    name = min(away, key=away.get)
    start, stop = spans[name]
    side = "before the start" if number < start else "after the last byte"
    return f"the nearest is {name!r}, {start:#x} to {stop - 1:#x}: it lies {away[name]:,} bytes {side}"
