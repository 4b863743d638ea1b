"""Adopting the tensors of a live engine: zero-copy, by their own shapes and strides."""

import pytest
import torch

import kvlab
from kvlab.backends import reference_backend

from .helpers import BUILDERS, DEVICE, POISON, assert_same_bytes, bits, geometry, randomised, rows_for, saved, slots

ROWS = [3, 8, 13, 63]  # slots of the commits below; 64 slots in all


def poison(*shape, dtype=torch.bfloat16):
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.full((count,), POISON, dtype=torch.uint8, device=DEVICE).view(dtype).view(shape)


def engines():
    """How engines hold K and V: memory, its K and V tensors per layer, head_major, and a row of a layer."""

    def by_slot(x, slot):
        return x[slot]

    def by_page(x, slot):
        return x[slot // 4, slot % 4]

    def by_head(x, slot):
        return x[slot // 4, :, slot % 4]

    apart = [poison(64, 3, 40) for _ in range(4)]
    yield "one tensor per layer", apart, apart[:2], apart[2:], False, by_slot
    fused = [poison(64, 2, 3, 40) for _ in range(2)]
    yield "K and V fused per token", fused, [x[:, 0] for x in fused], [x[:, 1] for x in fused], False, by_slot
    vllm = [poison(2, 16, 4, 3, 40) for _ in range(2)]
    yield "vLLM (2, blocks, block, heads, dim)", vllm, [x[0] for x in vllm], [x[1] for x in vllm], False, by_page
    blocks = [poison(16, 2, 3, 4, 40) for _ in range(2)]
    yield "FlashInfer HND (pages, 2, …)", blocks, [x[:, 0] for x in blocks], [x[:, 1] for x in blocks], True, by_head
    whole = poison(16, 2, 2, 4, 3, 40)
    pages = [[whole[:, i, j] for i in range(2)] for j in range(2)]
    yield "one page envelope", [whole], *pages, False, by_page
    wide = poison(16, 7, 3, 64)  # pages and rows with room around them: no stride is a product of sizes
    yield "views of a larger tensor", [wide], [wide[:, 1:5, :, 2:22]], [wide[:, 1:5, :, 30:50]], False, by_page
    layers = poison(3, 64, 3, 40)
    yield "uneven layers", [layers, fused[0]], [layers[2], layers[0]], [fused[0][:, 0], fused[0][:, 1]], False, by_slot


@pytest.mark.parametrize("which", range(7))
def test_commits_land_in_the_engines_tensors(which):
    name, memory, k_tensors, v_tensors, head_major, row_of = list(engines())[which]
    pool = kvlab.KVPool.adopt(k_tensors, v_tensors, head_major=head_major)
    g = pool.layout.geometry
    assert (g.slots, g.heads, g.layers) == (64, 3, len(k_tensors)), name
    for layer, (k, v) in enumerate(zip(k_tensors, v_tensors, strict=True)):
        for view, x in ((pool.get_key_buffer(layer), k), (pool.get_value_buffer(layer), v)):
            assert (view.data_ptr(), view.shape, view.stride()) == (x.data_ptr(), x.shape, x.stride())
    k, v = rows_for(g, len(ROWS), torch.bfloat16, layers=g.layers)
    for run in (kernel_commit, reference_commit):
        for x in memory:
            x.view(torch.uint8).fill_(POISON)
        run(pool, k, v)
        got = [x.clone() for x in memory]
        for x in memory:
            x.view(torch.uint8).fill_(POISON)
        for layer in range(g.layers):
            for row, slot in enumerate(ROWS):
                row_of(k_tensors[layer], slot).copy_(k[layer, row])
                row_of(v_tensors[layer], slot).copy_(v[layer, row])
        for x, y in zip(got, memory, strict=True):
            assert torch.equal(bits(x), bits(y)), f"{name}: {run.__name__}"
    for x, y in zip(pool.gather(slots(ROWS)), (k, v), strict=True):
        assert torch.equal(bits(x), bits(y))


def kernel_commit(pool, k, v):
    pool.commit(slots(ROWS), k, v)


def reference_commit(pool, k, v):
    with reference_backend():
        pool.commit(slots(ROWS), k, v)


@pytest.mark.parametrize("which", range(7))
def test_an_adopted_layout_explains_every_cell(which):
    import numpy as np

    _, _, k_tensors, v_tensors, head_major, _ = list(engines())[which]
    layout = kvlab.KVPool.adopt(k_tensors, v_tensors, head_major=head_major).layout
    assert kvlab.Layout.from_dict(layout.to_dict()) == layout
    g = layout.geometry
    for field in layout.fields:
        for layer in range(g.layers):
            slot, head, dim = np.meshgrid(np.arange(64), np.arange(3), np.arange(g.dim(field)), indexing="ij")
            buffer, byte = layout.locate(field, layer, slot, head, dim)
            cells = layout.explain(buffer, byte.reshape(-1) + 1)
            assert {cells.names[i] for i in cells.field} == {field}
            assert set(cells.layer) == {layer} and set(cells.byte) == {1}
            for got, want in ((cells.slot, slot), (cells.head, head), (cells.dim, dim)):
                assert np.array_equal(got, want.reshape(-1))


@pytest.mark.parametrize("fmt", [torch.float16, kvlab.MXFP8("flat"), kvlab.MXFP8("interleaved")], ids=str)
@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
def test_adopting_our_own_views_finds_the_same_cells(builder, fmt):
    page_size = 128 if fmt == kvlab.MXFP8("interleaved") else 4
    g = geometry(head_dim=128, v_head_dim=256, page_size=page_size, pages=2)
    pool = randomised(builder(g, fmt))
    views = [[pool.view(f, i) for i in range(g.layers)] for f in pool.layout.fields]
    again = kvlab.KVPool.adopt(*views, head_major=builder is kvlab.head_major, page_size=page_size)
    assert again.layout.geometry == g and again.layout.format == fmt
    for field in pool.layout.fields:
        for layer in range(g.layers):
            ours, theirs = pool.view(field, layer), again.view(field, layer)
            assert (ours.data_ptr(), ours.shape, ours.stride()) == (theirs.data_ptr(), theirs.shape, theirs.stride())
    for cell in ({"layer": 1, "slot": 2 * page_size - 1, "head": 1, "dim": 3}, {"layer": 0, "slot": 3}):
        for field in pool.layout.fields:
            (ours, byte), (theirs, at) = pool.layout.locate(field, **cell), again.layout.locate(field, **cell)
            assert pool.buffers[ours].data_ptr() + byte == again.buffers[theirs].data_ptr() + at


def test_scales_may_be_e8m0_tensors():
    g = geometry()
    k, v = (torch.zeros(64, 2, 64, dtype=torch.uint8, device=DEVICE) for _ in range(2))
    scales = [torch.zeros(64, 2, 2, dtype=torch.uint8, device=DEVICE) for _ in range(2)]
    pool = kvlab.KVPool.adopt([k], [v], *([s.view(torch.float8_e8m0fnu)] for s in scales), page_size=4)
    assert pool.layout.format == kvlab.MXFP8("flat") and pool.layout.geometry.pages == g.pages
    assert pool.view("v_scale", 0).data_ptr() == scales[1].data_ptr()


def test_two_memories_with_payload_and_scales_in_each():
    """K with its scales in one allocation, V with its own in another: two buffers, not one that hides the other."""

    def side():
        raw = torch.full((64 * 2 * 66,), POISON, dtype=torch.uint8, device=DEVICE)
        return raw[: 64 * 2 * 64].view(64, 2, 64), raw[64 * 2 * 64 :].view(64, 2, 2)

    (k, ks), (v, vs) = side(), side()
    pool = kvlab.KVPool.adopt([k], [v], [ks], [vs])
    for field, x in zip(("k", "v", "k_scale", "v_scale"), (k, v, ks, vs), strict=True):
        assert pool.view(field, 0).data_ptr() == x.data_ptr()


def test_a_storage_of_odd_length():
    raw = torch.full((2 * 64 * 3 * 40 + 1,), POISON, dtype=torch.uint8, device=DEVICE)
    k = raw[:-1].view(torch.bfloat16).view(64, 3, 40)
    pool = kvlab.KVPool.adopt([k], [poison(64, 3, 40)])
    k_rows, v_rows = rows_for(pool.layout.geometry, 4, torch.bfloat16)
    pool.commit(slots(ROWS), k_rows, v_rows, layer=0)
    assert torch.equal(bits(k[ROWS]), bits(k_rows))
    assert raw[-1] == POISON


def test_memory_outside_the_views_keeps_its_bytes():
    wide = poison(64, 5, 64)
    pool = kvlab.KVPool.adopt([wide[:, 1:3, 5:29]], [wide[:, 1:3, 30:60]])
    before = saved(pool)
    with reference_backend():
        pool.commit(slots([-1, 0]), *rows_for(pool.layout.geometry, 2, torch.bfloat16), layer=0)
    pool.commit(slots([-1, 0]), *rows_for(pool.layout.geometry, 2, torch.bfloat16), layer=0)
    assert_same_bytes(pool, before)


def make(*shape, dtype=torch.bfloat16):
    return torch.zeros(shape, dtype=dtype, device=DEVICE)


A, B = make(64, 2, 64), make(64, 2, 64)
E4M3 = make(64, 2, 64, dtype=torch.uint8)
SCALE, TILE = make(64, 2, 2, dtype=torch.uint8), make(1, 2, 32, 4, 4, dtype=torch.uint8)
REFUSED = {
    "K is V": (lambda: ([A], [A]), ValueError, "k and v share bytes"),
    "K is V, in two layers": (lambda: ([A, B], [A, B]), ValueError, "k.0 and v.0 share bytes"),
    "V overlaps the end of K": (lambda: ([A[:40]], [A[24:]]), ValueError, "share bytes"),
    "one layer twice": (lambda: ([A, A], [B, B.clone()]), ValueError, "k.0 and k.1 share bytes"),
    "rows over each other": (lambda: ([A.expand(2, 64, 2, 64)[:, 0]], [B[:2]]), ValueError, "overlap"),
    "no layers": (lambda: ([], []), TypeError, "k must be a sequence of tensors"),
    "not tensors": (lambda: ([[1.0]], [B]), TypeError, "k must be a sequence of tensors"),
    "layer counts": (lambda: ([A], [B, B.clone()]), ValueError, "v has 2 layers, k has 1"),
    "layers differ": (lambda: ([A, A[:32]], [B, B]), ValueError, r"k\[1\] is \(32, 2, 64\)"),
    "rank": (lambda: ([A[0]], [B[0]]), ValueError, r"k has shape \(2, 64\); legal ranks are \[3, 4\]"),
    "dtypes": (lambda: ([A], [B.half()]), TypeError, "k is torch.bfloat16 and v is torch.float16"),
    "no format": (lambda: ([A.double()], [B.double()]), TypeError, "k is torch.float64"),
    "heads": (lambda: ([A], [B[:, :1]]), ValueError, r"v has shape \(64, 1, 64\)"),
    "slots": (lambda: ([A], [B[:32]]), ValueError, r"v has shape \(32, 2, 64\)"),
    "one scale": (lambda: ([E4M3], [E4M3.clone()], [SCALE]), ValueError, "v_scales is missing"),
    "scales of bf16": (lambda: ([A], [B], [SCALE], [SCALE.clone()]), TypeError, "k is torch.bfloat16 but"),
    "scale dtype": (lambda: ([E4M3], [E4M3.clone()], [SCALE.int()], [SCALE.int()]), TypeError, "is torch.int32"),
    "flat and tile": (lambda: ([E4M3], [E4M3.clone()], [SCALE], [TILE]), ValueError, "both be flat or both"),
    "blocks": (lambda: ([E4M3], [E4M3 + 1], [SCALE[..., :1]], [SCALE + 1]), ValueError, r"k_scale has .*64, 2, 1"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused(case):
    tensors, error, message = REFUSED[case]
    with pytest.raises(error, match=message):
        kvlab.KVPool.adopt(*tensors())


def test_head_major_needs_pages():
    with pytest.raises(ValueError, match=r"legal ranks are \[4\] \(head_major=True\)"):
        kvlab.KVPool.adopt([A], [B], head_major=True)
    with pytest.raises(ValueError, match="64 slots, which is no multiple of page_size=10"):
        kvlab.KVPool.adopt([A], [B], page_size=10)
