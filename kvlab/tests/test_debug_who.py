"""Which program instance stored and loaded which bytes: kvlab's kernels, others', races, stray stores, the figure."""

import json

import numpy as np
import pytest
import torch

import kvlab
from kvlab import zoo

from .helpers import BUILDERS, geometry, poisoned, raw_rows, rows_for, saved, slots

pytestmark = pytest.mark.skipif(kvlab.backend() != "interpreter", reason="needs Triton's interpreter")
triton = pytest.importorskip("triton")
import triton.language as tl  # noqa: E402

from kvlab.debug.who import who  # noqa: E402


@triton.jit
def one_row(out, source, loc, N: tl.constexpr):
    """Grid (rows, halves): half a row for each program."""
    row, half = tl.program_id(0), tl.program_id(1)
    column = half * N + tl.arange(0, N)
    slot = tl.load(loc + row)
    tl.store(out + slot * 2 * N + column, tl.load(source + row * 2 * N + column), mask=slot + 0 * column >= 0)


@triton.jit
def everywhere(out, N: tl.constexpr, ATOMIC: tl.constexpr):
    """Grid (programs,): each stores the same N items. ATOMIC: all, the first program alone, or none by atomics."""
    at = out + tl.arange(0, N)
    me = tl.program_id(0)
    if ATOMIC == "all":
        tl.atomic_add(at, 1)
    elif ATOMIC == "first":
        if me == 0:
            tl.atomic_add(at, 1)
        else:
            tl.store(at, me)
    else:
        tl.store(at, me)


@triton.jit
def swap(out, expected):
    """Compare and swap of one item: program 0 finds what it expects, program 1 does not."""
    tl.atomic_cas(out + tl.program_id(0), expected, 7)


@triton.jit
def same_lane(out, N: tl.constexpr):
    tl.store(out + tl.arange(0, N) // 2, tl.arange(0, N))


@triton.jit
def cube(out):
    at = (tl.program_id(0) * 2 + tl.program_id(1)) * 2 + tl.program_id(2)
    tl.store(out + at, at)


@triton.jit
def fails(out):
    tl.store(out, 1)
    tl.static_assert(False)


def written_bytes(layout, commit) -> dict[str, np.ndarray]:
    """Bytes that ``commit(pool)`` writes, from two runs over fills that differ in every bit."""
    masks = {}
    for fill in (0xA5, 0x5A):
        pool = poisoned(layout, fill)
        commit(pool)
        for name, b in pool.buffers.items():
            masks[name] = masks.get(name, False) | (b.numpy() != fill)
    return masks


CASES = {
    "token_major bf16": (kvlab.token_major, torch.bfloat16, torch.bfloat16),
    "head_major e4m3, cast": (kvlab.head_major, torch.float8_e4m3fn, torch.bfloat16),
    "page_major mxfp8": (kvlab.page_major, kvlab.MXFP8("flat"), torch.bfloat16),
    "vllm_first fp32": (zoo.vllm_first, torch.float32, torch.float32),
}


@pytest.mark.parametrize("name", CASES)
def test_commit_programs(name):
    """Each byte that the commit writes has one writer: the program of its layer; all other bytes have none."""
    builder, fmt, dtype = CASES[name]
    layout = builder(geometry(v_head_dim=96), fmt)
    loc = slots([5, 0, 7, 62, -1])
    k, v = rows_for(layout.geometry, 5, dtype, layers=2)
    k, v = k.nan_to_num(1.0, 1.0, -1.0), v.nan_to_num(1.0, 1.0, -1.0)
    want = written_bytes(layout, lambda pool: pool.commit(loc, k, v))
    pool = poisoned(layout)
    trace = who(pool, lambda: pool.commit(loc, k, v), also={"k rows": k, "v rows": v, "loc": loc})
    assert [x.kernel for x in trace.launches] == ["commit_kernel"] and not trace.races and not trace.outside
    total = 0
    for buffer, mask in want.items():
        last = trace.last_writer(buffer)
        assert np.array_equal(last >= 0, mask), buffer
        at = np.flatnonzero(mask)
        layer = np.array([trace.programs[i].coordinate[1] for i in last[at]])
        assert np.array_equal(layer, layout.explain(buffer, at).layer), buffer
        total += len(at)
    assert sum(p.stored for p in trace.programs) == total
    item, g = dtype.itemsize, layout.geometry
    for p in trace.programs:  # rows of padding are not loaded, their slots are
        assert p.loaded == 3 * g.heads * (g.head_dim + g.v_head_dim) * item + 5 * 8
    first = int(np.flatnonzero(want[next(iter(want))])[0])
    byte = trace.of(next(iter(want)), first)
    assert byte.last is trace.programs[trace.last_writer(byte.buffer)[first]] and byte.writers == (byte.last,)
    assert byte.cell == layout.explain(byte.buffer, first) and byte.readers == ()
    assert len(json.dumps(trace.to_dict())) > 100 and "commit_kernel(0, 1)" in str(trace)


def test_ranges_are_the_layouts():
    pool = poisoned(kvlab.page_major(geometry(), torch.bfloat16))
    k, v = rows_for(pool.layout.geometry, 3, torch.bfloat16)
    trace = who(pool, lambda: pool.commit(slots([5, 6, 7]), k, v, layer=1))
    assert [str(r) for r in trace.programs[0].stores] == [str(r) for r in folded(pool.layout, [5, 6, 7], 1)]


def folded(layout, rows, layer):
    from kvlab.debug.ranges import fold

    masks = {name: np.zeros(size, bool) for name, size in layout.buffers.items()}
    for field in layout.fields:
        for slot in rows:
            for head in range(layout.geometry.heads):
                for dim in range(layout.geometry.dim(field)):
                    buffer, byte = layout.locate(field, layer, slot, head, dim)
                    masks[buffer][byte : byte + layout.fields[field].item] = True
    return fold(layout, masks)


def test_adopted_pool_whose_buffers_cross():
    """K and V of a layer in one tensor, page by page: their spans cross, and each byte is told once, as its owner's."""
    tensors = [torch.zeros(8, 2, 4, 2, 64) for _ in range(2)]
    pool = kvlab.KVPool.adopt([t[:, 0] for t in tensors], [t[:, 1] for t in tensors])
    k, v = rows_for(pool.layout.geometry, 2, torch.float32)
    trace = who(pool, lambda: pool.commit(slots([5, 30]), k, v, layer=1))
    assert trace.programs[0].stored == 2 * 2 * 2 * 64 * 4
    assert [str(r) for r in trace.programs[0].stores] == [str(r) for r in folded(pool.layout, [5, 30], 1)]


def test_a_users_kernel_of_one_program_per_row():
    out, source = torch.zeros(16, 8, dtype=torch.int32), raw_rows((4, 8), torch.int32)
    trace = who(out, lambda: one_row[(4, 2)](out, source, slots([3, 9, -1, 0]), 4), also={"rows": source})
    assert torch.equal(out[[3, 9, 0]], source[[0, 1, 3]])
    for slot, row in ((3, 0), (9, 1), (0, 3)):
        for half in range(2):
            byte = trace.of("tensor", slot * 32 + half * 16 + 15)
            assert byte.last.coordinate == (row, half) and byte.last.kernel == "one_row"
    untouched = trace.of("tensor", 4 * 32)
    assert untouched.writers == () and untouched.last is None and untouched.cell is None
    idle = [p for p in trace.programs if not p.stored]  # slot -1: all lanes masked off
    assert [p.coordinate for p in idle] == [(2, 0), (2, 1)]
    assert [p.coordinate for p in trace.of("rows", 33).readers] == [(1, 0)]
    assert str(trace.programs[3].stores[0]) == "tensor bytes 304-319"
    assert trace.launches[0].grid == (4, 2) and len(trace.programs) == 8 and not trace.races


def test_strided_tensors_and_dicts():
    """A column of a table: watched from its first byte to its last, offsets from its own first byte."""
    table = torch.zeros(6, 4, dtype=torch.int32)
    column = table[1:, 2]
    trace = who({"column": column}, lambda: cube[(2, 2, 1)](table.view(-1)[6:]))
    assert trace.buffers == {"column": 4 * 16 + 4}
    assert trace.last_writer("column")[:8].tolist() == [0, 0, 0, 0, -1, -1, -1, -1]  # row 1, column 2: item 6
    assert trace.programs[1].launch.grid == (2, 2, 1) and trace.of("column", 8).last.coordinate == (0, 1, 0)


@pytest.mark.parametrize(("atomic", "pairs"), [("none", [(0, 1), (1, 2)]), ("all", []), ("first", [(0, 1), (1, 2)])])
def test_races(atomic, pairs):
    out = torch.zeros(16, dtype=torch.int32)
    trace = who(out, lambda: everywhere[(3,)](out, 4, atomic))
    assert [tuple(p.index for p in r.programs) for r in trace.races] == pairs
    assert all(np.array_equal(r.bytes, np.arange(16)) and r.buffer == "tensor" for r in trace.races)
    assert [p.index for p in trace.of("tensor", 9).writers] == [0, 1, 2]
    assert ("races: none" in str(trace)) == (not pairs)


def test_an_atomic_after_a_store_is_a_race():
    @triton.jit
    def store_then_add(out):
        if tl.program_id(0) == 0:
            tl.store(out, 3)
            tl.atomic_add(out, 1)
        else:
            tl.atomic_add(out, 1)

    out = torch.zeros(2, dtype=torch.int32)
    trace = who(out, lambda: store_then_add[(2,)](out))
    assert [tuple(p.index for p in r.programs) for r in trace.races] == [(0, 1)] and int(out[0]) == 5


def test_compare_and_swap_stores_only_where_it_swaps():
    out = torch.tensor([1, 2], dtype=torch.int32)
    trace = who(out, lambda: swap[(2,)](out, 1))
    assert out.tolist() == [7, 2]
    assert trace.last_writer("tensor").tolist() == [0] * 4 + [-1] * 4
    assert trace.last_reader("tensor").tolist() == [0] * 4 + [1] * 4


def test_two_lanes_of_one_store():
    out = torch.zeros(8, dtype=torch.int32)
    trace = who(out, lambda: same_lane[(1,)](out, 8))
    (race,) = trace.races
    assert race.programs[0] is race.programs[1] and np.array_equal(race.bytes, np.arange(16))
    assert "two lanes of one store" in str(race)


def test_two_rows_of_one_slot_in_kvlabs_own_commit():
    """check=False leaves the same slot twice; both rows lie in one program's tile."""
    pool = poisoned(kvlab.token_major(geometry(), torch.bfloat16))
    k, v = rows_for(pool.layout.geometry, 3, torch.bfloat16)
    trace = who(pool, lambda: pool.commit(slots([4, 9, 4]), k, v, layer=0, check=False))
    assert {r.buffer for r in trace.races} == {"k", "v"}
    assert all(set(pool.layout.explain(r.buffer, r.bytes).slot) == {4} for r in trace.races)


def test_launches_one_after_the_other_are_no_race():
    out = torch.zeros(8, dtype=torch.int32)

    def call():
        cube[(2, 2, 2)](out)
        everywhere[lambda meta: (1,)](out, 2, "none")
        return "done"

    trace = who(out, call)
    assert trace.result == "done" and not trace.races
    assert [(x.number, x.kernel, x.grid) for x in trace.launches] == [(0, "cube", (2, 2, 2)), (1, "everywhere", (1,))]
    byte = trace.of("tensor", 4)
    assert [(p.launch.number, p.coordinate) for p in byte.writers] == [(0, (0, 0, 1)), (1, (0,))]
    assert byte.last.kernel == "everywhere" and trace.of("tensor", 8).last.coordinate == (0, 1, 0)


def test_stores_outside_the_watched_memory():
    memory = torch.zeros(64, dtype=torch.int32)
    out, source = memory[16:48], raw_rows((3, 8), torch.int32)
    loc = slots([1, 4, 5])  # of 4 rows; row 4 lies right behind, row 5 a row further
    trace = who({"out": out}, lambda: one_row[(3, 2)](out, source, loc, 4), also={"rows": source})
    found = [(o.program.coordinate, o.nbytes, o.nearest, o.distance) for o in trace.outside]
    assert found == [((1, 0), 16, "out", 1), ((1, 1), 16, "out", 17), ((2, 0), 16, "out", 33), ((2, 1), 16, "out", 49)]
    before = who({"out": memory[8:]}, lambda: everywhere[(1,)](memory, 4, "none"), also={"rows": source})
    (stray,) = before.outside
    # the last byte stored is byte 15; byte 32 is the first of the buffer
    assert (stray.nbytes, stray.nearest, stray.distance) == (16, "out", -17) and before.programs[0].stored == 0


def test_hooks_are_gone_after_an_error():
    from triton.runtime import interpreter, jit

    before = (interpreter._interpreter, interpreter.GridExecutor.__call__, jit.JITFunction.run)
    own = set(vars(interpreter.interpreter_builder))
    out = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(Exception, match=r"(?i)static|assert"):
        who(out, lambda: fails[(1,)](out))
    assert (interpreter._interpreter, interpreter.GridExecutor.__call__, jit.JITFunction.run) == before
    assert set(vars(interpreter.interpreter_builder)) - {"grid_dim", "grid_idx"} == own - {"grid_dim", "grid_idx"}
    cube[(1, 1, 2)](out)
    assert out.tolist()[:2] == [0, 1]


def test_a_compiled_kernel_is_refused_before_it_runs():
    from triton.runtime.jit import JITFunction

    out = torch.zeros(4, dtype=torch.int32)
    with pytest.raises(RuntimeError, match=r"'cube' is compiled for a GPU.*TRITON_INTERPRET=1"):
        who(out, lambda: JITFunction(cube.fn)[(1,)](out))


def test_bad_arguments():
    pool = poisoned(kvlab.token_major(geometry(), torch.bfloat16))
    with pytest.raises(RuntimeError, match="no Triton kernel was launched"):
        who(pool, lambda: pool.buffers["k"].zero_())
    with kvlab.backends.reference_backend(), pytest.raises(RuntimeError, match="backend 'reference'"):
        who(pool, lambda: pool.commit(slots([1]), *rows_for(pool.layout.geometry, 1, torch.bfloat16), layer=0))
    with pytest.raises(TypeError, match="watch a KVPool, a tensor, or a dict"):
        who([1], lambda: None)
    with pytest.raises(TypeError, match="call must be a function"):
        who(pool, None)
    with pytest.raises(TypeError, match="'x' must be a tensor"):
        who(pool, lambda: None, also={"x": 3})
    with pytest.raises(ValueError, match="also names 'k'"):
        who(pool, lambda: None, also={"k": torch.zeros(1)})
    with pytest.raises(ValueError, match="'x' is on meta"):
        who({"x": torch.zeros(1, device="meta")}, lambda: None)
    trace = who(pool, lambda: pool.commit(slots([1]), *rows_for(pool.layout.geometry, 1, torch.bfloat16), layer=0))
    with pytest.raises(IndexError, match="byte=-1 is outside"):
        trace.of("k", -1)
    with pytest.raises(TypeError, match="float"):
        trace.of("k", 1.0)
    with pytest.raises(KeyError, match="'q' is not one of"):
        trace.of("q", 0)


def test_who_changes_no_byte():
    """The commit under watch stores what it stores unwatched."""
    layout = kvlab.head_major(geometry(), kvlab.MXFP8())
    k, v = (x.float().nan_to_num() for x in rows_for(layout.geometry, 4, torch.bfloat16, layers=2))
    plain, watched = poisoned(layout), poisoned(layout)
    plain.commit(slots([1, 2, 3, 63]), k, v)
    who(watched, lambda: watched.commit(slots([1, 2, 3, 63]), k, v))
    assert all(torch.equal(watched.buffers[n], b) for n, b in saved(plain).items())


def test_figure():
    pytest.importorskip("plotly")
    from kvlab import figures
    from kvlab.figures.programs import _panels

    out, source = torch.zeros(16, 8, dtype=torch.int32), raw_rows((4, 8), torch.int32)
    trace = who({"out": out}, lambda: one_row[(4, 2)](out, source, slots([3, 9, 9, 0]), 4), also={"rows": source})
    twin = figures.text(figures.programs_figure(trace))
    assert "one_row(0, 0), launch 0: bytes 96 … 111" in twin and "launch 0: one_row, grid (4, 2)" in twin
    assert "race: programs (1, 0) and (2, 0)" in twin
    store, load = _panels(trace, None)[0]
    assert (store.lines, load.lines) == ([0, None, 3, None, 9], [0, 1, 2, 3])
    owner = trace.last_writer("out").reshape(16, 32)
    assert np.array_equal(store.owner[[0, 2, 4]], owner[[0, 3, 9]])
    assert (store.codes[4] == 6).sum() in (15, 16, 17) and not (store.codes[[0, 2]] == 6).any()  # half of it is striped
    assert [r[0] for r in load.runs()] == list(range(8))
    with pytest.raises(KeyError, match="'q' is not one of"):
        figures.programs_figure(trace, "q")
    with pytest.raises(ValueError, match="no program stored a byte of buffer 'rows'"):
        figures.programs_figure(trace, "rows")


def test_figure_of_memory_without_rows():
    """A line is then what one program stores, and what lies past the end is no memory that nobody touched."""
    pytest.importorskip("plotly")
    from kvlab.figures.programs import GAP, NOBODY, _panels, programs_figure

    out, source = torch.zeros(49, dtype=torch.int32), raw_rows((4, 8), torch.int32)
    trace = who(out[:45], lambda: one_row[(4, 2)](out, source, slots([1, 2, 3, 5]), 4))
    (panel,), _ = _panels(trace, None)
    assert panel.columns == 16 and panel.lines == [2, 3, 4, 5, 6, 7, None, 10, 11]
    assert (panel.codes[-1] == [trace.programs[-1].index % 5] * 4 + [GAP] * 12).all()
    assert not (panel.codes == NOBODY).any()
    labels = {a.text for a in programs_figure(trace).layout.annotations}
    assert {f"({x}, {y})" for x in range(4) for y in range(2)} <= labels


@pytest.mark.parametrize("builder", BUILDERS)
def test_figure_of_a_pool(builder):
    pytest.importorskip("plotly")
    from kvlab import figures

    pool = poisoned(BUILDERS[builder](geometry(), torch.bfloat16))
    k, v = rows_for(pool.layout.geometry, 3, torch.bfloat16, layers=2)
    trace = who(pool, lambda: pool.commit(slots([5, 6, 9]), k, v), also={"k rows": k})
    fig = figures.programs_figure(trace)
    twin = figures.text(fig)
    assert "K L0" in twin and "K L1" in twin and "loaded from 'k rows': 1,536 of 1,536 bytes" in twin
    assert {"(0, 0)", "(0, 1)"} <= {a.text for a in fig.layout.annotations}
