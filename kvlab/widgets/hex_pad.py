"""A hex dump that takes the keyboard: real bytes around the selection, moved with the arrow keys or a click."""

from __future__ import annotations

import anywidget
import numpy as np
import traitlets

from ..figures import owners, palette

LINE, LINES = 16, 6

# what a key moves, and by how much
STEPS = {
    "left": ("dim", -1),
    "right": ("dim", 1),
    "up": ("slot", -1),
    "down": ("slot", 1),
    "shift-left": ("head", -1),
    "shift-right": ("head", 1),
    "shift-up": ("layer", -1),
    "shift-down": ("layer", 1),
}
HELP = (
    "<div style='font-size:12px;line-height:17px;color:#444'>"
    "Click any view or any byte of the dump, or type in the boxes. With the dump in focus (click it, or Tab): "
    "<b>← →</b> dim, <b>↑ ↓</b> slot, <b>Shift+← →</b> head, <b>Shift+↑ ↓</b> layer, "
    "<b>, .</b> the byte before or after, <b>PageUp PageDown</b> one page of slots.</div>"
)


class HexPad(anywidget.AnyWidget):
    """``LINES`` lines of ``LINE`` bytes. ``on_key`` gets "left", "shift-up" …; ``on_byte`` the byte clicked on."""

    rows = traitlets.List().tag(sync=True)  # [address, [[text, colour, kind], ...]] of each line
    pressed = traitlets.List().tag(sync=True)  # [what, counter]

    _esm = """
    const KEYS = { ArrowLeft: "left", ArrowRight: "right", ArrowUp: "up", ArrowDown: "down",
                   PageUp: "pageup", PageDown: "pagedown", ",": "before", ".": "after" };
    function render({ model, el }) {
      let count = 0;
      const pad = document.createElement("div");
      pad.className = "kvlab-hex"; pad.tabIndex = 0;
      pad.setAttribute("role", "application");
      pad.setAttribute("aria-label", "bytes around the selection; arrow keys move it");
      pad.setAttribute("data-lm-suppress-shortcuts", "true");
      const tell = what => { model.set("pressed", [what, ++count]); model.save_changes(); };
      pad.addEventListener("keydown", event => {
        const key = KEYS[event.key];
        if (!key || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault(); event.stopPropagation();
        tell((event.shiftKey ? "shift-" : "") + key);
      });
      pad.addEventListener("click", event => {
        pad.focus();
        const at = event.target.dataset.at;
        if (at !== undefined) tell(Number(at));
      });
      const draw = () => {
        pad.replaceChildren(...model.get("rows").map(([address, cells]) => {
          const line = document.createElement("div"), head = document.createElement("span");
          head.className = "kvlab-hex-at"; head.textContent = address.toLocaleString("en");
          line.append(head);
          cells.forEach(([text, color, kind], i) => {
            const cell = document.createElement("span");
            cell.textContent = text; cell.className = "kvlab-hex-byte " + kind; cell.style.borderBottomColor = color;
            cell.dataset.at = address + i;
            line.append(cell);
          });
          return line;
        }));
      };
      model.on("change:rows", draw); draw();
      el.append(pad);
    }
    export default { render };
    """
    _css = """
    .kvlab-hex { font: 13px/20px monospace; border: 2px solid #bbb; padding: 2px 4px; white-space: nowrap;
                 height: 144px; width: 452px; box-sizing: border-box; overflow: hidden;
                 background: #fff; color: #000; cursor: pointer; }
    .kvlab-hex:focus { border-color: #D55E00; outline: none; }
    .kvlab-hex-at { display: inline-block; width: 74px; color: #555; text-align: right; padding-right: 8px; }
    .kvlab-hex-byte { display: inline-block; width: 21px; text-align: center; border-bottom: 4px solid;
                      line-height: 17px; margin-right: 1px; }
    .kvlab-hex-byte.row { background: #e4e4e4; }
    .kvlab-hex-byte.element { background: #ffd9c2; }
    .kvlab-hex-byte.byte { background: #D55E00; color: #fff; font-weight: bold; }
    """

    def __init__(self, on_key, on_byte):
        super().__init__()
        self._on_key, self._on_byte = on_key, on_byte

    @traitlets.observe("pressed")
    def _press(self, change) -> None:
        if change["new"]:
            what = change["new"][0]
            (self._on_key if isinstance(what, str) else self._on_byte)(what)

    def show(self, layout, raw, buffer: str, byte: int, cell) -> None:
        """Bytes around ``byte``, underlined in their owner's colour; the row of ``cell`` grey, its element pale red."""
        size = layout.buffers[buffer]
        last = max(0, -(-size // LINE) - LINES)
        first = min(max(0, byte // LINE - LINES // 2), last) * LINE
        at = np.arange(first, min(first + LINE * LINES, size))
        kinds = np.full(len(at), "plain", object)
        if cell is not None:
            c = layout.explain(buffer, at)
            row = (c.field == c.names.index(cell.field)) & (c.layer == cell.layer) & (c.slot == cell.slot)
            kinds[row] = "row"
            kinds[row & (c.head == cell.head) & (c.dim == cell.dim)] = "element"
        kinds[byte - first] = "byte"
        colors = [*owners.colors()[: owners.PADDING], palette.PADDING[1]]
        codes, _ = owners.owner_map(layout, buffer, first, len(at))
        cells = [
            [f"{value:02X}", colors[code], kind]
            for value, code, kind in zip(raw[buffer][at].tolist(), codes.tolist(), kinds.tolist(), strict=True)
        ]
        self.rows = [[first + i, cells[i : i + LINE]] for i in range(0, len(cells), LINE)]
