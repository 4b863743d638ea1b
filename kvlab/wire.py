"""Messages between two processes over torch.distributed: bytes, and texts with length and checksum before them."""

from __future__ import annotations

import re
import zlib

import torch
import torch.distributed as dist

PREFIX_BYTES = 16  # length and CRC-32 of a text, two int64
LONGEST_TEXT = 2**28  # a length beyond this is noise, not a header


class TransferError(RuntimeError):
    """A transfer that did not happen: the message says why."""


class Wire:
    """The way to one peer and back; every failure of it is a :class:`TransferError`.

    Parameters
    ----------
    peer : int
        Rank of the other side in ``group``.
    group : process group or None
        gloo, or NCCL, whose messages go through this process's GPU. Its timeout is what ends a peer that hangs. Both
        sides must speak this protocol: gloo itself ends a process that gets a message of another size than it awaits.
    """

    def __init__(self, peer: int, group):
        self.peer, self.group = peer, group
        self.device = torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")

    def send(self, data: torch.Tensor) -> None:
        try:
            dist.send(data.contiguous().to(self.device), group=self.group, group_dst=self.peer)
        except (RuntimeError, ValueError) as error:
            raise TransferError(f"the peer went away: {_short(error)}") from error

    def receive(self, into: torch.Tensor, when: str) -> None:
        """Fill ``into``; ``when`` says for the message how far things had come."""
        direct = into.device == self.device and into.is_contiguous()
        buffer = into if direct else torch.empty_like(into, device=self.device)
        try:
            dist.recv(buffer, group=self.group, group_src=self.peer)
        except (RuntimeError, ValueError) as error:
            raise TransferError(f"the peer went away {when}: {_short(error)}") from error
        if buffer is not into:
            into.copy_(buffer)

    def send_text(self, text: bytes) -> None:
        self.send(torch.tensor([len(text), zlib.crc32(text)], dtype=torch.int64))
        if text:
            self.send(torch.frombuffer(bytearray(text), dtype=torch.uint8))

    def receive_text(self, when: str) -> tuple[bytes, str]:
        """The text, and what is wrong with it ("" where its checksum is right)."""
        prefix = torch.zeros(2, dtype=torch.int64)
        self.receive(prefix, when)
        length, checksum = prefix.tolist()
        if not 0 <= length <= LONGEST_TEXT:
            raise TransferError(f"the peer announced a text of {length} bytes; it does not speak this protocol")
        text = torch.empty(length, dtype=torch.uint8)
        if length:
            self.receive(text, when)
        text = text.numpy().tobytes()
        return text, "" if zlib.crc32(text) == checksum else "a header that does not match its checksum"

    def reply(self, reason: str) -> None:
        """Tell the peer that all is well (""), or why not."""
        self.send_text(reason.encode())

    def answer(self, verb: str) -> None:
        """Wait for the peer's :meth:`reply`; TransferError where it says why not."""
        text, damage = self.receive_text("before it answered, so whether it has the pages is not known")
        reason = damage or text.decode(errors="replace")
        if reason:
            raise TransferError(f"the receiver {verb}: {reason}")


def _short(error: Exception) -> str:
    """First sentence of an error, without the place in gloo's source that it begins with."""
    line = str(error).strip().partition("\n")[0]
    return re.sub(r"^\[\S*\.\w+:\d+\]\s*", "", line).split(". ")[0][:200] or type(error).__name__
