"""Pages between processes: sent as envelopes, verified, and only then published to the receiving pool.

The wire holds a header (the sender's layout, a checksum for each page, and one of its own), then one run of bytes for
each page: the page-major envelope, all layers of K, V and their scales. Page ids and layouts of the two sides may
differ. Both sides wait for each other: give their process group a timeout that you are willing to wait.
"""

from __future__ import annotations

import json
import zlib
from contextlib import suppress
from dataclasses import dataclass
from operator import index

import torch

from .builders import page_major
from .geometry import Geometry
from .layout import Layout
from .move import copy, mismatch
from .wire import PREFIX_BYTES, TransferError, Wire

__all__ = ["TransferError", "Transferred", "recv_pages", "send_pages", "slots_of"]
VERSION = 2
NOTHING = "nothing was published"


@dataclass(frozen=True)
class Transferred:
    """What the sender put on the wire: ``header_bytes``, then ``pages * page_bytes`` of payload."""

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
    IndexError, TypeError, ValueError
        A page outside the pool, not an int, or given twice (the receiver is told).
    TransferError
        The receiver refused or went away; the message says why.
    """
    wire = Wire(dst, group)
    try:
        pages = _page_ids(pool, pages)
        envelopes = _envelopes(pool, pages)
    except Exception as error:  # whatever it is, the receiver must not wait for it
        wire.send_text(json.dumps({"version": VERSION, "error": _why(error)}).encode())
        raise
    header = {
        "version": VERSION,
        "layout": pool.layout.to_dict(),
        "pages": len(pages),
        "page_bytes": _stage_layout(pool.layout, 0).nbytes,
        "checksums": [_checksum(e) for e in envelopes],
    }
    text = json.dumps(header).encode()
    wire.send_text(text)
    wire.answer("refused the transfer")
    for envelope in envelopes:
        wire.send(envelope)
    wire.answer("did not publish the pages")
    return Transferred(len(pages), header["page_bytes"], PREFIX_BYTES + len(text))


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
    IndexError, TypeError, ValueError
        A page outside the pool, not an int, or given twice (the sender is told).
    TransferError
        Layouts that do not fit, too few pages, a page that does not match its checksum, a sender that went away.
        The pool is as it was.
    """
    wire = Wire(src, group)
    text, damage = wire.receive_text(f"before its header was complete; {NOTHING}")
    header, layout, reason = _read_header(text, damage, pool)
    if "error" in header:  # the sender is gone from this transfer: it waits for no answer
        raise TransferError(f"the sender gave up: {header['error']}; {NOTHING}")
    try:
        pages, count = _page_ids(pool, pages), header.get("pages", 0)
        if not reason and count > len(pages):
            reason = f"{count} pages are sent, {len(pages)} are free here"
        arrived = None if reason else _stage(layout, count, pool.device)
    except Exception as error:  # whatever it is, the sender must not wait for it
        wire.reply(_why(error))
        raise
    wire.reply(reason)
    if reason:
        raise TransferError(f"transfer refused: {reason}; {NOTHING}")
    raw = arrived.buffers["raw"].view(count + 1, -1)
    for i in range(count):
        wire.receive(raw[i + 1], f"after {i} of {count} pages; {NOTHING}")
    wrong = [i for i in range(count) if _checksum(raw[i + 1]) != header["checksums"][i]]
    if wrong:
        reason = f"page {wrong[0]} of the transfer does not match its checksum"
        wire.reply(reason)
        raise TransferError(f"transfer refused: {reason}; {NOTHING}")
    size = pool.layout.geometry.page_size
    try:
        copy(
            arrived, slots_of(range(1, count + 1), size, pool.device), pool, slots_of(pages[:count], size, pool.device)
        )
    except Exception as error:
        wire.reply(_why(error))
        raise
    with suppress(TransferError):  # the pages are here and whole, even if the sender is gone
        wire.reply("")
    return Transferred(count, header["page_bytes"], PREFIX_BYTES + len(text))


def _read_header(text: bytes, damage: str, pool) -> tuple[dict, Layout | None, str]:
    """Header, the sender's layout, and why this pool can't take the pages ("" where it can)."""
    if damage:
        return {}, None, damage
    try:
        header = json.loads(text)
        if header["version"] != VERSION:
            return {}, None, f"header version {header['version']}, this side reads {VERSION}"
        if "error" in header:
            return header, None, ""
        layout = Layout.from_dict(header["layout"])
        envelope, count = _stage_layout(layout, 0).nbytes, len(header["checksums"])
        if header["pages"] != count or header["page_bytes"] != envelope:
            raise ValueError(
                f"{header['pages']} pages of {header['page_bytes']} bytes, {count} checksums, envelopes of {envelope}"
            )
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        return {}, None, f"a header that can't be read ({type(error).__name__}: {error})"
    difference = mismatch(layout, pool.layout)
    sizes = layout.geometry.page_size, pool.layout.geometry.page_size
    if not difference and sizes[0] != sizes[1]:
        difference = f"page_size: {sizes[0]} and {sizes[1]}"
    return header, layout, f"sender and receiver differ in {difference}" if difference else ""


def _page_ids(pool, pages) -> list[int]:
    pages = [index(p) for p in pages]
    total, seen = pool.layout.geometry.pages, set()
    for i, p in enumerate(pages):
        if not 0 <= p < total:
            raise IndexError(f"pages[{i}]={p} is outside the pool's pages 0 … {total - 1}")
        if p in seen:
            raise ValueError(f"pages[{i}]={p} is given twice")
        seen.add(p)
    return pages


def _envelopes(pool, pages) -> list[torch.Tensor]:
    """The page-major bytes of each page: views where the pool has that layout, else of a converted copy."""
    g = pool.layout.geometry
    if not pages:
        return []
    envelopes = page_major(g, pool.layout.format)
    if (pool.layout.fields, pool.layout.buffers) == (envelopes.fields, envelopes.buffers):
        raw = pool.buffers["raw"].view(g.pages, -1)
        return [raw[p] for p in pages]
    staged = _stage(pool.layout, len(pages), pool.device)
    slots = slots_of(range(1, len(pages) + 1), g.page_size, pool.device)
    copy(pool, slots_of(pages, g.page_size, pool.device), staged, slots)
    return list(staged.buffers["raw"].view(len(pages) + 1, -1)[1:])


def _stage_layout(layout: Layout, pages: int) -> Layout:
    """Page-major, with a page 0 that stays empty: its slot 0 takes no row."""
    g = layout.geometry
    return page_major(Geometry(g.layers, g.heads, g.head_dim, g.v_head_dim, g.page_size, pages + 1), layout.format)


def _stage(layout: Layout, pages: int, device):
    from .pool import KVPool

    return KVPool(_stage_layout(layout, pages), device)


def slots_of(pages, page_size: int, device=None) -> torch.Tensor:
    """Slots of whole pages, int64 ``(len(pages) * page_size,)``, page after page."""
    first = torch.tensor(list(pages), dtype=torch.int64, device=device) * page_size
    return (first[:, None] + torch.arange(page_size, device=device)).reshape(-1)


def _why(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"


def _checksum(envelope: torch.Tensor) -> int:
    return zlib.crc32(envelope.cpu().numpy())
