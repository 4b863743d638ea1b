"""What every widget shares: a JSON state, the code that reproduces it, and errors shown in place."""

from __future__ import annotations

import html
import json
import traceback
from contextlib import contextmanager
from typing import ClassVar

import ipywidgets as ipw

from .copybox import CopyBox

STYLE = {"description_width": "110px"}


class Explorer(ipw.VBox):
    """A widget with a state that can be saved, restored and turned into code.

    A subclass sets ``DEFAULTS`` (the state of a fresh widget, JSON-ready), builds its controls in ``_build`` (which
    returns the children), reads them in ``_read`` (returns a state) and writes them in ``_write(state)``, redraws
    in ``_draw``, and gives the lines that reproduce the shown state in ``python``.
    """

    DEFAULTS: ClassVar[dict] = {}

    def __init__(self, state: dict | str | None = None):
        """``state``: a dict or its JSON text, from :meth:`to_json`; what it leaves out keeps its default."""
        super().__init__()
        given = json.loads(state) if isinstance(state, str) else dict(state or {})
        unknown = sorted(set(given) - set(self.DEFAULTS))
        if unknown:
            raise ValueError(f"state: {unknown[0]!r} is not one of {sorted(self.DEFAULTS)}")
        self._busy = False
        self.error = ipw.HTML()
        self.error.add_class("kvlab-error")
        self.copybox = CopyBox()
        children = list(self._build())
        self.children = [*children, self.error, self.copybox]
        self.set_state({**self.DEFAULTS, **given})

    @property
    def state(self) -> dict:
        """What is shown, JSON-ready."""
        return self._read()

    def set_state(self, state: dict) -> None:
        """Show ``state``: all controls move, then one redraw."""
        with self._quiet():
            self._write(state)
        self.refresh()

    def to_json(self) -> str:
        """The state as JSON text: ``type(self)(text)`` builds this widget again."""
        return json.dumps(self.state)

    def python(self) -> str:
        """The few lines that reproduce the shown state without a widget."""
        raise NotImplementedError

    def pytest(self) -> str:
        """The same lines as a test that can fail."""
        raise NotImplementedError

    def refresh(self, _change=None) -> None:
        """Redraw from the controls. An error of the library is shown in its own words, the last picture stays."""
        if self._busy:
            return
        with self._quiet():
            try:
                self._draw()
                self.error.value = ""
            except (ValueError, IndexError, TypeError, KeyError) as error:
                words = html.escape(str(error).strip("'\""))
                self.error.value = f"<div class='kvlab-error-text'><b>{type(error).__name__}</b>: {words}</div>"
            except Exception:
                # a fault of the widget itself: without this a callback fails silently
                self.error.value = f"<pre>{html.escape(traceback.format_exc())}</pre>"
        self.copybox.set(self._codes)

    def _codes(self) -> dict[str, str]:
        return {"Python": self.python(), "pytest": self.pytest(), "state (JSON)": self.to_json()}

    def watch(self, *controls) -> None:
        """Redraw when one of the controls changes its value."""
        for control in controls:
            control.observe(self.refresh, names="value")

    @contextmanager
    def _quiet(self):
        """Controls that move inside start no redraw of their own."""
        before, self._busy = self._busy, True
        try:
            yield
        finally:
            self._busy = before


def with_first(state: dict | str | None, layouts: dict | None) -> dict:
    """A state that shows the first of the user's own ``layouts``, unless it names another."""
    state = json.loads(state) if isinstance(state, str) else dict(state or {})
    return {"layout": next(iter(layouts)), **state} if layouts else state
