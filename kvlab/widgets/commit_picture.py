"""The picture of a commit: the bytes of each slot's row by state, and where they lie in the raw buffers."""

from __future__ import annotations

import numpy as np

from ..debug.commit_data import row_bytes
from ..figures import palette
from ..figures.owners import fields_in
from ..figures.png import data_uri, palette_png
from .commit_rows import COLORS, LINES, STRIPE, WHITE, WORDS, Rows, striped
from .panels import Panels

WIDTH, HEIGHT = 960, 490
LEFT, RIGHT = 232, 15  # room for the labels of the rows, and after the pictures
ROWS = {"x": LEFT, "y": 24, "w": WIDTH - LEFT - RIGHT, "h": 360, "top": True}
STRIPS = (
    {"x": LEFT, "y": 420, "w": 314, "h": 58, "title": "where they lie: whole buffers, end to end"},
    {"x": LEFT + 356, "y": 420, "w": 357, "h": 58},
)
BINS = 300  # columns of a strip


def panels() -> Panels:
    """The widget that shows what :func:`picture` returns."""
    return Panels(width=WIDTH, height=HEIGHT)


def picture(layout, layer: int, states: dict, owners: dict[int, list[tuple[int, int]]]) -> dict:
    """What :meth:`Panels.show` takes. ``owners``: for each slot that loc_2d names, its ``(request, row)`` pairs."""
    rows = Rows(layout, layer, states, owners, ROWS["h"])
    page = _busiest(rows)
    pictures = [rows.picture(), *_strips(layout, layer, states, page)]
    ticks, labels = rows.labels()
    names = {"yticks": [[(i + 0.5) * LINES, words] for i, words in enumerate(_buffer_words(layout))]}
    places = [
        {**ROWS, "xticks": [list(t) for t in zip(*rows.columns(), strict=True)]},
        {**STRIPS[0], **names},
        {**STRIPS[1], "title": f"of these, page {page} of layer {layer}, end to end"},
    ]
    places[0]["yticks"] = [[(t + 0.5) * LINES, words] for t, words in zip(ticks, labels, strict=True)]
    for place, codes in zip(places, pictures, strict=True):
        place["size"] = [codes.shape[1], codes.shape[0]]
    return {
        "panels": places,
        "windows": [[0, codes.shape[1], 0, codes.shape[0]] for codes in pictures],
        "sources": [data_uri(palette_png(codes, COLORS)) for codes in pictures],
        "hover": rows.hover(),
    }


def _buffer_words(layout) -> list[str]:
    return [f"'{n}' {size:,} B" for n, size in layout.buffers.items()]


def legend() -> str:
    """The states' colours, letters and words as HTML."""
    entry = (
        "<span style='display:inline-block; width:14px; height:12px; border:1px solid #555; background:{}'></span> {}"
    )
    entries = []
    for i, (state, words) in enumerate(WORDS.items()):
        stripe = f"{COLORS[STRIPE[i]]} 0 2px, {COLORS[i]} 2px 5px" if i in STRIPE else f"{COLORS[i]} 0 5px"
        ground = f"repeating-linear-gradient(135deg, {stripe})"
        entries.append(entry.format(ground, f"{palette.STATE_LETTERS[state]}: {words}"))
    return " &emsp; ".join([*entries, "black line: another page begins"])


def _busiest(rows: Rows) -> int:
    """The page with the most slots that are not untouched."""
    hit = np.max([p.states.max(1) for p in rows.panels], axis=0) > 0
    pages = (rows.slots[hit] if hit.any() else rows.slots) // rows.page_size
    return int(np.bincount(pages).argmax())


def _strips(layout, layer: int, states, page: int) -> tuple[np.ndarray, np.ndarray]:
    """Palette codes, LINES lines per buffer: of each whole buffer, and of the bytes of one page and layer."""
    slots = np.arange(layout.geometry.page_size) + page * layout.geometry.page_size
    whole, zoomed = [], []
    for name, codes in states.items():
        whole.append(_binned(codes))
        at = np.concatenate([row_bytes(f, layer, slots).reshape(-1) for f in fields_in(layout, name)])
        zoomed.append(_binned(codes[at.min() : at.max() + 1]))
    return _bands(whole), _bands(zoomed)


def _bands(buffers: list[np.ndarray]) -> np.ndarray:
    out = np.stack(buffers)[:, None].repeat(LINES, 1)
    out[:, 0] = WHITE
    return striped(out.reshape(-1, BINS))


def _binned(codes: np.ndarray) -> np.ndarray:
    """The most telling state of each of BINS equal parts: a later one of STATES hides an earlier one."""
    if len(codes) < BINS:
        return codes[np.arange(BINS) * len(codes) // BINS]
    return np.maximum.reduceat(codes, np.arange(BINS) * len(codes) // BINS)
