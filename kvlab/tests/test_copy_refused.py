"""Bad input to copy and move: an error that names it, and no byte moved."""

import pytest
import torch

import kvlab

from .helpers import DEVICE, assert_same_bytes, saved, slots
from .moving_helpers import FLAT, TILED, content, layout_of, pool_with

BAD_ROWS = {
    "lengths": ([3, 4], [5], ValueError, "src_loc has 2 slots, dst_loc has 1"),
    "duplicate": ([3, 4, 5], [9, 8, 9], ValueError, r"dst_loc: slot 9 is given twice, by rows 0 and 2"),
    "source beyond": ([3, 32], [5, 6], IndexError, r"src_loc\[1\]=32 is outside the pool's slots 0 … 31"),
    "source below": ([-1, 3], [5, 6], IndexError, r"src_loc\[0\]=-1 is outside the pool's slots 0 … 31"),
    "target beyond": ([3, 4], [5, 40], IndexError, r"dst_loc\[1\]=40 is outside the pool's slots 0 … 39"),
}


def both(builder, fmt=torch.bfloat16, **sizes):
    return layout_of(builder, fmt), layout_of("token_major", fmt, page_size=5, **sizes)


@pytest.mark.parametrize("case", BAD_ROWS)
@pytest.mark.parametrize("fmt", [torch.bfloat16, FLAT], ids=["bf16", "flat"])
@pytest.mark.parametrize("builder", ["token_major", "page_major", "head_major"])
def test_rows(builder, fmt, case, path):
    source_loc, target_loc, error, words = BAD_ROWS[case]
    a, b = (pool_with(x, content(x)) for x in both(builder, fmt))
    before = saved(a), saved(b)
    with pytest.raises(error, match=words):
        kvlab.copy(a, slots(source_loc), b, slots(target_loc))
    assert_same_bytes(a, before[0])
    assert_same_bytes(b, before[1])


@pytest.mark.parametrize("case", BAD_ROWS)
def test_rows_of_a_move(case, path):
    source_loc, target_loc, error, words = BAD_ROWS[case]
    layout = layout_of("page_major", FLAT, pages=10 if case == "target beyond" else 8)
    pool = pool_with(layout, content(layout))
    before = saved(pool)
    words = words.replace("dst_loc", "tgt_loc")
    with pytest.raises(error, match=words):
        pool.move_kv_cache(slots(target_loc), slots(source_loc))
    assert_same_bytes(pool, before)


def test_padding_and_unwritten_rows_may_hold_anything(path):
    a, b = (pool_with(x, content(x)) for x in both("page_major"))
    before = saved(b)
    kvlab.copy(a, slots([-7, 99, 3]), b, slots([0, -1, -(2**40)]))
    assert_same_bytes(b, before)


@pytest.mark.parametrize(
    "sizes, words",
    [
        ({"layers": 3}, "layers: 2 and 3"),
        ({"heads": 6}, "heads: 3 and 6"),
        ({"head_dim": 96}, "head_dim: 64 and 96"),
        ({"v_head_dim": 64}, "v_head_dim: 32 and 64"),
        ({"fmt": torch.float16}, "format: bfloat16 and float16"),
        ({"fmt": FLAT}, r"format: bfloat16 and mxfp8\(flat"),
    ],
)
def test_pools_that_do_not_fit(sizes, words):
    sizes = {"fmt": torch.bfloat16, **sizes}
    a, b = layout_of("page_major", torch.bfloat16), layout_of("page_major", **sizes)
    a, b = (pool_with(x, content(x)) for x in (a, b))
    before = saved(b)
    with pytest.raises(ValueError, match=f"src and dst differ in {words}"):
        kvlab.copy(a, slots([3]), b, slots([4]))
    assert_same_bytes(b, before)


def test_e4m3_without_scales_is_not_mxfp8():
    """Both hold E4M3 bytes of the same size; one of them means nothing without its scales."""
    a, b = (kvlab.KVPool(layout_of("page_major", f, heads=2)) for f in (torch.float8_e4m3fn, TILED))
    with pytest.raises(ValueError, match="format: float8_e4m3fn and mxfp8"):
        kvlab.copy(a, slots([3]), b, slots([4]))


def test_rounding_is_no_difference():
    """It says how the bytes were made, and not what they mean."""
    a, b = (layout_of("page_major", kvlab.MXFP8("flat", r)) for r in ("rceil", "floor"))
    dense = content(a)
    a, b = pool_with(a, dense), pool_with(b, dense)
    kvlab.copy(a, slots([3]), b, slots([4]))
    assert torch.equal(b.gather_scales(slots([4]))[0], dense["k_scale"][:, [3]])


def test_other_devices_and_types():
    layout = layout_of("page_major", torch.bfloat16)
    pool, meta = kvlab.KVPool(layout), kvlab.KVPool(layout, device="meta")
    with pytest.raises(ValueError, match="dst is on meta; use get_cpu_copy"):
        kvlab.copy(pool, slots([3]), meta, slots([4]))
    with pytest.raises(ValueError, match="src_loc is on meta"):
        kvlab.copy(pool, torch.empty(1, dtype=torch.int64, device="meta"), pool, slots([4]))
    with pytest.raises(TypeError, match="src_loc must be an int32 or int64 tensor"):
        kvlab.copy(pool, [3], pool, slots([4]))
    with pytest.raises(TypeError, match=r"dst_loc is torch.float32"):
        kvlab.copy(pool, slots([3]), pool, torch.ones(1, device=DEVICE))
