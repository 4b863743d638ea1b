"""describe() finds the true reading of every view of every layout, and claims none that is not a view of its layout."""

import itertools
import json
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlab
from kvlab import zoo
from kvlab.debug.describe import describe
from kvlab.debug.strides import strides_of

from .helpers import BUILDERS, geometry

EVERY = BUILDERS | zoo.ALL
FLAT, INTERLEAVED = kvlab.MXFP8("flat"), kvlab.MXFP8("interleaved")
FORMATS = (torch.float16, torch.float32, torch.float8_e4m3fn, torch.bfloat16, FLAT, torch.float8_e5m2, INTERLEAVED)

CASES = [*((fmt, 64) for fmt in FORMATS), (torch.bfloat16, 32), (FLAT, 32), (INTERLEAVED, 32)]


def make(builder, fmt=torch.bfloat16, **sizes) -> kvlab.KVPool:
    return kvlab.KVPool(EVERY[builder](geometry(**sizes), fmt), device="cpu")


def name_of(fmt) -> str:
    return f"mxfp8({fmt.scales})" if isinstance(fmt, kvlab.MXFP8) else str(fmt).removeprefix("torch.")


def views(pool):
    """``(field, layer, view)`` of everything a pool hands out."""
    for layer in range(pool.layout.geometry.layers):
        yield "k", layer, pool.get_key_buffer(layer)
        yield "v", layer, pool.get_value_buffer(layer)
        if "k_scale" in pool.layout.fields:
            yield from zip(("k_scale", "v_scale"), (layer, layer), pool.get_kv_scale_buffer(layer), strict=True)


def true_readings(pool, field: str, layer: int, view, fits) -> list[dict]:
    """Fits that say what the view is; None stands for what strides do not tell."""
    g = pool.layout.geometry
    dim = g.head_dim if field.startswith("k") else g.v_head_dim
    facts = {"layer": layer, "layers": g.layers, "page_size": g.page_size, "pages": g.pages}
    return [
        fit
        for fit in fits
        if fit["layout"] == pool.layout.name
        and field in fit["fields"]
        and name_of(pool.layout.format) in fit["formats"]
        and fit["shows"] == "one layer"
        and (fit["slots"], fit["heads"], fit["head_dim"]) == (g.slots, g.heads, dim)
        and all(fit[name] in (None, value) for name, value in facts.items())
        and list(fit["strides"].values()) == [s * view.element_size() for s in view.stride()]
    ]


@pytest.mark.parametrize("fmt, v_head_dim", CASES, ids=str)
@pytest.mark.parametrize("builder", EVERY)
def test_the_true_reading_is_among_the_fits(builder, fmt, v_head_dim):
    big = {"page_size": 256, "pages": 3} if fmt == INTERLEAVED else {}
    pool = make(builder, fmt, v_head_dim=v_head_dim, heads=3, **big)
    for field, layer, view in views(pool):
        found = describe(view)
        assert true_readings(pool, field, layer, view, found.fits), f"{field} of layer {layer}:\n{found}"
        json.dumps(found.to_dict())


def likeliest(view, layout: str) -> tuple:
    """``(fields, layer, layers, page_size)`` of the first fit with this layout."""
    fit = next(f for f in describe(view).fits if f["layout"] == layout)
    return fit["fields"], fit["layer"], fit["layers"], fit["page_size"]


def test_layers_and_page_size_are_told_where_strides_tell_them():
    for field, layer, view in views(make("page_major", torch.bfloat16, layers=5, page_size=8)):
        assert likeliest(view, "page_major") == ([field], layer, 5, 8)
    for _, layer, view in views(make("token_major", layers=5)):
        assert likeliest(view, "token_major") == (["k", "v"], layer, 5, None)
    for field, _, view in views(make("vllm_first", layers=5)):
        assert likeliest(view, "vllm_first") == ([field], None, None, 4)


def test_a_page_size_that_is_given_rules_others_out():
    view = make("token_major", page_size=4).get_key_buffer(0)
    assert {f["page_size"] for f in describe(view, page_size=4).fits} == {4}
    paged = make("page_major", page_size=4, heads=3).get_key_buffer(0)
    assert {f["page_size"] for f in describe(paged).fits} == {4, 3}  # pages of 4 x 3 heads, or of 3 slots x 4 heads
    assert {f["page_size"] for f in describe(paged, page_size=4).fits} == {4}
    found = describe(paged, page_size=5)
    assert not found.fits and "No known layout has this very view with page_size 5" in found.words


def test_the_page_stride_in_words():
    g = {"layers": 8, "heads": 2, "head_dim": 128, "page_size": 16, "pages": 64}
    found = describe(make("page_major", **g).get_key_buffer(3))
    assert "K of layer 3 in page_major of 8 layers: 64 pages of 16 slots, 2 heads, head_dim 128, bfloat16" in str(found)
    assert "page stride 131,072 bytes = 8 layers x (K 8,192 + V 8,192)" in str(found)
    assert "It fits 2 readings" in str(found) and "Strides cannot tell these readings apart" in str(found)
    with_scales = str(describe(make("page_major", FLAT, **g).get_kv_scale_buffer(3)[1]))
    assert "It is V scales of layer 3 in page_major of 8 layers" in with_scales
    assert "page stride 67,584 bytes = 8 layers x (K 4,096 + V 4,096 + K scales 128 + V scales 128)" in with_scales


def test_contiguous_slots_do_not_tell_the_page_size():
    found = describe(make("token_major").get_value_buffer(1))
    assert "page_size leaves no trace" in str(found)
    assert "K and V cannot be told apart" in str(found)
    assert "not packed" not in str(found)


@pytest.mark.parametrize("builder", EVERY)
def test_what_a_packed_kernel_would_read_is_told_with_the_right_bytes(builder):
    for _, _, view in views(make(builder, layers=3, heads=3)):
        found = describe(view)
        pattern = r"steps (\d+) x 64 elements .* takes byte ([\d,]+) for slot (\d+), which begins at byte ([\d,]+)"
        for numbers in re.findall(pattern, found.words):
            heads, wrong, slot, right = (int(x.replace(",", "")) for x in numbers)
            assert wrong == view.storage_offset() * 2 + slot * heads * 64 * 2 != right
            assert right in {first_byte(fit, view, slot) for fit in found.fits if fit["heads"] == heads}


def test_a_warning_that_holds_for_one_reading_only_names_it():
    found = describe(make("head_major", layers=3, heads=3).get_key_buffer(1))
    assert {"token_major", "head_major"} <= {f["layout"] for f in found.fits}
    (warning,) = (line for line in found.words.splitlines() if "not packed" in line)
    assert warning.startswith("If it is head_major with 4 slots a page: slots are not packed")
    assert "takes byte 24,960 for slot 1, which begins at byte 24,704" in warning  # a layer has 16*3*4*64*2 bytes


def first_byte(fit: dict, view: torch.Tensor, slot: int) -> int:
    """Byte at which a slot begins, by the axes of a fit."""
    page_size = fit["page_size"] or 1
    index = {"slot": slot, "page": slot // page_size, "offset": slot % page_size}
    return view.storage_offset() * 2 + sum(index.get(axis, 0) * step for axis, step in fit["strides"].items())


@pytest.mark.parametrize("builder", ("page_major", "hicache_page_first", "vllm_packed"))
def test_there_is_a_warning_where_slots_are_not_packed(builder):
    assert "lots are not packed: a kernel" in str(describe(make(builder).get_key_buffer(1)))


def test_permuted_views():
    view = make("page_major", layers=4, heads=3).get_key_buffer(2)
    for order in ((0, 1, 2, 3), (0, 2, 1, 3), (1, 2, 0, 3), (3, 2, 1, 0), (2, 0, 3, 1)):
        found = describe(view.permute(order))
        fits = [f for f in found.fits if (f["layout"], f["page_size"]) == ("page_major", 4) and f["fields"] == ["k"]]
        assert fits and fits[0]["layer"] == 2
        assert fits[0]["axes"] == [("page", "offset", "head", "dim")[i] for i in order]
        assert ("axes are permuted" in str(found)) == (order != (0, 1, 2, 3))
    # vLLM hands out HND as a permuted view of the NHD shape
    shown = describe(make("vllm_hnd", heads=3).get_key_buffer(0).transpose(1, 2))
    assert any(f["layout"] == "vllm_hnd" and f["axes"] == ["page", "offset", "head", "dim"] for f in shown.fits)


def test_a_last_axis_that_is_not_contiguous():
    pool = make("vllm_first", heads=3)
    found = describe(pool.get_key_buffer(1))  # (blocks, heads, head_dim/x, block, x)
    assert found.fits[0]["layout"] == "vllm_first"
    assert found.fits[0]["axes"] == ["page", "head", "dim digit 1", "offset", "dim digit 0"]
    transposed = describe(pool.get_value_buffer(1).transpose(2, 3))
    assert "Neighbours on its last axis are 8 bytes apart" in str(transposed)


def test_interleaved_scales_as_readers_get_them():
    view = make("head_major", INTERLEAVED, page_size=128, pages=4, head_dim=128, layers=3).get_kv_scale_buffer(2)[0]
    assert tuple(view.shape) == (4, 2, 32, 4, 4)
    fits = [f for f in describe(view).fits if f["shows"] == "one layer" and f["fields"][0].endswith("_scale")]
    assert {(f["layer"], f["layers"], f["page_size"]) for f in fits} == {(2, 3, 128)}
    assert {"head_major", "token_major"} <= {f["layout"] for f in fits}


@pytest.mark.parametrize("dtype", (torch.uint8, torch.float8_e8m0fnu), ids=str)
def test_scales_as_bytes_or_as_e8m0(dtype):
    view = make("page_major", FLAT).get_kv_scale_buffer(1)[0].view(dtype)
    assert any(f["fields"] == ["k_scale"] and f["layout"] == "page_major" for f in describe(view).fits)


def test_fp8_payload_as_bytes():
    view = make("page_major", torch.float8_e5m2).get_key_buffer(1).view(torch.uint8)
    (fit,) = (f for f in describe(view, page_size=4).fits if f["layout"] == "page_major" and f["fields"] == ["k"])
    assert {"float8_e4m3fn", "float8_e5m2"} <= set(fit["formats"])


def test_slices_of_fused_qkv():
    rows = torch.zeros(10, (8 + 2 + 2) * 64, dtype=torch.bfloat16)
    for first, what in ((8 * 64, "K"), (10 * 64, "V")):
        found = describe(rows[:, first : first + 128].view(10, 2, 64))
        assert not found.fits
        assert f"It lies as {what} would in fused QKV of 8 query heads, 2 of K and 2 of V" in found.words
        start = first * 2
        assert f"reads byte {start + 256:,} for row 1, which begins at byte {start + 12 * 128:,}" in found.words


def test_a_part_of_the_pages_is_near_and_no_fit():
    found = describe(make("page_major", layers=4).get_value_buffer(2)[3:9])
    assert not found.fits
    assert any(f["layout"] == "page_major" and f["layers"] == 4 for f in found.near)
    assert "If page 0 begins at byte 0 of the storage, it is V of layer 2, pages 3 to 8" in found.words
    assert "6 steps of 4,096 elements, 8,192 bytes" in found.words


def test_tensors_that_say_nothing():
    assert "One run of 128 bytes" in str(describe(torch.zeros(64, dtype=torch.bfloat16)))
    assert "No known layout" in str(
        describe(torch.zeros(6, 1, 1).as_strided((2, 1, 1), (2, 0, 0)))
    )  # stride 0 of one entry
    assert "one every 8 bytes" in str(describe(torch.zeros(64)[::2]))
    assert "holds no element" in str(describe(torch.zeros(4, 0, 8)))
    assert "One run of 4 bytes" in str(describe(torch.zeros(())))
    whole = describe(torch.zeros(4, 4, dtype=torch.int64))
    assert not whole.fits and "No pool holds torch.int64" in str(whole) and "axis 0: 4 steps" in str(whole)


# --------------------------------------------------------------------------------------------- what must not be claimed


def test_a_stride_or_first_byte_that_no_layout_has_is_no_fit():
    view = make("page_major", layers=4, heads=3).get_key_buffer(2)
    storage = torch.zeros(view.untyped_storage().nbytes() // 2 + 1000, dtype=torch.bfloat16)
    exact = storage[: len(storage) - 1000].clone()
    same = exact.as_strided(view.shape, view.stride(), view.storage_offset())
    assert describe(same).fits
    for stride, offset in (
        (view.stride(), view.storage_offset() + 1),  # one element too far
        ((view.stride(0) - 8, *view.stride()[1:]), 0),  # a page stride that no number of layers gives
        ((view.stride(0), view.stride(1), view.stride(2) // 2 * 2, 1), view.storage_offset() + 192),  # into a row
    ):
        assert not describe(exact.as_strided(view.shape, stride, offset)).fits
    assert not describe(storage.as_strided(view.shape, view.stride(), view.storage_offset())).fits  # storage too large


sizes = st.lists(st.integers(1, 5), min_size=2, max_size=4)


@settings(max_examples=40)
@given(
    sizes=sizes,
    gaps=st.lists(st.integers(0, 3), min_size=4, max_size=4),
    offset=st.integers(0, 8),
    more=st.integers(0, 8),
)
def test_every_fit_is_a_view_that_its_layout_has(sizes, gaps, offset, more):
    strides, dense = [], 1
    for size, gap in zip(reversed(sizes), gaps, strict=False):
        dense *= 1 + gap * (gap < 3)
        strides.insert(0, dense)
        dense *= size
    reach = sum((n - 1) * s for n, s in zip(sizes, strides, strict=True)) + 1
    x = torch.zeros(max(dense, offset + reach) + more, dtype=torch.float16).as_strided(sizes, strides, offset)
    for fit in describe(x).fits:
        confirm(fit, x)


@pytest.mark.parametrize("builder", ("page_major", "head_major", "vllm_first", "tensorrt_llm", "hicache_page_head"))
def test_fits_of_real_views_are_views_that_their_layouts_have(builder):
    pool = make(builder, FLAT, heads=4)
    for field in pool.layout.fields:
        view = pool.view(field, 1)
        for fit in describe(view).fits:
            confirm(fit, view)


def confirm(fit: dict, x: torch.Tensor) -> None:
    """Build the pools that a fit stands for: each must have these elements, and its axes these steps in bytes."""
    dim, page = fit["head_dim"], fit["page_size"] or 1
    other = fit["other_head_dim"] or 16 * dim  # None: any will do
    both = "K and V" in fit["shows"]
    for field, name in itertools.product(fit["fields"], fit["formats"]):
        fmt = {"mxfp8(flat)": FLAT, "mxfp8(interleaved)": INTERLEAVED}.get(name) or getattr(torch, name)
        k, v = (dim, other) if field.startswith("k") else (other, dim)
        g = kvlab.Geometry(fit["layers"] or 1, fit["heads"], k, v, page, fit["slots"] // page)
        pool = kvlab.KVPool(EVERY[fit["layout"]](g, fmt), device="cpu")
        layers = range(g.layers) if "all layers" in fit["shows"] else [fit["layer"] or 0]
        shown = [pool.view(f, layer) for f in (("k", "v") if both else (field,)) for layer in layers]
        assert shown[0].untyped_storage().nbytes() == x.untyped_storage().nbytes()
        at = torch.arange(x.untyped_storage().nbytes() // x.element_size())
        mine = [at.as_strided(w.shape, w.stride(), w.storage_offset()).flatten() for w in shown]
        theirs = at.as_strided(x.shape, x.stride(), x.storage_offset()).flatten()
        assert torch.equal(torch.cat(mine).sort().values, theirs.sort().values), fit
        check_axes(fit, pool.layout, field, x)


def check_axes(fit: dict, layout, field: str, x: torch.Tensor) -> None:
    """One step along an axis leads from the first cell to the cell that the axis' name says."""
    start = layout.locate(field, fit["layer"] or 0, 0)[1]
    steps = {"page": ("slot", fit["page_size"]), "offset": ("slot", 1), "block": ("dim", 1)}
    for size, (axis, stride) in zip(x.shape, fit["strides"].items(), strict=True):
        coordinate, one = steps.get(axis, (axis, 1))
        if size == 1 or "digit" in axis or axis == "dims of K and V":
            continue
        at = {"layer": fit["layer"] or 0, "slot": 0} | ({} if axis == "K or V" else {coordinate: one})
        assert layout.locate("v" if axis == "K or V" else field, **at)[1] - start == stride, (axis, fit)


# ------------------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    "tensor, words",
    [
        (torch.zeros(4, 1, 8).expand(4, 3, 8), "axis 1 has stride 0, so its 3 entries are the same memory"),
        (torch.zeros(9).as_strided((3, 4), (2, 1)), r"along axes 0 .* and 1 .*\(1, 0\) and \(0, 2\)"),
        (torch.zeros(40).as_strided((4, 2, 4), (6, 1, 4)), "overlaps itself along axes"),
    ],
)
def test_a_tensor_that_overlaps_itself_is_refused(tensor, words):
    with pytest.raises(ValueError, match=f"describe: tensor overlaps itself.*{words}|{words}"):
        describe(tensor)


@settings(max_examples=120)
@given(axes=st.lists(st.tuples(st.integers(1, 5), st.integers(0, 12)), min_size=1, max_size=4))
def test_overlap_is_found_exactly_where_two_elements_share_memory(axes):
    shape, strides = zip(*axes, strict=True)
    bytes_ = [sum(i * s for i, s in zip(at, strides, strict=True)) for at in itertools.product(*map(range, shape))]
    x = torch.zeros(max(bytes_) + 1).as_strided(shape, strides)
    if len(set(bytes_)) == len(bytes_):
        assert strides_of(x, "describe").sizes == shape
    else:
        with pytest.raises(ValueError, match="describe: tensor overlaps itself"):
            strides_of(x, "describe")


@pytest.mark.parametrize(
    "arguments, error, words",
    [
        (([1, 2],), TypeError, "tensor is a list, not a torch.Tensor"),
        ((torch.zeros(3, 3).to_sparse(),), TypeError, "only strided tensors"),
        ((torch.zeros(3, 3), 0), ValueError, "page_size=0 must be at least 1"),
        ((torch.zeros(3, 3), 4.0), TypeError, "page_size=4.0 must be an int, not float"),
        ((torch.zeros(3, 3), True), TypeError, "page_size=True"),
    ],
)
def test_refused_arguments(arguments, error, words):
    with pytest.raises(error, match=words):
        describe(*arguments)
