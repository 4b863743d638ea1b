"""A palette PNG, one byte per pixel: a byte map of 1 MiB is then a few kilobytes of figure instead of megabytes."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

from .palette import rgb


def palette_png(codes: np.ndarray, colors: list[str]) -> bytes:
    """``codes`` ``(rows, columns)`` uint8, each an index into ``colors`` (at most 256 ``#rrggbb``), as a PNG file."""
    if codes.dtype != np.uint8 or codes.ndim != 2:
        raise TypeError(f"palette_png: codes must be 2-D uint8, not {codes.ndim}-D {codes.dtype}")
    if len(colors) > 256 or codes.max(initial=0) >= len(colors):
        raise ValueError(f"palette_png: code {codes.max(initial=0)} with {len(colors)} colors; 1 … 256 can be stored")
    rows, columns = codes.shape
    lines = np.zeros((rows, columns + 1), np.uint8)  # each line starts with its filter type, 0: none
    lines[:, 1:] = codes
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)  # 8 bits, colour type 3: palette
    palette = bytes(x for color in colors for x in rgb(color))
    parts = ((b"IHDR", header), (b"PLTE", palette), (b"IDAT", zlib.compress(lines.tobytes(), 1)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def data_uri(png: bytes) -> str:
    """The PNG as a ``data:`` address, what ``go.Image(source=…)`` takes."""
    return "data:image/png;base64," + base64.b64encode(png).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
