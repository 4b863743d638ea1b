"""One colour per owner in every figure: Okabe-Ito, which stays apart for colour-blind readers.

Colour never stands alone: each owner also has a letter, and padding and the pad slot are striped.
"""

from __future__ import annotations

from ..debug.ranges import FIELD_NAMES

BLACK = "#000000"
GREY = "#8a8a8a"
WHITE = "#ffffff"

# Fields own bytes; the same field has the same hue everywhere.
FIELDS = {"k": "#0072B2", "v": "#E69F00", "k_scale": "#009E73", "v_scale": "#CC79A7"}
LETTERS = {"k": "K", "v": "V", "k_scale": "Ks", "v_scale": "Vs"}
NAMES = FIELD_NAMES

# Neither hue is a field's, so a stripe is never read as data.
PAD_SLOT = (GREY, "#4d4d4d")
PADDING = (WHITE, "#cfcfcf")

# What a commit did to a byte. No field uses these hues.
STATES = {
    "written": "#56B4E9",
    "missing": "#F0E442",
    "unexpected": "#D55E00",
    "wrong": "#000000",
    "untouched": "#eeeeee",
}
STATE_LETTERS = {"written": "W", "missing": "M", "unexpected": "U", "wrong": "X", "untouched": "·"}

# Rounding modes and layouts own no bytes: hues and greys that no field and no state uses, each with a pattern.
MODES = {"rceil": ("#332288", "", "circle"), "floor": ("#882255", "/", "square"), "even": ("#999933", ".", "diamond")}
LAYOUTS = (("#3a3a3a", ""), ("#8a8a8a", "/"), ("#c4c4c4", "x"), ("#5f5f5f", "."), ("#a8a8a8", "+"))

MARK = "#D55E00"  # outlines of what changed or was selected

# Layers of one field differ in lightness, in a cycle of four: more steps cannot be told apart beside each other.
LAYER_SHADES = (0.0, 0.26, 0.46, 0.62)
ODD_PAGE = 0.16  # odd pages are this much darker, so that a page border shows inside one layer


def mix(color: str, other: str, share: float) -> str:
    """``color`` with ``share`` (0 … 1) of ``other`` in it, both ``#rrggbb``."""
    a, b = rgb(color), rgb(other)
    return "#" + "".join(f"{round(x + (y - x) * share):02x}" for x, y in zip(a, b, strict=True))


def rgb(color: str) -> tuple[int, int, int]:
    """``#rrggbb`` as three numbers, 0 … 255."""
    return tuple(int(color[i : i + 2], 16) for i in (1, 3, 5))


def owner_color(field: str, layer: int = 0, page: int = 0) -> str:
    """The colour of a field's bytes in one layer and page."""
    shade = mix(FIELDS[field], WHITE, LAYER_SHADES[layer % len(LAYER_SHADES)])
    return mix(shade, BLACK, ODD_PAGE) if page % 2 else shade


# matplotlib's cividis at 17 evenly spaced points; :func:`cividis` fills in between.
_CIVIDIS = (
    *("#00224e", "#002e6c", "#1b3b6d", "#31476b", "#434e6c", "#54586d", "#62646f", "#707173", "#7d7c78"),
    *("#8c8878", "#9c9576", "#aca172", "#bcad6c", "#cdba62", "#dfc955", "#f0d642", "#fee838"),
)


def cividis(levels: int) -> list[str]:
    """``levels`` colours for values from low to high; lightness rises throughout, so grey prints keep the order."""
    colors, last = [], len(_CIVIDIS) - 1
    for i in range(levels):
        at = i * last / (levels - 1)
        low = min(int(at), last - 1)
        colors.append(mix(_CIVIDIS[low], _CIVIDIS[low + 1], at - low))
    return colors
