"""How fast the widgets answer, in a real browser: ``python -m kvlab.bench.widgets`` (needs chromium).

A step is a key or a slider move; it ends when the page has changed for the last time, figure and words included.
Times depend on the machine and on what else runs on it, so they are printed, not tested.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np

from . import browser, lab

# One step, and the milliseconds until the last change of the widget's part of the page is drawn, 250 ms of quiet after
# it. A picture counts as drawn when it is decoded and a frame has been painted.
STEP = """(step) => new Promise(done => {
    const area = document.querySelector('.jp-OutputArea-output .widget-vbox');
    const start = performance.now(); let last = 0;
    const drawn = async () => {
        await Promise.all([...area.querySelectorAll('.kvlab-panels img')].map(i => i.decode().catch(() => 0)));
        requestAnimationFrame(() => { last = performance.now(); });
    };
    const seen = new MutationObserver(drawn);
    const target = area.querySelectorAll(step.selector)[step.index];
    if (step.key) target.dispatchEvent(new KeyboardEvent('keydown', {...step, bubbles: true}));
    else { target.value = step.value; target.dispatchEvent(new Event(step.event ?? 'input', {bubbles: true})); }
    const after = performance.now();
    seen.observe(area, {subtree: true, childList: true, attributes: true, characterData: true});
    const wait = () => {
        const now = performance.now();
        if (last > after && now - last > 250 || now - start > 8000) { seen.disconnect(); done(last - start); }
        else setTimeout(wait, 10);
    };
    wait();
})"""
FIRST_RAN = "() => document.querySelector('.jp-CodeCell .jp-InputPrompt').innerText.match(/\\d/)"
FIRST = ".kvlab-panels img, .kvlab-block-chart"
MIB = {"layers": 4, "heads": 4, "head_dim": 128, "v_head_dim": 128, "page_size": 16, "pages": 8}
# kept by name: a context that nothing holds ends at once
REFERENCE = "import kvlab.backends\nheld = kvlab.backends.reference_backend()\nheld.__enter__()\n"
CELL = "from kvlab.widgets import {0}\n{0}({1})"
# What is measured: the cell, its steps, and the aim in milliseconds.
CASES = {
    "LayoutExplorer, 1 MiB pool, slot and dim": (CELL.format("LayoutExplorer", MIB), "cell", 100),
    "LayoutExplorer, 1 MiB pool, layer and head": (CELL.format("LayoutExplorer", MIB), "window", 100),
    "CommitPlayground, 8 x 8, this backend": (CELL.format("CommitPlayground", ""), "lens", 250),
    "CommitPlayground, 8 x 8, reference": (REFERENCE + CELL.format("CommitPlayground", ""), "lens", 100),
    "ScaleExplorer, element": (CELL.format("ScaleExplorer", ""), "map", None),
}


def steps(kind: str, count: int) -> list[dict]:
    """The steps of a case, each different from the one before it."""
    if kind == "lens":
        return [{"selector": "input[type=range]", "index": 1, "value": i % 7 + 1} for i in range(count)]
    where = {"selector": ".kvlab-map" if kind == "map" else ".kvlab-hex", "index": 0, "shiftKey": kind == "window"}
    keys = ["ArrowUp", "ArrowLeft", "ArrowDown", "ArrowRight"] if kind == "window" else ["ArrowDown", "ArrowRight"]
    return [{**where, "key": keys[i % len(keys)]} for i in range(count)]


def measure(url: str, folder: Path, code: str, kind: str, count: int) -> tuple[float, list[float]]:
    """Seconds from running the cell to its first figure, and milliseconds of each step."""
    lab.write_notebook(folder / "bench.ipynb", "import kvlab", code)
    with browser.page(1280, 1400) as tab:
        lab.open_notebook(tab, url, "bench.ipynb")
        _run_first_cell(tab)
        begin = tab.evaluate("performance.now()")
        tab.keyboard.press("Shift+Enter")
        tab.wait_for_selector(FIRST, state="attached", timeout=60000)
        first = (tab.evaluate("performance.now()") - begin) / 1e3
        tab.wait_for_timeout(2000)
        return first, [tab.evaluate(STEP, step) for step in steps(kind, count)]


def _run_first_cell(tab) -> None:
    """Run it and wait: the kernel starts and imports torch, which is not the widget's time."""
    for _ in range(5):  # a kernel that is still connecting loses the request without a word
        tab.click(".jp-CodeCell >> nth=0")
        tab.keyboard.press("Shift+Enter")
        tab.wait_for_timeout(2000)
        if tab.evaluate(lab.ANY_STARTED):
            break
    tab.wait_for_function(FIRST_RAN, timeout=60000)
    tab.click(".jp-CodeCell >> nth=1")


def main(count: int = 24) -> None:
    if reason := browser.missing():
        raise SystemExit(f"nothing measured: {reason}")
    print(f"{'widget, step':44} {'first figure':>13} {'median step':>12} {'95 %':>8} {'aim':>8}")
    with tempfile.TemporaryDirectory() as folder, lab.lab(folder) as url:
        for name, (code, kind, aim) in CASES.items():
            first, times = measure(url, Path(folder), code, kind, count)
            median, high = np.percentile(times, [50, 95])
            print(f"{name:44} {first:11.1f} s {median:9.0f} ms {high:5.0f} ms {f'{aim} ms' if aim else '-':>8}")


if __name__ == "__main__":
    main()
