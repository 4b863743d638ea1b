"""Regions for byte transfers: a memmove of items, by pointer, moves whole pages between two equal pools."""

import ctypes

import pytest
import torch

import kvlab

from .helpers import BUILDERS, DEVICE, assert_same_bytes
from .moving_helpers import FLAT, FORMATS, bytes_of, content, layout_of, pool_with

MOVES = [(1, 2), (2, 1)]  # page of the source, page of the target


@pytest.mark.skipif(DEVICE.type != "cpu", reason="ctypes writes host memory only")
@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("builder", BUILDERS)
def test_items_are_pages(builder, kind):
    layout = layout_of(builder, FORMATS[kind])
    dense, want = content(layout, 1), content(layout, 5)
    a, b = pool_with(layout, dense), pool_with(layout, want)
    for source, target in zip(everything(a), everything(b), strict=True):
        assert source[1:] == target[1:]
        for p, q in MOVES:
            ctypes.memmove(target[0] + q * target[2], source[0] + p * source[2], source[2])
    size = layout.geometry.page_size
    for p, q in MOVES:
        for f in dense:
            want[f][:, q * size : (q + 1) * size] = dense[f][:, p * size : (p + 1) * size]
    assert_same_bytes(b, bytes_of(layout, want))
    assert_same_bytes(a, bytes_of(layout, dense))


def everything(pool) -> list[tuple[int, int, int]]:
    """``(pointer, length, item)`` of payload and scales."""
    infos = pool.get_contiguous_buf_infos(), pool.get_kv_scale_buf_infos()
    return [region for some in infos for region in zip(*some, strict=True)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("builder", BUILDERS)
def test_counts_and_lengths(builder, kind):
    layout = layout_of(builder, FORMATS[kind])
    g, pool = layout.geometry, kvlab.KVPool(layout)
    payload, scales = pool.get_contiguous_buf_infos(), pool.get_kv_scale_buf_infos()
    mx = isinstance(layout.format, kvlab.MXFP8)
    if builder == "page_major":  # one run for each page, its scales inside
        assert [len(x) for x in payload] == [1, 1, 1] and scales == ([], [], [])
        assert payload[0] == [pool.buffers["raw"].data_ptr()]
        assert payload[1] == [layout.nbytes] and payload[2] == [layout.nbytes // g.pages]
    else:
        assert len(payload[0]) == 2 * g.layers and len(scales[0]) == 2 * g.layers * mx
    owned = [(b.data_ptr(), b.data_ptr() + b.numel()) for b in pool.buffers.values()]
    for start, length, item in everything(pool):
        assert length == item * g.pages
        assert any(low <= start and start + length <= high for low, high in owned)
    assert sum(r[1] for r in everything(pool)) == layout.nbytes, "every byte of the pool belongs to one region"


def test_scales_travel_with_their_page():
    """Page-major: the same region whether a pool has scales or not, only longer."""
    plain, scaled = (kvlab.KVPool(layout_of("page_major", f)) for f in (torch.float8_e4m3fn, FLAT))
    assert scaled.get_contiguous_buf_infos()[2][0] > plain.get_contiguous_buf_infos()[2][0]


def test_pages_between_foreign_bytes_are_refused():
    """Heads 0 … 2 of 5: a byte copy of such pages would take other people's bytes along."""
    wide = torch.zeros(16, 4, 5, 64, dtype=torch.bfloat16, device=DEVICE)
    pool = kvlab.KVPool.adopt([wide[:, :, :3, :32]], [wide[:, :, :3, 32:]])
    with pytest.raises(ValueError, match=r"not the pool's; move its pages with kvlab.copy"):
        pool.get_contiguous_buf_infos()
