"""Host copies: rows out of a pool and back, scales and all, into the same layout or another."""

import pickle

import pytest
import torch

import kvlab

from .helpers import BUILDERS, DEVICE, POISON, assert_same_bytes, one_launch, saved, slots
from .moving_helpers import FLAT, FORMATS, TILED, bytes_of, content, layout_of, moved, pool_with


def launches(path: str, count: int):
    return one_launch(count if path == "kernel" else 0)


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("builder", BUILDERS)
def test_out_and_back(builder, kind, path):
    """Rows leave, the pool is overwritten, and they return into other slots; every other byte is untouched."""
    layout = layout_of(builder, FORMATS[kind])
    dense, other = content(layout, 1), content(layout, 5)
    pool = pool_with(layout, dense)
    out, back = slots([5, 30, 31, 0, 12, 13, 14, 15]), slots([7, 20, 21, 3, 0, -1, 8, 9])
    with launches(path, 1):
        copied = pool.get_cpu_copy(out)
    assert_same_bytes(pool, bytes_of(layout, dense), "the pool it came from")
    for name, x in bytes_of(layout, other).items():
        pool.buffers[name].copy_(x)
    copied.wait()
    with launches(path, 1):
        pool.load_cpu_copy(copied, back)
    assert_same_bytes(pool, bytes_of(layout, moved(dense, out, other, back)))


@pytest.mark.parametrize("fmt", [FLAT, TILED], ids=["flat", "tiled"])
@pytest.mark.parametrize("builder", BUILDERS)
def test_dequantised_rows_are_the_same(builder, fmt, path):
    """An offload that lost the scales took a served model's accuracy down to 0.12."""
    g = kvlab.Geometry(layers=2, heads=2, head_dim=64, page_size=128, pages=2)
    pool = kvlab.KVPool(BUILDERS[builder](g, fmt), device=DEVICE)
    out, back = slots([5, 130, 131]), slots([7, 200, 201])
    rows = torch.randn(2, 3, 2, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE) * torch.tensor(
        [1e-3, 1.0, 1e3], device=DEVICE
    ).view(1, 3, 1, 1)
    pool.commit(out, rows, -rows)
    before = pool.gather(out)
    copied = pool.get_cpu_copy(out)
    for buffer in pool.buffers.values():
        buffer.fill_(POISON)
    pool.load_cpu_copy(copied, back)
    for x, y in zip(before, pool.gather(back), strict=True):
        assert (x != 0).any() and torch.equal(x, y)


@pytest.mark.parametrize("kind", FORMATS)
def test_compact_and_self_describing(kind):
    layout = layout_of("page_major", FORMATS[kind])
    pool = kvlab.KVPool(layout)
    copied = pool.get_cpu_copy(slots([5, 9, 6]))
    g, has = layout.geometry, copied.layout.geometry
    assert (copied.rows, copied.format) == (3, layout.format)
    assert (has.layers, has.heads, has.head_dim, has.v_head_dim) == (g.layers, g.heads, g.head_dim, g.v_head_dim)
    token = sum(pool.get_kv_size_bytes()) // g.slots
    assert copied.nbytes == 4 * token, "three rows and the sink, nothing else"
    assert all(b.device.type == "cpu" for b in copied.buffers.values())
    assert kvlab.Layout.from_dict(copied.layout.to_dict()) == copied.layout
    again = pickle.loads(pickle.dumps(copied))
    pool.load_cpu_copy(again, slots([1, 2, 3]))


@pytest.mark.parametrize("fmt", [FLAT, TILED], ids=["flat", "tiled"])
def test_size_of_a_token_counts_its_scales(fmt):
    layout = layout_of("page_major", fmt, head_dim=64, v_head_dim=96)
    g = layout.geometry
    k, v = kvlab.KVPool(layout).get_kv_size_bytes()
    assert k == g.layers * g.slots * g.heads * (64 + 64 // 32)
    assert v == g.layers * g.slots * g.heads * (96 + 96 // 32)


def test_it_is_a_copy():
    """Written by nothing that happens to the pool later."""
    layout = layout_of("token_major", torch.bfloat16)
    pool = pool_with(layout, content(layout))
    copied = pool.get_cpu_copy(slots([5, 6]))
    copied.wait()
    before = {n: b.clone() for n, b in copied.buffers.items()}
    for buffer in pool.buffers.values():
        buffer.fill_(POISON)
    assert all(torch.equal(before[n], copied.buffers[n]) for n in before)


@pytest.mark.parametrize("kind", FORMATS)
def test_into_another_layout(kind, path):
    a = layout_of("page_major", FORMATS[kind])
    page = a.geometry.page_size * 2
    b = layout_of("head_major", FORMATS[kind], page, 3, heads=a.geometry.heads)
    dense, other = content(a, 1), content(b, 3)
    out, back = slots([4, 5, 6, 7, 9]), slots([8, 9, 10, 11, 2])
    target = pool_with(b, other)
    target.load_cpu_copy(pool_with(a, dense).get_cpu_copy(out), back)
    assert_same_bytes(target, bytes_of(b, moved(dense, out, other, back)))


def test_nothing():
    pool = kvlab.KVPool(layout_of("page_major", FLAT))
    copied = pool.get_cpu_copy(slots([]))
    pool.load_cpu_copy(copied, slots([]))
    assert copied.rows == 0


REFUSED = [
    ({"layers": 3}, "layers: 2 and 3"),
    ({"heads": 6}, "heads: 2 and 6"),
    ({"head_dim": 96}, "head_dim: 64 and 96"),
    ({"v_head_dim": 64}, "v_head_dim: 32 and 64"),
    ({"fmt": torch.float8_e4m3fn}, r"format: mxfp8\(flat, rceil\) and float8_e4m3fn"),
    ({"fmt": TILED}, r"format: mxfp8\(flat scales\) and mxfp8\(interleaved scales\)"),
]


@pytest.mark.parametrize("sizes, words", REFUSED, ids=[w for _, w in REFUSED])
def test_a_pool_that_does_not_match(sizes, words, path):
    sizes = {"fmt": FLAT, "heads": 2, **sizes}
    copied = kvlab.KVPool(layout_of("page_major", FLAT, heads=2)).get_cpu_copy(slots([3, 4]))
    layout = layout_of("page_major", page_size=128, pages=2, **sizes)
    pool = pool_with(layout, content(layout))
    before = saved(pool)
    with pytest.raises(ValueError, match=f"copy and pool differ in {words}"):
        pool.load_cpu_copy(copied, slots([5, 6]))
    assert_same_bytes(pool, before)


def test_flat_scales_are_not_taken_for_tiles():
    """Both have as many bytes."""
    copied = kvlab.KVPool(layout_of("page_major", TILED)).get_cpu_copy(slots([3]))
    with pytest.raises(ValueError, match=r"interleaved scales\) and mxfp8\(flat scales"):
        kvlab.KVPool(layout_of("page_major", FLAT, heads=2)).load_cpu_copy(copied, slots([3]))


BAD = {
    "too few slots": ([5], ValueError, "indices has 1 slots, copy has 2 rows"),
    "duplicate": ([5, 5], ValueError, "indices: slot 5 is given twice, by rows 0 and 1"),
    "beyond": ([5, 32], IndexError, r"indices\[1\]=32 is outside the pool's slots 0 … 31"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_slots(case, path):
    layout = layout_of("page_major", FLAT)
    pool = pool_with(layout, content(layout))
    copied, before = pool.get_cpu_copy(slots([3, 4])), saved(pool)
    indices, error, words = BAD[case]
    with pytest.raises(error, match=words):
        pool.load_cpu_copy(copied, slots(indices))
    assert_same_bytes(pool, before)
    for outside in (32, -1):
        with pytest.raises(IndexError, match=rf"indices\[1\]={outside} is outside the pool's slots 0 … 31"):
            pool.get_cpu_copy(slots([3, outside]))
    with pytest.raises(TypeError, match="must come from get_cpu_copy"):
        pool.load_cpu_copy({"k": torch.zeros(3)}, slots([3]))


@pytest.mark.gpu
@pytest.mark.skipif(DEVICE.type != "cuda", reason="needs a GPU")
def test_pinned_and_asynchronous():
    pool = kvlab.KVPool(layout_of("page_major", FLAT))
    copied = pool.get_cpu_copy(slots([3, 4]))
    assert copied.event is not None and all(b.is_pinned() for b in copied.buffers.values())
    copied.wait()
    assert copied.event.query()
