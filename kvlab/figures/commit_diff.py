"""What a commit did to every byte, against what it should have done."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..debug.commit_data import MISSING, STATES, UNEXPECTED, UNTOUCHED, classify, row_bytes
from ..formats import format_name
from . import palette
from .grid import HOVER_CELLS, Grid, axes, choose_columns, describe, hover, part_ticks, picture, span_words
from .owners import window
from .png import data_uri, palette_png
from .style import BELOW, annotate, finish, label, shortened, swatch

MOST_SLOTS = 48
STRIPE = {MISSING: 4, UNEXPECTED: 5}
COLORS = [palette.STATES[s] for s in STATES] + [palette.mix(palette.STATES["missing"], "#000000", 0.35), "#7a2d00"]
MEANING = {
    "written": "expected and written",
    "missing": "expected, not written",
    "unexpected": "written, not expected",
    "untouched": "rightly untouched",
}


def commit_diff(
    layout,
    before,
    after,
    expected,
    buffer: str | None = None,
    *,
    before_b=None,
    after_b=None,
    layer: int = 0,
    slots=None,
    row_labels=None,
) -> go.Figure:
    """Rows are slots, columns the bytes of a row across heads: a prefix-valid commit shows as its accepted rows.

    Parameters
    ----------
    before, after : dict of buffer to ``(buffer bytes,)`` uint8, or one such array with ``buffer``
        Snapshots of whole buffers around the commit.
    expected : dict or array of bool, likewise
        From :func:`expected_mask`.
    buffer : str, optional
        Show only the fields of this buffer (the layout's only one where there is only one).
    before_b, after_b : optional
        The same commit over a second fill, so that rewritten equal bytes show; see :func:`classify`.
    layer : int
    slots : sequence of int, optional
        Rows to show; where not given, those that the commit touched or should have, with one neighbour on each side.
    row_labels : dict of slot to str, optional
        Words beside a slot, such as ``{17: "b0 row 1"}``.
    """
    states = _states(layout, buffer, expected, before, after, before_b, after_b)
    fields = [f for f in layout.fields.values() if f.buffer_of(layer) in states]
    slots, hidden = _slots(layout, states, fields, layer, slots)
    panels = [states[f.buffer_of(layer)][row_bytes(f, layer, slots)] for f in fields]
    widths = [max(p.shape[1], max(x.shape[1] for x in panels) / 6) for p in panels]
    fig = make_subplots(
        1,
        len(fields),
        shared_yaxes=True,
        horizontal_spacing=0.025,
        column_widths=[w / sum(widths) for w in widths],
        subplot_titles=[palette.NAMES[f.name] for f in fields],
    )
    twin, labels = [], []
    for column, (field, panel) in enumerate(zip(fields, panels, strict=True), 1):
        where = {"row": 1, "col": column}
        source = data_uri(palette_png(_striped(panel), COLORS))
        fig.add_trace(go.Image(source=source, x0=0, dx=1, y0=0, dy=1, hoverinfo="skip"), **where)
        fig.add_trace(_row_hover(layout, field, layer, slots, panel), **where)
        for row, (slot, line) in enumerate(zip(slots.tolist(), panel, strict=True)):
            words = _summary(line)
            owner = f"slot {slot:>5}  {palette.LETTERS[field.name]:2} L{layer}"
            twin.append(f"{owner}  {words}  {_label(row_labels, slot)}".rstrip())
            labels.append(label((panel.shape[1] - 1) / 2, row, words, xref=f"x{column}", yref=f"y{column}"))
        title = "byte of the row" if panel.shape[1] * 3 > max(x.shape[1] for x in panels) else "byte"
        fig.update_xaxes(title=title, range=[-0.5, panel.shape[1] - 0.5], nticks=5, **where)
    annotate(fig, labels)
    _legend(fig)
    counts = {s: sum(int((x == i).sum()) for x in states.values()) for i, s in enumerate(STATES)}
    twin = [_count_line(counts), *shortened(twin, 120)]
    subtitle = f"Layer {layer}; {len(slots)} of {layout.geometry.slots:,} slots shown"
    subtitle += f", {hidden} more of interest are not" if hidden else ""
    subtitle += f". All layers: {_count_line(counts)}.{_one_fill(before_b)}"
    title = f"What the commit did: {layout.name}, {format_name(layout.format)}"
    finish(fig, title, subtitle, twin, int(max(len(slots) * 21, 120) + 205))
    ps = layout.geometry.page_size
    ticks = [f"{_label(row_labels, s)}  <b>{s}</b> (p{s // ps} o{s % ps})".strip() for s in slots.tolist()]
    fig.update_xaxes(showgrid=False, zeroline=False)
    fig.update_yaxes(range=[len(slots) - 0.5, -0.5], showgrid=False, zeroline=False, scaleanchor=False)
    fig.update_yaxes(tickvals=list(range(len(slots))), ticktext=ticks, title="slot (page, offset)", row=1, col=1)
    longest = max(len(t) - 7 for t in ticks)
    return fig.update_layout(margin={"l": 45 + 7 * longest, "t": 100, "b": 95}, legend=BELOW)


def commit_diff_bytes(
    layout,
    before,
    after,
    expected,
    buffer: str | None = None,
    first: int = 0,
    nbytes: int | None = None,
    columns: int | None = None,
    *,
    before_b=None,
    after_b=None,
) -> go.Figure:
    """The same states over a window of one buffer in address order, such as one page envelope.

    Parameters as :func:`commit_diff`; ``first``, ``nbytes`` and ``columns`` as :func:`memory_map`.
    """
    buffer = buffer or next(iter(layout.buffers))
    first, nbytes = window(layout, buffer, first, nbytes)
    states = _states(layout, buffer, expected, before, after, before_b, after_b)[buffer]
    total = len(states)
    states = states[first : first + nbytes]
    grid = Grid(first, nbytes, columns or choose_columns(layout, buffer, nbytes))
    height = int(min(max(grid.rows * 6, 240), 560))
    fig = go.Figure(picture(grid, _striped(grid.fold(states, UNTOUCHED)), COLORS))
    fig.add_trace(hover(layout, buffer, grid))
    _legend(fig)
    counts = {s: int((states == i).sum()) for i, s in enumerate(STATES)}
    edges = [0, *(np.flatnonzero(np.diff(states)) + 1).tolist(), nbytes]
    runs = [(a, b) for a, b in pairwise(edges) if states[a] != UNTOUCHED]
    twin = [
        f"{STATES[states[a]]:10} bytes {first + a:>10,} … {first + b - 1:>10,} ({b - a:,})  "
        f"{span_words(layout, buffer, first + a, first + b)}"
        for a, b in runs[:41]
    ]
    twin += [""] * (len(runs) - len(twin))  # only their number is needed past the lines shown
    subtitle = f"Buffer '{buffer}', bytes {first:,} … {first + nbytes - 1:,} of {total:,}. {_count_line(counts)}."
    subtitle += _one_fill(before_b)
    x, y = axes(grid)
    y.update(part_ticks(layout, buffer, grid, height))
    title = f"What the commit did, in address order: {layout.name}, {format_name(layout.format)}"
    finish(fig, title, subtitle, [_count_line(counts), *shortened(twin)], height + 190, xaxis=x, yaxis=y)
    return fig.update_layout(legend=BELOW, margin={"l": 135, "b": 95})


def _states(layout, buffer, expected, before, after, before_b, after_b) -> dict[str, np.ndarray]:
    """States of each buffer that is to be shown; an array stands for the one buffer."""
    if not isinstance(before, dict):
        buffer = buffer or next(iter(layout.buffers))
    names = [buffer] if buffer else list(layout.buffers)
    given = (expected, before, after) + ((before_b, after_b) if before_b is not None else ())
    return {n: classify(*(x[n] if isinstance(x, dict) else x for x in given)) for n in names}


def _slots(layout, states, fields, layer: int, slots) -> tuple[np.ndarray, int]:
    """Slots to show, and how many that the commit touched are left out."""
    if slots is not None:
        return np.asarray(slots, dtype=np.int64).reshape(-1), 0
    every = np.arange(layout.geometry.slots)
    touched = np.zeros(len(every), bool)
    for part in np.array_split(every, -(-len(every) // 512)):  # a whole layer's addresses would be 8 times its bytes
        for field in fields:
            touched[part] |= (states[field.buffer_of(layer)][row_bytes(field, layer, part)] != UNTOUCHED).any(1)
    near = touched.copy()
    near[1:] |= touched[:-1]
    near[:-1] |= touched[1:]
    shown = np.flatnonzero(near) if near.any() else every[:8]
    return shown[:MOST_SLOTS], int(touched[shown[MOST_SLOTS:]].sum())


def _striped(states: np.ndarray) -> np.ndarray:
    """States with diagonal stripes over missing and unexpected bytes, for ``COLORS``."""
    rows, columns = np.indices(states.shape, sparse=True)
    out = states.copy()
    for state, stripe in STRIPE.items():
        out[(states == state) & ((rows + columns) % 4 < (1 if state == MISSING else 2))] = stripe
    return out


def _summary(line: np.ndarray) -> str:
    """``W``, ``M 64 W 192`` …: the states of a row, with byte counts where there are several."""
    counts = [(palette.STATE_LETTERS[s], int((line == i).sum())) for i, s in enumerate(STATES)]
    counts = [(letter, n) for letter, n in counts if n]
    return counts[0][0] if len(counts) == 1 else " ".join(f"{letter} {n}" for letter, n in counts)


def _row_hover(layout, field, layer: int, slots, panel) -> go.Heatmap:
    """An invisible trace with the coordinate and the state of every byte (of every ``unit``-th in wide rows)."""
    unit = field.item
    while panel.size / unit > HOVER_CELLS:
        unit *= 2
    at = row_bytes(field, layer, slots)[:, ::unit]
    words = describe(layout, field.buffer_of(layer), at.reshape(-1))
    states = [MEANING[STATES[s]] for s in panel[:, ::unit].reshape(-1)]
    texts = [f"{w}<br>{s}" for w, s in zip(words, states, strict=True)]
    n = at.shape[1]
    return go.Heatmap(
        z=np.zeros(at.shape, np.uint8),
        x0=(unit - 1) / 2,
        dx=unit,
        y0=0,
        dy=1,
        text=[texts[i : i + n] for i in range(0, len(texts), n)],
        hovertemplate="%{text}<extra></extra>",
        opacity=0,
        showscale=False,
        showlegend=False,
    )


def _legend(fig) -> None:
    for state, words in MEANING.items():
        swatch(fig, f"{palette.STATE_LETTERS[state]}: {words}", palette.STATES[state])


def _one_fill(before_b) -> str:
    words = "<br>One fill only: a byte that was rewritten with the value it had counts as not written."
    return words if before_b is None else ""


def _label(row_labels, slot: int) -> str:
    return (row_labels or {}).get(slot, "")


def _count_line(counts: dict[str, int]) -> str:
    return ", ".join(f"{counts[s]:,} bytes {s}" for s in ("written", "missing", "unexpected"))
