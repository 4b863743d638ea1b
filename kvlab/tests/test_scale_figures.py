"""Figures about scales: how often each byte occurs, two formulas for a tile, and scales that are not a row's own."""

import numpy as np
import pytest

pytest.importorskip("plotly", reason="plotly is not installed")

from kvlab import figures


def test_scale_counts():
    fig = figures.scale_counts({"k": np.array([[120, 121], [121, 121]], np.uint8), "v": np.array([118, 255], np.uint8)})
    words = figures.text(fig)
    assert "byte 121: K 3, V 0" in words and "byte 255: K 0, V 1" in words and "118 … 255" in words
    assert [t.name for t in fig.data] == ["K scale: 4 blocks", "V scale: 2 blocks"]
    assert list(fig.data[0].x) == list(range(118, 256)) and sum(fig.data[0].y) == 4


@pytest.mark.parametrize("columns, same", [(2, 2), (4, 512), (8, 8)])
def test_the_general_formula_is_the_tile_for_four_columns_only(columns, same):
    tile, general = figures.tile_offsets(columns), figures.general_offsets(columns)
    row, column = np.indices(tile.shape)
    assert np.array_equal(tile, column // 4 * 512 + row % 32 * 16 + row // 32 * 4 + column % 4)
    assert int((tile == general).sum()) == same
    for offsets in (tile, general):
        assert len(np.unique(offsets)) == offsets.size  # two scales never share a byte


@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_scale_formulas(head_dim):
    fig = figures.scale_formulas(head_dim)
    columns = head_dim // 32
    for trace, offsets in zip(
        fig.data, (figures.tile_offsets(columns), figures.general_offsets(columns)), strict=False
    ):
        shown = np.array(trace.hovertext, object).reshape(-1)
        for row, column in [(0, 0), (1, 0), (33, 1)]:
            if offsets[row, column] < 512:
                assert shown[offsets[row, column]] == f"{row}.{column}"
        assert (shown == "–").sum() == max(512 - offsets.size, 0)
    assert f"of {128 * columns} scales lie at the same byte" in figures.text(fig)


def test_scale_shift():
    needed = np.array([[[120, 121]], [[119, 119]]], np.uint8)
    stale = np.array([[[120, 118]], [[124, 255]]], np.uint8)
    fig = figures.scale_shift(needed, {"right": needed, "wrong": stale}, ["b0 row 0", "b0 row 1"])
    assert [list(map(list, t.text)) for t in fig.data[:2]] == [[["0", "0"]] * 2, [["0", "-3"], ["+5", "NaN"]]]
    assert "right: 0 of 4 blocks wrong; wrong: 3 of 4 blocks wrong" in figures.text(fig)
    assert fig.layout.yaxis.ticktext == ("b0 row 0", "b0 row 1")
