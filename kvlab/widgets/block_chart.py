"""One MXFP8 block as a chart: its values, what is read back, and the error.

SVG of some hundred nodes, not a plotly figure: that would load 5 MB of script before the first block shows.
"""

from __future__ import annotations

import anywidget
import numpy as np
import traitlets

from ..figures.palette import MODES
from ..formats import E8M0_NAN
from .scale_page import Block


class BlockChart(anywidget.AnyWidget):
    """Bars of ``values``, marks of ``reads`` over them, bars of ``errors`` below; None where there is no number.

    ``element`` is framed. A click on a column puts ``[element, count]`` into ``picked``.
    """

    values = traitlets.List([]).tag(sync=True)
    reads = traitlets.List([]).tag(sync=True)
    errors = traitlets.List([]).tag(sync=True)
    look = traitlets.List(["#000000", "", "circle"]).tag(sync=True)  # colour, hatch, symbol of the rounding mode
    note = traitlets.Unicode("").tag(sync=True)
    element = traitlets.Int(0).tag(sync=True)
    picked = traitlets.List([]).tag(sync=True)

    _esm = """
    const NS = "http://www.w3.org/2000/svg", W = 540, H = 350, L = 66, R = 8;
    const TOP = { y: 30, h: 142, name: "value" }, LOW = { y: 186, h: 104, name: "error" };
    const SYMBOLS = { circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", square: "M-4 -4h8v8h-8z",
      diamond: "M0 -5l5 5l-5 5l-5 -5z" };
    const HATCH = { "": "", "/": "M0 6L6 0", ".": "M2 3h2" };
    // a number with no more digits than tell ticks of this step apart
    const short = (x, step) => {
      if (x === 0) return "0";
      const digits = Math.max(0, -Math.floor(Math.log10(step)));
      return digits > 4 || Math.abs(x) >= 1e6 ? x.toExponential(1) : x.toFixed(digits);
    };
    function render({ model, el }) {
      const svg = document.createElementNS(NS, "svg"), line = document.createElement("div");
      svg.setAttribute("viewBox", `0 0 ${W} ${H}`); svg.setAttribute("width", W); svg.setAttribute("height", H);
      svg.classList.add("kvlab-block-chart"); line.className = "kvlab-map-line";
      el.append(svg, line);
      let count = 0, frame;
      const add = (kind, look, text) => {
        const node = document.createElementNS(NS, kind);
        for (const [name, value] of Object.entries(look)) node.setAttribute(name, value);
        if (text !== undefined) node.textContent = text;
        svg.append(node);
        return node;
      };
      const n = () => model.get("values").length, wide = () => (W - L - R) / n();
      const say = i => {
        const [v, r, e] = ["values", "reads", "errors"].map(name => model.get(name)[i]);
        const word = x => x === null ? "no number" : +x.toPrecision(6);
        line.textContent = `element ${i}: value ${word(v)}, reads ${word(r)}, error ${word(e)}`;
      };
      const axis = (panel, numbers) => {
        const real = [0, ...numbers.filter(x => x !== null)];
        let low = Math.min(...real), high = Math.max(...real);
        const room = 0.08 * (high - low) || 1;
        low -= room; high += room;
        const y = x => panel.y + (high - x) / (high - low) * panel.h, rough = (high - low) / 4;
        const ten = 10 ** Math.floor(Math.log10(rough)), step = ten * [1, 2, 5, 10].find(m => m * ten >= rough);
        for (let t = Math.ceil(low / step) * step; t <= high; t += step) {
          const clean = Math.abs(t) < step / 1e6 ? 0 : t;
          add("line", { x1: L, x2: W - R, y1: y(t), y2: y(t), stroke: clean ? "#e3e3e3" : "#777" });
          add("text", { x: L - 6, y: y(t) + 4, "text-anchor": "end" }, short(clean, step));
        }
        const middle = panel.y + panel.h / 2;
        add("text", { x: 14, y: middle, "text-anchor": "middle", transform: `rotate(-90 14 ${middle})` }, panel.name);
        return y;
      };
      const bars = (y, numbers, fill, stroke) => numbers.forEach((x, i) => {
        if (x === null) return;
        const [a, b] = [y(0), y(x)].sort((p, q) => p - q);
        add("rect", { x: L + (i + 0.1) * wide(), width: 0.8 * wide(), y: a, height: b - a, fill, stroke });
      });
      const draw = () => {
        svg.replaceChildren();
        const [color, hatch, symbol] = model.get("look"), [values, reads] = [model.get("values"), model.get("reads")];
        const id = "kvlab-hatch-" + Math.random().toString(36).slice(2), defs = add("defs", {});
        defs.innerHTML = `<pattern id="${id}" width="6" height="6" patternUnits="userSpaceOnUse">` +
          `<rect width="6" height="6" fill="${color}"/>` +
          `<path d="${HATCH[hatch]}" stroke="#fff" stroke-width="2"/></pattern>`;
        add("text", { x: (L + W) / 2, y: 16, "text-anchor": "middle", "font-size": 14 },
          "The block: values, what is read back, the error");
        const top = axis(TOP, [...values, ...reads]);
        bars(top, values, "#d9d9d9", "#777");
        reads.forEach((x, i) => x !== null && add("path", { d: SYMBOLS[symbol], fill: "none", stroke: color,
          "stroke-width": 2, transform: `translate(${L + (i + 0.5) * wide()} ${top(x)})` }));
        bars(axis(LOW, model.get("errors")), model.get("errors"), `url(#${id})`, color);
        for (let i = 0; i < n(); i += 4)
          add("text", { x: L + (i + 0.5) * wide(), y: LOW.y + LOW.h + 15, "text-anchor": "middle" }, i);
        add("text", { x: (L + W) / 2, y: LOW.y + LOW.h + 32, "text-anchor": "middle" }, "element of the block");
        add("rect", { x: 170, y: H - 17, width: 12, height: 12, fill: "#d9d9d9", stroke: "#777" });
        add("text", { x: 188, y: H - 7 }, "value");
        const sign = { d: SYMBOLS[symbol], fill: "none", stroke: color, "stroke-width": 2 };
        add("path", { ...sign, transform: `translate(256 ${H - 11})` });
        add("text", { x: 268, y: H - 7 }, "read back, and its error");
        const note = { x: (L + W) / 2, y: LOW.y + LOW.h / 2, "text-anchor": "middle", "font-size": 13 };
        if (model.get("note")) add("text", note, model.get("note"));
        frame = add("rect", { y: TOP.y, height: LOW.y + LOW.h - TOP.y, fill: "none", stroke: "#D55E00",
          "stroke-width": 1.5, "stroke-dasharray": "3 2" });
        mark();
      };
      const mark = () => {
        const i = model.get("element");
        frame.setAttribute("x", L + i * wide()); frame.setAttribute("width", wide());
        say(i);
      };
      const column = e => {
        const r = svg.getBoundingClientRect(), i = Math.floor(((e.clientX - r.left) / r.width * W - L) / wide());
        return i >= 0 && i < n() ? i : null;
      };
      svg.addEventListener("click", e => {
        const i = column(e);
        if (i !== null) { model.set("picked", [i, ++count]); model.save_changes(); }
      });
      svg.addEventListener("mousemove", e => { const i = column(e); if (i !== null) say(i); });
      svg.addEventListener("mouseleave", () => say(model.get("element")));
      model.on("change:element", mark);
      for (const name of ["values", "reads", "errors", "look", "note"]) model.on("change:" + name, draw);
      draw();
    }
    export default { render };
    """
    _css = ".kvlab-block-chart { font: 12px Arial, sans-serif; background: #fff; max-width: 100%; cursor: crosshair; }"

    def show(self, block: Block, rounding: str, element: int) -> None:
        """Draw one block; ``element`` is framed."""
        finite = np.where(np.isfinite(block.values), block.values, np.nan)
        with self.hold_sync():
            self.values, self.reads, self.errors = map(_json, (finite, block.read, block.read - finite))
            self.look, self.element = list(MODES[rounding]), element
            bad = block.scale == E8M0_NAN
            self.note = "scale 255 is NaN: all 32 elements read back NaN" if bad else ""


def _json(numbers: np.ndarray) -> list[float | None]:
    """JSON has no NaN."""
    return [x if np.isfinite(x) else None for x in numbers.tolist()]
