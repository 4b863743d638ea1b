"""Where: a layout is a set of fields over named buffers. It answers both ways, coordinate to byte and byte to owner."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .field import COORDINATES, Field
from .formats import format_name, parse_format
from .geometry import Geometry
from .runs import Runs, byte_runs


@dataclass(frozen=True)
class Cell:
    """Owner of one byte: which element it belongs to, and which byte of that element it is."""

    field: str
    layer: int
    slot: int
    page: int
    offset: int
    head: int
    dim: int
    byte: int


@dataclass(frozen=True)
class Padding:
    """A byte that no field reaches."""

    buffer: str
    byte: int


@dataclass(frozen=True)
class Cells:
    """Owners of many bytes: one array per coordinate. ``field`` indexes ``names``; -1 is padding."""

    names: tuple[str, ...]
    field: np.ndarray
    layer: np.ndarray
    slot: np.ndarray
    page: np.ndarray
    offset: np.ndarray
    head: np.ndarray
    dim: np.ndarray
    byte: np.ndarray


@dataclass(frozen=True)
class Layout:
    """A self-describing map between coordinates and bytes.

    Made by a builder (:func:`kvlab.token_major` …) or from tensors of a live engine (:meth:`kvlab.KVPool.adopt`).
    ``name`` is for people only: no operation reads it.

    Attributes
    ----------
    geometry : Geometry
    format : torch.dtype or MXFP8
    fields : dict of str to Field
        "k" and "v", and "k_scale" and "v_scale" where the format has scales.
    buffers : dict of str to int
        Size of each buffer in bytes.
    """

    name: str
    geometry: Geometry
    format: object
    fields: dict[str, Field]
    buffers: dict[str, int]

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers together, padding included."""
        return sum(self.buffers.values())

    def locate(self, field: str, layer, slot, head=0, dim=0):
        """The buffer and byte of a cell: ``(buffer, byte)``.

        Ints, or numpy arrays of one broadcastable shape. For scales ``dim`` counts 32-element blocks. ``buffer`` is an
        array of names only where each layer has a buffer of its own and ``layer`` is an array.

        Raises
        ------
        KeyError
            A field that this layout does not have.
        IndexError
            A coordinate outside its range; the message names the first one.
        """
        f = self._field(field)
        for name, x in zip(COORDINATES, (layer, head, slot, dim), strict=True):
            _check_range(f"locate: {name}", x, f.extents[name])
        # numpy would keep an array's own width: an int32 slot times its stride wraps beyond 2 GiB
        byte = f.byte(*(np.asarray(x, dtype=np.int64) if np.ndim(x) else int(x) for x in (layer, slot, head, dim)))
        if isinstance(f.buffer, str):
            return f.buffer, byte
        return (f.buffer[layer] if np.ndim(layer) == 0 else np.asarray(f.buffer)[layer]), byte

    def explain(self, buffer: str, byte):
        """The owner of a byte, the exact inverse of :meth:`locate`.

        Parameters
        ----------
        buffer : str
        byte : int or numpy array of ints

        Returns
        -------
        Cell or Padding for an int, Cells for an array.

        Raises
        ------
        KeyError, IndexError
            No such buffer; a byte outside it.
        """
        if buffer not in self.buffers:
            raise KeyError(f"explain: buffer={buffer!r} is not one of {list(self.buffers)}")
        _check_range("explain: byte", byte, self.buffers[buffer])
        cells = self._owners(buffer, np.asarray(byte, dtype=np.int64).reshape(-1))
        if np.ndim(byte):
            return cells
        if cells.field[0] < 0:
            return Padding(buffer, int(byte))
        rest = (cells.layer, cells.slot, cells.page, cells.offset, cells.head, cells.dim, cells.byte)
        return Cell(cells.names[cells.field[0]], *(int(x[0]) for x in rest))

    def _owners(self, buffer: str, byte: np.ndarray) -> Cells:
        names = tuple(self.fields)
        owner = np.full(byte.shape, -1, dtype=np.int8)
        found = {c: np.full(byte.shape, -1, dtype=np.int64) for c in (*COORDINATES, "byte")}
        for i, f in enumerate(self.fields.values()):
            shared = isinstance(f.buffer, str)
            if buffer != f.buffer and (shared or buffer not in f.buffer):
                continue
            coordinates, mine = f.invert(byte)
            if not shared:  # each layer has its own buffer: the buffer's name says which layer this is
                coordinates["layer"][:] = f.buffer.index(buffer)
            owner[mine] = i
            for c, x in found.items():
                x[mine] = coordinates[c][mine]
        page = np.where(owner < 0, -1, found["slot"] // self.geometry.page_size)
        offset = np.where(owner < 0, -1, found["slot"] % self.geometry.page_size)
        f = found
        return Cells(names, owner, f["layer"], f["slot"], page, offset, f["head"], f["dim"], f["byte"])

    def runs(self, what: str, index: int = 0) -> Runs:
        """Contiguous byte runs of one token, page or layer: what a DMA would see.

        Parameters
        ----------
        what : "token", "page" or "layer"
            All fields and layers of one slot; of one page; or all slots of one layer.
        index : int
            Which slot, page or layer.
        """
        return byte_runs(self, what, index)

    def to_dict(self) -> dict:
        """A JSON-ready description that :meth:`from_dict` reads back."""
        return {
            "name": self.name,
            "geometry": self.geometry.to_dict(),
            "format": format_name(self.format),
            "fields": [f.to_dict() for f in self.fields.values()],
            "buffers": dict(self.buffers),
        }

    @classmethod
    def from_dict(cls, d: dict) -> Layout:
        """The layout that :meth:`to_dict` described."""
        fields = {f["name"]: Field.from_dict(f) for f in d["fields"]}
        return cls(d["name"], Geometry(**d["geometry"]), parse_format(d["format"]), fields, dict(d["buffers"]))

    def __str__(self) -> str:
        g = self.geometry
        head = f"{self.name}, {format_name(self.format)}: {g.layers} layers, {g.heads} heads, head_dim {g.head_dim}"
        head += f" (V {g.v_head_dim})" if g.v_head_dim != g.head_dim else ""
        lines = [head + f", {g.pages} pages of {g.page_size} slots, {self.nbytes:,} bytes"]
        for f in self.fields.values():
            where = f.buffer if isinstance(f.buffer, str) else f"{f.buffer[0]} … {f.buffer[-1]}"
            axes = "  ".join(f"{a.coordinate}{a.digit or ''} {a.size}:{a.stride}" for a in f.axes)
            lines.append(f"  {f.name:8} in {where!r} from byte {f.offset}, {f.item}-byte items:  {axes}")
        return "\n".join(lines)

    def _field(self, name: str) -> Field:
        if name not in self.fields:
            raise KeyError(f"field={name!r} is not one of {list(self.fields)} of this {self.name} layout")
        return self.fields[name]


def _check_range(what: str, x, size: int) -> None:
    """Raise IndexError naming the first value of ``x`` outside 0 … size-1."""
    x = np.asarray(x)
    if x.dtype.kind not in "iu":
        raise TypeError(f"{what} must be an int or an integer array, not {x.dtype}")
    bad = (x < 0) | (x >= size)
    if bad.any():
        raise IndexError(f"{what}={x[bad].flat[0] if x.ndim else x} is outside 0 … {size - 1}")
