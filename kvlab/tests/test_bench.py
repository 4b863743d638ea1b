"""The bench: bytes counted right, work really done, times taken by the right clock, and a run on any machine."""

import json
import subprocess
import sys
import types

import pytest
import torch

import kvlab
from kvlab.backends import backend, default_device, reference_backend
from kvlab.bench import __main__ as command
from kvlab.bench import peers, run
from kvlab.bench.cases import BUILDERS, LARGEST, SHARES, STEP, Case, cpu_cases, gpu_cases, traffic
from kvlab.bench.timing import MODES, Cpu, Times, measure
from kvlab.bench.work import POISON, Work, same
from kvlab.kernels.launch import record_launches

from .helpers import assert_same_bytes, poisoned

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
FLAT, TILES = kvlab.MXFP8("flat"), kvlab.MXFP8("interleaved")
CPU = torch.device("cpu")
needs_triton = pytest.mark.skipif(backend() == "reference", reason="Triton is not to be had here")


def case(operation="commit", layout="page_major", fmt=BF16, rows=16, layers=2, layer=None, accepted=None) -> Case:
    return Case(operation, layout, fmt, rows, layers, layer, accepted)


# ---------------------------------------------------------------------------------------------------------- the bytes


@pytest.mark.parametrize("layout", BUILDERS)
@pytest.mark.parametrize("fmt", [BF16, E4M3, FLAT, TILES])
@pytest.mark.parametrize(("layer", "accepted"), [(None, None), (1, 0.25), (None, 0.5)])
def test_a_commit_writes_as_many_bytes_as_are_counted(layout, fmt, layer, accepted):
    """Two commits over fills that differ in every byte: what changed in one of them was written."""
    one = case(layout=layout, fmt=fmt, layer=layer, accepted=accepted)
    changed = {}
    with reference_backend():
        work = Work(one, CPU)
        for fill in (0x00, 0xFF):
            for buffer in work.pool.buffers.values():
                buffer.fill_(fill)
            work.call()
            for name, buffer in work.pool.buffers.items():
                changed[name] = changed.get(name, False) | (buffer != fill)
    assert traffic(one).written == sum(int(x.sum()) for x in changed.values())
    # it reads the accepted rows of K and V: 8 heads of 128 bf16
    rows = {None: 16, 0.25: 4, 0.5: 8}[accepted]
    assert traffic(one).read == rows * (1 if layer is not None else 2) * 2 * 8 * 128 * 2


@pytest.mark.parametrize(
    ("one", "read", "written"),
    [
        (case("gather"), 16 * 2 * 2 * 1024 * 2, 16 * 2 * 2 * 1024 * 2),
        # MXFP8: a byte an element and one for 32 of them; what is read back is fp32
        (case("gather", fmt=FLAT, layer=0), 16 * 2 * (1024 + 32), 16 * 2 * 1024 * 4),
        (case("copy", fmt=TILES), 16 * 2 * 2 * (1024 + 32), 16 * 2 * 2 * (1024 + 32)),
        # gather; K, V and a query are read again; a result of the query's size is written
        (case("attention", layer=0), 2 * (16 * 2 * 1024 * 2) + 1024 * 2, 16 * 2 * 1024 * 2 + 1024 * 2),
    ],
)
def test_bytes_of_the_other_operations(one, read, written):
    assert (traffic(one).read, traffic(one).written, traffic(one).total) == (read, written, read + written)


@pytest.mark.parametrize("cases", [gpu_cases(), gpu_cases(quick=True), cpu_cases(), cpu_cases(quick=True)])
def test_cases_cover_what_is_promised(cases):
    assert len(set(cases)) == len(cases)
    assert {c.operation for c in cases} == {"commit", "gather", "copy", "attention"}
    commits = [c for c in cases if c.operation == "commit"]
    assert {c.layout for c in commits} == set(BUILDERS)
    assert {c.accepted for c in commits} == {None, *SHARES} and {BF16, FLAT} <= {c.format for c in commits}
    assert all(c.build().geometry.slots > 2 * c.rows and c.rows % 8 == 0 for c in cases)


def test_gpu_cases_go_from_one_decode_step_of_all_layers_to_64k_rows():
    commits = [c for c in gpu_cases() if c.operation == "commit"]
    assert {c.format for c in commits} == {BF16, E4M3, FLAT, TILES}
    assert {(c.layers, c.layer) for c in commits if c.rows == STEP} == {(32, None)}
    assert (STEP, LARGEST) == (64, 65536) and {c.rows for c in commits} == {64, 512, 4096, 65536}


# ----------------------------------------------------------------------------------------------------------- the work


WORKS = [
    *(case(layout=layout, layer=1) for layout in BUILDERS),
    case(layout="token_major", fmt=FLAT, layer=0),
    case(layout="page_major", fmt=TILES, layer=1),
    case(layout="head_major", fmt=E4M3, layer=1),
    case(layout="page_major", accepted=0.5),
    case("copy", layout="page_major", fmt=TILES, layers=1),
    case("copy", layout="head_major", fmt=FLAT, layers=1),
]


@pytest.mark.parametrize("one", WORKS, ids=run.words_of)
def test_what_is_timed_is_done_and_the_peers_do_the_same(one):
    """Whole buffers over poison after a measurement: kvlab against the public call on the plain path, peers too."""
    work = Work(one, default_device())
    for buffer in work.target.buffers.values():
        buffer.fill_(POISON)
    measure(work.call, Cpu(), "host", seconds=0, least=1)
    want = poisoned(one.build(), POISON)
    with reference_backend():
        if one.operation == "commit":
            want.commit(work.loc, work.k, work.v, layer=one.layer, commit_lens=work.lens)
        else:
            slots = work.loc.reshape(-1)
            kvlab.copy(work.pool, slots, want, slots)
    assert_same_bytes(work.target, want)
    for name, call in peers.peers(work):
        if name == "torch.compile":  # not everywhere can it compile; a run reports that
            continue
        found = work.outcome(call)
        assert same(found, list(want.buffers.values()), one.operation), name
        assert not same(found, [b ^ 1 for b in want.buffers.values()], one.operation)


@pytest.mark.parametrize("fmt", [BF16, FLAT])
@pytest.mark.parametrize("operation", ["gather", "attention"])
def test_reads_agree_with_torch(operation, fmt):
    work = Work(case(operation, fmt=fmt, layer=1), default_device())
    got = work.outcome(work.call)
    ((_, torchs),) = [p for p in peers.peers(work) if p[0] == "torch indexing"]
    assert same(work.outcome(torchs), got, operation)
    assert not same([x + 1 for x in got], got, operation)
    if operation == "gather":
        k, _ = work.pool.gather(work.loc, layer=1)
        assert torch.equal(got[0][0], k) and (k - work.k).abs().max() < 0.2


@needs_triton
def test_the_tile_kernel_writes_the_same_bytes():
    work = Work(case(layout="token_major", layer=1, accepted=0.25), default_device())
    assert same(work.outcome(peers.tile_call(work)), work.outcome(work.call), "commit")


@pytest.mark.skipif(backend() != "interpreter", reason="the interpreter's cost of a program is compared")
def test_a_program_a_tile_is_compared_in_the_interpreter(monkeypatch):
    monkeypatch.setattr(run, "STEP", 8)
    monkeypatch.setattr(run, "measure", lambda *a: Times(1e-3, 1e-3, 1e-3, 5))
    claim = run.tile_claim(Cpu(), quick=True)
    assert (claim["kvlab_programs"], claim["tile_programs"], claim["same_bytes"]) == (1, 8 * 16, True)
    assert claim["ratio"] == pytest.approx(claim["tile_us"] / 1000)


def test_flat_rows_are_told_by_strides():
    for layout, flat in (("token_major", True), ("page_major", False), ("head_major", False)):
        pool = kvlab.KVPool(case(layout=layout).build(), device="meta")
        assert peers.flat_rows(pool, "k") is flat


# ------------------------------------------------------------------------------------------------------------- sglang


def fake_sglang(monkeypatch, home: str, **contents) -> None:
    """Modules by which ``import sglang…`` finds ``contents``, as far as the bench looks."""
    parts = home.split(".")
    for i in range(len(parts)):
        name = ".".join(parts[: i + 1])
        module = types.ModuleType(name)
        module.__path__, module.__spec__ = [], types.SimpleNamespace(name=name)
        monkeypatch.setitem(sys.modules, name, module)
    module.__dict__.update(contents)


@pytest.mark.parametrize("home", peers.STORE_CACHE)
def test_sglangs_store_is_called_once_a_layer(monkeypatch, home):
    calls = []

    def store_cache(k, v, k_cache, v_cache, indices):
        calls.append(k.shape)
        k_cache[indices], v_cache[indices] = k, v

    fake_sglang(monkeypatch, home, store_cache=store_cache)
    work = Work(case(layout="token_major"), CPU)
    with reference_backend():
        ((name, call),) = peers.sglang_calls(work)
        assert same(work.outcome(call), work.outcome(work.call), "commit")
    assert name == "sglang store_cache" and calls == [(16, 1024)] * 2


def test_sglangs_paged_store_gets_the_four_axes(monkeypatch):
    def store_cache_4d(k_view, v_view, k, v, loc, page_size):
        k_view[loc // page_size, loc % page_size], v_view[loc // page_size, loc % page_size] = k, v

    fake_sglang(monkeypatch, peers.CACHE_MOVE[0], store_cache_4d=store_cache_4d)
    work = Work(case(layer=1), CPU)
    with reference_backend():
        ((_, call),) = peers.sglang_calls(work)
        assert same(work.outcome(call), work.outcome(work.call), "commit")
    assert list(peers.sglang_calls(Work(case(layout="head_major"), CPU))) == []


def test_another_sglang_is_left_out_with_the_reason(monkeypatch):
    fake_sglang(
        monkeypatch, peers.CACHE_MOVE[1], set_kv_buffer_prefix_valid_tiled=types.SimpleNamespace(arg_names=["x"])
    )
    work = Work(case(layout="token_major", accepted=1.0), CPU)
    with pytest.raises(LookupError, match=r"takes \['x'\]"):
        list(peers.sglang_calls(work))
    plain = Work(case(layout="token_major"), CPU)
    with pytest.raises(LookupError, match="has store_cache in none of"):
        list(peers.sglang_calls(plain))
    found = {"left_out": []}
    monkeypatch.setattr(run, "peers", peers.sglang_calls)
    assert [name for _ in range(2) for name, _ in run.everyone(plain, found)] == ["kvlab", "kvlab"]
    assert len(found["left_out"]) == 1 and "store_cache" in found["left_out"][0]


@needs_triton
def test_sglangs_prefix_kernel_is_launched_as_sglang_does(monkeypatch):
    seen = []

    class Kernel:
        arg_names = peers.TILED

        def __getitem__(self, grid):
            return lambda *args, **meta: seen.append((grid, len(args), args[6:], meta))

    fake_sglang(monkeypatch, peers.CACHE_MOVE[0], set_kv_buffer_prefix_valid_tiled=Kernel())
    ((_, call),) = peers.sglang_calls(Work(case(layout="token_major", accepted=0.5), CPU))
    call()
    rest = (2048, 2048, 2048, 2048, 8)
    assert seen == [((2, 8, 16), 11, rest, {"ROW_BYTES": 2048, "BYTES_PER_TILE": 128})] * 2


# ------------------------------------------------------------------------------------------------------------ the clock


class FakeDevice:
    """A GPU on paper: a queue that runs behind the host. Times are in microseconds of two clocks."""

    name, is_gpu, torch_device, in_a_row = "fake", True, CPU, 4
    modes, short_modes = ("cold", "warm"), ("cold", "warm", "graph", "host")
    LAUNCH, WARM, COLD = 50, 10, 30  # the host's cost of a launch; the kernel's, with and without its bytes in L2

    def __init__(self):
        self.host = self.queue = 0
        self.in_l2 = self.busy = False

    def enqueue(self, cost: float) -> None:
        self.queue = max(self.queue, self.host) + cost

    def kernel(self) -> None:
        self.host += self.LAUNCH
        self.enqueue(self.WARM if self.in_l2 else self.COLD)
        self.in_l2 = True

    def clock(self) -> float:
        return self.host * 1e-6

    def wait(self) -> None:
        self.host = max(self.host, self.queue)

    def flush(self) -> None:
        self.enqueue(100)
        self.in_l2 = False

    def occupy(self) -> None:
        self.enqueue(500)

    def mark(self) -> float:
        self.enqueue(0)
        return self.queue

    def between(self, start, end) -> float:
        return (end - start) * 1e-6

    def graph(self, call, count):
        return lambda: self.enqueue(count * 4)

    def free_bytes(self) -> int:
        return 2**16


@pytest.mark.parametrize(("mode", "us"), [("warm", 10), ("cold", 30), ("graph", 4)])
def test_a_device_time_is_the_kernels_and_not_the_hosts(mode, us):
    device = FakeDevice()
    times = measure(device.kernel, device, mode, seconds=1e-3)
    assert times.median == times.low == times.high == pytest.approx(us * 1e-6)
    assert times.samples == min(100, max(5, int(1e-3 / (us * 1e-6 * (4 if mode == "graph" else 1)))))


def test_the_hosts_time_is_that_of_launches_in_a_row():
    device = FakeDevice()
    # four launches, and the wait for the last kernel to end
    assert measure(device.kernel, device, "host").median == pytest.approx((4 * 50 + 10) / 4 * 1e-6)


def test_without_a_busy_queue_the_hosts_launch_would_be_measured():
    device = FakeDevice()
    device.occupy = lambda: None
    assert measure(device.kernel, device, "warm").median > 40e-6


def test_times_have_a_spread():
    assert Times.of([5.0, 1.0, 2.0, 3.0, 4.0]) == Times(median=3.0, low=1.4, high=4.6, samples=5)


# ------------------------------------------------------------------------------------------------------------ the run


FEW = [case(rows=STEP, layers=1), case("gather", fmt=FLAT, layer=0)]


@needs_triton
def test_a_run_on_a_gpu_compares_with_the_copy_and_the_launch(monkeypatch):
    monkeypatch.setattr(run, "copy_bandwidth", lambda *a: 2e9)
    monkeypatch.setattr(run, "empty_launches", lambda device: dict.fromkeys(device.short_modes, 4.0))
    fixed = Times(median=300e-6, low=290e-6, high=310e-6, samples=7)
    monkeypatch.setattr(run, "measure", lambda call, device, mode, seconds: fixed)
    found = run.run(FEW, device=FakeDevice())
    assert found["note"] is None and found["copy_gb_per_s"] == 2.0
    mine = [r for r in found["results"] if r["by"] == "kvlab"]
    assert [r["mode"] for r in mine] == ["cold", "warm", "graph", "host", "cold", "warm"]
    step = mine[0]
    nbytes = 64 * 2 * 2 * 1024 * 2  # 64 rows, K and V, read and written, 1024 bf16
    assert step["bytes"] == nbytes and step["gb_per_s"] == pytest.approx(nbytes / 300e-6 / 1e9)
    assert step["of_copy"] == pytest.approx(step["gb_per_s"] / 2)
    assert step["of_bound"] == pytest.approx(300 / (4 + nbytes / 2e9 * 1e6))
    assert (step["median_us"], step["p10_us"], step["p90_us"]) == pytest.approx((300, 290, 310))
    lines = "\n".join(command.report(found))
    assert "torch copy_: 2 GB/s" in lines and "of bound" in lines and "NO" not in lines
    assert "one decode step, all layers, in a graph: " in lines


def test_a_run_without_a_gpu_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(run, "cpu_cases", lambda quick: FEW)
    monkeypatch.setattr(run, "backend", lambda: "interpreter" if backend() != "reference" else "reference")
    monkeypatch.setattr(run, "Gpu", lambda: pytest.fail("asked for a GPU"))
    claim = {
        "kvlab_us": 45e3,
        "tile_us": 4e6,
        "kvlab_programs": 1,
        "tile_programs": 1024,
        "same_bytes": True,
        "ratio": 89,
    }
    monkeypatch.setattr(command, "tile_claim", lambda *a: claim)
    monkeypatch.setattr(sys, "argv", ["bench", "--quick", "--json", str(tmp_path / "found.json")])
    threads = torch.get_num_threads()
    assert command.main() == 0 and torch.get_num_threads() == threads
    text, found = capsys.readouterr().out, json.loads((tmp_path / "found.json").read_text())
    assert "say nothing about a GPU" in text and "GB/s" not in text and "NO" not in text
    if found["backend"] == "interpreter":
        assert "89 times as long, same bytes" in text
    assert {"device", "versions", "date", "note", "left_out"} <= set(found)
    assert found["versions"]["torch"] == torch.__version__
    assert [(r["operation"], r["by"]) for r in found["results"]] == [
        *(("commit", by) for by in ("kvlab", "torch index_put_")),
        *(("gather", by) for by in ("kvlab", "torch indexing")),
    ]
    assert all(r["same_bytes"] and r["mode"] in MODES and r["of_copy"] is None for r in found["results"])


def test_a_peer_that_fails_is_reported_and_kvlab_that_fails_is_raised(monkeypatch):
    def broken():
        raise RuntimeError("no such instruction\nsecond line")

    monkeypatch.setattr(run, "peers", lambda work: [("torch.compile", broken)])
    monkeypatch.setattr(run, "measure", lambda *a: Times(1.0, 1.0, 1.0, 5))
    found = run.run(FEW[:1], device=Cpu())
    assert [r["by"] for r in found["results"]] == ["kvlab"]
    assert "torch.compile: commit, page_major" in found["left_out"][0]
    assert found["left_out"][0].endswith("RuntimeError: no such instruction")
    monkeypatch.setattr(Work, "call", lambda self: broken())
    with pytest.raises(RuntimeError, match="no such instruction"):
        run.run(FEW[:1], device=Cpu())


def test_other_bytes_are_called_so(monkeypatch):
    monkeypatch.setattr(run, "peers", lambda work: [("nobody", lambda: ())])
    monkeypatch.setattr(run, "measure", lambda *a: Times(1.0, 1.0, 1.0, 5))
    found = run.run(FEW[:1], device=Cpu())
    assert [r["same_bytes"] for r in found["results"]] == [True, False]
    assert command.results_table(found).splitlines()[-1].endswith("NO")


def test_the_bench_needs_no_plotly_and_no_jupyter():
    code = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("plotly", "ipywidgets", "anywidget", "IPython", "nbformat", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import torch
from kvlab.bench import __main__ as command, run
from kvlab.bench.cases import Case
run.cpu_cases = lambda quick: [Case("commit", "page_major", torch.bfloat16, 16, 1)]
run.backend = lambda: "reference"
sys.argv = ["bench", "--json", "-"]
sys.exit(command.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["results"][0]["by"] == "kvlab"


@needs_triton
def test_timed_calls_launch_once_and_sync_nothing():
    """What a CUDA graph holds: one launch, whatever is asked of the commit."""
    for one in (case(accepted=0.5), case(fmt=FLAT), case("copy"), case("gather")):
        work = Work(one, default_device())
        with record_launches() as launches:
            work.call()
        assert len(launches) == 1, one


# -------------------------------------------------------------------------------------------------------- the figures


def test_roofline_is_launch_plus_bytes_over_bandwidth():
    pytest.importorskip("plotly", reason="plotly is not installed")
    from kvlab import figures

    moved, gpus = {"small": 1_000_000, "large": 10**9}, {"one": 1e12, "two": 4e12}
    table = figures.roofline_table(moved, gpus, launch_us=5)
    assert [(r["work"], r["gpu"], r["us"]) for r in table] == [
        *(("small", "one", 6.0), ("small", "two", 5.25), ("large", "one", 1005.0), ("large", "two", 255.0)),
    ]
    assert table[0]["launch_share"] == pytest.approx(5 / 6)
    fig = figures.roofline(moved, gpus, launch_us=5)
    lines = [t for t in fig.data if t.mode == "lines"]
    for line, bandwidth in zip(lines, gpus.values(), strict=True):
        assert line.y == pytest.approx(5 + line.x / bandwidth * 1e6)
    dots = [(x, y) for t in fig.data if t.mode == "markers" for x, y in zip(t.x, t.y, strict=True)]
    assert sorted(dots) == sorted((r["bytes"], r["us"]) for r in table)
    text = figures.text(fig)
    assert "a model, not measured" in text and "large: 1,000,000,000 bytes, two: 255.0 us, 2% launch" in text
    assert "Launch: 5 us." in text and "data sheets" not in text
    assumed = figures.text(figures.roofline(moved))
    assert "4 us, assumed" in assumed and "peaks of data sheets" in assumed
    seen = figures.text(figures.roofline(moved, gpus, measured=[("small", 1_000_000, 7.5)]))
    assert "stars were measured" in seen and "measured: small, 1,000,000 bytes, 7.5 us" in seen


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"moved": {}}, "moved is empty"),
        ({"moved": {"x": 0}}, r"moved\['x'\]=0 must be above 0"),
        ({"moved": {"x": 1}, "bandwidths": {"gpu": -1.0}}, r"bandwidths\['gpu'\]=-1.0 must be above 0"),
        ({"moved": {"x": 1}, "launch_us": 0}, "launch_us=0 must be above 0"),
    ],
)
def test_roofline_refuses_by_name(arguments, words):
    pytest.importorskip("plotly", reason="plotly is not installed")
    from kvlab import figures

    with pytest.raises(ValueError, match=f"roofline: {words}"):
        figures.roofline(**arguments)


def result(by: str, us: float, **more) -> dict:
    row = {**case(rows=STEP).words(), "by": by, "mode": "host", "bytes": 1, "same_bytes": True, "samples": 5}
    return {**row, "median_us": us, "p10_us": us / 2, "p90_us": us * 2, "of_copy": None, "of_bound": None, **more}


def test_bench_plot_shows_medians_and_their_spread():
    pytest.importorskip("plotly", reason="plotly is not installed")
    from kvlab import figures

    found = {"device": "x", "date": "d", "note": "interpreter: no", "copy_gb_per_s": None}
    found["results"] = [result("kvlab", 4000.0), result("torch index_put_", 2000.0, format="mxfp8(flat, rceil)")]
    fig = figures.bench_plot(found)
    kvlab_dots, torch_dots = (t for t in fig.data if t.x[0] is not None)
    assert (kvlab_dots.x, torch_dots.x) == ((4.0,), (2.0,))  # milliseconds
    assert (kvlab_dots.error_x.array, kvlab_dots.error_x.arrayminus) == ((4.0,), (2.0,))
    assert kvlab_dots.y == ("page_major, 64 x 2",) and kvlab_dots.yaxis != torch_dots.yaxis
    text = figures.text(fig)
    assert "Interpreter: no" in text and "kvlab: 4.00 ms (2.00 … 8.00)" in text
    on_gpu = {**found, "note": None, "copy_gb_per_s": 1.0}
    on_gpu["results"] = [result("kvlab", 30.0, mode="cold", of_bound=1.5), result("kvlab", 20.0, mode="warm")]
    fig = figures.bench_plot(on_gpu)
    assert "mode cold" in figures.text(fig) and "kvlab: 30.00 us" in figures.text(fig)
    assert [t.x for t in fig.data if t.x[0] is not None] == [(30.0,), (20.0,)]  # the bound: 30 / 1.5
    assert "kvlab: 20.00 us" in figures.text(figures.bench_plot(on_gpu, mode="warm"))
    with pytest.raises(ValueError, match="no result of operation='copy' and mode='host'"):
        figures.bench_plot(found, "copy")
