"""Guards see real stray writes and say where they went; poison is NaN for every reader and touches freed rows only."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kvlab
from kvlab import zoo
from kvlab.backends import reference_backend
from kvlab.debug.beyond import cell_words
from kvlab.debug.commit_data import expected_mask
from kvlab.debug.guard import POISON, guarded, poison

from .helpers import BUILDERS, DEVICE, assert_same_bytes, geometry, numbers, randomised, rows_for, saved, slots

try:
    import triton
    import triton.language as tl
except ImportError:
    triton = None
else:

    @triton.jit
    def unmasked_rows(out, loc, rows, N: tl.constexpr):
        """A commit of rows of N elements that forgets to skip padding."""
        row, column = tl.program_id(0), tl.arange(0, N)
        tl.store(out + tl.load(loc + row) * N + column, tl.load(rows + row * N + column))


EVERY = BUILDERS | zoo.ALL
FORMATS = (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2, kvlab.MXFP8())
INTERLEAVED = kvlab.MXFP8("interleaved")
PAIRS = [(b, f) for b in EVERY for f in (*FORMATS, INTERLEAVED) if b in BUILDERS or f in (torch.bfloat16, FORMATS[-1])]


def memory_around(buffer: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Bytes from ``first`` on, counted from the buffer's own first byte: what a wrong pointer reaches."""
    return buffer.as_strided((count,), (1,), buffer.storage_offset() + first)


@pytest.mark.skipif(triton is None, reason="Triton is not installed here")
@pytest.mark.parametrize("slot, side, near, far", [(-1, "before", 1, 256), (-3, "before", 513, 768)])
def test_a_kernel_that_does_not_mask_padding_is_caught(slot, side, near, far):
    g = geometry()
    safe = guarded(kvlab.token_major(g, torch.bfloat16), device=DEVICE)
    k = safe.pool.get_key_buffer(0)
    unmasked_rows[(2,)](k, slots([5, slot]), torch.ones(2, 128, dtype=k.dtype, device=DEVICE), N=128)
    assert bool((safe.pool.gather(slots([5]), layer=0)[0] == 1).all())
    report = safe.check()
    (hit,) = report.overwritten
    assert (hit.buffer, hit.side, hit.nearest, hit.farthest) == ("k", side, near, far)
    assert hit.count == 256  # 0x80 and 0x3F of bf16 1.0 are not what the guard holds there
    assert f"K of layer 0, slot {slot}, head 0, dim 0 to K of layer 0, slot {slot}, head 1, dim 63" in str(report)


def test_a_write_one_page_too_far_is_caught_in_the_envelope():
    g = geometry()
    safe = guarded(kvlab.page_major(g, torch.bfloat16), device=DEVICE)
    v = safe.pool.get_value_buffer(1)
    past = v.as_strided((1, *v.shape[1:]), v.stride(), v.storage_offset() + 16 * v.stride(0))
    past[0, 2] = 0  # page 16 of 0 … 15
    (hit,) = safe.check().overwritten
    # the envelope is [L0_K | L0_V | L1_K | L1_V], 1,024 bytes each; row 2 of the last part
    assert (hit.buffer, hit.side, hit.count, hit.nearest, hit.farthest) == ("raw", "after", 256, 3585, 3840)
    assert "3,585 to 3,840 bytes after its last byte" in hit.words
    assert "V of layer 1, slot 66, head 0, dim 0 to V of layer 1, slot 66, head 1, dim 63" in hit.words


def test_both_sides_of_every_buffer_are_watched():
    g = geometry(page_size=128, pages=2)
    for builder in (kvlab.token_major, zoo.vllm_nhd):
        layout = builder(g, INTERLEAVED)
        for name, size in layout.buffers.items():
            for side, first in (("before", -1), ("after", size)):
                safe = guarded(layout, device=DEVICE)
                memory_around(safe.pool.buffers[name], first, 1).fill_(0)
                report = safe.check()
                assert [(o.buffer, o.side, o.count, o.nearest) for o in report.overwritten] == [(name, side, 1, 1)]
                assert not report.ok and not report.to_dict()["ok"]
                assert f"1 byte {side} its" in str(report)


def test_a_write_through_the_whole_guard_says_that_it_may_go_on():
    safe = guarded(kvlab.token_major(geometry(), torch.bfloat16), device=DEVICE, guard_bytes=1)
    assert safe.guard_bytes == 256
    memory_around(safe.pool.buffers["v"], -256, 256).fill_(0xFF)
    (hit,) = safe.check().overwritten
    assert (hit.buffer, hit.count, hit.nearest, hit.farthest) == ("v", 256, 1, 256)
    assert "more may have been hit" in hit.words


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("fmt", (torch.bfloat16, kvlab.MXFP8(), INTERLEAVED), ids=str)
def test_a_byte_outside_is_traced_to_the_slot_that_leads_there(name, fmt):
    g = geometry(v_head_dim=32, **({"page_size": 128, "pages": 2} if fmt == INTERLEAVED else {}))
    layout = EVERY[name](g, fmt)
    traced = 0
    for field in layout.fields.values():
        head, dim = field.extents["head"] - 1, field.extents["dim"] - 1
        for layer in range(g.layers):
            own = layer if isinstance(field.buffer, str) else 0
            buffer = field.buffer_of(layer)
            for slot in (-g.page_size - 1, -1, g.slots, g.slots + g.page_size + 1):
                byte = field.byte(own, slot, head, dim)  # the formula goes on beyond its last digit
                if 0 <= byte < layout.buffers[buffer]:
                    continue  # another cell of this buffer: no guard can see that
                words = cell_words(layout, buffer, byte)
                if f"slot {slot}, head {head}" in words:
                    traced += 1
                    assert (
                        f"of layer {layer}, " in words
                        and words.endswith(f" {dim}")
                        and words[0] == field.name[0].upper()
                    )
                    assert ("scales" in words) == field.name.endswith("_scale")
    # in every field some layer lies next to the end, and some to the beginning, or the field has the slots outside
    assert traced >= 4


def test_padding_outside_is_no_cell():
    layout = kvlab.page_major(geometry(heads=1, page_size=1), kvlab.MXFP8())
    parts = layout.fields["v_scale"].offset
    assert cell_words(layout, "raw", layout.nbytes + parts + 1).startswith("V scales of layer 0, slot 16")
    assert cell_words(layout, "raw", layout.nbytes + parts + 2) == "padding"


@pytest.mark.parametrize("fmt", (torch.bfloat16, torch.float8_e5m2, kvlab.MXFP8()), ids=str)
def test_guards_stay_whole_in_normal_use_and_the_pool_is_like_any_other(fmt):
    g = geometry(layers=1)
    for builder in (kvlab.page_major, kvlab.head_major):
        layout = builder(g, fmt)
        safe, plain = guarded(layout, device=DEVICE, poison=False), kvlab.KVPool(layout, device=DEVICE)
        dtype = torch.bfloat16 if isinstance(fmt, kvlab.MXFP8) else fmt
        k, v = rows_for(g, 6, dtype, layers=g.layers, make=numbers)
        loc = slots([[63, 0, -1], [1, 62, 5]])
        with safe:
            for pool in (safe.pool, plain):
                pool.commit(loc, k, v, commit_lens=slots([3, 2]))
        assert_same_bytes(safe.pool, plain)
        assert {name: len(b) for name, b in safe.pool.buffers.items()} == layout.buffers
        assert all(b.data_ptr() % 256 == 0 for b in safe.pool.buffers.values())
        assert safe.check().ok and str(safe.check()).startswith("all ")


@pytest.mark.parametrize("fmt", [*FORMATS, torch.float16, INTERLEAVED], ids=str)
def test_what_nobody_wrote_reads_as_nan(fmt):
    g = geometry(page_size=128, pages=2)
    for builder in BUILDERS.values():
        pool = guarded(builder(g, fmt), device=DEVICE).pool
        assert all(bool((b == 0xFF).all()) for b in pool.buffers.values())
        dtype = torch.bfloat16 if isinstance(fmt, kvlab.MXFP8) else fmt
        with reference_backend():
            pool.commit(slots([7]), *rows_for(g, 1, dtype, make=numbers), layer=0)
            rows, others = pool.gather(slots([7, 8]), layer=0), pool.gather(slots([7]), layer=1)
        for x in rows:
            assert bool(x[0].float().isfinite().all()) and bool(x[1].float().isnan().all())
        assert all(bool(x.float().isnan().all()) for x in others)


@pytest.mark.parametrize("name, fmt", PAIRS, ids=str)
def test_poison_fills_the_rows_of_freed_slots_only(name, fmt):
    g = geometry(heads=1, head_dim=32, v_head_dim=64, **({"page_size": 128, "pages": 2} if fmt == INTERLEAVED else {}))
    pool = randomised(EVERY[name](g, fmt))
    freed = slots([[9, 0], [-1, g.slots - 1]])
    want = saved(pool)
    for buffer, mask in expected_mask(pool.layout, freed.cpu()).items():
        want[buffer][torch.from_numpy(mask).to(DEVICE)] = POISON
    with reference_backend():
        poison(pool, freed)
    assert_same_bytes(pool, want)


@pytest.mark.parametrize("builder", BUILDERS.values(), ids=BUILDERS)
@pytest.mark.parametrize("fmt", (torch.float32, torch.float8_e5m2, kvlab.MXFP8()), ids=str)
def test_poison_by_the_kernels(builder, fmt):
    kernels, plain = (guarded(builder(geometry(), fmt), device=DEVICE, poison=False) for _ in range(2))
    with kernels, plain:
        poison(kernels.pool, slots([63, 4, 0]))
        with reference_backend():
            poison(plain.pool, slots([63, 4, 0]))
    assert bool((kernels.pool.buffers[kernels.pool.layout.fields["v"].buffer] == POISON).any())
    assert_same_bytes(kernels.pool, plain.pool)


@settings(max_examples=15)
@given(freed=st.lists(st.integers(-2, 63), min_size=1, max_size=12, unique=True), wide=st.booleans())
def test_poison_of_any_slots(freed, wide):
    pool = randomised(kvlab.page_major(geometry(), kvlab.MXFP8()))
    loc = slots(freed, torch.int64 if wide else torch.int32)
    want = saved(pool)
    if max(freed) > 0:
        want["raw"][torch.from_numpy(expected_mask(pool.layout, loc.cpu())["raw"]).to(DEVICE)] = POISON
    with reference_backend():
        poison(pool, loc)
    assert_same_bytes(pool, want)


@pytest.mark.parametrize(
    "freed, error, words",
    [
        ([5, 64], IndexError, "slots.*64.*0 … 63"),
        ([5, 6, 5], ValueError, "slots.* 5"),
        ([0.5], TypeError, "slots is torch.float32"),
        ("5", TypeError, "slots must be"),
    ],
)
def test_poison_refuses_slots_that_cannot_be_freed(freed, error, words):
    pool = randomised(kvlab.token_major(geometry(), torch.bfloat16))
    want = saved(pool)
    loc = torch.tensor(freed, device=DEVICE) if isinstance(freed, list) else freed
    with pytest.raises(error, match=words):
        poison(pool, loc)
    assert_same_bytes(pool, want)


def test_poison_refuses_what_is_no_pool():
    with pytest.raises(TypeError, match="poison: pool is a Tensor"):
        poison(torch.zeros(3), slots([1]))


def test_the_block_raises_at_its_end():
    layout = kvlab.head_major(geometry(), torch.bfloat16)
    with pytest.raises(RuntimeError, match=r"'k' .* 4 overwritten, 1 to 4 bytes before its first byte"):  # noqa: SIM117
        with guarded(layout, device=DEVICE) as safe:
            memory_around(safe.pool.buffers["k"], -4, 4).fill_(0)


def test_an_error_inside_the_block_stays_visible():
    layout = kvlab.head_major(geometry(), torch.bfloat16)
    with pytest.raises(KeyError, match="mine"), pytest.warns(RuntimeWarning, match="4 overwritten"):  # noqa: SIM117
        with guarded(layout, device=DEVICE) as safe:
            memory_around(safe.pool.buffers["k"], -4, 4).fill_(0)
            raise KeyError("mine")


@pytest.mark.parametrize(
    "options, error, words",
    [
        ({"guard_bytes": 0}, ValueError, "guard_bytes=0 must be at least 1"),
        ({"guard_bytes": 1.5}, TypeError, "guard_bytes=1.5 must be an int, not float"),
        ({"guard_bytes": True}, TypeError, "guard_bytes=True"),
        ({"layout": "page_major"}, TypeError, "layout is a str"),
    ],
)
def test_guarded_refuses(options, error, words):
    with pytest.raises(error, match=words):
        guarded(**{"layout": kvlab.page_major(geometry(), torch.bfloat16), **options})


def test_the_default_guard_holds_a_page_of_every_field():
    g = geometry(layers=8, page_size=64, pages=2)
    assert guarded(kvlab.page_major(g, torch.bfloat16), device=DEVICE).guard_bytes == 8 * 2 * 64 * 2 * 64 * 2
    assert guarded(kvlab.token_major(g, torch.bfloat16), device=DEVICE).guard_bytes == 4096
