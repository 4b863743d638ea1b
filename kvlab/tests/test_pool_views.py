"""A new pool, and the zero-copy views under the names of engines."""

import pytest
import torch

import kvlab

from .helpers import BUILDERS, PLAIN, assert_same_bytes, bits, geometry, poisoned, randomised, raw_rows, rows_of, saved

G = geometry(heads=3, v_head_dim=40)
each_builder = pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
each_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=str)
SHAPES = {"token_major": (64, 3), "page_major": (16, 4, 3), "head_major": (16, 3, 4)}


@each_builder
@each_dtype
def test_a_new_pool_is_zeros(builder, dtype):
    layout = builder(G, dtype)
    pool = kvlab.KVPool(layout)
    assert pool.layout is layout
    assert {n: b.numel() for n, b in pool.buffers.items()} == layout.buffers
    for buffer in pool.buffers.values():
        assert buffer.dtype == torch.uint8 and buffer.dim() == 1 and not buffer.any()
    rows = 2 * 64 * 3 * dtype.itemsize
    assert layout.nbytes == rows * (64 + 40)
    assert pool.get_kv_size_bytes() == (rows * 64, rows * 40)


@each_builder
@each_dtype
def test_views_are_the_pool_itself(builder, dtype):
    pool = randomised(builder(G, dtype))
    name = pool.layout.name
    for layer in range(G.layers):
        k, v = pool.get_kv_buffer(layer)
        for field, view, dim in (("k", k, 64), ("v", v, 40)):
            assert view.shape == (*SHAPES[name], dim) and view.dtype == dtype
            want = rows_of(pool, field, layer)  # (pages, page_size, heads, dim)
            by_row = view.transpose(1, 2) if name == "head_major" else view
            by_row = by_row.reshape(want.shape) if name == "token_major" else by_row
            assert torch.equal(bits(by_row), bits(want))
            assert view.is_contiguous() == (name != "page_major")
            buffer = pool.buffers["raw" if name == "page_major" else field]
            assert view.untyped_storage().data_ptr() == buffer.data_ptr()
        assert bits(pool.get_key_buffer(layer)).equal(bits(k)) and bits(pool.get_value_buffer(layer)).equal(bits(v))


@each_builder
def test_a_write_through_a_view_is_found_by_locate(builder):
    pool = poisoned(builder(G, torch.bfloat16))
    value = raw_rows((1,), torch.bfloat16)
    at = {"token_major": (21, 2, 7), "page_major": (5, 1, 2, 7), "head_major": (5, 2, 1, 7)}[pool.layout.name]
    pool.get_value_buffer(1)[at] = value[0]
    buffer, byte = pool.layout.locate("v", 1, 21, 2, 7)
    assert torch.equal(pool.buffers[buffer][byte : byte + 2], value.view(torch.uint8))
    changed = sum(int((b != 0xA5).sum()) for b in pool.buffers.values())
    assert changed == 2


def test_page_major_views_have_the_strides_of_the_envelope():
    view = kvlab.KVPool(kvlab.page_major(G, torch.bfloat16)).get_value_buffer(1)
    layer = 4 * 3 * (64 + 40)
    assert view.stride() == (2 * layer, 3 * 40, 40, 1)
    assert view.storage_offset() == layer + 4 * 3 * 64


def test_layers_by_object_and_by_number():
    pool = randomised(kvlab.token_major(G, torch.bfloat16))
    layer = type("RadixAttention", (), {"layer_id": 1})()
    assert pool.get_key_buffer(layer).data_ptr() == pool.get_key_buffer(1).data_ptr()
    for bad in (2, -1):
        with pytest.raises(IndexError, match=f"layer={bad} is outside 0 … 1"):
            pool.get_value_buffer(bad)
    with pytest.raises(TypeError, match="'k'"):
        pool.get_key_buffer("k")


def test_repr_says_what_it_is():
    text = repr(kvlab.KVPool(kvlab.page_major(G, torch.float8_e5m2)))
    assert "page_major" in text and "float8_e5m2" in text


def test_a_wrong_byte_is_reported_by_its_owner():
    """The comparison that all of these tests lean on does see one byte, and says whose it is."""
    pool = randomised(kvlab.head_major(G, torch.bfloat16))
    want = saved(pool)
    assert_same_bytes(pool, want)
    _, byte = pool.layout.locate("v", 1, 21, 2, 7)
    pool.buffers["v"][byte + 1] ^= 0x40
    with pytest.raises(
        AssertionError, match=r"1 wrong bytes .*layer=1, slot=21, page=5, offset=1, head=2, dim=7, byte=1"
    ):
        assert_same_bytes(pool, want)
