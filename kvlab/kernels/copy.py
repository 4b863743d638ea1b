"""copy: pool -> pool, between any two layouts. Payload and scales of all layers in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from .addressing import column_offsets, row_offsets
from .launch import launch
from .rows import store_scales
from .tiles import tile_of


@triton.jit
def copy_kernel(
    source_loc,
    target_loc,
    sources,
    targets,
    rows,
    source_slots,
    target_slots,
    HEADS: tl.constexpr,
    DIMS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Grid (blocks of ROWS rows, layers). ``target_i[y, target_loc[r]] = source_i[y, source_loc[r]]``, each field i.

    Fields 0 and 1 are K and V, 2 and 3 their scales where the format has them. A row whose target is slot 0 or
    negative is padding; one with a slot outside its pool is skipped. No row's target may be another row's source.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    layer = tl.program_id(1).to(tl.int64)
    inside = row < rows
    source = tl.load(source_loc[0] + row * source_loc[1], mask=inside, other=-1).to(tl.int64)
    target = tl.load(target_loc[0] + row * target_loc[1], mask=inside, other=-1).to(tl.int64)
    moved = inside & (source >= 0) & (source < source_slots) & (target > 0) & (target < target_slots)
    for i in tl.static_range(len(DIMS)):
        from_row = row_offsets(sources[i], layer, source)
        for first in range(0, HEADS * DIMS[i], COLUMNS[i]):
            column = first + tl.arange(0, COLUMNS[i])
            mask = moved[:, None] & (column < HEADS * DIMS[i])[None, :]
            from_column = column_offsets(sources[i], column, DIMS[i])
            values = tl.load(sources[i][0] + from_row[:, None] + from_column[None, :], mask=mask, other=0)
            if i < 2:
                to_row = row_offsets(targets[i], layer, target)
                to_column = column_offsets(targets[i], column, DIMS[i])
                tl.store(targets[i][0] + to_row[:, None] + to_column[None, :], values, mask=mask)
            else:
                # fmt: off
                store_scales(targets[i], values, target, moved, layer, first, HEADS, DIMS[i], ROWS, COLUMNS[i])
                # fmt: on


def copy_rows(source, source_loc, target, target_loc) -> None:
    """Launch :func:`copy_kernel` once.

    Parameters
    ----------
    source, target : KVPool
        Of the same layers, heads, dims and format; pages, page size, layout and scale placement may differ.
    source_loc, target_loc : int tensors ``(N,)``, any strides
    """
    g = source.layout.geometry
    fields = list(target.layout.fields)
    dims = tuple(target.layout.fields[f].extents["dim"] for f in fields)
    sources, targets = [source.cells(f) for f in fields], [target.cells(f) for f in fields]
    item = source.dtype.itemsize
    rows, columns, warps = tile_of(len(source_loc), g.heads * max(g.head_dim, g.v_head_dim), item, source.device)
    launch(
        copy_kernel,
        (triton.cdiv(len(source_loc), rows), g.layers),
        (source_loc, source_loc.stride(0)),
        (target_loc, target_loc.stride(0)),
        tuple(c.args for c in sources),
        tuple(c.args for c in targets),
        len(source_loc),
        g.slots,
        target.layout.geometry.slots,
        HEADS=g.heads,
        DIMS=dims,
        ROWS=rows,
        COLUMNS=tuple(columns if i < 2 else columns // 32 for i in range(len(fields))),
        num_warps=warps,
    )
