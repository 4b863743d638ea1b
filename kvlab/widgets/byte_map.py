"""A map of some hundred bytes as cells that can be clicked and walked with the arrow keys.

Plain HTML, because every plotly widget loads its own 5 MB of script, and because only the outline moves in a step.
"""

from __future__ import annotations

import anywidget
import traitlets


class ByteMap(anywidget.AnyWidget):
    """Lines of ``columns`` cells. A cell has a code (its colour), a short text, and words that show on hover.

    ``selected`` is outlined. A click or an arrow key puts ``[cell, count]`` into ``picked``; what follows is up to
    Python. Arrow keys step over cells of the code ``skip``.
    """

    title = traitlets.Unicode("").tag(sync=True)
    columns = traitlets.Int(16).tag(sync=True)
    height = traitlets.Int(13).tag(sync=True)  # of a line, in pixels
    heads = traitlets.List([]).tag(sync=True)  # [text, columns it spans] above the cells
    feet = traitlets.List([]).tag(sync=True)  # likewise below
    labels = traitlets.List([]).tag(sync=True)  # one per line
    legend = traitlets.List([]).tag(sync=True)  # [colour, text]; the colour "" is the outline
    colors = traitlets.List([]).tag(sync=True)  # one per code
    codes = traitlets.List([]).tag(sync=True)
    texts = traitlets.List([]).tag(sync=True)
    words = traitlets.List([]).tag(sync=True)
    skip = traitlets.Int(-1).tag(sync=True)
    selected = traitlets.Int(0).tag(sync=True)
    picked = traitlets.List([]).tag(sync=True)

    _esm = """
    export default { render({ model, el }) {
      const title = document.createElement("div"), grid = document.createElement("div");
      const line = document.createElement("div"), legend = document.createElement("div");
      title.className = "kvlab-map-title"; grid.className = "kvlab-map"; line.className = "kvlab-map-line";
      legend.className = "kvlab-map-legend"; grid.tabIndex = 0;
      el.append(title, grid, line, legend);
      let cells = [], marked = null, count = 0;
      const add = (parent, text, name, span) => {
        const box = document.createElement("div");
        box.textContent = text; box.className = name;
        if (span) box.style.gridColumn = "span " + span;
        parent.appendChild(box);
        return box;
      };
      const say = i => { line.textContent = model.get("words")[i] ?? ""; };
      const mark = () => {
        if (marked) marked.classList.remove("kvlab-map-at");
        marked = cells[model.get("selected")];
        if (marked) marked.classList.add("kvlab-map-at");
        say(model.get("selected"));
      };
      const paint = () => {
        const colors = model.get("colors"), codes = model.get("codes"), texts = model.get("texts");
        cells.forEach((cell, i) => {
          cell.style.background = colors[codes[i]];
          cell.textContent = texts[i] ?? "";
        });
        mark();
      };
      const build = () => {
        const n = model.get("columns");
        title.textContent = model.get("title");
        grid.setAttribute("aria-label", model.get("title") + "; arrow keys move the selection");
        grid.style.gridTemplateColumns = `48px repeat(${n}, minmax(0, 1fr))`;
        grid.replaceChildren(); legend.replaceChildren(); cells = [];
        const row = (spans, name) => { add(grid, "", ""); spans.forEach(([t, s]) => add(grid, t, name, s)); };
        if (model.get("heads").length) row(model.get("heads"), "kvlab-map-head");
        model.get("labels").forEach(label => {
          add(grid, label, "kvlab-map-label").style.height = model.get("height") + "px";
          for (let j = 0; j < n; j++) cells.push(add(grid, "", "kvlab-map-cell"));
        });
        row(model.get("feet"), "kvlab-map-head");
        model.get("legend").forEach(([color, text]) => {
          const swatch = add(legend, "", color ? "kvlab-map-swatch" : "kvlab-map-swatch kvlab-map-at");
          swatch.style.background = color || "none";
          add(legend, text, "");
        });
        paint();
      };
      const pick = i => { model.set("picked", [i, ++count]); model.save_changes(); };
      grid.addEventListener("click", e => { const i = cells.indexOf(e.target); if (i >= 0) pick(i); });
      grid.addEventListener("mouseover", e => { const i = cells.indexOf(e.target); if (i >= 0) say(i); });
      grid.addEventListener("mouseleave", () => say(model.get("selected")));
      grid.addEventListener("keydown", e => {
        const n = model.get("columns");
        const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -n, ArrowDown: n }[e.key];
        if (!step) return;
        e.preventDefault(); e.stopPropagation();
        let i = model.get("selected") + step;
        while (i >= 0 && i < cells.length && model.get("codes")[i] === model.get("skip")) i += step;
        if (i >= 0 && i < cells.length) pick(i);
      });
      model.on("change:selected", mark);
      model.on("change:codes", paint);
      model.on("change:texts", paint);
      model.on("change:colors", paint);
      model.on("change:words", () => say(model.get("selected")));
      build();
    } };
    """
    _css = """
    .kvlab-map { display: grid; font: 12px/1 Arial, sans-serif; cursor: pointer; padding: 2px; }
    .kvlab-map:focus { outline: 2px solid #999; outline-offset: 0; }
    .kvlab-map-title { font: 14px/22px Arial, sans-serif; text-align: center; padding-left: 48px; }
    .kvlab-map-cell, .kvlab-map-label { display: flex; align-items: center; justify-content: center; color: #000; }
    .kvlab-map-cell { border: 0 solid #fff; border-width: 0 1px 1px 0; box-sizing: border-box; overflow: hidden; }
    .kvlab-map-label { justify-content: flex-end; padding-right: 4px; white-space: nowrap; }
    .kvlab-map-head { text-align: center; line-height: 16px; white-space: nowrap; }
    .kvlab-map-at { outline: 3px solid #D55E00; outline-offset: -2px; position: relative; z-index: 1; }
    .kvlab-map-line { font: 12px/17px monospace; height: 17px; overflow: hidden; white-space: nowrap; }
    .kvlab-map-legend { display: flex; gap: 6px; align-items: center; font: 12px/20px Arial, sans-serif;
                        padding-left: 48px; }
    .kvlab-map-swatch { width: 14px; height: 14px; border: 1px solid #777; box-sizing: border-box; }
    .kvlab-map-swatch:not(:first-child) { margin-left: 10px; }
    """

    def show(self, colors: list[str], codes: list[int], texts: list[str], words: list[str]) -> None:
        """New contents, in one message."""
        with self.hold_sync():
            self.colors, self.codes, self.texts, self.words = colors, codes, texts, words
