"""Blocks worth committing: a recorded step of real speculative decoding, and what can be odd about one."""

from __future__ import annotations

import torch

from ..geometry import Geometry

LAYERS = 2  # of the trace's four: half the bytes to compare on every step
APART = 6  # the second four requests are those of this many steps later
PRESETS = {
    "recorded": "recorded step",
    "pads": "pads",
    "duplicate": "duplicate slot",
    "not_accepted": "duplicate, not accepted",
    "crossing": "page-crossing",
    "mask": "row mask",
    "beyond": "slot out of range",
    "bad_len": "bad commit_lens",
}


def steps_of(trace, step: int, requests: int) -> list[int]:
    """The recorded steps whose blocks make up a batch: four requests each."""
    each = trace.draft_tokens.shape[1]
    return [(step + APART * i) % len(trace.commit_lens) for i in range(requests // each)]


def geometry(trace, page_size: int) -> Geometry:
    """A pool with pages for twice the trace's requests, page 0 once."""
    g = trace.geometry(page_size)
    return Geometry(LAYERS, g.heads, g.head_dim, page_size=page_size, pages=2 * (g.pages - 1) + 1)


def rows(trace, step: int, requests: int, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The K and V rows of the batch, ``(requests*W, heads, head_dim)``."""
    parts = [trace.step(i) for i in steps_of(trace, step, requests)]
    return torch.cat([p.k[layer] for p in parts]), torch.cat([p.v[layer] for p in parts])


def preset(name: str, trace, step: int, requests: int, page_size: int) -> dict:
    """``{"loc", "commit_lens", "row_mask"}`` as lists, for the slot table."""
    loc, lens = _recorded(trace, step, requests, page_size)
    mask, width = None, loc.shape[1]
    if name == "pads":
        lens[:] = width
        for b in range(requests):
            loc[b, width - b % 4 :] = -(b % 2)  # slot 0 and -1 are padding both
    elif name == "duplicate":
        loc[1, 0] = loc[0, 0]
    elif name == "not_accepted":
        lens[1] = 4
        loc[1, 4:] = loc[0, 0]
    elif name == "crossing":
        lens[:] = width
        first, row = page_size - 3, torch.arange(width)
        for b in range(requests):
            page = 1 + b + (first + row) // page_size * requests
            loc[b] = page * page_size + (first + row) % page_size
    elif name == "mask":
        mask = [[(b + w) % 3 != 1 for w in range(width)] for b in range(requests)]
    elif name == "beyond":
        loc[2, 0] = geometry(trace, page_size).slots + 3
    elif name == "bad_len":
        lens[3] = width + 1
    return {"loc": loc.tolist(), "commit_lens": lens.tolist(), "row_mask": mask}


def _recorded(trace, step: int, requests: int, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Slots and accepted lengths; each further four requests get pages of their own."""
    half = (trace.geometry(page_size).pages - 1) * page_size
    locs, lens = [], []
    for i, at in enumerate(steps_of(trace, step, requests)):
        loc = trace.loc_2d(at, page_size)
        locs.append(torch.where(loc > 0, loc + i * half, loc))
        lens.append(trace.commit_lens[at])
    return torch.cat(locs), torch.cat(lens)
