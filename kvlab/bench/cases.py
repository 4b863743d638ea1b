"""What is measured: operations, layouts, formats and sizes as data, and the bytes that each of them moves."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..builders import head_major, page_major, token_major
from ..formats import MXFP8, format_name, payload_dtype
from ..geometry import Geometry
from ..layout import Layout

BUILDERS = {"token_major": token_major, "page_major": page_major, "head_major": head_major}
HEADS, HEAD_DIM = 8, 128
WIDTH = 8  # rows of a request's block: what one verify step of speculative decoding brings
CONTEXT = 1024  # tokens that one request attends to, where the case has as many
SOURCE = torch.bfloat16  # dtype of the rows that a model hands to a commit

STEP, LARGEST = 64, 65536  # rows of one decode step, and of a large prefill
SHARES = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Case:
    """One piece of work.

    Attributes
    ----------
    operation : "commit", "gather", "copy" or "attention"
        Attention gathers the rows and runs torch's scaled_dot_product_attention over them, one query a request.
    layout : str
        A key of ``BUILDERS``.
    format : torch.dtype or MXFP8
    rows : int
        A multiple of 8: blocks of 8 consecutive slots, shuffled over a pool of twice as many.
    layers : int
        Of the pool.
    layer : int or None
        The one layer that is worked on; None for all in one call.
    accepted : float or None
        Prefix-valid commit: the share of each block that is accepted. None: every row, without commit_lens.
    """

    operation: str
    layout: str
    format: object
    rows: int
    layers: int = 32
    layer: int | None = None
    accepted: float | None = None

    def build(self) -> Layout:
        """The pool's layout."""
        page_size = 128 if self.format == MXFP8("interleaved") else 16
        pages = 1 + -(-2 * self.rows // page_size)
        g = Geometry(self.layers, HEADS, HEAD_DIM, page_size=page_size, pages=pages)
        return BUILDERS[self.layout](g, self.format)

    @property
    def written_rows(self) -> int:
        """Rows that a commit writes."""
        return self.rows if self.accepted is None else self.rows // WIDTH * round(self.accepted * WIDTH)

    @property
    def requests(self) -> int:
        """Requests of an attention: as many as have ``CONTEXT`` tokens each."""
        return max(1, self.rows // CONTEXT)

    def words(self) -> dict:
        """The case as the first columns of a result."""
        layers = str(self.layers) if self.layer is None else f"1 of {self.layers}"
        return {
            "operation": self.operation,
            "layout": self.layout,
            "format": format_name(self.format),
            "rows": self.rows,
            "layers": layers,
            "accepted": self.accepted,
        }


@dataclass(frozen=True)
class Traffic:
    """Bytes of payload and scales that an operation reads and writes. Slots and lengths are not counted."""

    read: int
    written: int

    @property
    def total(self) -> int:
        return self.read + self.written


def traffic(case: Case) -> Traffic:
    """The bytes of a case, counted from its layout's fields.

    A commit reads its accepted rows once and writes each cell of their slots once. An attention's bytes are those of
    the gather, of reading what was gathered, and of queries and results.
    """
    layout = case.build()
    layers = case.layers if case.layer is None else 1
    stored, elements = 0, 0
    for name, f in layout.fields.items():
        stored += f.extents["head"] * f.extents["dim"] * f.item
        elements += 0 if name.endswith("_scale") else f.extents["head"] * f.extents["dim"]
    if case.operation == "commit":
        rows = case.written_rows * layers
        return Traffic(rows * elements * SOURCE.itemsize, rows * stored)
    rows = case.rows * layers
    if case.operation == "copy":
        return Traffic(rows * stored, rows * stored)
    item = 4 if isinstance(case.format, MXFP8) else payload_dtype(case.format).itemsize  # dequantised rows are fp32
    gathered = Traffic(rows * stored, rows * elements * item)
    if case.operation == "gather":
        return gathered
    queries = case.requests * HEADS * HEAD_DIM * item
    return Traffic(gathered.read + gathered.written + queries, gathered.written + queries)


def gpu_cases(quick: bool = False) -> list[Case]:
    """From one decode step, all layers at once, to 64k rows of one layer, as a prefill commits them."""
    mx = MXFP8("flat")
    formats = (torch.bfloat16, mx) if quick else (torch.bfloat16, torch.float8_e4m3fn, mx, MXFP8("interleaved"))
    few = [(STEP, 32, None), (LARGEST, 8, 3)]
    sizes = few if quick else [few[0], (512, 32, None), (4096, 8, 3), few[1]]
    cases = []
    for layout in BUILDERS:
        cases += [Case("commit", layout, fmt, *size) for fmt in formats for size in sizes]
        cases += [Case("commit", layout, torch.bfloat16, *size, share) for share in SHARES for size in few]
        for fmt in (torch.bfloat16, mx):
            cases += [Case("gather", layout, fmt, *size) for size in sizes]
            cases += [Case("copy", layout, fmt, rows, layers) for rows, layers, _ in sizes]
            cases += [Case("attention", layout, fmt, rows, layers, 0) for rows, layers, _ in sizes[1:]]
    return cases


def cpu_cases(quick: bool = False) -> list[Case]:
    """The same operations, small: what an interpreter or plain torch finishes in seconds."""
    cases, mx = [], MXFP8("flat")
    for layout in BUILDERS:
        sizes = (STEP,) if quick else (STEP, 256)
        cases += [Case("commit", layout, torch.bfloat16, rows, 2) for rows in sizes]
        cases.append(Case("commit", layout, mx, STEP, 2))
        cases += [Case(operation, layout, torch.bfloat16, STEP, 2) for operation in ("gather", "copy")]
    cases += [Case("commit", "page_major", torch.bfloat16, STEP, 2, accepted=share) for share in SHARES]
    cases.append(Case("attention", "page_major", torch.bfloat16, 256, 2, 0))
    return cases
