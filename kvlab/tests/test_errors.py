"""What bad input gets: an error that names the argument, its value and the legal range; and not one byte written."""

import pytest
import torch

import kvlab

from .helpers import BUILDERS, DEVICE, assert_same_bytes, geometry, poisoned, raw_rows, rows_for, saved, slots

G = geometry(v_head_dim=32)
BF16 = torch.bfloat16


def ok(rows=4, dtype=BF16, **options):
    """A commit that works; each case below spoils one thing."""
    k, v = rows_for(G, rows, dtype)
    return {"loc": slots([5, 6, 7, 8][:rows]), "k": k, "v": v, "layer": 0, **options}


def two(**options):
    """The same for two requests of two rows."""
    return ok(**{"loc": slots([[5, 6], [7, 8]]), **options})


def rows(*shape):
    return raw_rows(shape, BF16)


def mask(*shape):
    return torch.ones(shape, dtype=torch.bool, device=DEVICE)


CASES = {
    "slot beyond the pool": (lambda: ok(loc=slots([5, 64, 7, 8])), IndexError, r"loc\[1\]=64 .*slots 0 … 63"),
    "slot far beyond": (lambda: ok(loc=slots([5, 6, 7, 2**40])), IndexError, rf"loc\[3\]={2**40} .*0 … 63"),
    "slot beyond, 2-D": (lambda: two(loc=slots([[5, 6], [7, 99]])), IndexError, r"loc\[1, 1\]=99 .*0 … 63"),
    "slot twice": (lambda: ok(loc=slots([9, 5, 9, 9])), ValueError, "slot 9 is given twice, by rows 0 and 2"),
    "slot in two requests": (lambda: two(loc=slots([[5, 6], [6, 8]])), ValueError, "slot 6 .* rows 1 and 2"),
    "more rows than slots": (lambda: ok(loc=slots([5, 6, 7])), ValueError, r"k has shape \(4, 2, 64\), .*\(3, 2, 64\)"),
    "loc is a list": (lambda: ok(loc=[5, 6, 7, 8]), TypeError, "loc must be an int32 or int64 tensor.*list"),
    "loc of floats": (lambda: ok(loc=slots([5, 6, 7, 8]).float()), TypeError, "loc is torch.float32"),
    "loc of bytes": (lambda: ok(loc=slots([5, 6, 7, 8]).to(torch.uint8)), TypeError, "loc is torch.uint8"),
    "loc 0-D": (lambda: ok(1, loc=slots(5)), ValueError, r"loc has shape \(\); legal are \(N,\) and \(B, W\)"),
    "loc 3-D": (lambda: ok(loc=slots([[[5, 6, 7, 8]]])), ValueError, r"loc has shape \(1, 1, 4\)"),
    "heads of k": (lambda: ok(k=rows(4, 3, 64)), ValueError, r"k has shape \(4, 3, 64\), .*\(4, 2, 64\)"),
    "width of v": (lambda: ok(v=rows(4, 2, 64)), ValueError, r"v has shape \(4, 2, 64\), .*\(4, 2, 32\)"),
    "rows of v": (lambda: ok(v=rows(5, 2, 32)), ValueError, r"v has shape \(5, 2, 32\), .*\(4, 2, 32\)"),
    "no layer axis": (lambda: ok(layer=None), ValueError, r"k has shape \(4, 2, 64\), .*\(2, 4, 2, 64\)"),
    "k is no tensor": (lambda: ok(k=[1.0]), TypeError, "k must be a tensor, not list"),
    "k and v dtypes": (lambda: ok(v=rows(4, 2, 32).half()), TypeError, "k is torch.bfloat16 and v is torch.float16"),
    "dtype": (lambda: ok(k=rows(4, 2, 64).int(), v=rows(4, 2, 32).int()), TypeError, "k is torch.int32; .*bfloat16"),
    "layer too high": (lambda: ok(layer=2), IndexError, "layer=2 is outside 0 … 1"),
    "layer below 0": (lambda: ok(layer=-1), IndexError, "layer=-1 is outside 0 … 1"),
    "layer is a word": (lambda: ok(layer="1"), TypeError, "layer='1' must be an int"),
    "layer is a bool": (lambda: ok(layer=True), TypeError, "layer=True must be an int"),
    "lens above W": (lambda: two(commit_lens=slots([1, 3])), ValueError, r"commit_lens\[1\]=3 is outside 0 … 2"),
    "lens W + 3": (lambda: two(commit_lens=slots([5, 1])), ValueError, r"commit_lens\[0\]=5 is outside 0 … 2"),
    "lens below 0": (lambda: two(commit_lens=slots([2, -1])), ValueError, r"commit_lens\[1\]=-1 is outside 0 … 2"),
    "lens of 1-D loc": (lambda: ok(commit_lens=slots([1])), ValueError, r"commit_lens needs loc of shape \(B, W\)"),
    "lens shape": (lambda: two(commit_lens=slots([1])), ValueError, r"commit_lens has shape \(1,\), .*\(2,\)"),
    "lens dtype": (lambda: two(commit_lens=slots([1, 1]).float()), TypeError, "commit_lens is torch.float32"),
    "lens is a list": (lambda: two(commit_lens=[1, 1]), TypeError, "commit_lens must be .*list"),
    "mask shape": (lambda: two(row_mask=mask(2, 3)), ValueError, r"shape \(2, 3\); legal are \(2, 2\) and \(4,\)"),
    "mask dtype": (lambda: ok(row_mask=mask(4).int()), TypeError, "row_mask must be a bool tensor, not torch.int32"),
    "mask is a list": (lambda: ok(row_mask=[True] * 4), TypeError, "row_mask must be a bool tensor, not list"),
    "scale of a bf16 pool": (lambda: ok(k_scale=2.0), ValueError, "k_scale is given, but a bfloat16 pool"),
}  # fmt: skip
FP8_CASES = {
    "scale 0": ({"k_scale": 0.0}, ValueError, "k_scale=0.0 must be a positive finite number"),
    "scale below 0": ({"v_scale": -1.0}, ValueError, "v_scale=-1.0 must be"),
    "scale NaN": ({"v_scale": float("nan")}, ValueError, "v_scale=nan must be"),
    "scale infinite": ({"k_scale": float("inf")}, ValueError, "k_scale=inf must be"),
    "scale of rows": ({"k_scale": torch.ones(4, device=DEVICE)}, ValueError, r"k_scale has shape \(4,\)"),
    "scale of ints": ({"v_scale": slots(2)}, ValueError, "v_scale has .*torch.int64"),
    "scale is a word": ({"k_scale": "2"}, TypeError, "k_scale='2' must be a float"),
    "scale is a bool": ({"k_scale": True}, TypeError, "k_scale=True must be a float"),
}  # fmt: skip


def refused(pool, error, message, commit):
    before = saved(pool)
    with pytest.raises(error, match=message):
        pool.commit(**commit)
    assert_same_bytes(pool, before)


@pytest.mark.parametrize("case", CASES)
def test_bad_commits_write_nothing(path, case):
    commit, error, message = CASES[case]
    for builder in BUILDERS.values():
        refused(poisoned(builder(G, BF16)), error, message, commit())


@pytest.mark.parametrize("case", FP8_CASES)
def test_bad_scales_write_nothing(case):
    spoiled, error, message = FP8_CASES[case]
    for dtype in (torch.float8_e4m3fn, torch.float8_e5m2):
        refused(poisoned(kvlab.page_major(G, dtype)), error, message, ok(**spoiled))


def test_what_is_not_committed_is_not_checked():
    """Duplicates and far slots among rows that are not written are no fault."""
    pool = poisoned(kvlab.token_major(G, BF16))
    pool.commit(**two(loc=slots([[5, 6], [5, 99]]), commit_lens=slots([2, 0])))
    pool.commit(**ok(loc=slots([9, 9, 9, 64]), row_mask=slots([0, 1, 0, 0]).bool()))
    pool.commit(**ok(loc=slots([0, 0, -1, -1])))


def test_the_unchecked_commit_still_checks_shapes():
    pool = poisoned(kvlab.token_major(G, BF16))
    refused(pool, ValueError, "k has shape", ok(loc=slots([5]), check=False))
    refused(pool, TypeError, "commit_lens is", two(commit_lens=slots([1, 1]).float(), check=False))


@pytest.mark.parametrize("name", ["loc", "k", "v", "row_mask", "commit_lens", "k_scale"])
def test_another_device(name):
    pool = poisoned(kvlab.token_major(G, torch.float8_e4m3fn))
    good = two(row_mask=mask(2, 2), commit_lens=slots([1, 1]), k_scale=torch.tensor(2.0, device=DEVICE))
    refused(pool, ValueError, f"{name} is on meta, the pool is on", {**good, name: good[name].to("meta")})


def test_gather_errors():
    pool = poisoned(kvlab.page_major(G, BF16))
    for loc, layer, error, message in (
        (slots([5, 64]), 0, IndexError, r"loc\[1\]=64 .*0 … 63"),
        (slots([[5], [70]]), None, IndexError, r"loc\[1, 0\]=70 .*0 … 63"),
        (slots([5]), 2, IndexError, "layer=2 is outside 0 … 1"),
        ([5], 0, TypeError, "loc must be"),
        (slots([5.0], torch.float32), 0, TypeError, "loc is torch.float32"),
        (slots([[[5]]]), 0, ValueError, r"loc has shape \(1, 1, 1\)"),
    ):
        with pytest.raises(error, match=message):
            pool.gather(loc, layer=layer)
    with pytest.raises(ValueError, match="k_scale is given, but a bfloat16 pool"):
        pool.gather(slots([5]), layer=0, k_scale=2.0)


@pytest.mark.parametrize("name", ["layers", "heads", "head_dim", "v_head_dim", "page_size", "pages"])
def test_sizes_of_a_geometry(name):
    for value in (0, -3):
        with pytest.raises(ValueError, match=f"{name}={value} must be at least 1"):
            geometry(**{name: value})
    for value in (2.0, "2", True):
        with pytest.raises(TypeError, match=f"{name}={value!r} must be an int"):
            geometry(**{name: value})


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_formats(builder):
    for bad in (torch.int8, torch.float64, "bfloat16", 8):
        with pytest.raises(TypeError, match=r"fmt=.* is no format.*torch.bfloat16"):
            builder(G, bad)
    for name, sizes in (("head_dim", {"head_dim": 72}), ("v_head_dim", {"v_head_dim": 80})):
        with pytest.raises(ValueError, match=rf"MXFP8: {name}={sizes[name]} must be a multiple of 32"):
            builder(geometry(**sizes), kvlab.MXFP8())
    with pytest.raises(ValueError, match="page_size=4 must be a multiple of 128"):
        builder(G, kvlab.MXFP8("interleaved"))


def test_mxfp8_options():
    with pytest.raises(ValueError, match="scales='tiled' is not one of 'flat', 'interleaved'"):
        kvlab.MXFP8(scales="tiled")
    with pytest.raises(ValueError, match="rounding='up' is not one of 'rceil', 'floor', 'even'"):
        kvlab.MXFP8(rounding="up")


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("make", [float, torch.tensor])
def test_an_fp8_scale_must_be_positive_and_finite(value, make):
    pool = poisoned(kvlab.token_major(geometry(), torch.float8_e4m3fn))
    before = saved(pool)
    rows = torch.ones(1, 2, 64, device=DEVICE)
    scale = make(value) if make is float else torch.tensor(value, device=DEVICE)
    with pytest.raises(ValueError, match=r"k_scale=.* must be a positive finite number"):
        pool.commit(torch.tensor([5], device=DEVICE), rows, rows, layer=0, k_scale=scale)
    assert_same_bytes(pool, before)
