"""Pages between processes: sent as envelopes, verified, and only then published to the receiving pool.

The wire holds a header (the sender's layout, a checksum for each page), then one run of bytes for each page: the
page-major envelope, all layers of K, V and their scales. Page ids and layouts of the two sides may differ.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass

import torch
import torch.distributed as dist

from .builders import page_major
from .geometry import Geometry
from .layout import Layout
from .move import copy, mismatch

VERSION = 1


class TransferError(RuntimeError):
    """A transfer that did not happen: the receiving pool is as it was, and the message says why."""


@dataclass(frozen=True)
class Transferred:
    """What crossed the wire, in bytes: ``header_bytes`` and ``pages * page_bytes`` of payload."""

    pages: int
    page_bytes: int
    header_bytes: int


def send_pages(pool, pages, dst: int, group=None) -> Transferred:
    """Send pages of a pool to rank ``dst``, which calls :func:`recv_pages`.

    Parameters
    ----------
    pool : KVPool
        A page-major pool sends from where its pages lie; any other layout is copied into envelopes first.
    pages : sequence of int
        Page ids of this side, in the order in which the receiver's page ids take them.
    dst : int
        Rank in ``group`` (torch.distributed; gloo, or NCCL for GPUs).

    Raises
    ------
    IndexError, ValueError
        A page outside the pool, or given twice.
    TransferError
        The receiver refused or went away; the message says why.
    """
    pages = _page_ids(pool, pages)
    envelopes = _envelopes(pool, pages)
    header = {
        "version": VERSION,
        "layout": pool.layout.to_dict(),
        "pages": len(pages),
        "page_bytes": len(envelopes[0]) if pages else 0,
        "checksums": [_checksum(e) for e in envelopes],
    }
    text = json.dumps(header).encode()
    wire = _Wire(dst, group)
    wire.send_text(text)
    wire.answer("refused the transfer")
    for envelope in envelopes:
        wire.send(envelope)
    wire.answer("did not publish the pages")
    return Transferred(len(pages), header["page_bytes"], len(text))


def recv_pages(pool, pages, src: int, group=None) -> Transferred:
    """Receive pages from rank ``src`` into pages of this pool; the twin of :func:`send_pages`.

    Every page arrives beside the pool and is compared with its checksum. Only when all are right are they copied in,
    converted to this pool's layout; whatever goes wrong before that leaves the pool as it was.

    Parameters
    ----------
    pages : sequence of int
        Page ids of this side; the first ones are taken where there are more than are sent.

    Raises
    ------
    IndexError, ValueError
        A page outside the pool, or given twice (the sender is told).
    TransferError
        Layouts that do not fit, too few pages, a page that does not match its checksum, a sender that went away.
    """
    wire = _Wire(src, group)
    text = wire.receive_text()
    try:
        pages = _page_ids(pool, pages)
    except (IndexError, ValueError) as error:
        wire.reply(str(error))
        raise
    header, layout, reason = _read_header(text, pool, pages)
    wire.reply(reason)
    if reason:
        raise TransferError(f"transfer refused: {reason}; nothing was published")
    count, page_bytes = header["pages"], header["page_bytes"]
    arrived = _stage(layout, count, pool.device)
    raw = arrived.buffers["raw"].view(count + 1, -1)
    for i in range(count):
        wire.receive(raw[i + 1], f"after {i} of {count} pages; nothing was published")
    wrong = [i for i in range(count) if _checksum(raw[i + 1]) != header["checksums"][i]]
    reason = f"page {wrong[0]} of the transfer does not match its checksum" if wrong else ""
    if not wrong:
        size = pool.layout.geometry.page_size
        copy(arrived, _slots(range(1, count + 1), size, pool.device), pool, _slots(pages[:count], size, pool.device))
    wire.reply(reason)
    if wrong:
        raise TransferError(f"transfer refused: {reason}; nothing was published")
    return Transferred(count, page_bytes, len(text))


def _read_header(text: bytes, pool, pages) -> tuple[dict, Layout | None, str]:
    """Header, the sender's layout, and why this pool can't take the pages ("" where it can)."""
    try:
        header = json.loads(text)
        if header["version"] != VERSION:
            return header, None, f"header version {header['version']}, this side reads {VERSION}"
        layout = Layout.from_dict(header["layout"])
    except (ValueError, KeyError, TypeError) as error:
        return {}, None, f"a header that can't be read ({error})"
    difference = mismatch(layout, pool.layout)
    sizes = layout.geometry.page_size, pool.layout.geometry.page_size
    if not difference and sizes[0] != sizes[1]:
        difference = f"page_size: {sizes[0]} and {sizes[1]}"
    if difference:
        return header, layout, f"sender and receiver differ in {difference}"
    if header["pages"] > len(pages):
        return header, layout, f"{header['pages']} pages are sent, {len(pages)} are free here"
    envelope = _stage_layout(layout, 0).nbytes
    if header["pages"] and header["page_bytes"] != envelope:
        return header, layout, f"a page of {header['page_bytes']} bytes, this side's envelope has {envelope}"
    return header, layout, ""


def _page_ids(pool, pages) -> list[int]:
    pages = [int(p) for p in pages]
    total = pool.layout.geometry.pages
    for i, p in enumerate(pages):
        if not 0 <= p < total:
            raise IndexError(f"pages[{i}]={p} is outside the pool's pages 0 … {total - 1}")
        if p in pages[:i]:
            raise ValueError(f"pages[{i}]={p} is given twice")
    return pages


def _envelopes(pool, pages) -> list[torch.Tensor]:
    """The page-major bytes of each page: views where the pool has that layout, else of a converted copy."""
    g = pool.layout.geometry
    if not pages:
        return []
    if pool.layout.fields == page_major(g, pool.layout.format).fields:
        raw = pool.buffers["raw"].view(g.pages, -1)
        return [raw[p] for p in pages]
    staged = _stage(pool.layout, len(pages), pool.device)
    slots = _slots(range(1, len(pages) + 1), g.page_size, pool.device)
    copy(pool, _slots(pages, g.page_size, pool.device), staged, slots)
    return list(staged.buffers["raw"].view(len(pages) + 1, -1)[1:])


def _stage_layout(layout: Layout, pages: int) -> Layout:
    """Page-major, with a page 0 that stays empty: its slot 0 takes no row."""
    g = layout.geometry
    return page_major(Geometry(g.layers, g.heads, g.head_dim, g.v_head_dim, g.page_size, pages + 1), layout.format)


def _stage(layout: Layout, pages: int, device):
    from .pool import KVPool

    return KVPool(_stage_layout(layout, pages), device)


def _slots(pages, page_size: int, device) -> torch.Tensor:
    first = torch.tensor(list(pages), dtype=torch.int64, device=device) * page_size
    return (first[:, None] + torch.arange(page_size, device=device)).reshape(-1)


def _checksum(envelope: torch.Tensor) -> int:
    return zlib.crc32(envelope.cpu().numpy())


class _Wire:
    """Messages to and from one peer: bytes, texts with their length before them, and answers."""

    def __init__(self, peer: int, group):
        self.peer, self.group = peer, group
        self.device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")

    def send(self, data: torch.Tensor) -> None:
        try:
            dist.send(data.contiguous().to(self.device), group=self.group, group_dst=self.peer)
        except (RuntimeError, ValueError) as error:
            raise TransferError(f"the receiver went away: {_short(error)}") from error

    def receive(self, into: torch.Tensor, when: str) -> None:
        buffer = (
            into if into.device == self.device and into.is_contiguous() else torch.empty_like(into, device=self.device)
        )
        try:
            dist.recv(buffer, group=self.group, group_src=self.peer)
        except (RuntimeError, ValueError) as error:
            raise TransferError(f"the peer went away {when}: {_short(error)}") from error
        if buffer is not into:
            into.copy_(buffer)

    def send_text(self, text: bytes) -> None:
        self.send(torch.tensor([len(text)], dtype=torch.int64))
        if text:
            self.send(torch.frombuffer(bytearray(text), dtype=torch.uint8))

    def receive_text(self, when: str = "before its header was complete; nothing was published") -> bytes:
        length = torch.zeros(1, dtype=torch.int64)
        self.receive(length, when)
        text = torch.empty(int(length), dtype=torch.uint8)
        if len(text):
            self.receive(text, when)
        return text.numpy().tobytes()

    def reply(self, reason: str) -> None:
        self.send_text(reason.encode())

    def answer(self, verb: str) -> None:
        reason = self.receive_text("before it answered").decode()
        if reason:
            raise TransferError(f"the receiver {verb}: {reason}")


def _short(error: Exception) -> str:
    return str(error).splitlines()[0][:200]
