"""What a strided tensor is, in words: the cells it shows, why its strides are so large, and who would misread it."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from ..formats import PLAIN
from .reading_words import listed, sentences
from .recognise import Reading, format_names, formats_of, readings
from .stride_words import FIELDS, axis_facts, counted, flat_words, order_words, packed_words, sliced_rows, stride_words
from .strides import Strides, strides_of

MOST = 6  # readings spelled out in words


@dataclass(frozen=True)
class Description:
    """What :func:`describe` found.

    Attributes
    ----------
    words : str
        All of it in words; ``str()`` gives the same.
    fits : list of dict
        Every layout that has exactly this view, likeliest first: ``layout``, the ``fields`` and ``formats`` it can be,
        ``shows`` ("one layer", "all layers", "K and V", "K and V of all layers"), ``layer``, ``layers``, ``page_size``,
        ``pages``, ``slots``, ``heads``, ``head_dim`` of this tensor's field, ``other_head_dim`` (V's where this is K,
        K's where this is V), ``axes`` (what each axis of the tensor counts) and ``strides`` (bytes, by axis). None
        where strides do not tell.
    near : list of dict
        Where nothing fits: layouts that have these sizes and strides, if the pool has more pages than this tensor or
        begins elsewhere in the storage. ``layer`` is None.
    """

    words: str
    fits: list[dict]
    near: list[dict]

    def to_dict(self) -> dict:
        """JSON-ready."""
        return {"words": self.words, "fits": self.fits, "near": self.near}

    def __str__(self) -> str:
        return self.words

    __repr__ = __str__


def describe(tensor: torch.Tensor, page_size: int | None = None) -> Description:
    """Say what a strided tensor is, from its shape, strides, first byte, dtype and storage size alone.

    Recognised are views of kvlab's three layouts and of :mod:`kvlab.zoo`: K, V or scales of one layer or of all, and K
    and V together, also with their axes permuted. Where several fit, all are given.

    Parameters
    ----------
    tensor : Tensor
        On any device; its values are not read.
    page_size : int, optional
        Only readings with pages of so many slots. Where slots simply follow each other, strides do not tell.

    Raises
    ------
    TypeError
        No tensor, or a sparse one; a page_size that is no int.
    ValueError
        A tensor that overlaps itself; the message names the axes. A page_size below 1.

    Examples
    --------
    >>> import kvlab, torch
    >>> g = kvlab.Geometry(layers=8, heads=2, head_dim=128, page_size=16, pages=64)
    >>> pool = kvlab.KVPool(kvlab.page_major(g, kvlab.MXFP8()), device="cpu")
    >>> print(kvlab.describe(pool.get_key_buffer(3)))  # doctest: +ELLIPSIS
    (64, 16, 2, 128) float8_e4m3fn, strides (67584, 256, 128, 1) bytes, from byte 25,344 of a storage of 4,325,376
    It is K of layer 3 in page_major of 8 layers: 64 pages of 16 slots, 2 heads, head_dim 128, mxfp8(flat), ...
      page stride 67,584 bytes = 8 layers x (K 4,096 + V 4,096 + K scales 128 + V scales 128)
    If K and V heads differ in width, 4 more fit, see .fits.
    Slots are not packed: a kernel that steps 2 x 128 elements from slot to slot takes byte 29,440 for slot 16, ...
    """
    if page_size is not None:
        if isinstance(page_size, bool) or not isinstance(page_size, int):
            raise TypeError(f"describe: page_size={page_size!r} must be an int, not {type(page_size).__name__}")
        if page_size < 1:
            raise ValueError(f"describe: page_size={page_size} must be at least 1")
    s = strides_of(tensor, "describe")
    dtype = str(s.dtype).removeprefix("torch.")
    first = f"{s.sizes} {dtype}, strides {s.strides} bytes, from byte {s.offset:,} of a storage of {s.storage:,}"
    if not prod(s.sizes):
        return Description(f"{first}\nIt holds no element, so its strides lead nowhere.", [], [])
    if len(s.sizes) < 2:
        return Description(f"{first}\n{flat_words(s)}", [], [])
    found, order = readings(s, page_size)
    if found:
        fits = _merged(found, s, order)
        return Description("\n".join([first, *_fit_words(fits, s)]), [fit for fit, _ in fits], [])
    near, order = readings(s, page_size, anywhere=True)
    near = _merged(near, s, order)
    return Description("\n".join([first, *_near_words(near, s, page_size)]), [], [fit for fit, _ in near])


# ------------------------------------------------------------------------------------------------- readings as dicts


def _merged(found: list[Reading], s: Strides, order) -> list[tuple[dict, Reading]]:
    """One dict for readings that differ in field or format only, with the first of them."""
    merged: dict[str, tuple[dict, Reading]] = {}
    for r in found:
        axes = [_counts(r.axes[order.index(i)], r) for i in range(len(order))]
        g, both = r.layout.geometry, bool(r.view.both)
        fit = {
            "layout": r.layout.name,
            "shows": ("K and V" if both else "") + (" of " * (both and r.view.layers)) + _layers_word(r),
            "layer": r.layer,
            "layers": r.layers,
            "page_size": r.page_size,
            "pages": g.pages if r.page_size else None,
            "slots": g.slots,
            "heads": g.heads,
            "head_dim": r.dim,
            "other_head_dim": r.other,
            "axes": axes,
            "strides": dict(zip(axes, s.strides, strict=True)),
        }
        key = f"{fit}, scales: {r.view.field.endswith('_scale')}"
        if key not in merged:
            merged[key] = {**fit, "fields": ["k", "v"] if both else [], "formats": []}, r
        kept, _ = merged[key]
        for name, value in (("fields", r.view.field), ("formats", *format_names([r.layout.format]))):
            if value not in kept[name]:
                kept[name].append(value)
    return list(merged.values())


def _layers_word(r: Reading) -> str:
    return "all layers" if r.view.layers else "" if r.view.both else "one layer"


def _counts(axis: str, r: Reading) -> str:
    """What an axis counts: page, offset, slot, head, dim …"""
    coordinate = axis.rstrip("0123456789")
    digits = sorted(x for x in r.axes if x.rstrip("0123456789") == coordinate)
    word = {"kv": "K or V"}.get(coordinate, coordinate)
    if coordinate == "dim" and r.view.field.endswith("_scale"):
        word = "block"
    if len(digits) == 1:
        return word
    if coordinate == "slot" and axis == digits[-1]:
        return "page"
    word = "offset" if coordinate == "slot" else word
    return word if word == "offset" and len(digits) == 2 else f"{word} digit {digits.index(axis)}"


# ---------------------------------------------------------------------------------------------------------- in words


def _fit_words(fits, s: Strides) -> list[str]:
    likely = [(fit, r) for fit, r in fits if r.symmetric] or fits
    alike = likely[0][1].symmetric
    groups = sentences(likely)
    lead = "It is " if alike else "Only where K and V heads differ in width could it be "
    if len(groups) > 1:
        lines = [f"It fits {len(groups)} readings{'' if alike else ', all with K and V heads that differ in width'}:"]
        lead = "- "
    else:
        lines = []
    for sentence, r in groups[:MOST]:
        lines += [f"{lead}{sentence}.", *(f"  {line}" for line in stride_words(r))]
    if len(groups) > MOST:
        lines.append(f"- and {len(groups) - MOST} more, see .fits")
    if len(likely) < len(fits):
        lines.append(f"If K and V heads differ in width, {len(fits) - len(likely)} more fit, see .fits.")
    if any(len(fit["fields"]) > 1 and not r.view.both for fit, r in likely):
        lines.append("K and V cannot be told apart where each has a buffer of its own: both have the same strides.")
    if len({fit["layout"] for fit, _ in likely}) > 1:
        lines.append(
            "Strides cannot tell these readings apart: each has this very view, and only its maker knows which."
        )
    if any(r.page_size is None for _, r in likely):
        lines.append(
            "Where slots follow each other without a gap, page_size leaves no trace; pass page_size to say it."
        )
    if not alike:
        return [*lines, *axis_facts(s), *order_words(s), *sliced_rows(s)]
    return [*lines, *order_words(s), *_packed(groups[:MOST])]


def _packed(groups) -> list[str]:
    """Where a kernel that takes slots for packed rows goes wrong, by each reading of one layer's K or V."""
    rows = [r for _, r in groups if not (r.view.layers or r.view.both or r.view.field.endswith("_scale"))]
    told: dict[str, Reading] = {}
    for r in rows:
        for words in packed_words(r):
            told.setdefault(words, r)
    if len(told) == 1 and all(packed_words(r) for r in rows):
        return list(told)
    lines = []
    for words, r in told.items():
        pages = f" with {counted(r.page_size, 'slot')} a page" if r.page_size else ""
        lines.append(f"If it is {r.layout.name}{pages}: {words[0].lower()}{words[1:]}")
    return lines


def _near_words(near, s: Strides, page_size: int | None) -> list[str]:
    with_pages = f" with page_size {page_size}" if page_size else ""
    lines = [f"No known layout has this very view{with_pages}.", *axis_facts(s), *order_words(s)]
    if not formats_of(s.dtype):
        lines[0] = f"No pool holds {s.dtype}: K and V are of {listed(PLAIN)}, or uint8 for FP8 and for scales."
    groups = sentences([(fit, r) for fit, r in near if r.symmetric] or near)
    if not groups:
        return lines + sliced_rows(s)
    lines.append("Its strides are those of a pool that has more pages, or begins elsewhere in the storage:")
    for sentence, r in groups[:MOST]:
        lines += [f"- {sentence}.", *(f"  {line}" for line in stride_words(r)), *_from_byte_0(r, s)]
    return lines


def _from_byte_0(r: Reading, s: Strides) -> list[str]:
    """Pages, field and layer of a part of a pool, if the pool begins where the storage does."""
    if not (r.axes[0].startswith("slot") and r.page_size and isinstance(r.layout.fields["k"].buffer, str)):
        return []
    first, rest = divmod(s.offset, max(s.strides))
    pages = r.layout.geometry.pages
    for name, f in r.layout.fields.items():
        layer, odd = divmod(rest - f.offset, f.layer_stride or 1)
        if name[1:] == r.view.field[1:] and not odd and 0 <= layer < r.layers:
            span = f"pages {first} to {first + pages - 1}" if pages > 1 else f"page {first}"
            return [f"  If page 0 begins at byte 0 of the storage, it is {FIELDS[name]} of layer {layer}, {span}."]
    return []
