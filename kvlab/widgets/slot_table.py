"""An editable table of slots: one request a line, its commit_lens as a slider, its block as number boxes."""

from __future__ import annotations

import anywidget
import traitlets


class SlotTable(anywidget.AnyWidget):
    """``value`` is ``{"loc": (B, W) lists, "commit_lens": (B,), "row_mask": (B, W) bools or None, "n": int}``.

    While Python works on one change, the browser keeps the next ones and sends only the last: ``done`` says which
    ``n`` is drawn. A held arrow key would else queue one launch per repeat.
    """

    value = traitlets.Dict({"loc": [], "commit_lens": [], "row_mask": None, "n": 0}).tag(sync=True)
    done = traitlets.Int(0).tag(sync=True)

    _esm = """
    export function render({ model, el }) {
      const table = document.createElement("table");
      table.className = "kvlab-slots";
      // JupyterLab takes a slider's left and right arrows for its headings
      table.addEventListener("keydown", e => {
        if (!e.ctrlKey && !e.metaKey && e.key !== "Escape") e.stopPropagation();
      });
      el.appendChild(table);
      let value, boxes = [], shape = "", last = 0, waiting = false, more = false, sentAt = 0;
      const mine = new Set();

      function send() {
        // a kernel that was restarted never answers: after three seconds the next change goes out all the same
        if (waiting && Date.now() - sentAt < 3000) { more = true; return; }
        more = false; waiting = true; sentAt = Date.now();
        last = value.n = Date.now() * 1000 + Math.floor(Math.random() * 1000);
        mine.add(last);
        model.set("value", JSON.parse(JSON.stringify(value))); model.save_changes();
      }
      model.on("change:done", () => {
        if (model.get("done") !== last) return;
        waiting = false;
        if (more) send();
      });
      function input(type, label, onchange, event) {
        const box = document.createElement("input");
        box.type = type; box.setAttribute("aria-label", label); box.title = label;
        box.addEventListener(event, () => { onchange(box); paint(); send(); });
        return box;
      }
      function cell(row, child, tag = "td") {
        const td = document.createElement(tag);
        if (typeof child === "string") td.textContent = child; else td.append(child);
        row.appendChild(td);
        return td;
      }
      function number(box, old) {
        const n = parseInt(box.value, 10);
        return Number.isSafeInteger(n) ? n : old;
      }
      function build() {
        table.replaceChildren(); boxes = [];
        const width = value.loc[0].length, head = table.insertRow();
        const names = ["request", "commit_lens", "", ...value.loc[0].map((_, w) => "row " + w)];
        for (const words of names) cell(head, words, "th");
        value.loc.forEach((slots, b) => {
          const row = table.insertRow(), line = { cells: [] };
          cell(row, "b" + b, "th");
          const name = `commit_lens of request ${b}`;
          line.slider = input("range", name, x => { value.commit_lens[b] = +x.value; }, "input");
          line.slider.min = 0; line.slider.max = width; line.slider.step = 1;
          cell(row, line.slider);
          line.len = input("text", name + ", as a number",
            x => { value.commit_lens[b] = number(x, value.commit_lens[b]); }, "change");
          cell(row, line.len);
          slots.forEach((_, w) => {
            const td = cell(row, ""), mask = input("checkbox", `row_mask of request ${b}, row ${w}`,
              x => { value.row_mask[b][w] = x.checked; }, "input");
            const box = input("text", `slot of request ${b}, row ${w}`,
              x => { value.loc[b][w] = number(x, value.loc[b][w]); }, "change");
            box.addEventListener("keydown", e => {
              const step = { ArrowUp: -1, ArrowDown: 1 }[e.key];
              if (!step) return;
              const to = boxes[b + step]?.cells[w].box;
              if (to) { e.preventDefault(); to.focus(); to.select(); }
            });
            td.append(mask, box);
            line.cells.push({ td, box, mask });
          });
          boxes.push(line);
        });
      }
      function paint() {
        boxes.forEach((line, b) => {
          const len = value.commit_lens[b];
          line.slider.value = len;
          if (line.len.value !== String(len)) line.len.value = len;
          line.cells.forEach(({ td, box, mask }, w) => {
            const slot = value.loc[b][w], on = !value.row_mask || value.row_mask[b][w];
            if (box.value !== String(slot)) box.value = slot;
            mask.hidden = !value.row_mask; mask.checked = on;
            td.className = slot <= 0 ? "pad" : w < len && on ? "yes" : "no";
          });
        });
      }
      function load() {
        value = JSON.parse(JSON.stringify(model.get("value")));
        if (!value.loc.length) return;
        const now = value.loc.length + "x" + value.loc[0].length;
        if (now !== shape) { shape = now; build(); }
        paint();
      }
      // the kernel echoes what was sent from here: loading that would undo what was typed since
      model.on("change:value", () => { if (!mine.has(model.get("value").n)) { waiting = more = false; load(); } });
      load();
    }
    """
    _css = """
    .kvlab-slots { border-collapse: collapse; font-size: 12px; line-height: 16px; margin: 0; table-layout: fixed; }
    .kvlab-slots th { font-weight: normal; text-align: left; padding: 0 6px; }
    .kvlab-slots td { padding: 1px 3px; white-space: nowrap; }
    .kvlab-slots input[type=text] { width: 48px; height: 20px; font-size: 12px; padding: 0 3px; border: 1px solid #888;
      text-align: right; box-sizing: border-box; background: transparent; color: inherit; font-family: monospace; }
    .kvlab-slots input[type=range] { width: 90px; height: 16px; vertical-align: middle; margin: 0; }
    .kvlab-slots input[type=checkbox] { margin: 0 2px 0 0; vertical-align: middle; width: 12px; height: 12px; }
    .kvlab-slots td:nth-child(3) input { width: 30px; }
    .kvlab-slots td.yes { background: #a9d9f5; color: #000; }
    .kvlab-slots td.no { background: #eeeeee; color: #555; }
    .kvlab-slots td.no input { font-style: italic; }
    .kvlab-slots td.pad { background: repeating-linear-gradient(45deg, #fff 0 3px, #cfcfcf 3px 6px); color: #333; }
    """
