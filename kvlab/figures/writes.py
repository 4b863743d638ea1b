"""Where written bytes lie in the buffers: every buffer from end to end, and the lines of memory that were touched."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..debug.commit_data import MISSING, UNEXPECTED, UNTOUCHED, WRITTEN
from ..debug.expect import WRONG, Verdict
from ..formats import format_name
from . import palette
from .grid import HOVER_CELLS, describe, span_words
from .png import data_uri, palette_png
from .style import BELOW, annotate, finish, label, shortened, swatch
from .writes_data import STATES, Group, Written, written_buffers

STRIPES = {MISSING: (1, "#9c9229"), UNEXPECTED: (2, "#7a2d00"), WRONG: (2, "#6b6b6b")}  # so many of 4 cells, in this
GAP = len(STATES) + len(STRIPES)
COLORS = [*(palette.STATES[s] for s in STATES), *(color for _, color in STRIPES.values()), palette.WHITE]
MEANING = {
    UNTOUCHED: "untouched",
    WRITTEN: "written",
    MISSING: "expected, not written",
    UNEXPECTED: "written, not expected",
    WRONG: "written with a wrong value",
}
LINES = 40  # of all panels together; more cannot be read
PANELS = 4
BUFFERS = 16  # in the first panel
BINS = 256  # parts of a buffer there
CELLS = 512  # across a line: of more than the screen has pixels, the browser would drop some
LINE_PX, GAP_PX, SUB = 20, 66, 4  # SUB: rows of pixels in a line, so that stripes can lean


def writes_figure(found, buffer: str | None = None) -> go.Figure:
    """Where the bytes lie that were written, missing, unexpected or wrong.

    The first panel has each touched buffer from its first to its last byte. Below it are the lines of memory that were
    touched, lines that look alike as one, at most 40 and those with a fault first; it says how many are left out.

    Parameters
    ----------
    found : kvlab.debug.watch.Watch or kvlab.debug.expect.Verdict
        From :func:`kvlab.watch`, or from its ``.expect(…)``, which tells what a commit should not have done.
    buffer : str, optional
        Show the lines of this buffer alone.

    Raises
    ------
    KeyError
        No such buffer.
    ValueError
        A watch whose block has not ended.
    """
    verdict = isinstance(found, Verdict)
    if not verdict and found.ranges is None:
        raise ValueError("writes_figure: the block has not ended yet; draw it after `with kvlab.watch(…) as w:`")
    buffers = written_buffers(found)
    if buffer is not None and buffer not in [b.name for b in buffers]:
        raise KeyError(f"writes_figure: buffer={buffer!r} is not one of {[b.name for b in buffers]}")
    touched = [b for b in buffers if b.worst]
    worst_first = sorted(touched, key=lambda b: (b.name != buffer, -b.worst))
    overview = [b for b in touched if b in worst_first[:BUFFERS]] or buffers[:1]
    chosen = [b for b in touched if b in worst_first[: 1 if buffer else PANELS]]
    panels = [_Panel(b, LINES // len(chosen)) for b in chosen]
    heights = [LINE_PX * max(len(overview), 1), *(LINE_PX * max(len(p.rows), 2) for p in panels)]
    plot = sum(heights) + GAP_PX * len(panels)
    titles = ["Each buffer from its first byte to its last", *(p.title for p in panels)]
    fig = make_subplots(
        len(heights), 1, vertical_spacing=GAP_PX / plot if panels else None, row_heights=heights, subplot_titles=titles
    )
    _draw_overview(fig, overview)
    labels, twin = [], [*str(found).splitlines(), ""]
    for row, panel in enumerate(panels, 2):
        panel.draw(fig, row)
        labels += panel.labels(row)
        twin += [panel.title, *shortened(panel.twin()), ""]
    annotate(fig, labels)
    for state in (WRITTEN, *(STRIPES if verdict else ())):
        words = "expected and written" if verdict and state == WRITTEN else MEANING[state]
        swatch(
            fig,
            f"{palette.STATE_LETTERS[STATES[state]]}: {words}",
            COLORS[state],
            "square-x" if state > 1 else "square",
        )
    fig.update_xaxes(title="byte of the line", title_standoff=4, row=len(heights), col=1) if panels else None
    subtitle = _caption(buffers) + _left_out(buffers, touched, overview, chosen)
    if not verdict and not found.both_fills:
        subtitle += "<br>Values that changed: a byte rewritten with its own value does not show."
    layout = buffers[0].layout if buffers else None
    title = "What was written, and what should have been" if verdict else "What was written"
    title += f": {layout.name}, {format_name(layout.format)}" if layout else ""
    top = 95 + 17 * subtitle.count("<br>")
    finish(fig, title, subtitle, twin, plot + top + 90, margin={"l": 190, "r": 150, "t": top, "b": 90}, legend=BELOW)
    fig.update_xaxes(showgrid=False, zeroline=False, ticks="outside")
    return fig.update_yaxes(showgrid=False, zeroline=False, scaleanchor=False)


class _Panel:
    """The touched lines of one buffer, in address order; None where lines are left out."""

    def __init__(self, buffer: Written, most: int):
        groups = buffer.groups()
        self.buffer, self.shown = buffer, sorted(sorted(groups, key=lambda g: -g.worst)[:most], key=lambda g: g.first)
        self.rows: list[Group | None] = []
        for group in self.shown:
            if self.rows and self.rows[-1].last + 1 != group.first:
                self.rows.append(None)
            self.rows.append(group)
        total = -(-buffer.nbytes // buffer.columns)
        shown, touched = (sum(g.lines for g in x) for x in (self.shown, groups))
        self.title = f"'{buffer.name}': {shown:,} of {total:,} lines of {buffer.columns:,} bytes"
        if shown < touched:
            self.title += f", faults first; {touched - shown:,} more were touched"

    def draw(self, fig, row: int) -> None:
        """Picture, hover and ticks."""
        where, b = {"row": row, "col": 1}, self.buffer
        unit = -(-b.columns // CELLS)
        codes = np.full((len(self.rows), -(-b.columns // unit)), GAP, np.uint8)
        for line, group in zip(codes, self.rows, strict=True):
            if group:  # the buffer can end inside its last line
                cells = np.maximum.reduceat(group.states, np.arange(0, len(group.states), unit))
                line[: len(cells)] = cells
        finer = max(1, CELLS // 2 // codes.shape[1])  # pixels for a cell of a short line, so that stripes are fine
        _picture(fig, codes.repeat(finer, 1), unit / finer, where)
        _hover(fig, *self._texts(), where)
        ticks = ["⋮" if group is None else self._line_words(group) for group in self.rows]
        fig.update_yaxes(range=[len(ticks) - 0.5, -0.5], tickvals=list(range(len(ticks))), ticktext=ticks, **where)
        fig.update_xaxes(range=[-0.5, b.columns - 0.5], nticks=9, **where)

    def labels(self, row: int) -> list[dict]:
        """The bytes of each line by state, right of it."""
        where = {"xref": "paper", "yref": f"y{row}", "xanchor": "left"}
        return [label(1.008, i, _counts(group), **where) for i, group in enumerate(self.rows) if group]

    def twin(self) -> list[str]:
        """One line of text for each row."""
        b, out = self.buffer, []
        for group in self.shown:
            first, stop = group.first * b.columns, group.last * b.columns + len(group.states)
            owner = f"  {span_words(b.layout, b.name, first, stop)}" if b.layout else ""
            out.append(f"bytes {first:>10,} … {stop - 1:>10,}{owner}  {_counts(group)}")
        return out

    def _line_words(self, group: Group) -> str:
        first, b = group.first * self.buffer.columns, self.buffer
        c = b.layout.explain(b.name, np.array([first])) if b.layout else None
        if c is None or c.field[0] < 0:
            return f"{first:,} "
        return f"{first:,}  <b>{palette.LETTERS[c.names[c.field[0]]]} L{c.layer[0]} p{c.page[0]} o{c.offset[0]}</b> "

    def _texts(self) -> tuple[list[list[str]], int]:
        """Words for every cell of ``unit`` bytes, and ``unit``."""
        b, unit = self.buffer, 1
        while len(self.rows) * -(-b.columns // unit) > HOVER_CELLS // 2:
            unit *= 2
        across, texts = -(-b.columns // unit), []
        for group in self.rows:
            if group is None:
                texts.append(["lines that are not shown"] * across)
                continue
            starts = np.arange(0, len(group.states), unit)
            at = group.first * b.columns + starts
            owners = describe(b.layout, b.name, at) if b.layout else [f"byte {x:,}" for x in at.tolist()]
            states = np.maximum.reduceat(group.states, starts).tolist()
            alike = f"<br>the same in {group.lines - 1:,} more lines" if group.lines > 1 else ""
            words = [f"{owner}<br>{MEANING[s]}{alike}" for owner, s in zip(owners, states, strict=True)]
            texts.append(words + ["past the end of the buffer"] * (across - len(words)))
        return texts, unit


def _draw_overview(fig, buffers: list[Written]) -> None:
    """One line for each buffer, in BINS parts."""
    where, codes, texts = {"row": 1, "col": 1}, np.zeros((len(buffers), BINS), np.uint8), []
    for line, b in zip(codes, buffers, strict=True):
        edges = np.unique(np.arange(BINS) * b.nbytes // BINS)
        part = b.parts(edges)
        stops = [*edges[1:].tolist(), b.nbytes]
        words = [
            f"'{b.name}' bytes {first:,} … {stop - 1:,}<br>worst of them: {MEANING[state]}"
            for first, stop, state in zip(edges.tolist(), stops, part.tolist(), strict=True)
        ]
        place = np.searchsorted(edges, np.arange(BINS) * b.nbytes // BINS)  # a small buffer has fewer bytes than BINS
        line[:] = part[place]
        texts.append([words[i] for i in place.tolist()])
    _picture(fig, codes, 1, where)
    _hover(fig, texts, 1, where)
    ticks = [f"<b>{b.name}</b> {b.nbytes:,} bytes " for b in buffers]
    fig.update_yaxes(range=[len(ticks) - 0.5, -0.5], tickvals=list(range(len(ticks))), ticktext=ticks, **where)
    at, shares = np.linspace(0, BINS, 5) - 0.5, ["first byte", "25 %", "50 %", "75 %", "last"]
    fig.update_xaxes(range=[-0.5, BINS - 0.5], tickvals=at.tolist(), ticktext=shares, **where)


def _picture(fig, codes: np.ndarray, step: float, where: dict) -> None:
    """Lines of states, a cell ``step`` wide, with diagonal stripes over the faults."""
    codes = codes.repeat(SUB, 0)
    rows, columns = np.indices(codes.shape, sparse=True)
    striped = codes.copy()
    for i, (state, (wide, _)) in enumerate(STRIPES.items()):
        striped[(codes == state) & ((rows + columns) % 4 < wide)] = len(STATES) + i
    source = data_uri(palette_png(striped, COLORS))
    place = {"x0": (step - 1) / 2, "dx": step, "y0": (1 / SUB - 1) / 2, "dy": 1 / SUB}
    fig.add_trace(go.Image(source=source, hoverinfo="skip", **place), **where)


def _hover(fig, texts: list[list[str]], unit: int, where: dict) -> None:
    """An invisible trace that has the words."""
    zeros = np.zeros((len(texts), len(texts[0]) if texts else 0), np.uint8)
    look = {"opacity": 0, "showscale": False, "showlegend": False, "hovertemplate": "%{text}<extra></extra>"}
    fig.add_trace(go.Heatmap(z=zeros, x0=(unit - 1) / 2, dx=unit, y0=0, dy=1, text=texts, **look), **where)


def _counts(group: Group) -> str:
    """``W 256 U 64``: bytes of a line by state; ``× 9 lines`` where several look alike."""
    found = [(palette.STATE_LETTERS[s], int((group.states == i).sum())) for i, s in enumerate(STATES) if i]
    words = " ".join(f"{letter} {count:,}" for letter, count in found if count)
    return f"{words} × {group.lines:,} lines" if group.lines > 1 else words


def _caption(buffers: list[Written]) -> str:
    counts = {s: sum(b.counts[s] for b in buffers) for s in (WRITTEN, *STRIPES)}
    words = [f"{n:,} bytes {STATES[s]}" for s, n in counts.items() if n or s == WRITTEN]
    return f"{', '.join(words)}, of {sum(b.nbytes for b in buffers):,}. On the right: bytes of a line by state."


def _left_out(buffers, touched, overview, chosen) -> str:
    """What the figure does not show, in words."""
    quiet, more, rest = (
        len(buffers) - len(touched),
        len(touched) - len(overview),
        [b for b in touched if b not in chosen],
    )
    words = [f"{quiet} buffer{'s' * (quiet > 1)} without a touched byte"] if quiet and touched else []
    words += [f"{more} more touched buffer{'s' * (more > 1)}"] if more > 0 else []
    if rest:
        names = ", ".join(f"'{b.name}'" for b in rest) if len(rest) <= 4 else f"{len(rest)} buffers"
        words.append(f"the lines of {names}")
    return f"<br>Not shown: {'; '.join(words)}." if words else ""
