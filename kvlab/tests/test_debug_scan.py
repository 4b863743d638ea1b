"""scan() finds every planted fault at its coordinates, in every layout, and nothing in a pool that is right."""

import json

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlab
from kvlab import zoo
from kvlab.backends import reference_backend
from kvlab.debug import marks
from kvlab.debug.findings import KINDS
from kvlab.debug.guard import guarded, poison
from kvlab.debug.scale_rule import largest_elements
from kvlab.debug.scan import scan

from .helpers import BUILDERS, DEVICE, FP8, assert_same_bytes, geometry, numbers, rows_for, saved, slots
from .mx_helpers import ROUNDINGS, exact_mx, spread_blocks

EVERY = BUILDERS | zoo.ALL
FLAT, INTERLEAVED = kvlab.MXFP8("flat"), kvlab.MXFP8("interleaved")
FORMATS = (torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, FLAT, INTERLEAVED)
PAIRS = [(b, fmt) for b in EVERY for fmt in FORMATS if b in BUILDERS or fmt in (torch.bfloat16, FLAT)]
NAN_BYTES = {  # least significant byte first
    torch.bfloat16: b"\xc0\x7f",
    torch.float16: b"\x01\xfc",
    torch.float32: b"\x01\x00\x80\x7f",
    torch.float8_e4m3fn: b"\x7f",
    torch.float8_e5m2: b"\xfd",
}
INFINITY_BYTES = {
    torch.bfloat16: b"\x80\x7f",
    torch.float16: b"\x00\xfc",
    torch.float32: b"\x00\x00\x80\xff",
    torch.float8_e5m2: b"\x7c",
}
LIVE = range(1, 8)  # from slot 1 on without a gap, so that no page has a hole


def filled(builder, fmt, live=LIVE, fresh=kvlab.KVPool, **sizes) -> kvlab.KVPool:
    """A pool with numbers in ``live``, all layers."""
    if fmt == INTERLEAVED:
        sizes = {"page_size": 128, "pages": 2, **sizes}
    layout = EVERY[builder](geometry(**sizes), fmt)
    pool = fresh(layout, device=DEVICE)
    dtype = torch.bfloat16 if isinstance(fmt, kvlab.MXFP8) else fmt
    g = layout.geometry
    with reference_backend():
        pool.commit(slots(list(live)), *rows_for(g, len(live), dtype, layers=g.layers, make=away_from_zero))
    return pool


def away_from_zero(shape, dtype, seed):
    """Numbers of which none is 0, also after rounding to FP8."""
    x = numbers(shape, torch.float32, seed, spread=10.0)
    return (x + x.sign()).clamp(-FP8.get(dtype, 448.0), FP8.get(dtype, 448.0)).to(dtype)


def poisoned_first(layout, device):
    return guarded(layout, device=device).pool


def put(pool, data: bytes, field: str, layer: int, slot: int, head: int = 0, dim: int = 0) -> None:
    """Write the bytes of one element."""
    buffer, first = pool.layout.locate(field, layer, slot, head, dim)
    for i, byte in enumerate(data):
        pool.buffers[buffer][first + i] = byte


def put_row(pool, byte: int, field: str, layer: int, slot: int) -> None:
    """Fill a row with one byte."""
    f = pool.layout.fields[field]
    heads, dims = np.arange(f.extents["head"])[:, None, None], np.arange(f.extents["dim"])[:, None]
    buffer, first = pool.layout.locate(field, layer, slot, 0, 0)
    own = layer if isinstance(f.buffer, str) else 0
    at = f.byte(own, slot, heads, dims) + np.arange(f.item)
    assert at.min() == first
    pool.buffers[buffer][torch.from_numpy(at).to(DEVICE)] = byte


def found(pool, *args) -> dict[str, list[str]]:
    """``{kind: [ranges in words]}``, worst first."""
    result = scan(pool, *args)
    kinds = [f.kind for f in result.findings]
    assert kinds == sorted(kinds, key=list(KINDS).index)
    assert result.ok == (not kinds)
    return {f.kind: [str(r) for r in f.ranges] for f in result.findings}


@pytest.mark.parametrize("builder, fmt", PAIRS, ids=str)
def test_a_pool_that_is_right_has_no_finding_and_is_not_changed(builder, fmt):
    for fresh in (kvlab.KVPool, poisoned_first)[: 1 + (builder in BUILDERS)]:
        pool = filled(builder, fmt, fresh=fresh)
        before = saved(pool)
        result = scan(pool)
        assert result.ok, f"{fresh.__name__}: {result}"
        assert (result.live, result.nbytes) == (len(LIVE), pool.layout.nbytes)
        assert_same_bytes(pool, before)


@pytest.mark.parametrize("builder, fmt", PAIRS, ids=str)
def test_planted_faults_are_named_by_coordinate(builder, fmt):
    pool = filled(builder, fmt)
    kinds = {}
    put(pool, NAN_BYTES[pool.dtype], "v", 1, 3, 1, 33)
    kinds["nan"] = ["layer 1, V, slot 3, head 1, dim 33"]
    if isinstance(fmt, kvlab.MXFP8):
        put(pool, b"\xff", "k_scale", 1, 4, 0, 1)
        kinds["nan scale"] = ["layer 1, K scale, slot 4, head 0, block 1"]
    else:
        if pool.dtype in INFINITY_BYTES:
            put(pool, INFINITY_BYTES[pool.dtype], "k", 0, 5, 0, 63)
            kinds["infinity"] = ["layer 0, K, slot 5, head 0, dim 63"]
    put_row(pool, 0x11, "v", 0, 0)
    kinds["pad"] = ["layer 0, V, slot 0, heads 0-1, dims 0-63"]
    if isinstance(fmt, kvlab.MXFP8):
        put(pool, b"\x00", "v_scale", 0, 2, 1, 0)
        kinds["zero scale"] = ["layer 0, V scale, slot 2, head 1, block 0"]
    put_row(pool, 0, "k", 1, 7)
    if isinstance(fmt, kvlab.MXFP8):
        put_row(pool, 0, "k_scale", 1, 7)
    kinds["half"] = ["layer 1, K, slot 7, heads 0-1, dims 0-63"]
    assert found(pool) == kinds


@pytest.mark.parametrize("builder", BUILDERS)
@pytest.mark.parametrize("fmt", (torch.bfloat16, torch.float8_e4m3fn, FLAT), ids=str)
def test_rows_that_are_still_the_fill(builder, fmt):
    for fresh, fill in ((kvlab.KVPool, 0), (poisoned_first, 0xFF)):
        pool = filled(builder, fmt, fresh=fresh, layers=3)
        fields = [f for f in pool.layout.fields]
        for field in fields:
            put_row(pool, fill, field, 2, 6)  # one layer lacks the slot
            for layer in range(3):
                put_row(pool, fill, field, layer, 5)  # nobody wrote the slot, though its page goes on
        for field in fields[1::2]:
            put_row(pool, fill, field, 0, 3)  # V of a slot that has K
        assert found(pool) == {
            "half": ["layer 0, V, slot 3, heads 0-1, dims 0-63"],
            "layers": ["layer 2, K, slot 6, heads 0-1, dims 0-63", "layer 2, V, slot 6, heads 0-1, dims 0-63"],
            "hole": ["layers 0-2, K, slot 5, heads 0-1, dims 0-63", "layers 0-2, V, slot 5, heads 0-1, dims 0-63"],
        }, fresh.__name__


def test_one_head_that_is_still_the_fill():
    pool = filled("page_major", torch.bfloat16)
    for dim in range(64):
        put(pool, b"\0\0", "k", 1, 4, 1, dim)
    assert found(pool) == {"part": ["layer 1, K, slot 4, head 1, dims 0-63"]}
    put(pool, b"\xff\xff", "k", 0, 4, 1, 9)  # one element of poison: a row that was written in part
    assert found(pool) == {"part": ["layer 0, K, slot 4, head 1, dim 9", "layer 1, K, slot 4, head 1, dims 0-63"]}


def test_written_says_which_slots_should_have_content():
    pool = filled("token_major", torch.bfloat16, layers=1)
    assert found(pool, slots([[0, 1, 2, 3], [4, 5, 6, 9]])) == {
        "missing": ["layer 0, K, slot 9, heads 0-1, dims 0-63", "layer 0, V, slot 9, heads 0-1, dims 0-63"],
        "unexpected": ["layer 0, K, slot 7, heads 0-1, dims 0-63", "layer 0, V, slot 7, heads 0-1, dims 0-63"],
    }
    named = np.zeros(64, bool)
    named[list(LIVE)] = True
    assert scan(pool, named).ok and scan(pool, torch.from_numpy(named)).ok
    assert set(found(pool, [])) == {"unexpected"}


def test_freed_slots_are_no_nan_but_a_stale_read_of_them_would_be():
    pool = filled("page_major", FLAT, live=range(1, 12))
    with reference_backend():
        poison(pool, slots([8, 9, 10, 11]))
    assert scan(pool).ok and scan(pool).live == 7
    put(pool, b"\x00", "k_scale", 1, 9, 0, 0)  # a scale that came without its payload is no content by itself
    assert scan(pool).live == 7


def test_an_empty_pool_says_what_was_looked_at():
    pool = kvlab.KVPool(kvlab.page_major(geometry(), FLAT), device=DEVICE)
    assert "nothing found in" in str(scan(pool)) and "K, V and scales of 2 layers; 0 of 63 slots have content" in str(
        scan(pool)
    )
    plain = kvlab.KVPool(kvlab.page_major(geometry(layers=1), torch.float16), device=DEVICE)
    assert "32,768 bytes: K and V of 1 layer; 0 of 63" in str(scan(plain))


# --------------------------------------------------------------------------------------------------- bits of the dtypes

DECODED = {
    torch.bfloat16: ml_dtypes.bfloat16,
    torch.float16: np.float16,
    torch.float8_e4m3fn: ml_dtypes.float8_e4m3fn,
    torch.float8_e5m2: ml_dtypes.float8_e5m2,
}


@pytest.mark.parametrize("dtype", DECODED, ids=str)
def test_every_code_is_read_as_its_dtype_says(dtype):
    count = 256**dtype.itemsize
    g = geometry(layers=1, heads=1, head_dim=64, page_size=1, pages=1 + count // 64)
    pool = kvlab.KVPool(kvlab.token_major(g, dtype), device=DEVICE)
    codes = np.arange(count, dtype=f"u{dtype.itemsize}")
    for view in pool.get_kv_buffer(0):
        view[1:] = torch.from_numpy(codes.view(f"i{dtype.itemsize}").copy()).to(DEVICE).view(dtype).view(-1, 1, 64)
    values = codes.view(DECODED[dtype]).astype(np.float32)
    counts = {f.kind: f.count for f in scan(pool).findings}
    all_ones = 0 if dtype == torch.float8_e4m3fn else 1  # poison; in E4M3 one such element cannot be told from -NaN
    assert counts.get("nan", 0) == 2 * (np.isnan(values).sum() - all_ones)
    assert counts.get("infinity", 0) == 2 * np.isinf(values).sum()
    assert counts.get("part", 0) == 2 * all_ones
    assert set(counts) <= {"nan", "infinity", "part"}


# -------------------------------------------------------------------------------------------------- scales and payloads


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_no_quantising_commit_is_called_a_mismatch(rounding):
    x = torch.cat([spread_blocks(4000, seed=1), spread_blocks(4000, low=-150, high=-110, seed=2)])
    x = torch.cat([x, torch.exp2(torch.linspace(-149, 127.9, 4000))[:, None].expand(-1, 32)])
    payload, scales = exact_mx(x, rounding)  # independent of kvlab
    amax, byte = (payload & 0x7F).amax(-1).numpy(), scales.reshape(-1).numpy()
    low, high = largest_elements(rounding)
    assert ((low[byte] <= amax) & (amax <= high[byte]))[amax > 0].all()
    assert {0, 1, 100, 246} <= set(byte.tolist())


@pytest.mark.parametrize("rounding, least", [("rceil", 224.0), ("floor", 256.0), ("even", 256.0)])
def test_the_bound_is_as_tight_as_the_rounding_rule(rounding, least):
    # rceil: the smallest power with amax <= 448 * power, so amax is over 224 of it. floor and even: 2^8 of it or more
    low, high = (torch.from_numpy(x).view(torch.float8_e4m3fn).float() for x in largest_elements(rounding))
    assert (low[2:246] == least).all() and (high[2:246] == 448).all()


@pytest.mark.parametrize("placement", ("flat", "interleaved"))
@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_a_scale_of_another_commit_is_a_mismatch(rounding, placement):
    pool = filled("page_major", kvlab.MXFP8(placement, rounding), page_size=128, pages=2)
    assert scan(pool).ok
    own = pool.gather_scales(slots([5]), layer=1)[0][0, 1, 1].item()
    for scale, kind in ((own, None), (0, "zero scale"), (255, "nan scale")):
        put(pool, bytes([scale]), "k_scale", 1, 5, 1, 1)
        assert found(pool) == ({kind: ["layer 1, K scale, slot 5, head 1, block 1"]} if kind else {})
    put(pool, bytes([own]), "k_scale", 1, 5, 1, 1)
    for dim in range(32, 64):
        put(pool, b"\x38", "k", 1, 5, 1, dim)  # all 1.0: a quantising commit would have stored 256 and a lower scale
    assert found(pool) == {"mismatch": ["layer 1, K scale, slot 5, head 1, block 1"]}
    (finding,) = scan(pool).findings
    assert repr(rounding) in finding.words and "quantised, by another rule" in finding.words
    for dim in range(32, 64):
        put(pool, b"\x80", "k", 1, 5, 1, dim)  # -0
    assert found(pool) == {"bare scale": ["layer 1, K scale, slot 5, head 1, block 1"]}


def test_scales_that_were_left_behind():
    """A commit of payload alone, as into an engine's pool that does not carry scales."""
    pool = filled("token_major", FLAT)
    with reference_backend():
        rows, _ = pool.gather(slots([3]), dequantize=False)
    pool.get_key_buffer(0)[20] = rows[0, 0]
    kinds = found(pool, slots([*LIVE, 20]))
    assert kinds["zero scale"] == ["layer 0, K scale, slot 20, heads 0-1, blocks 0-1"]
    assert set(kinds) == {"zero scale", "half", "layers"}


# ----------------------------------------------------------------------------------------------- many faults, and words


@settings(max_examples=25)
@given(
    cells=st.sets(
        st.tuples(st.sampled_from("kv"), st.integers(0, 1), st.integers(1, 7), st.integers(0, 1), st.integers(0, 63)),
        max_size=12,
    ),
    builder=st.sampled_from(sorted(EVERY)),
)
def test_any_set_of_nans_is_found_exactly(cells, builder):
    pool = filled(builder, torch.bfloat16)
    for cell in cells:
        put(pool, b"\xc1\xff", *cell)
    result = scan(pool)
    assert [f.kind for f in result.findings] == ["nan"] * bool(cells)
    for f in result.findings:
        assert f.count == len(cells)
        inside = {
            (r.field, layer, slot, head, dim)
            for r in f.ranges
            for layer in range(r.layers[0], r.layers[1] + 1)
            for slot in range(r.slots[0], r.slots[1] + 1)
            for head in range(r.heads[0], r.heads[1] + 1)
            for dim in range(r.dims[0], r.dims[1] + 1)
        }
        assert inside == cells
        first = f.first[0]
        assert tuple(first.values()) in cells and pool.layout.locate(**first)


def test_a_pool_that_is_bad_all_over_keeps_a_part_of_the_places(monkeypatch):
    monkeypatch.setattr(marks, "KEPT", 4)
    pool = filled("token_major", torch.bfloat16, layers=1)
    for slot in LIVE:
        put(pool, b"\xc0\x7f", "k", 0, slot)
    (finding,) = scan(pool).findings
    assert finding.count == 7 and [str(r) for r in finding.ranges] == ["layer 0, K, slots 1-4, head 0, dim 0"]
    assert "the ranges are of the first 4 places" in finding.words


def test_the_report_as_text_html_and_json():
    pool = filled("token_major", torch.bfloat16, live=range(1, 40), layers=1)
    for slot in range(1, 40, 2):
        put(pool, b"\xc0\x7f", "v", 0, slot)
    put(pool, b"\x80\x7f", "v", 0, 2)
    result = scan(pool)
    lines = str(result).splitlines()
    assert lines[0].startswith("2 kinds of fault, worst first, in 32,768 bytes")
    assert lines[1].startswith("1. nan, 20 cells: NaN in the payload")
    assert lines[2].strip() == "layer 0, V, slot 1, head 0, dim 0" and lines[10].strip() == "… and 12 more"
    assert lines[11].startswith("2. infinity, 1 cell: ")
    html = result._repr_html_()
    assert html.count("<tr>") == 3 and "layer 0, V, slot 2, head 0, dim 0" in html and "12 more" in html
    told = json.loads(json.dumps(result.to_dict()))
    assert not told["ok"] and [f["kind"] for f in told["findings"]] == ["nan", "infinity"]
    assert told["findings"][1]["first"] == [{"field": "v", "layer": 0, "slot": 2, "head": 0, "dim": 0}]
    clean = scan(kvlab.KVPool(pool.layout, device=DEVICE))
    assert clean._repr_html_().startswith("<p>nothing found in 32,768 bytes") and clean.to_dict()["ok"]


def test_tensors_of_an_engine():
    k, v = (torch.ones(16, 4, 2, 64, dtype=torch.float16, device=DEVICE) for _ in range(2))
    k[0], v[0] = 0, 0
    k[3, 2, 1, 5] = float("inf")
    assert found(kvlab.KVPool.adopt([k], [v])) == {"infinity": ["layer 0, K, slot 14, head 1, dim 5"]}


@pytest.mark.parametrize(
    "written, error, words",
    [
        ([1, 64], IndexError, "written=64 is outside 0 … 63"),
        ([0.5], TypeError, "not float64"),
        (np.zeros(3, bool), ValueError, r"bool of shape \(3,\); for this pool it has shape \(64,\)"),
    ],
)
def test_written_that_does_not_fit_is_refused(written, error, words):
    with pytest.raises(error, match=f"scan: .*{words}"):
        scan(kvlab.KVPool(kvlab.token_major(geometry(), torch.bfloat16), device=DEVICE), written)


def test_tensors_are_refused_with_a_hint():
    with pytest.raises(TypeError, match=r"scan: pool is a Tensor; wrap .* kvlab\.KVPool\.adopt"):
        scan(torch.zeros(4))
