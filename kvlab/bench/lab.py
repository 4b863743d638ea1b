"""JupyterLab on a free port, and a notebook in it run from top to bottom, for pictures, timings and tests."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path

IDLE = "() => document.querySelector('.jp-Notebook-ExecutionIndicator')?.dataset.status === 'idle'"
ALL_RAN = """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
    .every(e => /\\d/.test(e.innerText))"""
ANY_STARTED = """() => [...document.querySelectorAll('.jp-CodeCell .jp-InputPrompt')]
    .some(e => /[\\d*]/.test(e.innerText))"""
# By default cells outside the window are not in the page at all, and a test would see no outputs of theirs.
SETTINGS = {"@jupyterlab/notebook-extension:tracker": {"windowingMode": "none"}}


@contextmanager
def lab(folder):
    """The URL of a JupyterLab without a token that serves ``folder``; it ends with the block."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    with tempfile.TemporaryDirectory() as config:
        settings = Path(config) / "labconfig" / "default_setting_overrides.json"
        settings.parent.mkdir()
        settings.write_text(json.dumps(SETTINGS))
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", f"--port={port}"]
        command += [f"--ServerApp.root_dir={folder}", "--IdentityProvider.token=", "--LabApp.news_url="]
        environment = os.environ | {"JUPYTER_CONFIG_DIR": config, "JUPYTERLAB_WORKSPACES_DIR": config}
        server = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            _wait_for(port, server)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            server.wait(30)


def _wait_for(port: int, server, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if server.poll() is not None:
            raise RuntimeError(f"jupyter lab ended with {server.returncode} before it listened")
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.2)
    raise TimeoutError(f"jupyter lab did not listen on port {port} within {seconds:.0f} s")


def write_notebook(path: Path, *cells: str) -> None:
    """A notebook of these code cells; it names its kernel, else JupyterLab asks for one in a dialog."""
    import nbformat

    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in cells])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(book, path)


def open_notebook(tab, url: str, name: str, seconds: float = 120):
    """Open a notebook with the file browser closed; returns nothing, the tab shows it with an idle kernel."""
    tab.goto(f"{url}/lab/tree/{name}?reset")
    tab.wait_for_selector(".jp-Notebook", timeout=seconds * 1000)
    tab.wait_for_function(IDLE, timeout=seconds * 1000)
    if tab.locator(".jp-SideBar .lm-mod-current[data-id='filebrowser']").count():
        tab.keyboard.press("Control+B")


def run_all(tab, seconds: float = 300) -> None:
    """Run every cell and wait until each has run and the kernel is idle."""
    for _ in range(5):  # a kernel that is still connecting loses the request without a word
        while tab.locator(".jp-Dialog .jp-mod-accept").count():  # JupyterLab asks which kernel, where it starts slowly
            tab.locator(".jp-Dialog .jp-mod-accept").first.click()
            tab.wait_for_timeout(500)
        tab.click("text=Run >> nth=0")
        tab.click("text=Run All Cells")
        tab.wait_for_timeout(2000)
        if tab.evaluate(ANY_STARTED):
            break
    tab.wait_for_function(ALL_RAN, timeout=seconds * 1000)
    tab.wait_for_function(IDLE, timeout=seconds * 1000)


def faults(tab) -> list[str]:
    """Error outputs and widgets that failed to load, as text; empty where all is well."""
    found = []
    for selector in (
        "[data-mime-type='application/vnd.jupyter.error']",
        "[data-mime-type='application/vnd.jupyter.stderr']",
        ".jupyter-widgets-error-widget, .jp-WidgetManager-error",
    ):
        found += [x.strip()[:400] for x in tab.locator(selector).all_inner_texts()]
    return found


def too_wide(tab) -> list[str]:
    """Output areas whose content is cut off or must be scrolled sideways."""
    script = """() => [...document.querySelectorAll('.jp-OutputArea-output')]
        .filter(e => e.scrollWidth > e.clientWidth + 2)
        .map(e => e.innerText.slice(0, 80) + ' … ' + e.scrollWidth + ' > ' + e.clientWidth)"""
    return tab.evaluate(script)
