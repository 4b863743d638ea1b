"""How a grid covers memory: bytes coloured by the program instance that stored or loaded them."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from ..formats import format_name
from . import palette
from .grid import HOVER_CELLS, choose_columns, describe, span_words
from .png import data_uri, palette_png
from .style import BELOW, annotate, finish, label, shortened, swatch

LINES = 40  # lines of a panel; more cannot be read
PANELS = 3
LABELS, FRAMES = 60, 1000  # of a panel
LINE_PX, GAP_PX = 20, 72
CYCLE = [*palette.FIELDS.values(), palette.STATES["written"]]  # neighbours differ; the label says which program it is
NOBODY, RACE, GAP = len(CYCLE), len(CYCLE) + 1, len(CYCLE) + 2
COLORS = [*CYCLE, palette.STATES["untouched"], palette.MARK, palette.WHITE]


def programs_figure(trace, buffer: str | None = None) -> go.Figure:
    """Which program instance stored and loaded each byte.

    The first panel is one buffer by the last program that stored each byte; below it the memory that programs loaded
    from, by the last one that loaded. A line is a row of memory; lines that no program touched are left out.

    Parameters
    ----------
    trace : kvlab.debug.trace.Trace
        From :func:`kvlab.debug.who`.
    buffer : str, optional
        The buffer whose stores are shown; where not given, the one with the most stored bytes.

    Raises
    ------
    KeyError
        No such buffer.
    ValueError
        No program stored a byte of it.
    """
    panels, left_out = _panels(trace, buffer)
    heights = [LINE_PX * max(len(p.lines), 2) for p in panels]
    plot = sum(heights) + GAP_PX * (len(panels) - 1)
    fig = make_subplots(
        len(panels),
        1,
        vertical_spacing=GAP_PX / plot if len(panels) > 1 else 0,
        row_heights=heights,
        subplot_titles=[p.title for p in panels],
    )
    labels, twin = [], []
    for row, panel in enumerate(panels, 1):
        panel.draw(fig, row)
        labels += panel.labels(row)
        twin += [panel.title, *shortened(panel.twin(), 80), ""]
    annotate(fig, labels)
    for color, name in ((RACE, "race: stored by two programs, or by two lanes of one"), (NOBODY, "not touched")):
        if any((p.codes == color).any() for p in panels):
            swatch(fig, name, COLORS[color], "square-x" if color == RACE else "square")
    launches = "; ".join(f"launch {x.number}: {x.kernel}, grid {_place(x.grid)}" for x in trace.launches[:3])
    launches += f"; and {len(trace.launches) - 3} more" if len(trace.launches) > 3 else ""
    subtitle = (
        f"{launches}.<br>One colour per program, in a cycle of {len(CYCLE)}; labels are program_id along the grid."
    )
    subtitle += f" Not shown: {', '.join(left_out)}." if left_out else ""
    wild = sum(o.nbytes for o in trace.outside)
    subtitle += f" {wild:,} bytes were stored outside all named memory." if wild else ""
    name = f": {trace.layout.name}, {format_name(trace.layout.format)}" if trace.layout else ""
    twin += [f"race: {r}" for r in trace.races] + [f"outside: {o}" for o in trace.outside]
    finish(fig, f"How the grid covers memory{name}", subtitle, twin, plot + 105 + 80)
    fig.update_xaxes(showgrid=False, zeroline=False, ticks="outside")
    fig.update_yaxes(showgrid=False, zeroline=False, scaleanchor=False)
    return fig.update_layout(legend=BELOW, margin={"l": 190, "t": 105, "b": 80})


class _Panel:
    """Lines of one region, and the program of every byte in them: the last that stored, or that loaded."""

    def __init__(self, trace, region, owner: np.ndarray, verb: str):
        self.trace, self.region = trace, region
        self.layout = trace.layout if trace.layout and region.name in trace.layout.buffers else None
        if self.layout:
            self.columns = choose_columns(self.layout, region.name, region.nbytes)
        else:
            self.columns = region.line or _usual_run(owner)
        touched = np.count_nonzero((owner >= 0)[:: self.columns])
        while not self.layout and touched > LINES // 2 and self.columns < 1024:  # rows of no layout may share a line
            self.columns, touched = self.columns * 2, touched // 2
        pad = -len(owner) % self.columns
        table = np.pad(owner, (0, pad), constant_values=-1).reshape(-1, self.columns)
        touched = np.flatnonzero((table >= 0).any(1))
        self.lines: list[int | None] = []  # None: lines are left out here
        for line in touched[:LINES].tolist():
            if self.lines and line != self.lines[-1] + 1:
                self.lines.append(None)
            self.lines.append(line)
        more = f", the first {LINES} of {len(touched):,} lines" if len(touched) > LINES else ""
        self.title = f"{verb} '{region.name}': {int((owner >= 0).sum()):,} of {region.nbytes:,} bytes{more}"
        nothing = np.full(self.columns, -1, np.int32)
        self.owner = np.stack([nothing if line is None else table[line] for line in self.lines])
        self.codes = np.where(self.owner < 0, NOBODY, self.owner % len(CYCLE)).astype(np.uint8)
        self.codes[[line is None for line in self.lines]] = GAP
        if self.lines[-1] == len(table) - 1:
            self.codes[-1, self.columns - pad :] = GAP  # past the end of the memory
        if verb == "stored to":
            self._stripe_races()

    def _stripe_races(self) -> None:
        row_of = np.full(max(line for line in self.lines if line is not None) + 1, -1)
        for row, line in enumerate(self.lines):
            if line is not None:
                row_of[line] = row
        for race in self.trace.races:
            if race.buffer == self.region.name:
                lines, columns = np.divmod(race.bytes, self.columns)
                shown = lines < len(row_of)
                rows, columns = row_of[lines[shown]], columns[shown]
                stripe = (columns // max(1, self.columns // 64) + rows) % 2 == 0
                self.codes[rows[stripe], columns[stripe]] = RACE

    def draw(self, fig, row: int) -> None:
        where = {"row": row, "col": 1}
        source = data_uri(palette_png(self.codes, COLORS))
        fig.add_trace(go.Image(source=source, x0=0, dx=1, y0=0, dy=1, hoverinfo="skip"), **where)
        fig.add_trace(self._frames(), **where)
        fig.add_trace(self._hover(), **where)
        ticks = ["⋮" if line is None else self._line_words(line) for line in self.lines]
        fig.update_yaxes(range=[len(ticks) - 0.5, -0.5], tickvals=list(range(len(ticks))), ticktext=ticks, **where)
        fig.update_xaxes(range=[-0.5, self.columns - 0.5], nticks=9, **where)
        fig.update_xaxes(title=f"byte of a line of {self.columns:,} bytes", title_standoff=4, **where)

    def _line_words(self, line: int) -> str:
        first = line * self.columns
        words = f"{first:,} "
        if self.layout:
            c = self.layout.explain(self.region.name, np.array([first]))
            if c.field[0] >= 0:
                name = palette.LETTERS[c.names[c.field[0]]]
                words += f"  <b>{name} L{c.layer[0]} p{c.page[0]} o{c.offset[0]}</b> "
        return words

    def runs(self) -> list[tuple[int, int, int, int, int]]:
        """``(program, first row, last row, first column, stop column)``: equal runs of successive lines are one."""
        done, open_runs = [], {}
        for row, owners in enumerate(self.owner):
            edges = [0, *(np.flatnonzero(np.diff(owners)) + 1).tolist(), self.columns]
            now = {(owners[a], a, b) for a, b in pairwise(edges) if owners[a] >= 0}
            for key in [k for k in open_runs if k not in now]:
                done.append((key[0], open_runs.pop(key), row - 1, *key[1:]))
            for key in now:
                open_runs.setdefault(key, row)
        done += [(key[0], row, len(self.owner) - 1, *key[1:]) for key, row in open_runs.items()]
        return sorted(done, key=lambda r: (r[1], r[3]))

    def labels(self, row: int) -> list[dict]:
        axis = "" if row == 1 else str(row)
        out = []
        for program, top, bottom, first, stop in self.runs():
            words = self._program_words(program)
            if (stop - first) / self.columns * 680 >= 7 * len(words) and len(out) < LABELS:
                x, y = (first + stop - 1) / 2, (top + bottom) / 2
                out.append(label(x, y, words, xref=f"x{axis}", yref=f"y{axis}"))
        return out

    def twin(self) -> list[str]:
        out = []
        for program, top, bottom, first, stop in self.runs():
            start, end = self.lines[top] * self.columns + first, self.lines[bottom] * self.columns + stop
            words = f"  {span_words(self.layout, self.region.name, start, end)}" if self.layout else ""
            lines = f" of each of {bottom - top + 1} lines" if bottom > top and stop - first < self.columns else ""
            name = self.trace.programs[program]
            out.append(
                f"{name}: bytes {start:,} … {end - 1:,}{words}" + (f", {stop - first} bytes{lines}" if lines else "")
            )
        return out

    def _program_words(self, program: int) -> str:
        p = self.trace.programs[program]
        prefix = f"#{p.launch.number} " if len(self.trace.launches) > 1 else ""
        return prefix + _place(p.coordinate)

    def _frames(self) -> go.Scatter:
        """White frames: two programs of one colour can lie side by side."""
        xs, ys = [], []
        for _, top, bottom, first, stop in self.runs()[:FRAMES]:
            left, right, high, low = first - 0.5, stop - 0.5, top - 0.5, bottom + 0.5
            xs += [left, right, right, left, left, None]
            ys += [high, high, low, low, high, None]
        line = {"color": palette.WHITE, "width": 1.5}
        return go.Scatter(x=xs, y=ys, mode="lines", line=line, hoverinfo="skip", showlegend=False)

    def _hover(self) -> go.Heatmap:
        unit = 1
        while len(self.lines) * -(-self.columns // unit) > HOVER_CELLS // 2:
            unit *= 2
        starts = np.arange(0, self.columns, unit)
        texts = []
        for line, owners in zip(self.lines, self.owner, strict=True):
            if line is None:
                texts.append(["lines that no program touched"] * len(starts))
                continue
            at = np.minimum(line * self.columns + starts, self.region.nbytes - 1)
            words = describe(self.layout, self.region.name, at) if self.layout else [f"byte {b:,}" for b in at.tolist()]
            who = [str(self.trace.programs[p]) if p >= 0 else "no program" for p in owners[starts].tolist()]
            texts.append([f"{a}<br>{b}" for a, b in zip(words, who, strict=True)])
        zeros = np.zeros((len(texts), len(starts)), np.uint8)
        look = {"opacity": 0, "showscale": False, "showlegend": False, "hovertemplate": "%{text}<extra></extra>"}
        return go.Heatmap(z=zeros, x0=(unit - 1) / 2, dx=unit, y0=0, dy=1, text=texts, **look)


def _panels(trace, buffer: str | None) -> tuple[list[_Panel], list[str]]:
    """The panels to draw, and the names of what found no room: stores of one buffer, then loads, most bytes first."""
    found = {"stored to": [], "loaded from": []}
    for region in trace.regions:
        for verb, owner in (("stored to", trace.last_writer), ("loaded from", trace.last_reader)):
            owner = owner(region.name)
            if (owner >= 0).any():
                found[verb].append((owner, region, verb))
    for entries in found.values():
        entries.sort(key=lambda e: (e[1].name != buffer, -int((e[0] >= 0).sum())))
    stored, loaded = found.values()
    chosen = stored[:1] + loaded[: PANELS - 1]
    if buffer is not None and buffer not in [r.name for r in trace.regions]:
        raise KeyError(f"programs_figure: buffer={buffer!r} is not one of {[r.name for r in trace.regions]}")
    if not chosen or (buffer is not None and chosen[0][1].name != buffer):
        where = "memory that has a name" if buffer is None else f"buffer {buffer!r}"
        raise ValueError(f"programs_figure: no program stored a byte of {where}")
    rest = stored[1:] + loaded[PANELS - 1 :]
    return [_Panel(trace, region, owner, verb) for owner, region, verb in chosen], [
        f"{v} '{r.name}'" for _, r, v in rest
    ]


def _usual_run(owner: np.ndarray) -> int:
    """The commonest length of a run of one program, 16 … 1024: a line of memory that has no rows of its own."""
    edges = np.flatnonzero(np.diff(owner, prepend=-2, append=-2))
    lengths, counts = np.unique(np.diff(edges)[owner[edges[:-1]] >= 0], return_counts=True)
    return int(min(max(lengths[counts.argmax()], 16), 1024))


def _place(coordinate) -> str:
    return f"({', '.join(map(str, coordinate))})"
