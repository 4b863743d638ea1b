"""Make the README's pictures again: ``python -m kvlab.bench.images`` (needs chromium).

They are screenshots of the widgets in JupyterLab, each run by the real kernel on this machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from . import browser, lab

FOLDER = Path(__file__).resolve().parents[2] / "notebooks" / "images"
WIDGETS = {"layout": "LayoutExplorer()", "commit": "CommitPlayground()", "scale": "ScaleExplorer()"}
LARGEST = 300 * 1024


def shoot(url: str, folder: Path, name: str, call: str) -> Path:
    """One widget, alone in a notebook, as a PNG of its own size."""
    lab.write_notebook(folder / "picture.ipynb", f"from kvlab.widgets import *\n{call}")
    path = FOLDER / f"{name}.png"
    with browser.page(1280, 1200) as tab:
        lab.open_notebook(tab, url, "picture.ipynb")
        lab.run_all(tab)
        tab.wait_for_selector(".kvlab-panels img, .kvlab-block-chart", state="attached", timeout=60000)
        tab.wait_for_timeout(3000)
        tab.locator(".jp-OutputArea-output .widget-vbox").first.screenshot(path=path)
    if path.stat().st_size > LARGEST:
        raise SystemExit(f"{path} has {path.stat().st_size:,} bytes, more than {LARGEST:,}")
    return path


def main() -> None:
    if reason := browser.missing():
        raise SystemExit(f"no pictures made: {reason}")
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, lab.lab(folder) as url:
        for name, call in WIDGETS.items():
            path = shoot(url, Path(folder), name, call)
            print(f"made {path.name}, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
