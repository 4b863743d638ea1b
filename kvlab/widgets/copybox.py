"""Buttons that put the shown state on the clipboard, as code."""

from __future__ import annotations

from collections.abc import Callable

import anywidget
import traitlets


class CopyBox(anywidget.AnyWidget):
    """One "copy as …" button per kind of code. The text also shows in a box, for browsers that forbid the clipboard.

    The code is made only when a button is pressed: a slider step must not pay for it.
    """

    kinds = traitlets.List(["Python", "pytest", "state (JSON)"]).tag(sync=True)
    text = traitlets.Unicode("").tag(sync=True)
    asked = traitlets.Unicode("").tag(sync=True)

    _esm = """
    export function render({ model, el }) {
      const bar = document.createElement("div");
      const box = document.createElement("pre");
      const said = document.createElement("span");
      bar.className = "kvlab-copy-bar"; box.className = "kvlab-copy-text"; box.hidden = true;
      let shown = "";
      for (const kind of model.get("kinds")) {
        const button = document.createElement("button");
        button.textContent = "copy as " + kind;
        button.className = "jupyter-button";
        button.onclick = () => {
          if (shown === kind && !box.hidden) { box.hidden = true; said.textContent = ""; return; }
          shown = kind;
          model.set("asked", ""); model.set("asked", kind + " " + Date.now()); model.save_changes();
        };
        bar.appendChild(button);
      }
      bar.appendChild(said);
      model.on("change:text", async () => {
        box.textContent = model.get("text"); box.hidden = box.textContent === "";
        if (box.hidden) return;
        try { await navigator.clipboard.writeText(box.textContent); said.textContent = " copied"; }
        catch { said.textContent = " select the text below to copy it"; }
      });
      el.append(bar, box);
    }
    """
    _css = """
    .kvlab-copy-bar { display: flex; gap: 6px; align-items: center; margin: 4px 0; flex-wrap: wrap; }
    .kvlab-copy-bar button { width: auto; padding: 0 10px; }
    .kvlab-copy-text { border: 1px solid #bbb; padding: 8px; max-height: 300px; overflow: auto; font-size: 12px; }
    .kvlab-error-text { border-left: 4px solid #D55E00; padding: 6px 10px; background: #fbeee6; color: #222; }
    """

    def set(self, codes: Callable[[], dict[str, str]]) -> None:
        """Where the code comes from; what was shown before is outdated and goes."""
        self._make = codes
        self.text = ""

    @traitlets.observe("asked")
    def _answer(self, change) -> None:
        kind = change["new"].rsplit(" ", 1)[0]
        if kind:
            self.text = self._make()[kind]
