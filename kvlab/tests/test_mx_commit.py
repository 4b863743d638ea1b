"""MXFP8 commits: payload and scales leave together, each byte where an independent oracle puts it, and no other."""

import itertools

import numpy as np
import pytest
import torch

from kvlab.backends import reference_backend

from .helpers import BUILDERS, DEVICE, POISON, assert_same_bytes, bits, one_launch, poisoned, slots
from .mx_helpers import (
    FIELDS,
    PLACEMENTS,
    ROUNDINGS,
    check_mx_commit,
    gpu_tiles,
    mx_bytes,
    mx_layout,
    mx_rows,
    whole_buffers,
)

each_name = pytest.mark.parametrize("name", BUILDERS)
each_placement = pytest.mark.parametrize("scales", PLACEMENTS)
E4M3 = torch.float8_e4m3fn
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


def loc_of(scales: str) -> list[int]:
    """Pads 0 and -1, the last slot, neighbours inside and across pages; where interleaved, several rows of a lane."""
    return [9, 1, 11, 0, 5, -1, 4] if scales == "flat" else [33, 1, 383, 0, 130, -1, 255]


@each_name
@each_placement
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_rows_are_quantised_in_the_commit(name, scales, rounding):
    layout = mx_layout(name, scales, rounding, heads=3, v_head_dim=32)
    turn = list(BUILDERS).index(name) + ROUNDINGS.index(rounding) + PLACEMENTS.index(scales)
    layer = None if turn % 2 else 1
    k, v = mx_rows(layout.geometry, 7, DTYPES[turn % 3], 2 if layer is None else None)
    check_mx_commit(layout, slots(loc_of(scales)), k, v, layer=layer)


@each_name
@each_placement
@pytest.mark.parametrize("layer", [None, 1], ids=["all layers", "one layer"])
def test_rows_that_are_quantised_already_move_as_bytes(name, scales, layer):
    layout = mx_layout(name, scales, heads=3, v_head_dim=96)
    k, v, given = mx_bytes(layout.geometry, 7, 2 if layer is None else None)
    check_mx_commit(layout, slots(loc_of(scales)), k, v, layer=layer, **given)


def test_scales_may_come_as_e8m0():
    layout = mx_layout("page_major", "interleaved")
    k, v, given = mx_bytes(layout.geometry, 7)
    given = {name: scale.view(torch.float8_e8m0fnu) for name, scale in given.items()}
    check_mx_commit(layout, slots(loc_of("interleaved")), k, v, layer=1, **given)


@each_placement
@pytest.mark.parametrize("head_dim, v_head_dim, heads", [(32, 32, 1), (64, 64, 5), (96, 128, 2), (128, 128, 3),
                                                         (160, 32, 2), (192, 128, 1), (256, 160, 2)])  # fmt: skip
def test_head_dims(scales, head_dim, v_head_dim, heads):
    turn = head_dim // 32 + PLACEMENTS.index(scales)
    layout = mx_layout(
        list(BUILDERS)[turn % 3], scales, layers=1, heads=heads, head_dim=head_dim, v_head_dim=v_head_dim
    )
    check_mx_commit(layout, slots(loc_of(scales)), *mx_rows(layout.geometry, 7, DTYPES[turn // 3 % 3]), layer=0)
    k, v, given = mx_bytes(layout.geometry, 7)
    check_mx_commit(layout, slots(loc_of(scales)), k, v, layer=0, **given)


# 9 and 10 are named twice, but of each one row counts
BLOCKS = [[1, 2, 3], [9, 9, 10], [0, 5, -1], [10, 8, 7]]
LENS = [2, 3, 3, 3]
MASK = [[1, 1, 1], [0, 1, 0], [1, 1, 1], [1, 1, 0]]


@each_name
@each_placement
@pytest.mark.parametrize("quantising", [True, False], ids=["quantising", "quantised"])
def test_only_accepted_rows_are_written(name, scales, quantising):
    layout = mx_layout(name, scales, layers=1)
    k, v, given = mx_bytes(layout.geometry, 12)
    if quantising:
        (k, v), given = mx_rows(layout.geometry, 12, torch.bfloat16), {}
    mask = torch.tensor(MASK, device=DEVICE).bool()
    loc = slots(BLOCKS, torch.int32)
    check_mx_commit(layout, loc, k, v, layer=0, commit_lens=slots(LENS), row_mask=mask, **given)


@pytest.mark.parametrize("quantising", [True, False], ids=["quantising", "quantised"])
@pytest.mark.parametrize("name, scales", [("head_major", "flat"), ("page_major", "interleaved")])
def test_rows_wider_than_a_gpus_tile(monkeypatch, name, scales, quantising):
    """9 heads of 256 take a program three turns of 1024 columns (bf16), or two of 2048; the last turn is partial."""
    gpu_tiles(monkeypatch)
    layout = mx_layout(name, scales, heads=9, head_dim=256, v_head_dim=160)
    k, v, given = mx_bytes(layout.geometry, 7)
    if quantising:
        (k, v), given = mx_rows(layout.geometry, 7, torch.bfloat16), {}
    pool = check_mx_commit(layout, slots(loc_of(scales)), k, v, layer=1, **given)
    with one_launch():
        kernel = pool.gather(slots(loc_of(scales)), layer=1)
    with reference_backend():
        reference = pool.gather(slots(loc_of(scales)), layer=1)
    assert all(torch.equal(bits(x), bits(y)) for x, y in zip(kernel, reference, strict=True))


@pytest.mark.parametrize("quantising", [True, False], ids=["quantising", "quantised"])
def test_engine_names_are_the_same_commit(quantising):
    """set_kv_buffer_prefix_valid, which raises for sglang's MXFP8 pool, and set_kv_buffer: one launch each."""
    layout = mx_layout("page_major", "interleaved")
    k, v, given = mx_bytes(layout.geometry, 4)
    if quantising:
        (k, v), given = mx_rows(layout.geometry, 4, torch.bfloat16), {}
    layer, loc, lens = type("RadixAttention", (), {"layer_id": 1})(), slots([[5, 6], [7, 200]]), slots([1, 2])
    want = check_mx_commit(layout, loc, k, v, layer=1, commit_lens=lens, **given)
    got = poisoned(layout)
    with one_launch():
        got.set_kv_buffer_prefix_valid(layer, loc, lens, k, v, **given)
    assert_same_bytes(got, want)
    got, mask = poisoned(layout), torch.tensor([True, False, True, True], device=DEVICE)
    with one_launch():
        got.set_kv_buffer(layer, loc.reshape(-1), k, v, dcp_kv_mask=mask, **given)
    assert_same_bytes(got, want)


@each_placement
def test_nothing_accepted_nothing_written(scales):
    layout = mx_layout("page_major", scales)
    k, v = mx_rows(layout.geometry, 12, torch.bfloat16)
    pool = check_mx_commit(layout, slots(BLOCKS), k, v, layer=0, commit_lens=slots([0, 0, 0, 0]))
    assert all((b == POISON).all() for b in pool.buffers.values())


@each_placement
@pytest.mark.parametrize("shape", [(0,), (0, 4), (3, 0)], ids=str)
def test_no_rows_no_launch(scales, shape):
    layout = mx_layout("page_major", scales)
    k, v = mx_rows(layout.geometry, 0, torch.bfloat16)
    check_mx_commit(layout, torch.zeros(shape, dtype=torch.int64, device=DEVICE), k, v, layer=0, launches=0)


@each_placement
def test_strided_sources(scales):
    """A slice of fused QKV, heads and dims swapped, every second row, and scales with strides of their own."""
    layout = mx_layout("token_major", scales, heads=3)
    loc = slots(loc_of(scales)).repeat_interleave(2)[::2]
    qkv = mx_rows(mx_layout("token_major", heads=9).geometry, 7, torch.bfloat16)[0]
    k, v = qkv[:, 3:6], qkv.flip(0)[:, 6:]
    check_mx_commit(layout, loc, k, v.transpose(1, 2).contiguous().transpose(1, 2), layer=0)
    k, v = (x.repeat_interleave(2, 0)[::2] for x in mx_rows(layout.geometry, 7, torch.float32))
    check_mx_commit(layout, loc, k, v, layer=1)
    k, v, given = mx_bytes(layout.geometry, 7, 2)
    given["k_scale"] = given["k_scale"].permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0)
    given["v_scale"] = torch.nn.functional.pad(given["v_scale"], (1, 2))[..., 1:-2]
    k = torch.nn.functional.pad(k.view(torch.uint8), (3, 1))[..., 3:-1].view(E4M3)
    assert not any(x.is_contiguous() for x in (k, *given.values()))
    check_mx_commit(layout, loc, k, v, **given)


@each_name
@each_placement
@pytest.mark.parametrize("quantising", [True, False], ids=["quantising", "quantised"])
def test_nan_rows_of_padding_stay_out_of_slot_0(path, name, scales, quantising):
    """cases.md 5: loc [0, 130], row 0 NaN with scale 0xFF: payload and scale bytes of slot 0 keep their poison."""
    layout = mx_layout(name, scales, page_size=128)
    pool, sizes = poisoned(layout), (2, layout.geometry.heads)
    if quantising:
        k = torch.ones(*sizes, 64, dtype=torch.bfloat16, device=DEVICE)
        k[0], given = float("nan"), {}
    else:
        k = torch.full((*sizes, 64), 0x38, dtype=torch.uint8, device=DEVICE)  # 1.0
        scale = torch.full((*sizes, 2), 127, dtype=torch.uint8, device=DEVICE)
        k[0], scale[0] = 0x7F, 0xFF
        k, given = k.view(E4M3), {"k_scale": scale, "v_scale": scale}
    pool.commit(slots([0, 130]), k, k, layer=1, **given)
    for field in FIELDS:
        for dim, head in itertools.product(range(layout.fields[field].extents["dim"]), range(2)):
            buffer, byte = layout.locate(field, 1, 0, head, dim)
            assert pool.buffers[buffer][byte] == POISON
    assert all((x[0] == 1).all() for x in pool.gather(slots([130]), layer=1))
    written = sum(int((b != POISON).sum()) for b in pool.buffers.values())
    assert written == 2 * 2 * (64 + 2)  # K and V, both heads, of one slot


@each_name
@pytest.mark.parametrize("scales, head_dim, v_head_dim, page_size", [
    ("flat", 128, 64, 8), ("interleaved", 128, 64, 128), ("interleaved", 160, 256, 256)])  # fmt: skip
def test_every_scale_cell_is_where_the_oracle_has_it(name, scales, head_dim, v_head_dim, page_size):
    """Scales that number their own cells, (field, layer, slot, head, block), low byte in one commit and high byte in
    another: the pool then shows for each byte which cell it is, and no two cells can stand in for each other."""
    layout = mx_layout(name, scales, head_dim=head_dim, v_head_dim=v_head_dim, page_size=page_size, pages=2)
    g, number, start = layout.geometry, {}, 0
    for field in FIELDS[2:]:
        shape = torch.Size((g.layers, g.slots, g.heads, g.dim(field) // 32))
        number[field] = torch.arange(start, start + shape.numel(), device=DEVICE).view(shape)
        start += shape.numel()
    assert start < POISON * 257  # a poisoned byte is never taken for a cell
    k, v, _ = mx_bytes(g, g.slots - 1, g.layers)
    low, high = poisoned(layout), poisoned(layout)
    for pool, shift in ((low, 0), (high, 8)):
        digits = {f: ((x >> shift) & 255).to(torch.uint8) for f, x in number.items()}
        given = {f: x[:, 1:] for f, x in digits.items()}
        with one_launch():
            pool.commit(slots(range(1, g.slots)), k, v, **given)
        dense, reach = {}, {}
        for field, x in zip(FIELDS, (k, v, *digits.values()), strict=True):
            x = x.view(torch.uint8)
            dense[field] = torch.cat([torch.full_like(x[:, :1], POISON), x[:, -g.slots + 1 :]], 1)
            reach[field] = torch.ones_like(dense[field])
        want, reach = whole_buffers(layout, dense, POISON), whole_buffers(layout, reach, 0)
        assert_same_bytes(pool, {n: torch.where(reach[n] == 1, b, POISON) for n, b in want.items()})
    for field, x in number.items():
        cell = np.indices(x.shape)
        buffer, byte = layout.locate(field, cell[0], cell[1], cell[2], cell[3])
        at = torch.from_numpy(byte).to(DEVICE)
        seen = low.buffers[buffer][at].long() + 256 * high.buffers[buffer][at].long()
        assert torch.equal(seen[:, 1:], x[:, 1:]) and (seen[:, 0] == POISON * 257).all()


@each_placement
def test_a_commit_in_turns_leaves_earlier_rows(scales):
    """Neighbours inside a tile share lanes and words: writing one slot after another never rubs out the last."""
    layout = mx_layout("token_major", scales, layers=1, heads=1, head_dim=96)
    order = [2, 1, 3] if scales == "flat" else [33, 1, 65]
    k, v = mx_rows(layout.geometry, 3, torch.bfloat16)
    want, got = check_mx_commit(layout, slots(order), k, v, layer=0), poisoned(layout)
    for i, slot in enumerate(order):
        got.commit(slots([slot]), k[i : i + 1], v[i : i + 1], layer=0)
    assert_same_bytes(got, want)


def test_unchecked_commits_stay_inside():
    """check=False: slots beyond the pool are skipped by the kernel itself, payload and scales alike."""
    layout = mx_layout("page_major", "interleaved")
    loc = slots([5, 384, 2**40, -(2**40), 130, 0])
    check_mx_commit(layout, loc, *mx_rows(layout.geometry, 6, torch.bfloat16), layer=0, check=False)
    k, v, given = mx_bytes(layout.geometry, 6)
    check_mx_commit(layout, loc, k, v, layer=0, check=False, **given)
