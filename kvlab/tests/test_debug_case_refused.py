"""What a broken, foreign or hostile case file gets, and a call that does not fit: one clear error, at once."""

import json
import pickle
import time
from pathlib import Path

import pytest
import torch

from kvlab.debug.case import load_case, save_case
from kvlab.debug.case_checks import CaseError

from .helpers import randomised, slots
from .test_debug_case import committed, small

safetensors = pytest.importorskip("safetensors")
from safetensors.torch import load_file, save_file  # noqa: E402


@pytest.fixture
def good(tmp_path):
    """A case of the whole pool, and one of two pages, as (path, tensors, metadata)."""

    def _good(pages=False):
        pool, before, call = committed(small(), slots([[5, 6], [9, 2]]), layer=1, commit_lens=slots([2, 1]))
        path = tmp_path / "good.kvcase"
        save_case(path, pool, before=before, slots=[5, 9] if pages else None, **call)
        with safetensors.safe_open(path, framework="pt") as file:
            header = file.metadata()
        return path, load_file(path), header

    return _good


def refused(path: Path, match: str) -> None:
    """Loading fails at once, with one error that names the file."""
    start = time.perf_counter()
    with pytest.raises(CaseError, match=match) as error:
        load_case(path)
    assert str(error.value).startswith(str(path)) and time.perf_counter() - start < 2


def test_truncated_and_foreign_files(good, tmp_path):
    path, _, _ = good()
    data = path.read_bytes()
    for length in (0, 1, 7, 8, 100, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        refused(path, "no whole safetensors file")
    for other in (data + b"x", b"#!/bin/sh\necho no", b"\xff" * 100, pickle.dumps([1, 2])):
        path.write_bytes(other)
        refused(path, "no whole safetensors file")
    with pytest.raises(FileNotFoundError):
        load_case(tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        load_case(tmp_path)


class Touch:
    """What a pickle of this would do when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_is_not_executed(tmp_path):
    torch.save({"x": Touch(tmp_path / "ran")}, tmp_path / "c")
    refused(tmp_path / "c", "no whole safetensors file")
    assert not (tmp_path / "ran").exists()


def test_versions_and_other_safetensors_files(good):
    path, tensors, header = good()
    save_file(tensors, path)
    refused(path, "no kvlab case: its metadata has no 'kvlab_case'")
    save_file(tensors, path, {**header, "kvlab_case": "2"})
    refused(path, r"case format '2', and this kvlab reads '1'; open it with the version")
    save_file(tensors, path, {n: x for n, x in header.items() if n != "layout"})
    refused(path, "lacks layout")
    save_file(tensors, path, {**header, "layout": "{"})
    refused(path, "its layout is no JSON")
    save_file(tensors, path, {**header, "about": "[" * 100_000})
    refused(path, "its about is no JSON")


TENSORS = {
    "missing buffer": (lambda t: t.pop("pool/raw"), "tensor 'pool/raw' is missing"),
    "short buffer": (lambda t: t.update({"pool/raw": t["pool/raw"][:-1].clone()}), "'pool/raw' has shape"),
    "2-D buffer": (lambda t: t.update({"before/raw": t["before/raw"].view(2, -1)}), "'before/raw' has shape"),
    "float buffer": (lambda t: t.update({"pool/raw": t["pool/raw"].float()}), "'pool/raw' is F32; legal are U8"),
    "foreign tensor": (lambda t: t.update(weights=torch.zeros(2)), "'weights' belongs to no case"),
    "no k": (lambda t: t.pop("k"), "k is missing"),
    "no loc": (lambda t: t.pop("loc"), "loc is missing, but"),
    "float loc": (lambda t: t.update(loc=t["loc"].float()), "loc is torch.float32"),
    "short v": (lambda t: t.update(v=t["v"][:-1].clone()), "v has shape"),
    "long commit_lens": (lambda t: t.update(commit_lens=torch.zeros(3, dtype=torch.int64)), "commit_lens has shape"),
    "complex k": (lambda t: t.update(k=t["k"].to(torch.complex64)), "'k' is C64"),
    "scale of a bf16 pool": (lambda t: t.update(k_scale=torch.tensor(2.0)), "only FP8 pools take a scale"),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_do_not_fit(good, name):
    change, match = TENSORS[name]
    path, tensors, header = good()
    change(tensors)
    save_file(tensors, path, header)
    refused(path, match)


PAGES = {
    "twice": (torch.tensor([1, 1]), "rising numbers within 0 … 3"),
    "beyond": (torch.tensor([1, 4]), "rising numbers within"),
    "negative": (torch.tensor([-1, 2]), "rising numbers within"),
    "one more": (torch.tensor([1, 2, 3]), "3 pages need more than"),
    "one less": (torch.tensor([1]), "'before/raw' has shape|'pool/raw' has shape"),
    "too many": (torch.arange(1000), "at most 4 pages"),
    "2-D": (torch.tensor([[1, 2]]), "'pages' has shape"),
    "int32": (torch.tensor([1, 2], dtype=torch.int32), "'pages' is I32"),
}


@pytest.mark.parametrize("name", PAGES)
def test_pages_that_do_not_fit(good, name):
    pages, match = PAGES[name]
    path, tensors, header = good(pages=True)
    save_file({**tensors, "pages": pages}, path, header)
    refused(path, match)


def at(*keys, value):
    """Set ``layout[keys…]`` to a value."""

    def change(layout):
        for key in keys[:-1]:
            layout = layout[key]
        layout[keys[-1]] = value

    return change


HUGE = 2**60
HOSTILE = {
    "list": (lambda d: d.clear(), "layout is described by"),
    "extra entry": (at("run", value="import os"), "layout is described by"),
    "name": (at("name", value=3), "name=3 is int"),
    "terminal codes": (at("name", value="\x1b[2J"), "printable"),
    "long name": (at("name", value="x" * 10_000), "printable"),
    "format": (at("format", value="float4"), "format 'float4' is not known"),
    "format call": (at("format", value="mxfp8(exec, rceil)"), "scales='exec'"),
    "mxfp8 without scales": (at("format", value="mxfp8(flat, rceil)"), "fields are"),
    "petabyte buffer": (at("buffers", "raw", value=2**50), "size of buffer 'raw'"),
    "many buffers": (at("buffers", value={f"b{i}": 2**30 for i in range(400)}), "its buffers take"),
    "5000 buffers": (at("buffers", value={f"b{i}": 1 for i in range(5000)}), "it has 5000 buffers"),
    "no buffers": (at("buffers", value={}), "it has 0 buffers"),
    "negative buffer": (at("buffers", "raw", value=-1), "size of buffer 'raw'"),
    "bool": (at("geometry", "heads", value=True), "geometry.*heads"),
    "float": (at("geometry", "heads", value=2.0), "geometry"),
    "zero pages": (at("geometry", "pages", value=0), "geometry pages is 0"),
    "huge geometry": (at("geometry", "pages", value=HUGE), "geometry pages"),
    "more pages": (at("geometry", "pages", value=5), "extents"),
    "offset outside": (at("fields", 0, "offset", value=2**20), "field 'k' reaches byte"),
    "negative offset": (at("fields", 0, "offset", value=-2), "offset is -2"),
    "odd offset": (at("fields", 0, "offset", value=1), "multiples of its 2-byte"),
    "item": (at("fields", 0, "item", value=1), "1-byte items"),
    "negative stride": (at("fields", 0, "axes", 0, value=["slot", 1, 4, -512]), "stride of axis slot"),
    "zero stride": (at("fields", 0, "axes", 0, value=["slot", 1, 4, 0]), "overlaps"),
    "stride outside": (at("fields", 0, "axes", 0, value=["slot", 1, 4, 2**30]), "reaches byte"),
    "size": (at("fields", 0, "axes", 0, value=["slot", 1, 2**30, 4096]), "reaches byte"),
    "short axis": (at("fields", 0, "axes", 0, value=["slot", 1, 3, 4096]), "slot axes reach 12 of 16"),
    "digit": (at("fields", 0, "axes", 0, value=["slot", 7, 4, 4096]), "digits of slot"),
    "coordinate": (at("fields", 0, "axes", 0, value=["__class__", 1, 4, 4096]), "is not \\[coordinate"),
    "no axes": (at("fields", 0, "axes", value=[]), "digits of layer"),
    "other buffer": (at("fields", 0, "buffer", value="x"), "lies in buffer 'x'"),
    "buffer per layer": (at("fields", 0, "buffer", value=["raw"]), "1 buffers"),
    "buffer list": (at("fields", 0, "buffer", value=["raw", 3]), "must be a name"),
    "extents": (at("fields", 0, "extents", "dim", value=2**40), "extents"),
    "field name": (at("fields", 0, "name", value="q"), "fields are \\['q', 'v'\\]"),
    "no fields": (at("fields", value=[]), "fields are \\[\\]"),
    "field twice": (lambda d: d["fields"].append(d["fields"][0]), "a field is described twice"),
    "field is text": (at("fields", 0, value="k"), "a field is described by"),
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("pages", [False, True], ids=["whole", "pages"])
def test_hostile_layouts(good, name, pages):
    change, match = HOSTILE[name]
    path, tensors, header = good(pages)
    layout = json.loads(header["layout"])
    change(layout)
    save_file(tensors, path, {**header, "layout": json.dumps(layout)})
    refused(path, match)


ABOUT = {
    "list": ([], "layer, note and versions"),
    "layer": ({"layer": 2, "note": "", "versions": {}}, "layer=2 is outside 0 … 1"),
    "text layer": ({"layer": "0", "note": "", "versions": {}}, "layer='0'"),
    "note": ({"layer": 1, "note": 3, "versions": {}}, "note must be a text"),
    "versions": ({"layer": 1, "note": "", "versions": {"torch": 2}}, "versions a dict of texts"),
    "rows of all layers": ({"layer": None, "note": "", "versions": {}}, "k has shape"),
}


@pytest.mark.parametrize("name", ABOUT)
def test_hostile_descriptions(good, name):
    about, match = ABOUT[name]
    path, tensors, header = good()
    save_file(tensors, path, {**header, "about": json.dumps(about)})
    refused(path, match)


def test_memory_that_is_not_there(good, monkeypatch):
    path, _, _ = good()

    def none_left(*_, **__):
        raise MemoryError

    monkeypatch.setattr("kvlab.pool.np.zeros", none_left)
    refused(path, "does not fit into this machine's memory")


# ------------------------------------------------------------------------------------------- what a bad call gets


def test_save_refuses_what_does_not_fit(tmp_path):
    pool, before, call = committed(small(), slots([5, 6]), layer=1)
    path = tmp_path / "c"
    for change, error, match in (
        ({"before": {"k": before["raw"]}}, ValueError, "before is \\['k'\\]"),
        ({"before": {"raw": before["raw"][1:]}}, ValueError, "before\\['raw'\\] is torch.uint8"),
        ({"before": 3}, ValueError, "before is int"),
        ({"slots": [1, 16]}, IndexError, "slots: 16 is outside"),
        ({"slots": [1.5]}, TypeError, "slots are float64"),
        ({"loc": None}, ValueError, "loc is missing"),
        ({"loc": [5, 6]}, TypeError, "loc must be"),
        ({"k": None}, ValueError, "k is missing"),
        ({"v": call["v"][:1]}, ValueError, "v has shape"),
        ({"layer": 2}, IndexError, "layer=2"),
        ({"row_mask": torch.ones(3, dtype=torch.bool)}, ValueError, "row_mask has shape"),
        ({"k_scale": 2.0}, ValueError, "only FP8 pools"),
    ):
        with pytest.raises(error, match=match):
            save_case(path, pool, **{"before": before, **call, **change})
    with pytest.raises(TypeError, match="pool is a dict; wrap"):
        save_case(path, pool.buffers)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(FileNotFoundError, match="nowhere"):
        save_case(tmp_path / "nowhere" / "c", pool)


def test_a_case_is_as_readable_as_any_file(tmp_path):
    save_case(tmp_path / "c", randomised(small()))
    (tmp_path / "other").write_bytes(b"")
    assert (tmp_path / "c").stat().st_mode == (tmp_path / "other").stat().st_mode


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    pool = randomised(small())
    save_case(tmp_path / "c", pool, note="old")

    def full(tensors, path, metadata):
        Path(path).write_bytes(b"half of it")
        raise OSError("No space left on device")

    monkeypatch.setattr("safetensors.torch.save_file", full)
    with pytest.raises(OSError, match="No space left"):
        save_case(tmp_path / "c", pool, note="new")
    assert [p.name for p in tmp_path.iterdir()] == ["c"] and load_case(tmp_path / "c").note == "old"
