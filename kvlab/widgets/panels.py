"""Byte pictures side by side, with axes, a window each, marks and words on hover.

Plain HTML: plotly loads 5 MB of script before its first figure, and lays the whole figure out again whatever changes.
"""

from __future__ import annotations

import anywidget
import traitlets


class Panels(anywidget.AnyWidget):
    """Pictures at fixed places; all positions inside a picture are in its own pixels (columns and rows).

    Each of ``panels`` is a dict: ``x y w h`` (its place in the widget, in pixels), ``size`` (columns and rows of its
    picture), ``title``, ``xlabel``, ``xticks`` and ``yticks`` (``[position, text]``; those outside the window are not
    shown), ``top`` (ticks above), ``ylabel``. ``windows`` says which part of its picture each shows, ``[x0, x1, y0,
    y1]``: moving one sends no picture. A click puts ``[panel, column, row, count]`` into ``picked``.

    ``hover`` gives words to the cells of panel 0: ``columns`` and ``lines`` (``[first, end]`` of each), and
    ``heads`` (one per line) and ``words`` (one list per line). Arrow keys walk the same cells.
    """

    width = traitlets.Int(960).tag(sync=True)
    height = traitlets.Int(320).tag(sync=True)
    panels = traitlets.List([]).tag(sync=True)
    sources = traitlets.List([]).tag(sync=True)  # one data address per panel
    windows = traitlets.List([]).tag(sync=True)
    boxes = traitlets.List([]).tag(sync=True)  # [x, y, width, height], pixels of the widget
    points = traitlets.List([]).tag(sync=True)  # [x, y]
    hover = traitlets.Dict({}).tag(sync=True)
    picked = traitlets.List([]).tag(sync=True)

    _esm = """
    const NS = "http://www.w3.org/2000/svg", RING = 7;
    const make = (parent, name, text) => {
      const node = document.createElement("div");
      node.className = name; if (text) node.textContent = text;
      parent.append(node);
      return node;
    };
    const put = (node, x, y, w, h) => {
      node.style.left = x + "px"; node.style.top = y + "px";
      if (w !== undefined) { node.style.width = w + "px"; node.style.height = h + "px"; }
    };
    function render({ model, el }) {
      const root = make(el, "kvlab-panels"), line = make(el, "kvlab-panels-line");
      let parts = [], at = null, count = 0;
      const svg = document.createElementNS(NS, "svg");
      svg.classList.add("kvlab-marks");
      const ticks = (part, i) => {
        const p = model.get("panels")[i], [x0, x1, y0, y1] = model.get("windows")[i];
        part.ticks.replaceChildren();
        for (const [position, text] of p.xticks ?? []) {
          if (position < x0 || position > x1) continue;
          const x = p.x + (position - x0) / (x1 - x0) * p.w;
          put(make(part.ticks, "kvlab-xtick" + (p.top ? " kvlab-top" : ""), text), x, p.top ? p.y : p.y + p.h);
        }
        for (const [position, text] of p.yticks ?? []) {
          if (position < y0 || position > y1) continue;
          put(make(part.ticks, "kvlab-ytick", text), p.x - 6, p.y + (position - y0) / (y1 - y0) * p.h);
        }
      };
      const place = () => parts.forEach((part, i) => {
        const p = model.get("panels")[i], window = model.get("windows")[i];
        const [x0, x1, y0, y1] = window, sx = p.w / (x1 - x0), sy = p.h / (y1 - y0), [columns, rows] = p.size;
        put(part.img, -x0 * sx, -y0 * sy, columns * sx, rows * sy);
        const shown = JSON.stringify([window, p.xticks, p.yticks]);
        if (part.shown !== shown) { part.shown = shown; ticks(part, i); }
      });
      const paint = () => parts.forEach((part, i) => {
        const source = model.get("sources")[i];
        if (part.img.src !== source) part.img.src = source;
      });
      const mark = () => {
        svg.replaceChildren();
        const add = (kind, look) => {
          const node = document.createElementNS(NS, kind);
          for (const [name, value] of Object.entries(look)) node.setAttribute(name, value);
          svg.append(node);
        };
        for (const [stroke, width] of [["#fff", 4], ["#000", 1.5]])
          for (const [x, y, w, h] of model.get("boxes"))
            add("rect", { fill: "none", stroke, "stroke-width": width, x, y, width: w, height: h });
        for (const [cx, cy] of model.get("points"))
          add("circle", { fill: "rgba(255,255,255,0.6)", stroke: "#D55E00", "stroke-width": 3, r: RING, cx, cy });
        if (at) {
          const h = model.get("hover"), p = model.get("panels")[0], [x0, x1, y0, y1] = model.get("windows")[0];
          const [a, b] = h.columns[at[1]], [c, d] = h.lines[at[0]], sx = p.w / (x1 - x0), sy = p.h / (y1 - y0);
          const box = { x: p.x + (a - x0) * sx, y: p.y + (c - y0) * sy, width: (b - a) * sx, height: (d - c) * sy };
          add("rect", { fill: "none", stroke: "#D55E00", "stroke-width": 2, ...box });
        }
      };
      const say = () => {
        const h = model.get("hover");
        if (!h.lines) { line.hidden = true; return; }
        if (at && (at[0] >= h.lines.length || at[1] >= h.columns.length)) at = null;
        line.textContent = at ? h.heads[at[0]] + "; " + h.words[at[0]][at[1]]
          : "Point at a row, or use the arrow keys: whose it is and where it lies.";
        mark();
      };
      const text = (part, name, kind, words, x, y) => {
        part[name] ??= make(root, kind);
        part[name].textContent = words ?? "";
        put(part[name], x, y);
      };
      const build = () => {
        const panels = model.get("panels");
        root.style.width = model.get("width") + "px"; root.style.height = model.get("height") + "px";
        if (parts.length !== panels.length) {
          root.replaceChildren();
          parts = panels.map(() => {
            const frame = make(root, "kvlab-panel"), img = document.createElement("img");
            img.draggable = false; frame.append(img);
            return { img, frame, ticks: make(root, "") };
          });
          root.append(svg);
        }
        parts.forEach((part, i) => {
          const p = panels[i];
          put(part.frame, p.x, p.y, p.w, p.h); part.img.alt = p.title ?? "";
          text(part, "title", "kvlab-panel-title", p.title, p.x, p.y - (p.top ? 38 : 20));
          text(part, "xlabel", "kvlab-xtick", p.xlabel, p.x + p.w / 2, p.y + p.h + 15);
          text(part, "ylabel", "kvlab-ylabel", p.ylabel, p.x - 44, p.y + p.h / 2);
        });
        place(); paint(); say(); mark();
      };
      const inside = e => {
        const r = root.getBoundingClientRect(), x = e.clientX - r.left, y = e.clientY - r.top;
        const i = model.get("panels").findIndex(p => x >= p.x && x < p.x + p.w && y >= p.y && y < p.y + p.h);
        if (i < 0) return null;
        const p = model.get("panels")[i], [x0, x1, y0, y1] = model.get("windows")[i];
        return [i, x0 + (x - p.x) / p.w * (x1 - x0), y0 + (y - p.y) / p.h * (y1 - y0)];
      };
      root.addEventListener("click", e => {
        const found = inside(e);
        if (!found) return;
        model.set("picked", [found[0], Math.floor(found[1]), Math.floor(found[2]), ++count]); model.save_changes();
      });
      root.addEventListener("mousemove", e => {
        const h = model.get("hover"), found = h.lines && inside(e);
        if (!found || found[0] !== 0) return;
        const hit = (spans, z) => spans.findIndex(([a, b]) => z >= a && z < b);
        const next = [hit(h.lines, found[2]), hit(h.columns, found[1])];
        if (next[0] < 0 || next[1] < 0 || (at && at[0] === next[0] && at[1] === next[1])) return;
        at = next; say();
      });
      root.addEventListener("keydown", e => {
        const step = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[e.key];
        const h = model.get("hover");
        if (!step || !h.lines) return;
        e.preventDefault(); e.stopPropagation();
        const keep = (i, n) => Math.min(Math.max(i, 0), n - 1);
        at = at ? [keep(at[0] + step[0], h.lines.length), keep(at[1] + step[1], h.columns.length)] : [0, 0];
        say();
      });
      model.on("change:panels", build); model.on("change:windows", () => { if (parts.length) place(); });
      model.on("change:sources", paint); model.on("change:hover", say);
      model.on("change:boxes", mark); model.on("change:points", mark);
      if (Object.keys(model.get("hover")).length) root.tabIndex = 0;
      root.setAttribute("role", "img");
      build();
    }
    export default { render };
    """
    _css = """
    .kvlab-panels { position: relative; font: 12px/14px Arial, sans-serif; color: #000; background: #fff;
                    contain: strict; }
    .kvlab-panels:focus { outline: 2px solid #999; }
    .kvlab-panels div, .kvlab-panels img, .kvlab-marks { position: absolute; }
    .kvlab-panel { overflow: hidden; outline: 1px solid #999; cursor: crosshair; }
    .kvlab-panel img { image-rendering: pixelated; max-width: none; user-select: none; }
    .kvlab-panel-title { font-weight: bold; white-space: nowrap; line-height: 16px; font-size: 13px; }
    .kvlab-xtick { transform: translate(-50%, 3px); white-space: nowrap; }
    .kvlab-xtick.kvlab-top { transform: translate(-50%, -17px); }
    .kvlab-ytick { transform: translate(-100%, -7px); white-space: pre; font: 12px/14px monospace; }
    .kvlab-ylabel { transform: translate(-50%, -50%) rotate(-90deg); white-space: nowrap; }
    .kvlab-marks { left: 0; top: 0; width: 100%; height: 100%; pointer-events: none; }
    .kvlab-panels-line { font: 12px/17px monospace; height: 17px; overflow: hidden; white-space: nowrap; }
    """

    def show(self, **values) -> None:
        """Set several properties in one message; what does not change is not sent."""
        with self.hold_sync():
            for name, value in values.items():
                setattr(self, name, value)
