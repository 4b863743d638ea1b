"""A FigureWidget without the seconds that its first import may cost."""

from __future__ import annotations

import sys
from functools import lru_cache

import plotly.graph_objects as go


def figure_widget(fig: go.Figure) -> go.FigureWidget:
    """``fig`` as a FigureWidget that fills its cell, without plotly's tool bar.

    FigureWidget imports nbformat and so jsonschema, which builds 39 grammars to check international web addresses
    where ``rfc3987_syntax`` is installed, as it is with JupyterLab: 3 s. jsonschema does without where it is missing.
    """
    name, hidden = "rfc3987_syntax", "rfc3987_syntax" not in sys.modules
    if hidden:
        sys.modules[name] = None
    try:
        widget = _complete()(fig)
    finally:
        if hidden:
            del sys.modules[name]
    widget._config = {**widget._config, "displayModeBar": False, "responsive": True}
    return widget


@lru_cache
def _complete() -> type:
    """FigureWidget whose first message to the browser holds the whole figure.

    plotly's own opens empty and sends data and layout as updates. anywidget lets updates wait until it has loaded
    plotly's 5 MB script, and then draws before they are in: on a busy machine the picture stays empty.
    """

    class CompleteFigureWidget(go.FigureWidget):
        def __init__(self, *args, **kwargs):
            self._filled = False
            super().__init__(*args, **kwargs)
            self._filled = True
            self.open()

        def open(self):
            if self._filled:
                super().open()

    return CompleteFigureWidget
