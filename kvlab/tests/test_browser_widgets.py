"""The widgets driven as a reader drives them, in JupyterLab in a real browser: keys, boxes, sliders, buttons."""

import re

import pytest

import kvlab
from kvlab.bench import browser, lab

pytest.importorskip("nbformat")
reason = browser.missing()
pytestmark = [pytest.mark.browser, pytest.mark.skipif(reason is not None, reason=str(reason))]
AREA = ".jp-OutputArea-output .widget-vbox"


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = tmp_path_factory.mktemp("notebooks")
    with lab.lab(folder) as url:
        yield folder, url


@pytest.fixture
def show(served):
    """Open a notebook of one cell with a widget in it; gives the page."""
    folder, url = served
    opened = []

    def _show(code: str, width: int = 1280, height: int = 800):
        lab.write_notebook(folder / "w.ipynb", code)
        context = browser.page(width, height)
        tab = context.__enter__()
        opened.append(context)
        lab.open_notebook(tab, url, "w.ipynb")
        lab.run_all(tab)
        drawn = ".kvlab-panels img", ".kvlab-block-chart", ".kvlab-lens"
        tab.wait_for_selector(", ".join(f"{AREA} {x}" for x in drawn), state="attached", timeout=60000)
        return tab

    yield _show
    for context in opened:
        context.__exit__(None, None, None)


def words(tab) -> str:
    return tab.locator(AREA).first.inner_text()


def until(tab, pattern: str) -> str:
    """Wait until the widget's text matches; the text."""
    for _ in range(100):
        text = words(tab)
        if re.search(pattern, text):
            return text
        tab.wait_for_timeout(100)
    raise AssertionError(f"the widget never said {pattern!r}; it says: {text}")


def test_layout_explorer_keys_and_boxes_agree_with_the_library(show):
    tab = show("from kvlab.widgets import LayoutExplorer\nLayoutExplorer()")
    assert lab.faults(tab) == []
    g = kvlab.Geometry(layers=2, heads=2, head_dim=64, page_size=4, pages=8)
    layout = kvlab.page_major(g, __import__("torch").bfloat16)
    slot, dim = 11, 5
    for key, moved in (("ArrowDown", "slot"), ("ArrowRight", "dim"), ("ArrowUp", "slot")):
        tab.locator(".kvlab-hex").press(key)
        slot += {"ArrowDown": 1, "ArrowUp": -1}.get(key, 0)
        dim += moved == "dim"
        byte = layout.locate("k", 1, slot, 1, dim)[1]
        until(tab, rf"\b{byte:,}\b|\b{byte}\b")
    for width, height in ((1280, 800), (1920, 1080)):
        tab.set_viewport_size({"width": width, "height": height})
        tab.wait_for_timeout(500)
        assert lab.too_wide(tab) == []


def test_commit_playground_slider_moves_the_written_bytes(show):
    tab = show("from kvlab.widgets import CommitPlayground\nCommitPlayground({'format': 'mxfp8(flat, rceil)'})")
    assert lab.faults(tab) == []
    until(tab, r"kernel == reference|No kernel ran")
    slider = tab.locator(f"{AREA} input[type=range]").nth(0)
    seen = set()
    for value in (0, 3):
        slider.evaluate("(e, v) => { e.value = v; e.dispatchEvent(new Event('input', {bubbles: true})); }", value)
        text = until(tab, rf"b0:{value}\b")
        seen.add(re.search(r"([\d,]+) bytes written per fill", until(tab, rf"b0:{value}\b")).group(1))
        assert "kernel == reference" in text or "No kernel ran" in text
    assert len(seen) == 2


def test_commit_playground_says_the_librarys_error(show):
    tab = show("from kvlab.widgets import CommitPlayground\nCommitPlayground()")
    tab.get_by_role("button", name="duplicate slot", exact=True).click()
    until(tab, r"ValueError: .*slot \d+ is given twice, by rows \d+ and \d+")
    until(tab, r"Refused before anything was written: 0 of")


def test_scale_explorer_rounding_and_nan(show):
    tab = show("from kvlab.widgets import ScaleExplorer\nScaleExplorer()")
    assert lab.faults(tab) == []
    text = until(tab, r"(?i)scale byte")
    assert "NaN" in text or "nan" in text.lower()
    for width, height in ((1280, 800), (1920, 1080)):
        tab.set_viewport_size({"width": width, "height": height})
        tab.wait_for_timeout(500)
        assert lab.too_wide(tab) == []


def test_kernel_explorer_compiles_another_tile_and_says_so(show):
    pytest.importorskip("triton", reason="the lens compiles with Triton, which is not installed here")
    tab = show("from kvlab.widgets import KernelExplorer\nKernelExplorer()")
    assert lab.faults(tab) == []
    assert "128 bits STG.E.128" in " ".join(until(tab, "Compiled:").split())
    for name in ("1", "128"):  # rows, then elements of a row
        tab.get_by_role("button", name=name, exact=True).first.click()
    until(tab, r"Compiling …|1 x 128 elements")  # "Compiling" is gone at once where the answer was kept on disk
    tab.wait_for_function("a => document.querySelector(a).innerText.includes('STG.E.U16')", arg=AREA, timeout=60000)
    text = " ".join(words(tab).split())
    assert "● 16 bits STG.E.U16 128 bits STG.E.128" in text and "1 x 128 elements, 4 warps" in text
    for width, height in ((1280, 800), (1920, 1080)):
        tab.set_viewport_size({"width": width, "height": height})
        tab.wait_for_timeout(500)
        assert lab.too_wide(tab) == []
