"""One page of the real sample in a real MXFP8 pool, and one 32-element block of it read back byte by byte."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch

from .. import samples
from ..backends import backend
from ..builders import token_major
from ..formats import BLOCK, E4M3_MAX, E8M0_BIAS, E8M0_NAN, MXFP8, dequantize, quantize
from ..geometry import Geometry
from ..kernels.launch import record_launches
from ..pool import KVPool

PAGE = 128  # slots of a page: the rows of one scale tile
FIRST = PAGE  # slot of the page's first row: page 0 holds the padding sink
NAN, INF, ZERO = "nan", "inf", "zero"


@lru_cache(maxsize=1)
def sample() -> samples.KVSample:
    """The text's K and V, read once."""
    return samples.load_kv()


@dataclass(frozen=True)
class Block:
    """One block as the pool holds it: 32 elements of one head of one row."""

    values: np.ndarray  # (32,) float64, what was committed
    payload: np.ndarray  # (32,) uint8, the pool's E4M3 bytes
    numbers: np.ndarray  # (32,) float64, those bytes as E4M3 numbers
    scale: int  # the pool's UE8M0 byte
    read: np.ndarray  # (32,) float64, number times scale
    buffer_byte: int  # where the scale byte lies in the pool's scale buffer
    flat_byte: int  # where a flat pool of the same sizes has it

    @property
    def amax(self) -> float:
        """Largest magnitude; NaN and infinity count as larger than any number."""
        return float(np.abs(self.values).max())

    @property
    def power(self) -> str:
        """The scale in words."""
        return "NaN" if self.scale == E8M0_NAN else f"2^{self.scale - E8M0_BIAS}"

    @property
    def limit(self) -> float:
        """Largest magnitude that this scale can store."""
        return float("nan") if self.scale == E8M0_NAN else E4M3_MAX * 2.0 ** (self.scale - E8M0_BIAS)

    @property
    def snr(self) -> float:
        """Signal over error in dB; infinite where nothing was lost, NaN for a NaN block."""
        error, signal = float(((self.read - self.values) ** 2).sum()), float((self.values**2).sum())
        if error == 0:
            return float("inf")
        return 10 * float(np.log10(signal / error)) if signal > 0 else float("-inf")


class ScalePage:
    """Up to 128 rows of one layer, committed into page 1 of a token-major pool with interleaved scales.

    Parameters
    ----------
    layer : int
        Layer of the sample, 0 … 3.
    page : int
        Which 128 tokens of the text; the last page is not full.
    rounding : "rceil", "floor" or "even"
    inject : dict, optional
        ``{"kind": "nan" | "inf" | "zero", "layer", "field", "token", "head", "block", "element"}``: what to put into
        the rows before they are committed. Left out where it names another layer or page.
    """

    def __init__(self, layer: int, page: int, rounding: str = "rceil", inject: dict | None = None):
        text = sample()
        self.layer, self.page, self.rounding = layer, page, rounding
        self.tokens = range(page * PAGE, min(text.k.shape[1], (page + 1) * PAGE))
        self.pool = KVPool(token_major(geometry(), MXFP8("interleaved", rounding)))
        device = self.pool.device
        rows = [x[layer, self.tokens.start : self.tokens.stop].to(device).clone() for x in (text.k, text.v)]
        self.rows = dict(zip("kv", rows, strict=True))
        if inject and inject["layer"] == layer and inject["token"] in self.tokens:
            start = BLOCK * inject["block"]
            row = self.rows[inject["field"]][inject["token"] - self.tokens.start, inject["head"]]
            if inject["kind"] == ZERO:
                row[start : start + BLOCK] = 0
            else:
                row[start + inject["element"]] = float(inject["kind"])
        self.slots = torch.arange(FIRST, FIRST + len(self.tokens), device=device)
        with record_launches() as self.launches:
            self.pool.commit(self.slots, *rows, layer=0)
        self.proof = self._compare()

    def _compare(self) -> tuple[int, int]:
        """``(bytes compared, bytes that differ)``: all the page's payload and scales against kvlab.formats.quantize."""
        checked = wrong = 0
        for field, rows in self.rows.items():
            payload, scales = quantize(rows, self.rounding)
            row, head, column = np.indices(scales.shape)
            _, at = self.pool.layout.locate(f"{field}_scale", 0, FIRST + row, head, column)
            stored = self.pool.buffers[f"{field}_scale"].cpu().numpy()[at]
            wrong += int((stored != scales.cpu().numpy()).sum())
            kept = self.pool.view(field, 0)[self.slots].view(torch.uint8)
            wrong += int((kept != payload.view(torch.uint8)).sum())
            checked += stored.size + kept.numel()
        return checked, wrong

    def words(self) -> str:
        """What was launched and what the comparison found."""
        checked, wrong = self.proof
        who = "reference path" if backend(self.pool.device) == "reference" else f"kernel ({backend(self.pool.device)})"
        ran = f"{len(self.launches)} launch" if self.launches else "no launch"
        said = f"{who} == kvlab.formats.quantize on {checked:,} bytes"
        if wrong:
            said = f"{who} differs from kvlab.formats.quantize in {wrong:,} of {checked:,} bytes"
        return f"{ran} committed this page: {said}"

    def tile(self, field: str, head: int) -> np.ndarray:
        """One head's 512 scale bytes, ``(32, 16)``, from the zero-copy view that a reader gets."""
        view = self.pool.get_kv_scale_buffer(0)[field == "v"]
        return view[1, head].reshape(32, 16).cpu().numpy()

    def block(self, field: str, token: int, head: int, block: int) -> Block:
        """The block of one token, read back from the pool."""
        slot, span = FIRST + token - self.tokens.start, slice(BLOCK * block, BLOCK * block + BLOCK)
        buffer, byte = self.pool.layout.locate(f"{field}_scale", 0, slot, head, block)
        scale = self.pool.buffers[buffer][byte : byte + 1]
        payload = self.pool.view(field, 0)[slot, head, span]
        values = self.rows[field][token - self.tokens.start, head, span]
        _, flat = layout_of("flat").locate(f"{field}_scale", 0, slot, head, block)
        numbers = [x.double().cpu().numpy() for x in (values.float(), payload.float(), dequantize(payload, scale))]
        return Block(
            numbers[0],
            payload.view(torch.uint8).cpu().numpy(),
            numbers[1],
            int(scale),
            numbers[2],
            int(byte),
            int(flat),
        )


def geometry() -> Geometry:
    """A pool of one layer and two pages: page 0 with the padding sink, page 1 for the rows."""
    _, _, heads, head_dim = sample().k.shape
    return Geometry(layers=1, heads=heads, head_dim=head_dim, page_size=PAGE, pages=2)


@lru_cache
def layout_of(scales: str):
    """These sizes with flat or interleaved scales: where a scale lies does not depend on its rounding."""
    return token_major(geometry(), MXFP8(scales))
