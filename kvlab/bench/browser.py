"""A headless chromium for pictures, timings and tests. Needs playwright and a chromium of the system."""

from __future__ import annotations

import shutil
from contextlib import contextmanager

FLAGS = [
    "--no-sandbox",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def missing() -> str | None:
    """Why no browser can be driven here, or None."""
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed: pip install -e '.[test]'"
    return None if _chromium() else "no chromium on the PATH: install it with your system's package manager"


@contextmanager
def page(width: int, height: int, scale: float = 1):
    """A fresh page of a fresh browser, ``width`` x ``height`` CSS pixels."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=_chromium(), args=FLAGS)
        try:
            yield browser.new_page(viewport={"width": width, "height": height}, device_scale_factor=scale)
        finally:
            browser.close()


def _chromium() -> str | None:
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)
