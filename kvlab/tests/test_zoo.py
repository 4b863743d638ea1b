"""Other engines' layouts: every byte where upstream's shape puts it, and every operation right on them."""

import json

import numpy as np
import pytest
import torch

import kvlab
from kvlab import zoo
from kvlab.backends import reference_backend
from kvlab.kernels.addressing import cells_of

from . import test_layout
from .helpers import BUILDERS, DEVICE, PLAIN, assert_same_bytes, bits, one_launch, poisoned, randomised, rows_for, slots
from .mx_helpers import exact_mx, mx_bytes, mx_rows
from .zoo_oracle import all_items, places

GEOMETRY = kvlab.Geometry(layers=2, heads=3, head_dim=32, page_size=3, pages=4)
WIDE_V = kvlab.Geometry(layers=2, heads=2, head_dim=32, v_head_dim=64, page_size=2, pages=3)
TILED = kvlab.Geometry(layers=2, heads=2, head_dim=32, page_size=128, pages=2)
FLAT = kvlab.MXFP8("flat")
BLOCKS = [[0, 5, 6], [11, -1, 1], [7, 2, 10]]  # slots of a (3, 3) commit; 0 and -1 are padding
LENS = [3, 3, 1]
MASK = [[True, False, True], [True, True, True], [True, True, True]]
each = pytest.mark.parametrize("builder", zoo.ALL.values(), ids=zoo.ALL)


def placed_by_upstream(pool, loc, rows: dict, layers, commit_lens=None, row_mask=None) -> torch.Tensor:
    """All items of ``pool`` after a commit of ``rows[field][layer, row]``, by upstream's shapes and a loop."""
    g, want = pool.layout.geometry, all_items(pool)
    mask = torch.ones(loc.shape, dtype=torch.bool) if row_mask is None else row_mask
    row = -1
    for b, block in enumerate(loc.tolist()):
        for w, slot in enumerate(block):
            row += 1
            if slot <= 0 or not mask[b, w] or (commit_lens is not None and w >= commit_lens[b]):
                continue
            for field, source in rows.items():
                at = places(pool.layout, field)
                for i in layers:
                    value = bits(source[i - layers[0], row])
                    want[at[i, slot // g.page_size, slot % g.page_size].to(DEVICE)] = value
    return want


def check_commit(layout, loc, k, v, rows, layer=None, **options):
    """Kernel and reference into poison: one launch, the same bytes, and those that upstream's shape asks for."""
    kernel, reference = poisoned(layout), poisoned(layout)
    layers = range(layout.geometry.layers) if layer is None else [layer]
    chosen = {name: options[name] for name in ("commit_lens", "row_mask") if name in options}
    want = placed_by_upstream(kernel, loc, rows, list(layers), **chosen)
    with one_launch():
        kernel.commit(loc, k, v, layer=layer, **options)
    with reference_backend():
        reference.commit(loc, k, v, layer=layer, **options)
    assert_same_bytes(kernel, reference, "kernel against reference")
    assert torch.equal(all_items(kernel), want)
    return kernel


@pytest.mark.parametrize("dtype", PLAIN, ids=str)
@each
def test_locate_is_upstreams_indexing(builder, dtype):
    layout = builder(GEOMETRY, dtype)
    starts = dict(zip(layout.buffers, np.cumsum([0, *layout.buffers.values()]).tolist(), strict=False))
    for field in layout.fields:
        layer, slot, head, dim = test_layout.every_cell(layout, field)
        buffer, byte = layout.locate(field, layer, slot, head, dim)
        start = starts[buffer] if isinstance(buffer, str) else np.array([starts[b] for b in buffer])
        assert ((start + byte) // dtype.itemsize).tolist() == places(layout, field).reshape(-1).tolist()


@pytest.mark.parametrize("case", [(GEOMETRY, torch.bfloat16), (WIDE_V, torch.float8_e5m2), (WIDE_V, FLAT),
                                  (TILED, kvlab.MXFP8("interleaved"))], ids=str)  # fmt: skip
@each
def test_explain_is_the_inverse_and_json_holds_all(builder, case):
    layout = builder(*case)
    test_layout.check_inverse(layout)
    assert kvlab.Layout.from_dict(json.loads(json.dumps(layout.to_dict()))) == layout
    assert layout.name in str(layout)
    payload = [layout.explain(b, np.arange(n)).field for b, n in layout.buffers.items() if "scale" not in b]
    assert all((owner >= 0).all() for owner in payload), "upstream's tensors have no padding"


def test_buffers_are_upstreams_allocations():
    row = 3 * 32 * 2 * GEOMETRY.slots  # K of one layer, bf16
    each_layer = {"layer.0": 2 * row, "layer.1": 2 * row}
    want = {name: each_layer if name[:3] in ("vll", "fla") else {"kv": 4 * row} for name in zoo.ALL}
    want["vllm_first"] = {"k.0": row, "k.1": row, "v.0": row, "v.1": row}
    for name, builder in zoo.ALL.items():
        layout = builder(GEOMETRY, torch.bfloat16)
        assert (layout.name, layout.buffers) == (name, want[name])
        scales = {b: n for b, n in builder(GEOMETRY, FLAT).buffers.items() if "scale" in b}
        assert scales == {"k_scale": 2 * 12 * 3, "v_scale": 2 * 12 * 3}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float8_e4m3fn], ids=str)
@each
def test_commit_and_gather(builder, dtype):
    layout = builder(GEOMETRY, dtype)
    loc = slots(BLOCKS)
    k, v = rows_for(GEOMETRY, 9, dtype, layers=2)
    options = {"commit_lens": slots(LENS), "row_mask": torch.tensor(MASK, device=DEVICE)}
    pool = check_commit(layout, loc, k, v, {"k": k, "v": v})
    check_commit(layout, loc, k[1], v[1], {"k": k[1:], "v": v[1:]}, layer=1, **options)
    real = loc.reshape(-1) > 0
    for got, source in zip(pool.gather(loc.reshape(-1)[real]), (k, v), strict=True):
        assert torch.equal(bits(got), bits(source[:, real]))
    with reference_backend():
        again = pool.gather(loc, layer=1)
    for got, want in zip(pool.gather(loc, layer=1), again, strict=True):
        assert torch.equal(bits(got), bits(want))


@each
def test_mxfp8_commit_and_gather(builder):
    layout = builder(GEOMETRY, FLAT)
    loc, lens = slots(BLOCKS), slots(LENS)
    k, v = mx_rows(GEOMETRY, 9, torch.bfloat16, layers=2)
    (k_bytes, k_scale), (v_bytes, v_scale) = exact_mx(k, "rceil"), exact_mx(v, "rceil")
    rows = {"k": k_bytes, "v": v_bytes, "k_scale": k_scale, "v_scale": v_scale}
    check_commit(layout, loc, k, v, rows, commit_lens=lens)
    k, v, scales = mx_bytes(GEOMETRY, 9, layers=2)
    pool = check_commit(layout, loc, k, v, {"k": k, "v": v, **scales}, **scales)
    real = loc.reshape(-1) > 0
    for got, source in zip(pool.gather(loc, dequantize=False), (k, v), strict=True):
        assert torch.equal(bits(got)[:, real], bits(source)[:, real])
    for got, source in zip(pool.gather_scales(loc), scales.values(), strict=True):
        assert torch.equal(got[:, real], source[:, real])


@pytest.mark.parametrize("case", [(WIDE_V, torch.float16), (TILED, kvlab.MXFP8("interleaved"))], ids=str)
@each
def test_wide_v_and_interleaved_scales(builder, case):
    g, fmt = case
    kernel, reference = poisoned(builder(*case)), poisoned(builder(*case))
    loc = slots([3, 0, 2, g.slots - 1])
    dtype = fmt if isinstance(fmt, torch.dtype) else torch.bfloat16
    k, v = rows_for(g, 4, dtype, layers=2) if dtype == fmt else mx_rows(g, 4, dtype, layers=2)
    kernel.commit(loc, k, v)
    with reference_backend():
        reference.commit(loc, k, v)
        want = reference.gather(loc)
    assert_same_bytes(kernel, reference, "kernel against reference")
    for got, again in zip(kernel.gather(loc), want, strict=True):
        assert torch.equal(bits(got), bits(again))
    if dtype == fmt:
        assert all(torch.equal(bits(x[:, [0, 2, 3]]), bits(y[:, [0, 2, 3]])) for x, y in zip(want, (k, v), strict=True))


@each
def test_zero_copy_views_have_the_upstream_shape(builder):
    pool = randomised(builder(GEOMETRY, torch.bfloat16))
    for field in ("k", "v"):
        view = pool.view(field, 1)
        at = places(pool.layout, field)[1].to(DEVICE)
        assert sorted(bits(view).reshape(-1).tolist()) == sorted(all_items(pool)[at].reshape(-1).tolist())
    if builder in (zoo.vllm_hnd, zoo.flashinfer_hnd, zoo.tensorrt_llm):
        assert view.shape == (4, 3, 3, 32) and torch.equal(bits(view.transpose(1, 2)), all_items(pool)[at])
    if builder is zoo.vllm_first:
        assert pool.view("k", 0).shape == (4, 3, 4, 3, 8) and view.shape == (4, 3, 32, 3)


RUNS = {  # bf16, 4 layers, 2 heads, head_dim 64, pages of 8 slots: one token, one page, one layer of 16 pages
    "vllm_first": ("576 runs of 2 to 16 bytes", "8 runs of 2,048 bytes", "2 runs of 32,768 bytes"),
    "vllm_nhd": ("8 runs of 256 bytes", "8 runs of 2,048 bytes", "1 run of 65,536 bytes"),
    "vllm_hnd": ("16 runs of 128 bytes", "8 runs of 2,048 bytes", "1 run of 65,536 bytes"),
    "vllm_packed": ("8 runs of 256 bytes", "4 runs of 4,096 bytes", "1 run of 65,536 bytes"),
    "flashinfer_nhd": ("8 runs of 256 bytes", "4 runs of 4,096 bytes", "1 run of 65,536 bytes"),
    "flashinfer_hnd": ("16 runs of 128 bytes", "4 runs of 4,096 bytes", "1 run of 65,536 bytes"),
    "tensorrt_llm": ("16 runs of 128 bytes", "1 run of 16,384 bytes", "16 runs of 4,096 bytes"),
    "mini_sglang": ("8 runs of 256 bytes", "8 runs of 2,048 bytes", "2 runs of 32,768 bytes"),
    "nano_vllm": ("8 runs of 256 bytes", "8 runs of 2,048 bytes", "2 runs of 32,768 bytes"),
    "hicache_layer_first": ("8 runs of 256 bytes", "8 runs of 2,048 bytes", "2 runs of 32,768 bytes"),
    "hicache_page_first": ("2 runs of 1,024 bytes", "2 runs of 8,192 bytes", "256 runs of 256 bytes"),
    "hicache_page_head": ("4 runs of 512 bytes", "2 runs of 8,192 bytes", "512 runs of 128 bytes"),
}


@each
def test_runs(builder):
    g = kvlab.Geometry(layers=4, heads=2, head_dim=64, page_size=8, pages=16)
    layout = builder(g, torch.bfloat16)
    assert tuple(str(layout.runs(what, 1)) for what in ("token", "page", "layer")) == RUNS[layout.name]
    for what in ("token", "page", "layer"):
        test_layout.test_runs_by_brute_force(builder(GEOMETRY, torch.bfloat16), what)


@each
def test_widest_access(builder):
    """16 bytes in every layout, but for V of vLLM's first, whose neighbours in dim lie a block apart."""
    for dtype in PLAIN:
        pool = poisoned(builder(GEOMETRY, dtype))
        k, v = (cells_of(pool.layout.fields[f], pool.buffers).vector for f in ("k", "v"))
        assert k == 16 // dtype.itemsize
        assert v == (1 if builder is zoo.vllm_first else k)


def test_what_cannot_be_laid_out_is_refused():
    for head_dim, dtype, x in ((36, torch.bfloat16, 8), (72, torch.float8_e4m3fn, 16), (66, torch.float32, 4)):
        g = kvlab.Geometry(layers=1, heads=1, head_dim=head_dim, v_head_dim=7, page_size=2, pages=2)
        with pytest.raises(ValueError, match=rf"vllm_first: head_dim={head_dim} .* x={x}"):
            zoo.vllm_first(g, dtype)
    fits = kvlab.Geometry(layers=1, heads=1, head_dim=72, v_head_dim=7, page_size=2, pages=2)
    test_layout.check_inverse(zoo.vllm_first(fits, torch.bfloat16))
    for builder in zoo.ALL.values():
        with pytest.raises(TypeError, match="float64"):
            builder(GEOMETRY, torch.float64)
        with pytest.raises(ValueError, match="head_dim=72"):
            builder(fits, FLAT)
        with pytest.raises(ValueError, match="page_size=3"):
            builder(GEOMETRY, kvlab.MXFP8("interleaved"))


EVERY = BUILDERS | zoo.ALL
TINY = {"layers": 1, "heads": 2, "head_dim": 32}


@pytest.mark.parametrize("target", EVERY.values(), ids=EVERY)
def test_copy_from_every_layout(target):
    """All pairs, pages of 3 slots to pages of 4: each token where upstream's shape puts it, all else untouched."""
    from_slots, to_slots = [1, 8, 5, 0, 11, 4], [7, 2, 0, 5, 9, -1]
    for builder in EVERY.values():
        source = randomised(builder(kvlab.Geometry(**TINY, page_size=3, pages=4), torch.bfloat16))
        pool = poisoned(target(kvlab.Geometry(**TINY, page_size=4, pages=3), torch.bfloat16))
        have, want = all_items(source), all_items(pool)
        for field in ("k", "v"):
            read, write = (places(p.layout, field).flatten(1, 2).to(DEVICE) for p in (source, pool))
            for a, b in zip(from_slots, to_slots, strict=True):
                if b > 0:
                    want[write[:, b]] = have[read[:, a]]
        kvlab.copy(source, slots(from_slots), pool, slots(to_slots))
        assert torch.equal(all_items(pool), want), f"{builder.__name__} to {target.__name__}"


def test_copy_carries_scales_round_the_zoo():
    """From each layout to the next, once round: rows and scales come home unchanged."""
    g = kvlab.Geometry(layers=2, heads=2, head_dim=32, page_size=3, pages=4)
    first = randomised(zoo.vllm_first(g, FLAT))
    loc = slots(list(range(1, g.slots)))
    here = first
    for builder in [*EVERY.values(), zoo.vllm_first]:
        there = poisoned(builder(g, FLAT))
        kvlab.copy(here, loc, there, loc)
        here = there
    for get in (lambda pool: pool.gather(loc, dequantize=False), lambda pool: pool.gather_scales(loc)):
        assert all(torch.equal(bits(x), bits(y)) for x, y in zip(get(here), get(first), strict=True))
