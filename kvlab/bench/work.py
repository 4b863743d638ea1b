"""A case with memory behind it: pool, rows and slots, the call that is timed, and the bytes that it leaves."""

from __future__ import annotations

import torch
from torch.nn.functional import scaled_dot_product_attention

from ..backends import operations
from ..formats import MXFP8
from ..pool import KVPool
from .cases import HEAD_DIM, HEADS, SOURCE, WIDTH, Case

POISON = 0xA5


class Work:
    """Memory of one case.

    Attributes
    ----------
    pool : KVPool
        Filled by a commit, so that every row can be read.
    target : KVPool
        What a commit or a copy writes: the pool itself, or a second one for copies.
    loc : int64 tensor ``(B, 8)``
        Blocks of 8 consecutive slots, in shuffled order; slot 0's block is not among them.
    lens : int64 tensor ``(B,)`` or None
    k, v : tensors ``(layers, B*8, heads, dim)``, without the layers' axis where the case has one layer
    """

    def __init__(self, case: Case, device: torch.device):
        layout = case.build()
        seed = torch.Generator().manual_seed(0)
        blocks = 1 + torch.randperm(layout.geometry.slots // WIDTH - 1, generator=seed)[: case.rows // WIDTH]
        self.case, self.device = case, device
        self.loc = (blocks[:, None] * WIDTH + torch.arange(WIDTH)).to(device)
        share = case.accepted
        self.lens = None if share is None else torch.full((len(blocks),), round(share * WIDTH), device=device)
        lead = (case.layers,) if case.layer is None else ()
        self.k, self.v = (self._numbers((*lead, case.rows, HEADS, HEAD_DIM)) for _ in "kv")
        self.pool = KVPool(layout, device=device)
        self.target = self.pool
        if case.operation != "commit":
            self.pool.commit(self.loc, self.k, self.v, layer=case.layer, check=False)
            if case.operation == "copy":
                self.target = KVPool(layout, device=device)

    def _numbers(self, shape: tuple) -> torch.Tensor:
        """Rows as a model's: normal numbers. The same ones over and over, since random ones would take seconds."""
        some = torch.randn(65537, generator=torch.Generator().manual_seed(1)).to(SOURCE)
        count = torch.Size(shape).numel()
        return some.to(self.device).repeat(-(-count // len(some)))[:count].view(shape)

    def call(self) -> tuple:
        """The operation by kvlab, without the checks that read values on the host. Gives what it returns."""
        case, w = self.case, self
        if case.operation == "commit":
            w.pool.commit(w.loc, w.k, w.v, layer=case.layer, commit_lens=w.lens, check=False)
            return ()
        run = operations(self.device)
        if case.operation == "copy":
            slots = w.loc.reshape(-1)
            run.copy_rows(w.pool, slots, w.target, slots)
            return ()
        first, layers = (0, case.layers) if case.layer is None else (case.layer, 1)
        rows = run.gather_rows(w.pool, ("k", "v"), first, layers, w.loc, None, None, isinstance(case.format, MXFP8))
        return rows if case.operation == "gather" else (attend(case, *rows),)

    def outcome(self, call) -> list[torch.Tensor]:
        """What ``call`` leaves: the returned tensors, or every byte of the target over a poison fill."""
        if self.case.operation in ("gather", "attention"):
            return list(call())
        for buffer in self.target.buffers.values():
            buffer.fill_(POISON)
        call()
        return [buffer.clone() for buffer in self.target.buffers.values()]


def attend(case: Case, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query a request over its gathered rows: ``(requests, heads, 1, dim)``. The query is the request's last K."""
    k, v = (x[0].unflatten(0, (case.requests, -1)).transpose(1, 2) for x in (k, v))
    return scaled_dot_product_attention(k[:, :, -1:], k, v)


def same(found: list[torch.Tensor], wanted: list[torch.Tensor], operation: str) -> bool:
    """Whether two outcomes agree: in every byte; an attention's to rounding."""
    if operation == "attention":
        return all(torch.allclose(a, b, rtol=2e-2, atol=2e-2) for a, b in zip(found, wanted, strict=True))
    pairs = zip(found, wanted, strict=True)
    return all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8)) for a, b in pairs)
