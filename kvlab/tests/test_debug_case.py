"""Case files: what goes in comes out, whatever the layout and format, and the recorded commit can be judged."""

import json

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import kvlab
from kvlab import zoo
from kvlab.backends import reference_backend
from kvlab.debug.case import load_case, save_case
from kvlab.debug.recompute import recompute
from kvlab.debug.recorded import CALL

from .helpers import BUILDERS, DEVICE, bits, geometry, numbers, randomised, rows_for, saved, slots

pytest.importorskip("safetensors")

LAYOUTS = {**BUILDERS, **zoo.ALL}
FORMATS = [torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2]
FORMATS += [kvlab.MXFP8("flat", "floor"), kvlab.MXFP8("interleaved")]


def committed(layout, loc, *, layer=None, k=None, v=None, **options):
    """A pool of random bytes that a commit went into: the pool, its bytes before, and the arguments."""
    pool = randomised(layout, seed=3)
    before = saved(pool)
    if k is None:
        layers = layout.geometry.layers if layer is None else None
        k, v = rows_for(layout.geometry, loc.numel(), torch.float32, layers=layers, make=numbers)
    with reference_backend():
        pool.commit(loc, k, v, layer=layer, **options)
    return pool, before, {"loc": loc, "k": k, "v": v, "layer": layer, **options}


def small(name="page_major", fmt=torch.bfloat16):
    return LAYOUTS[name](geometry(pages=4), fmt)


@st.composite
def cases(draw):
    name, fmt = draw(st.sampled_from(sorted(LAYOUTS))), draw(st.sampled_from(FORMATS))
    tile = isinstance(fmt, kvlab.MXFP8) and fmt.scales == "interleaved"
    g = kvlab.Geometry(
        layers=draw(st.integers(1, 3)),
        heads=draw(st.integers(1, 2)),
        head_dim=32 * draw(st.integers(1, 2)),
        v_head_dim=32 * draw(st.integers(1, 2)),
        page_size=128 if tile else draw(st.sampled_from([1, 4])),
        pages=draw(st.integers(2, 4)),
    )
    blocks, width = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    ids = draw(st.permutations(range(g.slots)).map(lambda p: (list(p) + [0] * 6)[: blocks * width]))
    loc = torch.tensor(ids, dtype=draw(st.sampled_from([torch.int32, torch.int64]))).view(blocks, width)
    options = {"layer": draw(st.none() | st.integers(0, g.layers - 1))}
    if draw(st.booleans()):
        options["commit_lens"] = torch.tensor(draw(st.lists(st.integers(0, width), min_size=blocks, max_size=blocks)))
    if draw(st.booleans()):
        mask = draw(st.lists(st.booleans(), min_size=loc.numel(), max_size=loc.numel()))
        options["row_mask"] = torch.tensor(mask)
    if fmt in (torch.float8_e4m3fn, torch.float8_e5m2):
        options["k_scale"] = draw(st.sampled_from([None, 0.5, torch.tensor(2.0)]))
    if isinstance(fmt, kvlab.MXFP8) and draw(st.booleans()):
        lead = (loc.numel(), g.heads) if options["layer"] is not None else (g.layers, loc.numel(), g.heads)
        for field, dim in (("k", g.head_dim), ("v", g.v_head_dim)):
            options[field] = torch.randint(0, 120, (*lead, dim), dtype=torch.uint8).view(torch.float8_e4m3fn)
            scale = torch.randint(0, 255, (*lead, dim // 32), dtype=torch.uint8)
            options[f"{field}_scale"] = scale.view(torch.float8_e8m0fnu) if draw(st.booleans()) else scale
    options = {n: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for n, x in options.items()}
    return LAYOUTS[name](g, fmt), loc.to(DEVICE), options, draw(st.sampled_from(["all", "some", "none"]))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cases())
def test_round_trip(tmp_path, case):
    """Every byte, every argument; and the recorded commit, replayed, gives the pool again."""
    layout, loc, options, pages = case
    pool, before, call = committed(layout, loc, **options)
    after = saved(pool)
    given = {"all": None, "some": loc, "none": []}[pages]
    save_case(tmp_path / "x.kvcase", pool, before=before, slots=given, note="größer ✓", **call)
    assert all(torch.equal(b, after[n]) for n, b in pool.buffers.items())
    got = load_case(tmp_path / "x.kvcase")
    assert got.layout == layout and got.note == "größer ✓" and got.layer == call["layer"]
    g = layout.geometry
    want_pages = (
        None if given is None else sorted({int(s) // g.page_size for s in loc.reshape(-1)} if len(given) else set())
    )
    assert got.pages == want_pages
    for name in layout.buffers:
        mask = torch.from_numpy(got.saved_bytes(name))
        cells = layout.explain(name, np.arange(layout.buffers[name]))
        inside = np.isin(cells.page, want_pages) if want_pages is not None else cells.page >= 0
        assert np.array_equal(mask.numpy()[cells.field >= 0], inside[cells.field >= 0])
        for have, want in ((got.pool, after), (got.before, before)):
            assert torch.equal(have.buffers[name][mask], want[name].cpu()[mask])
            assert not have.buffers[name][~mask].any()
    for name in CALL:
        have, want = getattr(got, name), call.get(name)
        if not isinstance(want, torch.Tensor):
            assert have == want and type(have) is type(want)
        else:
            assert have.shape == want.shape and torch.equal(bits(have), bits(want.cpu()))
    with reference_backend():
        again = got.replay()
    if pages != "none":
        assert all(torch.equal(again.buffers[n].cpu(), b) for n, b in got.pool.buffers.items())
        assert recompute(got).verdict.ok


def test_replay_runs_the_kernels_that_are_here(tmp_path):
    pool, before, call = committed(small(fmt=kvlab.MXFP8()), slots([3, 9]))
    save_case(tmp_path / "c", pool, before=before, **call)
    again = load_case(tmp_path / "c").replay()
    assert all(torch.equal(b, pool.buffers[n]) for n, b in again.buffers.items())


@pytest.mark.parametrize("crossed", [True, False])
def test_adopted_pools(tmp_path, crossed):
    """A tensor per layer; or K and V of a layer in one tensor, where the spans of K and V cross."""
    if crossed:
        k = [torch.rand(4, 2, 4, 2, 64, device=DEVICE) for _ in range(2)]
        pool = kvlab.KVPool.adopt([t[:, 0] for t in k], [t[:, 1] for t in k])
    else:
        k, v = ([torch.rand(16, 2, 64, device=DEVICE) for _ in range(2)] for _ in range(2))
        pool = kvlab.KVPool.adopt(k, v, page_size=4)
    before = saved(pool)
    k, v = rows_for(pool.layout.geometry, 2, torch.float32, make=numbers)
    with reference_backend():
        pool.commit(slots([5, 6]), k, v, layer=1)
    save_case(tmp_path / "c", pool, before=before, loc=slots([5, 6]), k=k, v=v, layer=1)
    got = load_case(tmp_path / "c")
    with reference_backend():
        assert all(torch.equal(a, b) for a, b in zip(got.pool.gather(slots([5, 6, 9]).cpu()), _rows(pool), strict=True))
    assert recompute(got).verdict.ok


def _rows(pool):
    return [x.cpu() for x in pool.gather(slots([5, 6, 9]))]


def test_slices_of_fused_rows(tmp_path):
    """K and V that share one storage, as slices of a QKV projection do."""
    fused = numbers((3, 2, 3, 64), torch.bfloat16)
    pool, before, call = committed(small(), slots([1, 2, 3]), layer=0, k=fused[:, :, 0], v=fused[:, :, 2])
    save_case(tmp_path / "c", pool, before=before, **call)
    got = load_case(tmp_path / "c")
    assert torch.equal(got.k, fused[:, :, 0].cpu()) and torch.equal(got.v, fused[:, :, 2].cpu())


def test_a_pool_alone(tmp_path):
    pool = randomised(small())
    save_case(str(tmp_path / "c"), pool)
    got = load_case(str(tmp_path / "c"))
    assert not got.replayable and got.before is None and got.loc is None and got.pages is None
    with pytest.raises(ValueError, match="holds no before, loc, k, v"):
        got.replay()
    assert "commit: not saved" in str(got) and json.dumps(got.to_dict())
    assert got.versions["torch"] == torch.__version__ and got.versions["backend"] == kvlab.backend()


def test_values_that_a_commit_refuses_are_saved_and_refused_again(tmp_path):
    """The fault may be in loc itself: it must reach the one who looks into it."""
    pool, before, call = committed(small(), slots([3, 9]), layer=0)
    save_case(tmp_path / "c", pool, before=before, **{**call, "loc": slots([3, 16])})
    got = load_case(tmp_path / "c")
    assert got.loc.tolist() == [3, 16]
    with pytest.raises(IndexError, match="16 is outside the pool's slots 0 … 15"):
        got.replay()


def test_recompute_tells_missing_unexpected_and_wrong(tmp_path):
    layout = small("token_major")
    pool, before, call = committed(layout, slots([3, 9]), layer=1)
    at = {what: layout.locate("k", 1, *cell)[1] for what, cell in (("missing", (3, 0, 5)), ("wrong", (9, 1, 7)))}
    at["unexpected"] = layout.locate("k", 0, 9, 1, 2)[1]
    data = pool.buffers["k"]
    for what in ("missing", "wrong", "unexpected"):
        span = slice(at[what], at[what] + 2)
        data[span] = before["k"][span] if what == "missing" else ~(data[span] ^ (before["k"][span] == 255))
        if what == "wrong":
            data[span][data[span] == before["k"][span]] ^= 1
    save_case(tmp_path / "c", pool, before=before, **call)
    judged = recompute(load_case(tmp_path / "c"))
    verdict = judged.verdict
    assert not verdict.ok and {n: verdict.counts[n] for n in ("missing", "unexpected", "wrong")} == {
        "missing": 2,
        "unexpected": 2,
        "wrong": 2,
    }
    assert [str(r) for r in verdict.missing] == ["layer 1, K, slot 3, head 0, dim 5"]
    assert [str(r) for r in verdict.wrong] == ["layer 1, K, slot 9, head 1, dim 7"]
    assert [str(r) for r in verdict.unexpected] == ["layer 0, K, slot 9, head 1, dim 2"]
    assert json.dumps(verdict.to_dict()) and "missing: 2 bytes" in str(verdict)
    assert verdict.first.startswith("K, layer 1, slot 9 (page 2, offset 1), head 1, dim 7")
    assert judged.content().tolist() == list(range(16))
