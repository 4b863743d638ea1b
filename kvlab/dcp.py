"""Decode context parallel: slots dealt out over ranks like cards, so that each rank keeps 1/ranks of every request.

    owner = slot % ranks        local = slot // ranks        slot = local * ranks + owner

The global slots are what the scheduler and the page table speak of. Every rank has a pool of the same geometry, and a
global page is ``page_size * ranks`` slots: page p of each rank together. So page numbers are the same everywhere, and
only offsets inside a page are dealt.

**Padding stays padding.** Slot 0 becomes local slot 0 of rank 0, the sink of its pool. Negative slots stay negative,
since ``//`` rounds down here (C's division would turn -1 into 0). And slots 1 … ranks-1 are the sinks of the other
ranks: they all have local slot 0, which no commit writes. Hence one rule: **tokens live in slots from ``ranks`` on**;
an allocator must hold back the first ``ranks`` global slots, not only slot 0. Engines do, by holding back a whole
page: vLLM's null block and sglang's page 0 are ``page_size * ranks`` global slots. :func:`local_rows` refuses a slot
below ``ranks``, since the token in it would be lost without a trace.

With 2 ranks, a commit of slots 4, 5, 6, 7 and one padded row:

    global slot      4     5     6     7     0
    owner            0     1     0     1     0
    local slot       2     2     3     3     0
    rank 0 writes    yes         yes               local slots 2, 3
    rank 1 writes          yes         yes         local slots 2, 3

Upstream: sglang's ``DcpTokenToKVPoolAllocator`` (python/sglang/srt/mem_cache/allocator/dcp.py) and the ``dcp_kv_mask``
of its ``set_kv_buffer``; vLLM's ``BlockTable.compute_slot_mapping`` (vllm/v1/worker/block_table.py), which gives slot
-1 to rows of other ranks instead of a mask, and can deal runs of ``cp_kv_cache_interleave_size`` tokens.
"""

from __future__ import annotations

import torch


def split_slots(slots, ranks: int):
    """``(owner, local)`` of global slots: ints, numpy arrays or tensors; :func:`join_slots` is the inverse.

    Any integer is taken, padding included: of a negative slot ``local`` is negative.
    """
    _check_ranks(ranks)
    return slots % ranks, slots // ranks


def join_slots(owner, local, ranks: int):
    """The global slot that ``owner`` keeps in its slot ``local``."""
    _check_ranks(ranks)
    return local * ranks + owner


def local_rows(slots: torch.Tensor, ranks: int, rank: int, check: bool = True) -> tuple[torch.Tensor, torch.Tensor]:
    """``(loc, mask)`` that rank ``rank`` hands to ``set_kv_buffer``, both of the shape of ``slots``.

    Parameters
    ----------
    slots : int32 or int64 tensor
        Global slots of the rows, the same on every rank. 0 and negative ones are padding.
    ranks, rank : int
    check : bool
        False skips the one check that reads values (it syncs a GPU); see Raises.

    Returns
    -------
    loc : tensor of the dtype of ``slots``
        Local slots, of all rows: shapes do not depend on who owns what, so a CUDA graph can be captured.
    mask : bool tensor
        Rows of this rank. Commits take it as ``dcp_kv_mask`` or ``row_mask``. ``loc.where(mask, -1)`` alone says the
        same, as vLLM does it.

    Raises
    ------
    ValueError
        A slot of 1 … ranks-1, whose local slot is the sink; a rank outside 0 … ranks-1.

    Examples
    --------
    >>> slots = torch.tensor([4, 5, 6, 7, 0])
    >>> loc, mask = local_rows(slots, ranks=2, rank=1)
    >>> loc.tolist(), mask.tolist()
    ([2, 2, 3, 3, 0], [False, True, False, True, False])

    and then, on rank 1, with K and V of all five rows:

    >>> pool.set_kv_buffer(layer, loc, k, v, dcp_kv_mask=mask)     # doctest: +SKIP
    """
    _check_ranks(ranks)
    if not 0 <= rank < ranks:
        raise ValueError(f"rank={rank} is outside 0 … {ranks - 1}")
    if check:
        lost = (slots > 0) & (slots < ranks)
        if lost.any():
            raise ValueError(
                f"slots holds {int(slots[lost][0])}: slots 1 … {ranks - 1} are the padding sinks of ranks 1 … "
                f"{ranks - 1} (local slot 0), so tokens must lie in slots from {ranks} on"
            )
    owner, local = split_slots(slots, ranks)
    return local, owner == rank


def _check_ranks(ranks: int) -> None:
    if isinstance(ranks, bool) or not isinstance(ranks, int):
        raise TypeError(f"ranks={ranks!r} must be an int")
    if ranks < 1:
        raise ValueError(f"ranks={ranks} must be at least 1")
