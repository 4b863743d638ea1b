"""The boxes of the layout explorer, and which values are legal in them."""

from __future__ import annotations

import ipywidgets as ipw

from ..figures import palette
from ..formats import MXFP8, PLAIN, format_name

SIZES = ("layers", "heads", "head_dim", "v_head_dim", "page_size", "pages")
CELL = ("layer", "slot", "head", "dim")
FORMATS = [*PLAIN, format_name(MXFP8("flat")), format_name(MXFP8("interleaved"))]
_PAGE_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_TILE_PAGES = (128, 256, 512)  # interleaved scales: whole 128x4 tiles


def page_sizes(fmt: str) -> tuple[int, ...]:
    """The page sizes to choose from in a format."""
    return _TILE_PAGES if "interleaved" in fmt else _PAGE_SIZES


class LayoutControls(ipw.VBox):
    """``pool``: boxes by name that make another pool; ``cell``, ``buffer`` and ``byte`` move the selection."""

    def __init__(self, layouts):
        self.pool = {"layout": _choice(layouts, "150px"), "format": _choice(FORMATS, "190px")}
        self.pool.update({name: _number() for name in SIZES})
        self.pool["page_size"] = _choice(page_sizes(FORMATS[0]), "82px")
        self.cell = {"field": _choice(palette.FIELDS, "92px"), **{name: _number() for name in CELL}}
        self.buffer, self.byte = _choice([""], "104px"), _number("110px")
        raw = [_labelled("buffer", self.buffer), _labelled("byte in the buffer", self.byte)]
        middle = ipw.HTML("<b style='font-size:18px'>&nbsp;⇄&nbsp;</b>")
        super().__init__(
            [
                _row("pool", [_labelled(name, box) for name, box in self.pool.items()]),
                _row("cell", [*(_labelled(name, box) for name, box in self.cell.items()), middle, *raw]),
            ]
        )

    def values(self) -> dict:
        """What all boxes say, the byte left out: it follows from the cell."""
        return {name: box.value for name, box in {**self.pool, **self.cell}.items()}

    def write(self, state: dict) -> None:
        """Set the boxes. ValueError where a name is not one of those to choose from."""
        legal = {"layout": list(self.pool["layout"].options), "format": FORMATS, "field": list(palette.FIELDS)}
        for name, choices in legal.items():
            if state[name] not in choices:
                raise ValueError(f"state: {name}={state[name]!r} is not one of {choices}")
        self.pool["page_size"].options = sorted({*page_sizes(state["format"]), state["page_size"]})
        self.cell["field"].options = list(palette.FIELDS)
        for name, box in {**self.pool, **self.cell}.items():
            box.value = state[name]

    def legal_page_size(self) -> None:
        """After another format: its page sizes, the one chosen kept where it may."""
        box = self.pool["page_size"]
        legal, value = page_sizes(self.pool["format"].value), box.value
        box.options = legal
        box.value = value if value in legal else legal[0]

    def offer(self, layout) -> None:
        """Offer this layout's fields and buffers; a scale field becomes its payload where there are no scales."""
        field = self.cell["field"]
        kept = field.value if field.value in layout.fields else field.value[0]
        field.options = list(layout.fields)
        field.value = kept
        self.buffer.options = list(layout.buffers)

    def clamp(self, layout) -> None:
        """Coordinates outside the pool go to its edge."""
        for name, size in layout.fields[self.cell["field"].value].extents.items():
            self.cell[name].value = min(max(self.cell[name].value, 0), size - 1)


def _labelled(name: str, box) -> ipw.VBox:
    label = ipw.HTML(f"<div style='font-size:12px;line-height:15px'>{name}</div>")
    return ipw.VBox([label, box], layout={"margin": "0 3px 0 0"})


def _row(name: str, children) -> ipw.HBox:
    head = ipw.HTML(f"<b>{name}</b>", layout={"width": "38px"})
    return ipw.HBox([head, *children], layout={"flex_flow": "row wrap", "align_items": "center"})


def _number(width: str = "78px") -> ipw.IntText:
    return ipw.IntText(layout={"width": width, "margin": "0"})


def _choice(options, width: str) -> ipw.Dropdown:
    return ipw.Dropdown(options=list(options), layout={"width": width, "margin": "0"})
