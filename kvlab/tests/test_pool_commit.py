"""commit: kernel, reference and a loop over rows write the same bytes into poison, and nothing else."""

import pytest
import torch

import kvlab

from .helpers import (
    BUILDERS,
    DEVICE,
    FP8,
    PLAIN,
    POISON,
    bits,
    check_commit,
    geometry,
    numbers,
    one_launch,
    poisoned,
    raw_rows,
    rows_for,
    rows_of,
    slots,
)

each_builder = pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
each_dtype = pytest.mark.parametrize("dtype", PLAIN, ids=str)
LOC = [9, 1, 63, 0, 30, -1, 31]  # pads 0 and -1, the last slot, neighbours inside and across pages


@each_builder
@each_dtype
@pytest.mark.parametrize("all_layers", [False, True], ids=["one layer", "all layers"])
def test_rows_land_in_their_slots(builder, dtype, all_layers):
    g = geometry(heads=3, v_head_dim=32)
    k, v = rows_for(g, len(LOC), dtype, layers=2 if all_layers else None)
    check_commit(builder(g, dtype), slots(LOC), k, v, layer=None if all_layers else 1)


@each_builder
@pytest.mark.parametrize(
    "head_dim, v_head_dim, heads",
    [(64, 64, 1), (72, 72, 6), (80, 96, 6), (96, 40, 3), (128, 128, 5), (192, 128, 4), (1, 3, 2), (5, 256, 1)],
)
def test_any_head_dim_and_any_number_of_heads(builder, head_dim, v_head_dim, heads):
    g = geometry(heads=heads, head_dim=head_dim, v_head_dim=v_head_dim)
    k, v = rows_for(g, 8, torch.bfloat16)
    loc = slots([[3, 7, 8, 9], [60, 61, 5, 6]], torch.int32)
    check_commit(builder(g, torch.bfloat16), loc, k, v, layer=0, commit_lens=slots([3, 2]))


@each_builder
def test_v_rows_narrower_than_k(builder):
    """Upstream raises where K and V rows differ; here V's row is 512 elements, its neighbours untouched."""
    g = geometry(heads=4, head_dim=192, v_head_dim=128)
    k, v = rows_for(g, 4, torch.bfloat16)
    pool = check_commit(
        builder(g, torch.bfloat16), slots([[20, 21], [40, 41]]), k, v, layer=1, commit_lens=slots([1, 1])
    )
    view = rows_of(pool, "v", 1)
    assert torch.equal(bits(view[5, 0]).reshape(-1), bits(v[0]).reshape(-1))
    assert view[5, 0].numel() == 512
    assert (bits(view[5, 1]).view(torch.uint8) == POISON).all()


@each_dtype
@pytest.mark.parametrize("source", PLAIN, ids=str)
def test_rows_of_another_dtype_are_rounded(dtype, source):
    g = geometry(heads=3, v_head_dim=32)
    k, v = rows_for(g, len(LOC), source, layers=2, make=numbers)
    builder = list(BUILDERS.values())[PLAIN.index(source) % 3]
    check_commit(builder(g, dtype), slots(LOC), k, v)


@pytest.mark.parametrize("scales", [(0.3, 0.011), (7, None), ("tensor", "tensor"), (None, "tensor")], ids=str)
@pytest.mark.parametrize("source", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("dtype", FP8, ids=str)
def test_fp8_rows_are_divided_by_their_scale(dtype, source, scales):
    g = geometry(v_head_dim=32)
    k, v = rows_for(g, len(LOC), source, make=numbers)
    k_scale, v_scale = (torch.tensor(0.37, device=DEVICE) if s == "tensor" else s for s in scales)
    check_commit(kvlab.page_major(g, dtype), slots(LOC), k, v, layer=1, k_scale=k_scale, v_scale=v_scale)


@pytest.mark.parametrize("scale_dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_scale_tensor_of_another_float_dtype(scale_dtype):
    g = geometry()
    k, v = rows_for(g, 3, torch.float32, make=numbers)
    scale = torch.tensor(0.37, dtype=scale_dtype, device=DEVICE)
    layout = kvlab.token_major(g, torch.float8_e4m3fn)
    check_commit(layout, slots([4, 5, 6]), k, v, layer=0, k_scale=scale, v_scale=scale)


def test_fp8_rows_that_are_fp8_already_are_not_divided_again():
    g = geometry()
    k, v = rows_for(g, 3, torch.float8_e4m3fn)
    layout = kvlab.token_major(g, torch.float8_e4m3fn)
    check_commit(layout, slots([4, 5, 6]), k, v, layer=0, k_scale=2.0, v_scale=2.0)


@pytest.mark.parametrize("dtype, largest", FP8.items(), ids=str)
@pytest.mark.parametrize("source", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_overflow_saturates(path, dtype, largest, source):
    """1000.0 is 448 in an E4M3 pool, never NaN; and neither is an infinity."""
    pool = kvlab.KVPool(kvlab.token_major(geometry(head_dim=4), dtype))
    values = torch.tensor([1000.0, float("inf"), float("-inf"), float("nan")], device=DEVICE).to(source)
    k = values.expand(1, 2, 4)
    pool.commit(slots([5]), k, -k, layer=0, k_scale=0.001, v_scale=0.001)
    stored, negated = (x[0, 0].float() for x in pool.gather(slots([5]), layer=0))
    assert stored[:3].tolist() == [largest, largest, -largest]
    assert negated[:3].tolist() == [-largest, -largest, largest]
    assert stored[3].isnan()


def strided_sources(g, rows):
    """K and V as engines really hold them, none of them contiguous."""
    width = g.heads * (g.head_dim + g.v_head_dim) + 7
    qkv = raw_rows((rows, width), torch.bfloat16, seed=5)
    k, v = (
        qkv[:, 3 : 3 + g.heads * g.head_dim],
        qkv[:, 5 + g.heads * g.head_dim : 5 + g.heads * (g.head_dim + g.v_head_dim)],
    )
    yield "slice of fused QKV", k.unflatten(1, (g.heads, -1)), v.unflatten(1, (g.heads, -1))
    k, v = rows_for(g, rows, torch.bfloat16, seed=7)
    yield "heads first", *(x.transpose(0, 1).contiguous().transpose(0, 1) for x in (k, v))
    yield "dims first", *(x.permute(2, 1, 0).contiguous().permute(2, 1, 0) for x in (k, v))
    yield "every other row", *(x.repeat_interleave(2, dim=0)[::2] for x in (k, v))
    yield "one row expanded", *(x[:1].expand(rows, -1, -1) for x in (k, v))


@each_builder
def test_strided_sources_are_read_by_their_strides(builder):
    g = geometry(heads=3, v_head_dim=40)
    for name, k, v in strided_sources(g, 5):
        assert not (k.is_contiguous() and v.is_contiguous()), name
        check_commit(builder(g, torch.bfloat16), slots([3, 8, 13, 18, 23]), k, v, layer=1)
        check_commit(
            builder(g, torch.float8_e4m3fn), slots([3, 8, 13, 18, 23]), k.nan_to_num(1), v.nan_to_num(1), layer=1
        )


def test_strided_layers():
    g = geometry()
    k, v = (x.transpose(0, 1).contiguous().transpose(0, 1) for x in rows_for(g, 5, torch.float16, layers=2))
    assert not k.is_contiguous()
    check_commit(kvlab.head_major(g, torch.float16), slots([3, 8, 13, 18, 23]), k, v)


def test_strided_loc_and_lens():
    g = geometry()
    k, v = rows_for(g, 6, torch.bfloat16)
    layout = kvlab.page_major(g, torch.bfloat16)
    transposed = slots([[5, 40], [6, 41], [7, 42]]).T
    table = slots([[9, 9, 9, 5, 6, 7, 9], [9, 9, 9, 40, 41, 42, 9]], torch.int32)[:, 3:6]
    lens = slots([[2, 9], [3, 9]])[:, 0]
    for loc in (transposed, table):
        assert not loc.is_contiguous()
        check_commit(layout, loc, k, v, layer=0, commit_lens=lens)
    check_commit(layout, table.reshape(-1).repeat_interleave(2)[::2], k, v, layer=0)
    mask = torch.tensor([False, True, False, False, False, False], device=DEVICE)
    check_commit(layout, slots([17]).expand(6), k, v, layer=0, row_mask=mask)


def test_engine_names_are_the_same_commit():
    g = geometry()
    k, v = rows_for(g, 4, torch.bfloat16)
    mask = torch.tensor([True, True, False, True], device=DEVICE)
    layer = type("RadixAttention", (), {"layer_id": 1})()
    want = check_commit(kvlab.page_major(g, torch.bfloat16), slots([5, 6, 7, 8]), k, v, layer=1, row_mask=mask)
    got = poisoned(want.layout)
    with one_launch():
        got.set_kv_buffer(layer, slots([5, 6, 7, 8]), k, v, dcp_kv_mask=mask)
    assert torch.equal(got.buffers["raw"], want.buffers["raw"])
    loc, lens = slots([[5, 6], [7, 8]]), slots([1, 2])
    want = check_commit(kvlab.page_major(g, torch.bfloat16), loc, k, v, layer=1, commit_lens=lens)
    got = poisoned(want.layout)
    with one_launch():
        got.set_kv_buffer_prefix_valid(1, loc, lens, k, v)
    assert torch.equal(got.buffers["raw"], want.buffers["raw"])
