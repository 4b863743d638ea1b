"""Boxes and rings over a figure of fixed size: moving them costs the browser next to nothing."""

from __future__ import annotations

import anywidget
import traitlets


class Marks(anywidget.AnyWidget):
    """``boxes`` ``[x, y, width, height]`` and ``points`` ``[x, y]`` in pixels; clicks go through to what lies below."""

    boxes = traitlets.List().tag(sync=True)
    points = traitlets.List().tag(sync=True)

    _esm = """
    const NS = "http://www.w3.org/2000/svg", RING = 7;
    function render({ model, el }) {
      const svg = document.createElementNS(NS, "svg");
      svg.setAttribute("width", "100%"); svg.setAttribute("height", "100%");
      const add = (kind, look, place) => {
        const node = document.createElementNS(NS, kind);
        for (const [name, value] of Object.entries({ ...look, ...place })) node.setAttribute(name, value);
        svg.append(node);
      };
      const draw = () => {
        svg.replaceChildren();
        for (const [stroke, width] of [["#fff", 4], ["#000", 1.5]])
          for (const [x, y, w, h] of model.get("boxes"))
            add("rect", { fill: "none", stroke, "stroke-width": width }, { x, y, width: w, height: h });
        for (const [cx, cy] of model.get("points"))
          add("circle", { fill: "rgba(255,255,255,0.6)", stroke: "#D55E00", "stroke-width": 3, r: RING }, { cx, cy });
      };
      model.on("change:boxes", draw); model.on("change:points", draw); draw();
      el.classList.add("kvlab-marks"); el.append(svg);
    }
    export default { render };
    """
    _css = ".kvlab-marks { pointer-events: none; position: relative; z-index: 1; }"
