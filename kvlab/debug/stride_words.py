"""Strides in words: what a large one steps over, what of a tensor lies side by side, and who would read it wrongly."""

from __future__ import annotations

from math import prod

from .recognise import Reading
from .strides import Strides

FIELDS = {"k": "K", "v": "V", "k_scale": "K scales", "v_scale": "V scales"}


def stride_words(r: Reading) -> list[str]:
    """Why a stride is larger than what lies inside its axis: "page stride 131,072 bytes = 8 layers x (K 8,192 + …)"."""
    f = r.layout.fields[r.view.field]
    beside = [x for x in r.layout.fields.values() if x.buffer_of(0) == f.buffer_of(0)]
    beside.sort(key=lambda x: x.offset)
    axes = sorted((a for a in f.axes if a.size > 1), key=lambda a: -a.stride)
    # the smallest block that holds every field of the buffer once, such as one layer of a page; 0: the field is alone
    around = [a.stride for a in axes if a.stride > beside[-1].offset - beside[0].offset]
    block = min(around, default=r.layout.buffers[f.buffer_of(0)]) if len(beside) > 1 else 0
    ends = [*(x.offset for x in beside[1:]), block]

    def spelled(stride: int) -> str:
        if stride == block:
            parts = [f"{FIELDS[x.name]} {end - x.offset:,}" for x, end in zip(beside, ends, strict=True)]
            return " + ".join(parts)
        for a in axes:
            if a.stride < stride == a.stride * a.size:
                step = f"({spelled(a.stride)})" if 0 < block <= a.stride else f"{a.stride:,}"
                return f"{a.size} {a.coordinate}s x {step}"
        return ""

    lines, dense = [], f.item
    for a in reversed(axes):
        if a.coordinate == "layer" and not r.view.layers:
            continue
        if a.stride != dense and (words := spelled(a.stride)):
            digits = [x.digit for x in f.axes if x.coordinate == a.coordinate]
            name = "page" if a.coordinate == "slot" and a.digit == max(digits) > 0 else a.coordinate
            lines.insert(0, f"{name} stride {a.stride:,} bytes = {words}")
        dense = a.stride * a.size
    return lines


def packed_words(r: Reading) -> list[str]:
    """Where a kernel that takes slots for packed rows goes wrong: the first slot, its byte and the one it takes."""
    f, g = r.layout.fields[r.view.field], r.layout.geometry
    layer, row = r.layer or 0, g.heads * r.dim * f.item
    firsts, step = [], 1  # the slots at which a digit moves for the first time
    for size, _ in f.modes["slot"]:
        firsts.append(step)
        step *= size
    origin = f.byte(layer, 0, 0, 0)
    for slot in firsts:
        right, wrong = f.byte(layer, slot, 0, 0), origin + slot * row
        if slot < g.slots and right != wrong:
            return [
                f"Slots are not packed: a kernel that steps {g.heads} x {r.dim} elements from slot to slot takes byte "
                f"{wrong:,} for slot {slot}, which begins at byte {right:,}."
            ]
    return []


def axis_facts(s: Strides) -> list[str]:
    """Per axis its step, and where it steps over more than the axes inside it hold."""
    item = s.dtype.itemsize
    notes, dense = {}, item
    for i in reversed(s.order):
        if s.sizes[i] > 1:
            times = s.strides[i] / dense
            if times != 1:
                notes[i] = f", {times:.4g} times the {dense:,} inside it" if times > 1 else ", across other axes"
            dense = s.strides[i] * s.sizes[i]
    lines = []
    for i, (size, stride) in enumerate(zip(s.sizes, s.strides, strict=True)):
        lines.append(f"  axis {i}: {size:,} steps of {stride // item:,} elements, {stride:,} bytes{notes.get(i, '')}")
    return [*lines, f"  {counted(prod(s.sizes) * item // s.run, 'contiguous run')} of {s.run:,} bytes"]


def order_words(s: Strides) -> list[str]:
    """What a reader has to know of axes that do not lie as they are listed."""
    lines = []
    if s.order != tuple(range(len(s.sizes))):
        lines.append(f"Its axes are permuted: in memory, outermost first, they lie in the order {s.order}.")
    if s.sizes[-1] > 1 and s.strides[-1] != s.dtype.itemsize:
        lines.append(
            f"Neighbours on its last axis are {s.strides[-1]:,} bytes apart, so a kernel that runs along it moves one "
            "element an access."
        )
    return lines


def sliced_rows(s: Strides) -> list[str]:
    """Rows with other rows between them, such as K inside the output of a fused QKV projection."""
    row = prod(s.sizes[1:]) * s.dtype.itemsize
    if s.sizes[0] < 2 or s.run != row or s.strides[0] <= row:
        return []
    lines = [
        f"Axis 0 is a slice of something wider, e.g. fused QKV: a kernel that takes its {row:,}-byte rows for packed "
        f"reads byte {s.offset + row:,} for row 1, which begins at byte {s.offset + s.strides[0]:,}."
    ]
    if len(s.sizes) == 3:
        heads, head = s.sizes[1], s.sizes[2] * s.dtype.itemsize
        query = s.strides[0] // head - 2 * heads  # the rest of the row, if it holds K and V once
        which = {query: "K", query + heads: "V"}.get(s.offset % s.strides[0] // head)
        if which and query >= heads and query % heads == 0 and s.strides[0] % head == 0:
            lines.append(
                f"It lies as {which} would in fused QKV of {query} query heads, {heads} of K and {heads} of V."
            )
    return lines


def flat_words(s: Strides) -> str:
    """All that can be said of one axis or none."""
    elements = prod(s.sizes)
    if s.run == elements * s.dtype.itemsize:
        return f"One run of {s.run:,} bytes: nothing in its strides says what lies inside."
    return f"{elements:,} elements, one every {s.strides[0]:,} bytes: nothing in its strides says what lies between."


def counted(n: int, word: str) -> str:
    """ "1 page", "2 pages"."""
    return f"{n:,} {word}{'s' * (n != 1)}"
