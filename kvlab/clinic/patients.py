"""The eight cases: a pool, the arguments of a commit, what the user reported, and the commit that went wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ..backends import backend, default_device
from ..builders import page_major, token_major
from ..formats import MXFP8, quantize
from ..geometry import Geometry
from ..pool import KVPool, zeroed

SMALL = Geometry(layers=2, heads=2, head_dim=64, page_size=4, pages=16)
LOC = ((5, 6, 7, 8), (21, 22, 23, 24), (40, 41, 42, 43))
LENS = (4, 2, 3)


@dataclass(frozen=True)
class Patient:
    """One case.

    Attributes
    ----------
    number : int
    report : str
        What the user saw.
    pool : KVPool
    loc, commit_lens : int32 tensors ``(B, W)`` and ``(B,)``
    k, v : tensors ``(B*W, heads, dim)``
        The rows to commit.
    layer : int
    """

    number: int
    report: str
    pool: KVPool
    loc: torch.Tensor
    commit_lens: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    layer: int
    commit: Callable[[Patient], None]

    def run(self) -> None:
        """The commit that goes wrong, on :attr:`pool`."""
        self.commit(self)

    def __str__(self) -> str:
        g = self.pool.layout.geometry
        lens = self.commit_lens.tolist()
        return (
            f"Case {self.number}. {self.report}\n{self.pool.layout.name} pool, {g.layers} layers, {g.heads} heads of "
            f"{g.head_dim} (V {g.v_head_dim}), {g.pages:,} pages of {g.page_size}; layer {self.layer}, "
            f"loc_2d {self.loc.tolist()}, commit_lens {lens}"
        )

    __repr__ = __str__


def patient(number: int) -> Patient:
    """A fresh case, 1 … 8.

    Raises
    ------
    ValueError
        No case of that number.
    RuntimeError
        A case whose commit is a Triton kernel, where Triton cannot run.
    """
    if number not in _CASES:
        raise ValueError(f"patient: number={number!r} is not one of 1 … {len(_CASES)}")
    made = _CASES[number](number)
    if made.commit not in _TORCH and backend(made.pool.device) == "reference":
        raise RuntimeError(f"patient: the commit of case {number} is a Triton kernel, and Triton cannot run here")
    return made


def _made(number, pool, report, commit, loc=LOC, lens=LENS, layer=1, spare: int = 0) -> Patient:
    """``spare``: rows of V that lie behind the given ones in the same memory."""
    g, device = pool.layout.geometry, pool.device
    rng = torch.Generator().manual_seed(number)
    rows = len(loc) * len(loc[0])
    k, v = (torch.randn(rows + spare, g.heads, d, generator=rng) for d in (g.head_dim, g.v_head_dim))
    dtype = torch.bfloat16 if isinstance(pool.layout.format, MXFP8) else pool.dtype
    k, v = (x.to(dtype).to(device)[:rows] for x in (k, v))
    loc, lens = (torch.tensor(x, dtype=torch.int32, device=device) for x in (loc, lens))
    return Patient(number, report, pool, loc, lens, k, v, layer, commit)


def _store(p: Patient, name: str, rows, columns: int, page_size, page_stride, row_stride, first_slot=1) -> None:
    from .kernels import rows_kernel

    rows_kernel[(p.loc.numel(),)](
        rows, p.pool.view(name, p.layer).view(rows.dtype), p.loc, p.commit_lens, p.loc.shape[1], columns, page_size,
        page_stride, row_stride, FIRST_SLOT=first_slot, TILE=1 << (columns - 1).bit_length(),
    )  # fmt: skip


def _rows_without_pages(p: Patient) -> None:
    for name, x in (("k", p.k), ("v", p.v)):
        row_dim = x[0].numel()
        _store(p, name, x, row_dim, 1, row_dim, 0)


def _one_width(p: Patient) -> None:
    row_dim = p.k[0].numel()
    for name, x in (("k", p.k), ("v", p.v)):
        row = p.pool.view(name, p.layer).stride(0)
        _store(p, name, x, row_dim, 1, row, 0)


def _accepted(p: Patient) -> tuple[torch.Tensor, torch.Tensor]:
    """Which rows are within commit_lens, and their slots."""
    kept = (torch.arange(p.loc.shape[1], device=p.loc.device) < p.commit_lens[:, None]).reshape(-1)
    return kept, p.loc.reshape(-1)[kept].long()


def _by_index(p: Patient) -> None:
    kept, slots = _accepted(p)
    p.pool.get_key_buffer(p.layer)[slots] = p.k[kept]
    p.pool.get_value_buffer(p.layer)[slots] = p.v[kept]


def _elements_of_quantised_rows(p: Patient) -> None:
    kept, slots = _accepted(p)
    page_size = p.pool.layout.geometry.page_size
    for name, x in (("k", p.k), ("v", p.v)):
        elements, _ = quantize(x[kept].float(), p.pool.layout.format.rounding)
        p.pool.view(name, p.layer).view(torch.uint8)[slots // page_size, slots % page_size] = elements.view(torch.uint8)


def _scales_in_tiles(p: Patient) -> None:
    from .kernels import tile_scales_kernel

    g = p.pool.layout.geometry
    for name, x in (("k", p.k), ("v", p.v)):
        elements, scales = quantize(x.float(), p.pool.layout.format.rounding)
        row = g.heads * g.dim(name)
        _store(p, name, elements.view(torch.uint8), row, 1, row, 0)
        tiles = p.pool.view(f"{name}_scale", p.layer)
        tile_scales_kernel[(p.loc.numel(), g.heads)](
            scales, tiles, p.loc, p.commit_lens, p.loc.shape[1], g.heads, scales.shape[-1], tiles.stride(0),
            tiles.stride(1), TILE=4,
        )  # fmt: skip


def _pages_of_a_view(p: Patient) -> None:
    page_size = p.pool.layout.geometry.page_size
    for name, x in (("k", p.k), ("v", p.v)):
        row_dim = x[0].numel()
        _store(p, name, x, row_dim, page_size, page_size * row_dim, row_dim)


def _large_pool(p: Patient) -> None:
    from .kernels import rows_of_a_large_pool_kernel

    row_dim = p.k[0].numel()
    bits = p.pool.view("k", 0).view(torch.uint8)
    rows_of_a_large_pool_kernel[(p.loc.numel(),)](p.k.view(torch.uint8), bits, p.loc, row_dim, TILE=row_dim)
    p.pool.view("v", 0).view(torch.uint8)[p.loc.reshape(-1).long()] = p.v.view(torch.uint8)


def _padded_batch(p: Patient) -> None:
    for name, x in (("k", p.k), ("v", p.v)):
        row_dim = x[0].numel()
        _store(p, name, x, row_dim, 1, row_dim, 0, first_slot=0)


def _case_1(n):
    words = "After the move to the page-major pool, text of one request shows up in another."
    return _made(n, KVPool(page_major(SMALL, torch.bfloat16)), words, _rows_without_pages)


def _case_2(n):
    words = "With a model whose V heads are narrower, the token after each committed block is attended to wrongly."
    g = Geometry(layers=2, heads=2, head_dim=64, v_head_dim=32, page_size=4, pages=16)
    return _made(n, KVPool(token_major(g, torch.bfloat16)), words, _one_width, spare=2)


def _case_3(n):
    words = "Only when a batch is padded, a request that sits at the end of the pool changes its mind."
    loc = ((5, 6, 7, -1), (21, 22, 23, 24), (40, 41, -1, -1))
    return _made(n, KVPool(token_major(SMALL, torch.bfloat16)), words, _by_index, loc=loc, lens=(4, 4, 2))


def _case_4(n):
    words = "Accuracy fell when the pool became MXFP8. Slots that are used for the first time read as almost zero."
    pool = KVPool(page_major(SMALL, MXFP8("flat")))
    return _made(n, pool, words, _elements_of_quantised_rows)


def _case_5(n):
    words = "The block-scaled attention kernel reads wild values; tokens at the start of a page are fine."
    pool = KVPool(token_major(Geometry(layers=2, heads=2, head_dim=128, page_size=128, pages=2), MXFP8("interleaved")))
    loc = ((128, 129, 130, 131), (133, 150, 151, 152), (200, 201, 202, 203))
    return _made(n, pool, words, _scales_in_tiles, loc=loc)


def _case_6(n):
    words = "The engine keeps K and V of a page in one tensor. Since then V is damaged, though only K is quoted wrong."
    g, device = SMALL, default_device()
    shape = (g.pages, 2, g.page_size, g.heads, g.head_dim)
    fused = [torch.zeros(shape, dtype=torch.bfloat16, device=device) for _ in range(g.layers)]
    pool = KVPool.adopt([x[:, 0] for x in fused], [x[:, 1] for x in fused])
    return _made(n, pool, words, _pages_of_a_view)


def _case_7(n):
    words = "On a machine with much memory, rows of high slots never arrive. No error, no NaN."
    slots, heads, dim = 2_200_000, 8, 128
    nbytes = slots * heads * dim
    # on a CPU the system gives this memory when it is first written: it costs next to nothing
    raw = zeroed(2 * nbytes, default_device()).view(torch.float8_e4m3fn)
    k, v = (x.view(slots, heads, dim) for x in (raw[nbytes:], raw[:nbytes]))
    return _made(n, KVPool.adopt([k], [v]), words, _large_pool, loc=((7, 2_100_001),), lens=(2,), layer=0)


def _case_8(n):
    words = "Under graph capture, where batches are padded with slot 0, after a while all logits are NaN."
    made = _made(n, KVPool(token_major(SMALL, torch.bfloat16)), words, _padded_batch, ((0, 5, 0, 0),), (4,))
    made.k[[0, 2, 3]] = made.v[[0, 2, 3]] = float("nan")  # nobody computes what padding rows hold
    return made


_CASES = {i: case for i, case in enumerate((_case_1, _case_2, _case_3, _case_4, _case_5, _case_6, _case_7, _case_8), 1)}
_TORCH = (_by_index, _elements_of_quantised_rows)
