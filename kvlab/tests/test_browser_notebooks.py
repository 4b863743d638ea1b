"""Every notebook as a reader meets it: opened in JupyterLab in a real browser, run from top to bottom."""

from pathlib import Path

import pytest

from kvlab.bench import browser, lab

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
reason = browser.missing()
pytestmark = [pytest.mark.browser, pytest.mark.skipif(reason is not None, reason=str(reason))]


@pytest.fixture(scope="module")
def url():
    pytest.importorskip("jupyterlab")
    with lab.lab(NOTEBOOKS) as address:
        yield address


@pytest.mark.parametrize("name", sorted(p.name for p in NOTEBOOKS.glob("*.ipynb")))
def test_runs_without_errors_and_nothing_is_cut_off(url, name):
    with browser.page(1280, 800) as tab:
        lab.open_notebook(tab, url, name)
        lab.run_all(tab)
        assert lab.faults(tab) == []
        assert tab.locator(".jp-OutputArea-output").count() > 0
        for width, height in ((1280, 800), (1920, 1080)):
            tab.set_viewport_size({"width": width, "height": height})
            tab.wait_for_timeout(500)
            assert lab.too_wide(tab) == [], f"at {width}x{height}"
