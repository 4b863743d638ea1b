"""Checks for the notebooks' exercises: each compares your answer with the library's, and hints at what went wrong.

``check("slots.byte", answer)`` prints one line and returns whether the answer is right. ``...`` means "not yet".
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from .builders import head_major, page_major, token_major
from .formats import MXFP8, dequantize, quantize
from .geometry import Geometry
from .pool import KVPool

GEOMETRY = Geometry(layers=4, heads=3, head_dim=64, page_size=16, pages=8)
COST = Geometry(layers=32, heads=8, head_dim=128, page_size=128, pages=2)


@dataclass(frozen=True)
class Exercise:
    """What is asked, the right answer (computed, not typed in), and a hint for the most common slip."""

    question: str
    answer: Callable[[], object]
    hint: str


def _byte():
    return page_major(GEOMETRY, torch.bfloat16).locate("v", 2, 37, 1, 10)[1]


def _owner():
    cell = page_major(GEOMETRY, torch.bfloat16).explain("raw", 60_000)
    return cell.field, cell.layer, cell.slot


def _scale(amax: float, rounding: str) -> int:
    return int(quantize(torch.full((32,), amax), rounding)[1])


def _tile(head_dim: int):
    return token_major(Geometry(layers=1, heads=1, head_dim=head_dim, page_size=128, pages=1), MXFP8("interleaved"))


def _tile_owner():
    cell = _tile(128).explain("k_scale", 89)
    return cell.slot, cell.dim


def _tile_padding():
    layout = _tile(64)
    return int((layout.explain("k_scale", np.arange(layout.buffers["k_scale"])).field < 0).sum())


def _factor() -> float:
    stored, needed = dequantize(torch.ones(2, 32), torch.tensor([[121], [123]]))[:, 0].tolist()
    return stored / needed


def _launches():
    from .kernels.launch import record_launches

    pool = KVPool(page_major(GEOMETRY, MXFP8()))
    rows = torch.zeros(GEOMETRY.layers, 3, GEOMETRY.heads, GEOMETRY.head_dim, device=pool.device)
    with record_launches() as launches:
        pool.commit(torch.tensor([5, 6, 7], device=pool.device), rows, rows)
    # plain torch, where Triton is missing, launches nothing
    return len(launches) or 1


def _cycle():
    pool = KVPool(token_major(Geometry(1, 1, 1, page_size=1, pages=8), torch.float32), device="cpu")
    pool.view("k", 0)[:, 0, 0] = torch.arange(8.0)
    pool.move_kv_cache(torch.tensor([6, 7, 5]), torch.tensor([5, 6, 7]))
    return [int(x) for x in pool.view("k", 0)[5:, 0, 0]]


def _regions(build) -> int:
    return len(KVPool(build(GEOMETRY, torch.bfloat16), device="cpu").get_contiguous_buf_infos()[0])


def _rows_apart() -> int:
    g = GEOMETRY
    return g.heads * (g.head_dim + g.v_head_dim) * torch.bfloat16.itemsize


def _moved(rows: int, layers: int) -> int:
    """Bytes that a bf16 commit reads and writes: 8 heads of 128."""
    return 2 * rows * layers * (COST.row_elements("k") + COST.row_elements("v")) * torch.bfloat16.itemsize


def _scale_sectors(scales: str) -> int:
    from .lens import footprint

    page = range(COST.page_size, 2 * COST.page_size)
    return footprint(token_major(COST, MXFP8(scales)), "k_scale", page, heads=[0]).sectors


EXERCISES = {
    "tour.slot": Exercise(
        "the slot of offset 5 in page 3, pages of 16 slots",
        lambda: 3 * GEOMETRY.page_size + 5,
        "slot = page * page_size + offset",
    ),
    "tour.rows": Exercise(
        "rows written by a prefix-valid commit with commit_lens [3, 0, 8, 1], all slots real",
        lambda: sum([3, 0, 8, 1]),
        "each request keeps its first commit_lens[b] rows, and nothing else",
    ),
    "slots.byte": Exercise(
        "byte of V, layer 2, slot 37, head 1, dim 10 in the page-major pool",
        _byte,
        "37//16 times the envelope, plus 2 layers, plus K's part, plus 37%16 times the row, plus head and dim",
    ),
    "slots.owner": Exercise(
        "(field, layer, slot) of byte 60,000 of the page-major buffer",
        _owner,
        "divide by the envelope first: that is the page. The rest says layer, then K or V, then the offset",
    ),
    "slots.runs": Exercise(
        "contiguous runs of one page under token-major, page-major and head-major",
        lambda: [build(GEOMETRY, torch.bfloat16).runs("page").count for build in (token_major, page_major, head_major)],
        "one field of one layer is one piece where pages are not enveloped; the envelope holds all of them",
    ),
    "kernels.programs": Exercise(
        "program instances of a launch over 64 rows and 4 layers with tiles of 4 rows",
        lambda: -(-64 // 4) * 4,
        "the grid is (blocks of rows, layers)",
    ),
    "kernels.launches": Exercise(
        "launches of a commit of K and V, all layers, into an MXFP8 pool",
        _launches,
        "payload and scales, K and V, and all layers leave together",
    ),
    "prefix.slots": Exercise(
        "slots written by loc_2d [[17, 18, 19], [0, 33, -1]] with commit_lens [2, 3], in rising order",
        lambda: [17, 18, 33],
        "take each prefix first; then drop slot 0 and what is negative",
    ),
    "prefix.nextstep": Exercise(
        "row of the block in step i+1 that reuses the slot of the first rejected row of step i",
        lambda: 0,
        "the next block starts at start_pos + commit_lens",
    ),
    "blocks.bytes": Exercise(
        "scale bytes of a block with amax 3.75 under rceil and floor",
        lambda: [_scale(3.75, rounding) for rounding in ("rceil", "floor")],
        "rceil: the smallest power of two from 3.75/448 on. floor: 2^(1 - 8). The byte is the exponent plus 127",
    ),
    "blocks.row": Exercise(
        "bytes of K of one token, 3 heads of 64 elements, in MXFP8 with its scales",
        lambda: sum(x.nbytes for x in quantize(torch.zeros(3, 64))),
        "one byte for each element, and one for every 32 of them",
    ),
    "blocks.nan": Exercise(
        "elements of a head of 64 that read back as NaN after one of them was NaN",
        lambda: int(dequantize(*quantize(torch.tensor([float("nan")] + [1.0] * 63))).isnan().sum()),
        "the scale becomes NaN, and it serves one block",
    ),
    "placement.byte": Exercise(
        "byte of row 100, column 3 in the tile of a head with 128 elements",
        lambda: _tile(128).locate("k_scale", 0, 100, 0, 3)[1],
        "lane r % 32 times 16, plus 4 * (r // 32), plus the column",
    ),
    "placement.owner": Exercise(
        "(row, column) that byte 89 of that tile serves",
        _tile_owner,
        "89 // 16 is the lane; the rest says which group of 32 rows, and which column",
    ),
    "placement.padding": Exercise(
        "padding bytes in the tile of a head with 64 elements",
        _tile_padding,
        "a tile has 512 bytes, whatever head_dim is; 128 rows have 2 scales each",
    ),
    "scales.bytes": Exercise(
        "scale bytes that one accepted row brings: K and V, 4 layers, 3 heads of 64 elements",
        lambda: 2 * 4 * quantize(torch.zeros(3, 64))[1].numel(),
        "a scale for every 32 elements of a head",
    ),
    "scales.factor": Exercise(
        "the factor by which a block reads back wrong when its scale should be 123 and the slot still holds 121",
        _factor,
        "2^(stored - needed)",
    ),
    "moving.cycle": Exercise(
        "the tokens in slots 5, 6, 7 after move_kv_cache(tgt_loc=[6, 7, 5], src_loc=[5, 6, 7]); slot s held token s",
        _cycle,
        "every row is read before any is written, so no token is lost",
    ),
    "moving.regions": Exercise(
        "regions that a byte transfer of whole bf16 pages addresses: token-major, then page-major",
        lambda: [_regions(build) for build in (token_major, page_major)],
        "one for each field of each layer, or one envelope",
    ),
    "moving.wire": Exercise(
        "bytes of payload that 3 pages of the page-major MXFP8 pool put on the wire, the header left out",
        lambda: 3 * page_major(GEOMETRY, MXFP8()).nbytes // GEOMETRY.pages,
        "K and V of all layers, one byte an element, and one scale for every 32 of them",
    ),
    "cost.bytes": Exercise(
        "bytes that a commit of 64 rows reads and writes, half of them accepted: 32 layers, 8 heads of 128, bf16",
        lambda: _moved(64 // 2, COST.layers),
        "K and V, each read once and written once; a row that is not accepted is not even read",
    ),
    "cost.stores": Exercise(
        "STG.E.128 instructions of a warp for one K row of 8 heads of 128, bf16",
        lambda: COST.row_elements("k") * torch.bfloat16.itemsize // (32 * 128 // 8),
        "32 threads, 128 bits each; then divide the bytes of the row by that",
    ),
    "cost.bound": Exercise(
        "rows of one layer, bf16, from which on the bytes take as long as the launch: 4.8 TB/s, launch 4 us",
        lambda: math.ceil(4e-6 * 4.8e12 / _moved(1, 1)),
        "launch times bandwidth is a number of bytes; a row of one layer reads and writes 8 KiB. Round up",
    ),
    "cost.scales": Exercise(
        "sectors with the K scales of one head in a page of 128 tokens, token-major: flat, then interleaved",
        lambda: [_scale_sectors(scales) for scales in ("flat", "interleaved")],
        "flat: each token's 4 bytes lie in another sector. Interleaved: the head has its own 512 bytes",
    ),
}

EXERCISES |= {
    "own.byte": Exercise(
        "byte of V, layer 0, slot 5, head 0, dim 0 in the paired layout, 3 heads of 64 elements, bf16",
        lambda: 5 * _rows_apart() + _rows_apart() // 2,
        "five slots of K and V lie before it, and then the slot's own K row",
    ),
    "own.token": Exercise(
        "contiguous runs of one token, when all its layers lie beside each other",
        lambda: 1,
        "put the slot outermost: ('slot', slots, stride of all layers), then the layer, then head and dim",
    ),
    "own.broken": Exercise(
        "(field, layer, slot) of the cell whose byte belongs to two, when V starts where K does",
        lambda: ["v", 0, 0],
        "read what check_layout says: it names the first such byte and both its owners",
    ),
}


def check(name: str, answer) -> bool:
    """Compare ``answer`` with the exercise's own; prints a line and returns whether it is right.

    Raises
    ------
    KeyError
        No exercise of that name.
    """
    if name not in EXERCISES:
        raise KeyError(f"check: name={name!r} is not one of {list(EXERCISES)}")
    exercise = EXERCISES[name]
    if answer is ...:
        print(f"Not answered yet: {exercise.question}.")
        return False
    right = _plain(answer) == _plain(exercise.answer())
    print(f"Right: {exercise.question}." if right else f"Not yet. Hint: {exercise.hint}.")
    return right


def _plain(x):
    """Tensors, tuples and numpy numbers as plain lists and ints, so that ``(1, 2)`` equals ``[1, 2]``."""
    if hasattr(x, "tolist"):
        x = x.tolist()
    return [_plain(y) for y in x] if isinstance(x, (list, tuple)) else x
