"""What MXFP8 refuses: bad scales, rows and sizes, one placement read as the other. Nothing is ever half-written."""

import pytest
import torch

import kvlab

from .helpers import BUILDERS, DEVICE, POISON, one_launch, poisoned, raw_rows, slots
from .mx_helpers import PLACEMENTS, mx_bytes, mx_layout

E4M3 = torch.float8_e4m3fn
G = mx_layout("token_major").geometry
HALF = torch.ones(4, 2, 64, dtype=torch.bfloat16, device=DEVICE)
BYTES = raw_rows((4, 2, 64), E4M3)
S = torch.full((4, 2, 2), 127, dtype=torch.uint8, device=DEVICE)
TILE = torch.full((3, 2, 32, 4, 4), 127, dtype=torch.uint8, device=DEVICE)
BAD = {
    "k scale only": (BYTES, BYTES, {"k_scale": S}, ValueError, "v_scale is None, but the other scale is given"),
    "v scale only": (BYTES, BYTES, {"v_scale": S}, ValueError, "k_scale is None, but the other scale is given"),
    "blocks": (BYTES, BYTES, {"k_scale": S[..., :1], "v_scale": S}, ValueError, r"k_scale.*\(4, 2, 1\).*\(4, 2, 2\)"),
    "rows": (BYTES, BYTES, {"k_scale": S, "v_scale": S[:3]}, ValueError, r"v_scale.*\(3, 2, 2\).*\(4, 2, 2\)"),
    "scale dtype": (BYTES, BYTES, {"k_scale": S.int(), "v_scale": S}, TypeError, "k_scale is torch.int32; .*uint8"),
    "float scale": (BYTES, BYTES, {"k_scale": S, "v_scale": 1.0}, TypeError, "v_scale is float; .*uint8"),
    "no scales": (BYTES, BYTES, {}, ValueError, "k is float8_e4m3fn, but k_scale and v_scale are None"),
    "scales of bf16": (HALF, HALF, {"k_scale": S, "v_scale": S}, ValueError, "k_scale is given, but k is .*bfloat16"),
    "factors of bf16": (HALF, HALF, {"k_scale": 1.0, "v_scale": 1.0}, ValueError, "k_scale is given, but k is"),
    "e5m2": (
        BYTES.view(torch.float8_e5m2),
        BYTES.view(torch.float8_e5m2),
        {},
        TypeError,
        "k is torch.float8_e5m2; .*MX",
    ),
    "mixed": (HALF, BYTES, {"k_scale": S, "v_scale": S}, TypeError, "k is torch.bfloat16 and v is torch.float8_e4m3fn"),
    "tile": (BYTES, BYTES, {"k_scale": TILE, "v_scale": TILE}, ValueError, r"k_scale.*32, 4, 4.*\(4, 2, 2\).*Interlea"),
    "flattened": (BYTES, BYTES, {"k_scale": S, "v_scale": S.flatten()}, ValueError, r"v_scale.*\(16,\).*\(4, 2, 2\)"),
}


@pytest.mark.parametrize("scales", PLACEMENTS)
@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_named_and_nothing_is_written(path, scales, case):
    k, v, given, error, message = BAD[case]
    pool = poisoned(mx_layout("page_major", scales))
    for call in (pool.commit, lambda loc, k, v, layer, **s: pool.set_kv_buffer(layer, loc, k, v, **s)):
        with one_launch(0), pytest.raises(error, match=message):
            call(slots([5, 6, 7, 8]), k, v, layer=0, **given)
    bad_slot = slots([5, 6, 7, 10_000])
    with one_launch(0), pytest.raises(IndexError, match="10000"):
        pool.commit(bad_slot, HALF, HALF, layer=0)
    with one_launch(0), pytest.raises(ValueError, match="slot 5 is given twice, by rows 0 and 2"):
        pool.commit(slots([5, 6, 5, 8]), BYTES, BYTES, layer=0, k_scale=S, v_scale=S)
    assert all((b == POISON).all() for b in pool.buffers.values())


def test_interleaved_scales_of_equal_size_are_refused():
    """cases.md 13: 128 rows of scales and one tile have as many bytes; only the shape tells them apart."""
    layout = mx_layout("token_major", "interleaved", head_dim=128, pages=2)
    pool = poisoned(layout)
    k, v, given = mx_bytes(layout.geometry, 128)
    tile = torch.zeros(1, 2, 32, 4, 4, dtype=torch.uint8, device=DEVICE)
    assert tile.numel() == given["k_scale"].numel()
    with pytest.raises(ValueError, match=r"k_scale has shape \(1, 2, 32, 4, 4\); legal .* \(128, 2, 4\)"):
        pool.commit(slots(range(128, 256)), k, v, layer=0, k_scale=tile, v_scale=tile)
    assert all((b == POISON).all() for b in pool.buffers.values())


@pytest.mark.parametrize("name", BUILDERS)
def test_what_cannot_be_mxfp8(name):
    for sizes, message in (({"head_dim": 72}, "head_dim=72 must be a multiple of 32"),
                           ({"head_dim": 80}, "head_dim=80 must be a multiple of 32"),
                           ({"v_head_dim": 72}, "v_head_dim=72 must be a multiple of 32")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            mx_layout(name, **sizes)
    for page_size in (64, 192):
        with pytest.raises(ValueError, match=f"page_size={page_size} must be a multiple of 128"):
            mx_layout(name, "interleaved", page_size=page_size)
    for bad in ({"scales": "tiled"}, {"rounding": "ceil"}):
        with pytest.raises(ValueError, match=f"'{next(iter(bad.values()))}' is not one of '"):
            kvlab.MXFP8(**bad)
    with pytest.raises(ValueError, match="bfloat16 pool has no scales"):
        kvlab.KVPool(BUILDERS[name](G, torch.bfloat16), device=DEVICE).get_kv_scale_buffer(0)


K = raw_rows((256, 3, 128), E4M3)
FLAT, HND = (torch.zeros(s, dtype=torch.uint8, device=DEVICE) for s in ((256, 3, 4), (2, 3, 128, 4)))
ATOM = torch.zeros(2, 3, 32, 4, 4, dtype=torch.uint8, device=DEVICE)
WRONG = {
    "pages and heads swapped": (K, ATOM.transpose(0, 1), r"k_scale has shape \(3, 2, 32, 4, 4\)"),
    "lanes and rows swapped": (K, ATOM.transpose(2, 3), r"k_scale has shape \(2, 3, 4, 32, 4\)"),
    "tiles of one column": (K, ATOM.view(2, 3, 1, 4, 32, 4, 1), r"k_scale has shape \(2, 3, 1, 4, 32, 4, 1\)"),
    "heads behind slots": (K, HND, r"k_scale has shape \(2, 3, 128, 4\)"),
    "only the size fits": (K, ATOM.view(2, 3, 128, 4).flatten(0, 1), r"k_scale has shape \(6, 128, 4\)"),
    "flattened": (K, ATOM.flatten(), r"k_scale has shape \(3072,\); legal ranks are"),
    "a tile for short pages": (K.view(4, 64, 3, 128), ATOM, "page_size=64 must be a multiple of 128"),
    "a tile of another head_dim": (K[..., :96].contiguous().repeat(1, 1, 2), ATOM, r"k_scale has shape.*6 elements"),
}


@pytest.mark.parametrize("case", WRONG)
def test_scales_in_another_order_are_refused(case):
    """cases.md 12 and 13: every one of these has the bytes that are asked for, in an order that no reader expects."""
    k, scale, message = WRONG[case]
    for x in (FLAT, ATOM):  # as they should be, they are taken, and the pool says which they are
        pool = kvlab.KVPool.adopt([K], [K.clone()], [x], [x.clone()])
        assert pool.layout.format == kvlab.MXFP8("flat" if x is FLAT else "interleaved")
        assert pool.get_kv_scale_buffer(0)[0].shape == x.shape
    with pytest.raises(ValueError, match=message):
        kvlab.KVPool.adopt([k], [k.clone()], [scale], [scale.clone()])
