"""Which layouts could a strided tensor be a view of? Candidates are built with the real builders, then compared.

Sizes that the shape does not show (layers, the width of the other of K and V) follow from the bytes of the storage. A
candidate counts only if the layout that its builder makes has this very view: same sizes, strides and first byte, in a
buffer of the storage's size. So no formula of a layout is repeated here, and a builder added to ``BUILDERS`` is known.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from math import prod

import torch

from .. import zoo
from ..builders import head_major, page_major, token_major
from ..formats import BLOCK, MXFP8, PLAIN, format_name
from ..geometry import Geometry
from ..layout import Layout
from .strides import Strides
from .views import View, views_of

BUILDERS = {b.__name__: b for b in (token_major, page_major, head_major)} | zoo.ALL
MOST_LAYERS = 256  # no model has more that keep K and V
SCALED = (MXFP8("flat"), MXFP8("interleaved"))


@dataclass(frozen=True)
class Reading:
    """One layout that has this view. ``dim`` is head_dim or v_head_dim, whichever the field has; ``other`` is the
    other one. None stands for what strides do not tell."""

    layout: Layout
    view: View
    axes: tuple[str, ...]  # coordinate and digit of each axis, in memory order
    layer: int | None
    layers: int | None
    page_size: int | None
    dim: int
    other: int | None

    @property
    def symmetric(self) -> bool:
        """K and V are, or may be, of equal head_dim."""
        return self.other in (None, self.dim)


def readings(
    tensor: Strides, page_size: int | None = None, anywhere: bool = False
) -> tuple[list[Reading], tuple[int, ...]]:
    """Every reading, likeliest first, and the axis order they hold for.

    The tensor's own order is tried first, then its axes by falling stride, as every builder nests them.

    Parameters
    ----------
    page_size : int, optional
        Only readings with pages of so many slots.
    anywhere : bool
        The pool may be a part of its storage: sizes and strides are compared, first byte and storage size are not.
    """
    own = tuple(range(len(tensor.sizes)))
    for order in dict.fromkeys((own, tensor.order)):
        found = list(_readings(tensor.permuted(order), page_size, anywhere))
        if found:
            found.sort(
                key=lambda r: (not r.symmetric, r.view.layers + bool(r.view.both))
            )  # stable: builders in their order
            return found, order
    return [], own


def formats_of(dtype: torch.dtype) -> list:
    """Formats whose payload or scales a tensor of this dtype can hold."""
    if dtype == torch.float8_e8m0fnu:
        return list(SCALED)
    if dtype == torch.uint8:  # engines keep FP8 payload as bytes, since torch indexes few FP8 tensors
        return [torch.float8_e4m3fn, torch.float8_e5m2, *SCALED]
    if dtype == torch.float8_e4m3fn:
        return [dtype, *SCALED]
    return [dtype] if dtype in PLAIN.values() else []


def _readings(tensor: Strides, page_size, anywhere: bool) -> Iterator[Reading]:
    for builder in BUILDERS:
        for fmt in formats_of(tensor.dtype):
            for view, names in views_of(BUILDERS[builder], fmt):
                scale = view.field.endswith("_scale")
                legal = scale if tensor.dtype == torch.float8_e8m0fnu else not scale or tensor.dtype == torch.uint8
                if legal and len(names) == len(tensor.sizes):
                    yield from _fits(builder, fmt, view, names, tensor, page_size, anywhere)


def _fits(builder: str, fmt, view: View, names, tensor: Strides, page_size, anywhere: bool) -> Iterator[Reading]:
    sizes = dict(zip(names, tensor.sizes, strict=True))
    if sizes.get("kv0", 2) != 2:
        return
    packed = sizes.pop("dims of K and V", 0)
    if packed % 2:
        return
    digits = sorted(name for name in sizes if name.startswith("slot"))
    columns = packed // 2 or prod(size for name, size in sizes.items() if name.startswith("dim"))
    told = prod(sizes[d] for d in digits[:-1]) if len(digits) > 1 else None
    if page_size is not None and told not in (None, page_size):
        return
    page = told or page_size or (128 if fmt == SCALED[1] else 1)  # where strides do not show it, any will do
    pages, rest = divmod(prod(sizes[d] for d in digits), page)
    if rest:
        return
    for dim in _head_dims(view.field, fmt, columns):

        def build(layers: int, other: int, dim=dim) -> Layout | None:
            k, v = (other, dim) if view.field.startswith("v") else (dim, other)
            return _built(builder, fmt, layers, sizes["head0"], k, v, page, pages)

        storage = tensor.outermost if anywhere else tensor.storage
        for layers, other in _unknowns(
            build, view, dim, 1 if fmt in PLAIN.values() else BLOCK, storage, sizes.get("layer0")
        ):
            layout = build(layers, 16 * dim if other is None else other)
            axes = view.axes(layout, page)
            if not axes or not _same(axes, names, tensor):
                continue
            f = layout.fields[view.field]
            shared = isinstance(f.buffer, str)
            layer = None
            if not anywhere:
                layer, rest = divmod(tensor.offset - f.offset, f.layer_stride or 1)
                if rest or not 0 <= layer < (layers if shared and not view.layers else 1):
                    continue
            one = shared and not view.layers and not anywhere
            known = told or page_size
            yield Reading(layout, view, names, layer if one else None, layers if shared else None, known, dim, other)


def _head_dims(field: str, fmt, columns: int) -> list[int]:
    """head_dim or v_head_dim of a field with so many columns; a tile pads its columns to a multiple of 4."""
    if not field.endswith("_scale"):
        return [columns] if columns % (BLOCK if isinstance(fmt, MXFP8) else 1) == 0 else []
    fewest = columns - 3 if fmt.scales == "interleaved" else columns
    return [BLOCK * n for n in range(max(1, fewest), columns + 1)]


def _unknowns(
    build, view: View, dim: int, step: int, storage: int, layers: int | None
) -> Iterator[tuple[int, int | None]]:
    """``(layers, other head_dim)`` of the pools whose buffer has ``storage`` bytes; None where any other will do."""

    def size(other: int) -> int | None:
        layout = build(1, other)
        return layout and layout.buffers[layout.fields[view.field].buffer_of(0)]

    wide, wider = size(16 * dim), size(32 * dim)  # 16 times any dim: a multiple that every builder takes
    if wide is None:
        return
    shared = isinstance(build(1, 16 * dim).fields[view.field].buffer, str)
    for count in _divisors(storage, layers, shared):
        one = storage // count
        if wide == wider and not view.both:
            if one == wide:
                yield count, None
            continue
        if view.both:
            others = [dim]
        elif step == 1:  # no scales, so no padding: bytes grow with the other head_dim at one rate
            more, rest = divmod((one - wide) * 16 * dim, wider - wide)
            others = [] if rest else [16 * dim + more]
        else:
            near = round((16 * dim + (one - wide) * 16 * dim / (wider - wide)) / step) * step
            others = [near - step, near, near + step]
        yield from ((count, other) for other in others if other > 0 and size(other) == one)


@lru_cache(maxsize=256)
def _divisors(storage: int, layers: int | None, shared: bool) -> list[int]:
    """How many layers a buffer of ``storage`` bytes can hold; of ``layers`` it is known."""
    counts = [layers] if layers else range(1, MOST_LAYERS + 1) if shared else [1]
    return [n for n in counts if storage % n == 0]


@lru_cache(maxsize=4096)
def _built(builder: str, fmt, layers, heads, head_dim, v_head_dim, page_size, pages) -> Layout | None:
    try:
        return BUILDERS[builder](Geometry(layers, heads, head_dim, v_head_dim, page_size, pages), fmt)
    except ValueError:  # sizes that this builder or format does not take
        return None


def _same(axes, names, tensor: Strides) -> bool:
    """Same axes with the same steps; the stride of an axis of size 1 moves nothing."""
    theirs = zip(names, tensor.sizes, tensor.strides, strict=True)
    return len(axes) == len(names) and all(
        a == b and n == m and (n == 1 or s == t) for (a, n, s), (b, m, t) in zip(axes, theirs, strict=True)
    )


def format_names(dtype_formats) -> list[str]:
    """Names of formats; MXFP8's rounding leaves no trace in strides, so it is left out."""
    return [f"mxfp8({f.scales})" if isinstance(f, MXFP8) else format_name(f) for f in dtype_formats]
