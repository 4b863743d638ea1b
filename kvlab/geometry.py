"""How many: the sizes of a KV pool, before anything is said about where the bytes lie."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields


@dataclass(frozen=True)
class Geometry:
    """The sizes that every layout of a pool shares.

    Parameters
    ----------
    layers : int
        Attention layers that keep K and V in the pool.
    heads : int
        KV heads a token has in each layer (after tensor parallelism: the heads of this rank).
    head_dim : int
        Elements of one K head.
    v_head_dim : int, optional
        Elements of one V head; ``head_dim`` where not given. They differ in MLA-style models (192 / 128).
    page_size : int
        Slots a page holds.
    pages : int
        Pages the pool holds, page 0 included. Slot 0 is the padding sink: no commit writes it.

    Raises
    ------
    TypeError, ValueError
        A size that is not an int, or is below 1.

    Examples
    --------
    >>> g = Geometry(layers=4, heads=8, head_dim=128, page_size=16, pages=64)
    >>> g.slots, g.row_elements("k")
    (1024, 1024)
    """

    layers: int
    heads: int
    head_dim: int
    v_head_dim: int | None = None
    page_size: int = 16
    pages: int = 64

    def __post_init__(self):
        if self.v_head_dim is None:
            object.__setattr__(self, "v_head_dim", self.head_dim)
        for f in fields(self):
            value = getattr(self, f.name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise TypeError(f"Geometry: {f.name}={value!r} must be an int, not {type(value).__name__}")
            if value < 1:
                raise ValueError(f"Geometry: {f.name}={value} must be at least 1")

    @property
    def slots(self) -> int:
        """Number of slots, ``pages * page_size``; legal slot ids are 0 … slots-1."""
        return self.pages * self.page_size

    def dim(self, field: str) -> int:
        """Elements of one head of K (``"k"``, ``"k_scale"``) or V (``"v"``, ``"v_scale"``)."""
        return self.v_head_dim if field.startswith("v") else self.head_dim

    def row_elements(self, field: str) -> int:
        """Elements of one row: all heads of one token of one field of one layer."""
        return self.heads * self.dim(field)

    def to_dict(self) -> dict:
        """The sizes as a plain dict; ``Geometry(**d)`` is the inverse."""
        return asdict(self)
