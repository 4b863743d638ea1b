"""The scale bytes of a committed page as two maps: one head's tile, and the page's flat bytes."""

from __future__ import annotations

import numpy as np

from ..figures import palette
from ..formats import BLOCK, E8M0_BIAS, E8M0_NAN
from .byte_map import ByteMap
from .scale_page import FIRST, PAGE, Block, ScalePage, layout_of

LANES, LANE = 32, 16  # a tile is 32 lanes of 16 bytes
FLAT_LINES = 16  # the flat bytes of the page are drawn in as many lines, 8 tokens each
OTHER_HEAD = "#c9c9c9"
NAN = palette.mix(palette.MARK, palette.WHITE, 0.5)
_NOBODY, _OTHER, _NAN = 4, 5, 6  # codes after the four shades
_SHADES = (0.78, 0.6, 0.42, 0.24)  # one for 32 rows each; pale enough for black numbers


def tile_map() -> ByteMap:
    """An empty map of a tile."""
    return ByteMap(
        title="The head's 32x4x4 tile: 32 lanes of 16 bytes",
        columns=LANE,
        heads=[[f"rows {r}…{r + 31}", 4] for r in range(0, PAGE, 32)],
        feet=[[f"c{c}", 1] for c in range(4)] * 4,
        labels=[f"lane {lane}" if lane % 4 == 0 else "" for lane in range(LANES)],
        legend=[["", "selected"], [palette.PADDING[0], "–: padding   ·: no token"]],
        skip=_NOBODY,
    )


def flat_map() -> ByteMap:
    """An empty map of the page's flat scales."""
    columns = flat_line("k")
    return ByteMap(
        title="The same scales flat: token after token, all heads",
        columns=columns,
        height=7,
        feet=[[f"token +{i}", columns // 8] for i in range(8)],
        labels=["", "row 0", "", "", "", "row 32", "", "", "", "row 64", "", "", "", "row 96", "", ""],
        legend=[["", "selected"], [OTHER_HEAD, "other heads"], [NAN, "NaN: scale byte 255"]],
        skip=_NOBODY,
    )


def tile_byte(block: Block) -> int:
    """Byte of a scale within its head's tile, 0 … 511."""
    return block.buffer_byte % (LANES * LANE)


def flat_byte(field: str, block: Block) -> int:
    """Byte of a scale within the page's flat scales."""
    return block.flat_byte - flat_start(field)


def tile_start(field: str, head: int) -> int:
    """Byte of the scale buffer where one head's tile of page 1 begins."""
    return int(layout_of("interleaved").locate(f"{field}_scale", 0, FIRST, head, 0)[1])


def flat_start(field: str) -> int:
    """Byte of the flat scale buffer where page 1 begins."""
    return int(layout_of("flat").locate(f"{field}_scale", 0, FIRST)[1])


def flat_line(field: str) -> int:
    """Bytes of one line of the flat map: 8 tokens, all heads."""
    g = layout_of("flat").geometry
    return PAGE // FLAT_LINES * g.heads * (g.dim(field) // BLOCK)


def show_tile(tile: ByteMap, page: ScalePage, field: str, head: int) -> None:
    """Fill the map with one head's 512 bytes, read through the view that a kernel gets."""
    at = np.arange(LANES * LANE)
    owners = layout_of("interleaved").explain(f"{field}_scale", tile_start(field, head) + at)
    stored = page.tile(field, head).reshape(-1)
    codes, words = _cells(page, owners, stored, head, "tile byte {}")
    texts = np.where(stored == E8M0_NAN, "NaN", stored.astype(str)).astype(object)
    texts[codes == _NOBODY] = "·"
    texts[owners.field < 0] = "–"
    tile.show(colors(field), codes.tolist(), texts.tolist(), words)


def show_flat(flat: ByteMap, page: ScalePage, field: str, head: int) -> None:
    """Fill the map with the page's flat bytes: the tile pool's own, in flat order."""
    at = np.arange(FLAT_LINES * flat_line(field))
    owners = layout_of("flat").explain(f"{field}_scale", flat_start(field) + at)
    _, place = page.pool.layout.locate(f"{field}_scale", 0, owners.slot, owners.head, owners.dim)
    stored = page.pool.buffers[f"{field}_scale"].cpu().numpy()[place]
    codes, words = _cells(page, owners, stored, head, "flat byte {}")
    flat.show(colors(field), codes.tolist(), [], words)


def colors(field: str) -> list[str]:
    """The colours of both maps, one for each code."""
    shades = [palette.mix(palette.FIELDS[f"{field}_scale"], palette.WHITE, s) for s in _SHADES]
    return [*shades, palette.PADDING[0], OTHER_HEAD, NAN]


def _cells(page: ScalePage, owners, stored, head: int, place: str) -> tuple[np.ndarray, list[str]]:
    """Code and words of each byte."""
    row = owners.slot - FIRST
    used = (owners.field >= 0) & (row < len(page.tokens))
    codes = np.where(used, row // 32, _NOBODY)
    codes[used & (stored == E8M0_NAN)] = _NAN
    codes[used & (owners.head != head)] = _OTHER
    words = []
    for i, e in enumerate(stored.tolist()):
        here = place.format(i)
        if owners.field[i] < 0:
            words.append(f"{here}: padding, no block's scale")
        elif not used[i]:
            words.append(f"{here}: row {row[i]} has no token")
        else:
            value = "NaN" if e == E8M0_NAN else f"2^{e - E8M0_BIAS}"
            words.append(f"{here}: row {row[i]} head {owners.head[i]} block {owners.dim[i]}, {e} = {value}")
    return codes, words
