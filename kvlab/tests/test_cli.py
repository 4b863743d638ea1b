"""The command line: answers, JSON, exit codes, and one line for whatever cannot be done."""

import json
import subprocess
import sys

import pytest
import torch

import kvlab
from kvlab import cli, doctor
from kvlab.backends import reference_backend
from kvlab.debug.case import save_case

from .helpers import geometry, numbers, rows_for, saved, slots

pytest.importorskip("safetensors")


@pytest.fixture
def files(tmp_path):
    """Cases of one commit: as it should be, with one byte too many and one lost, and of another layout."""
    layout = kvlab.page_major(geometry(), kvlab.MXFP8())
    pool = kvlab.KVPool(layout)
    before = saved(pool)
    k, v = rows_for(layout.geometry, 4, torch.bfloat16, layers=2, make=numbers)
    call = {"loc": slots([[5, 6], [9, 10]]), "commit_lens": slots([2, 1]), "k": k, "v": v}
    with reference_backend():
        pool.commit(**call)
    save_case(tmp_path / "good", pool, before=before, **call)
    save_case(tmp_path / "page", pool, before=before, slots=[5], **call)
    save_case(tmp_path / "refused", pool, before=before, **{**call, "loc": slots([[5, 64], [9, 10]])})
    stray, lost = layout.locate("k", 0, 10, 0, 3)[1], layout.locate("v_scale", 1, 6, 1, 1)[1]
    pool.buffers["raw"][stray] = 0x41
    pool.buffers["raw"][lost] = 0
    save_case(tmp_path / "bad", pool, before=before, note="\x1b[31mred", **call)
    save_case(tmp_path / "other", kvlab.KVPool(kvlab.token_major(geometry(), torch.bfloat16)))
    return tmp_path, layout, stray, lost


def run(capsys, *argv):
    """Exit code, standard output and standard error of one command."""
    code = cli.main([str(a) for a in argv])
    out, err = capsys.readouterr()
    return code, out, err


def refused(capsys, match, *argv):
    code, out, err = run(capsys, *argv)
    assert code == 2 and out == "" and err.count("\n") == 1 and err.startswith("python -m kvlab: ")
    assert match in err, err


def test_explain(files, capsys):
    folder, _, stray, lost = files
    code, out, _ = run(capsys, "explain", folder / "bad", "--byte", stray)
    assert code == 1
    assert "owner    K, layer 0, slot 10 (page 2, offset 2), head 0, dim 3" in out
    # 0x41 is E4M3 2.25 (exponent 8 - 7, mantissa 1.125); its block was never scaled: byte 0 is 2^-127
    assert "value    0x41, 2.25 as float8_e4m3fn, times its block's scale 0 = " in out
    assert "has no business with this byte; it should hold 0x00, and does not" in out
    code, out, _ = run(capsys, "explain", folder / "good", "--byte", hex(stray))
    assert code == 0 and "it should hold 0x00, and does" in out and "before   0x00, the same" in out
    code, out, _ = run(capsys, "explain", folder / "bad", "--byte", lost, "--json")
    facts = json.loads(out)
    assert code == 1 and facts["owner"] == {
        "field": "v_scale", "layer": 1, "slot": 6, "page": 1, "offset": 2, "head": 1, "dim": 1, "byte": 0,
    }  # fmt: skip
    assert facts["written_by_commit"] and facts["hex"] == "0x00" and facts["expected"] != "0x00"
    assert facts["value"] == "UE8M0 2^-127"


def test_explain_names_the_rows_of_loc(tmp_path, capsys):
    """Which row leads to a byte's slot, and each reason for which a commit leaves it out; also without ``before``."""
    layout = kvlab.page_major(geometry(), torch.bfloat16)
    pool = kvlab.KVPool(layout)
    k, v = rows_for(layout.geometry, 6, torch.bfloat16, make=numbers)
    call = {"loc": slots([[5, 6, 7], [9, 0, 10]]), "commit_lens": slots([2, 3]), "layer": 1, "k": k, "v": v}
    call["row_mask"] = (call["loc"] != 6) & (call["loc"] != 7)
    with reference_backend():
        pool.commit(**call)
    path = tmp_path / "case"
    save_case(path, pool, note="first line\nvalue    0x00", **call)

    def lines(layer, slot):
        code, out, _ = run(capsys, "explain", path, "--byte", layout.locate("v", layer, slot, 1, 3)[1])
        return code, out.splitlines()

    code, out = lines(1, 5)
    assert code == 0 and "loc      loc[0, 0] = 5: written" in out and out[-1].endswith(", and does")
    assert out[1] == "note     first line value 0x00"
    left_out = "loc      loc[0, 2] = 7: not written, commit_lens[0] = 2 leaves it out, row_mask leaves it out"
    assert left_out in lines(1, 7)[1]
    assert "loc      loc[0, 1] = 6: not written, row_mask leaves it out" in lines(1, 6)[1]
    assert "loc      loc[0, 0] = 5: not written, the commit is for layer 1" in lines(0, 5)[1]
    assert "loc      loc[1, 1] = 0: not written, slot 0 is the padding sink" in lines(1, 0)[1]
    code, out = lines(1, 11)
    assert code == 0 and "loc      no row names slot 11" in out
    assert out[-1] == "commit   has no business with this byte; what it held before is not in the file"
    pool.buffers["raw"][layout.locate("v", 1, 9, 1, 3)[1]] ^= 1
    save_case(path, pool, **call)
    code, out = lines(1, 9)
    assert code == 1 and out[-1].endswith(", and does not")


def test_the_formula_adds_up(files, capsys):
    folder, _, _, _ = files
    for byte in (0, 700, 2500, 4321, 16000):
        _, out, _ = run(capsys, "explain", folder / "good", "--byte", byte, "--json")
        facts = json.loads(out)
        total, terms = facts["formula"].replace(",", "").split(" = ")
        parts = [term.split(" (")[0].split("*") for term in terms.split(" + ")]
        assert int(total) == byte == sum(int(p[0]) * int([*p, 1][1]) for p in parts)


def test_explain_padding_and_bytes_that_are_not_in_the_file(files, capsys):
    folder, layout, _, _ = files
    code, out, _ = run(capsys, "explain", folder / "page", "--byte", layout.locate("k", 0, 40)[1])
    assert code == 0 and "not in the file, which holds only some pages" in out
    thin = kvlab.page_major(geometry(heads=1, page_size=1), kvlab.MXFP8())
    save_case(folder / "thin", kvlab.KVPool(thin))
    code, out, _ = run(capsys, "explain", folder / "thin", "--byte", thin.locate("k", 1, 0)[1] - 1)
    assert code == 0 and "owner    none: padding" in out


def test_diff(files, capsys):
    folder, _, _, _ = files
    assert run(capsys, "diff", folder / "good", folder / "good")[0] == 0
    code, out, _ = run(capsys, "diff", folder / "good", folder / "bad")
    assert code == 1 and "layer 0, K, slot 10, head 0, dim 3" in out and "layer 1, V scale, slot 6" in out
    code, out, _ = run(capsys, "diff", folder / "good", folder / "bad", "--json")
    assert code == 1 and json.loads(out)["not_compared"] == 0
    code, out, _ = run(capsys, "diff", folder / "page", folder / "bad")
    assert code == 1 and "slot 10" not in out and "slot 6" in out
    assert "bytes are in one of the files only, and were not compared" in out
    refused(capsys, "different layouts", "diff", folder / "good", folder / "other")


def test_scan(files, capsys):
    folder, _, _, _ = files
    code, out, _ = run(capsys, "scan", folder / "good")
    assert code == 0 and "the recorded commit: as expected" in out
    code, out, _ = run(capsys, "scan", folder / "bad")
    assert code == 1
    assert "missing: 1 byte" in out and "layer 1, V scale, slot 6, head 1" in out
    assert "unexpected: 1 byte" in out and "layer 0, K, slot 10, head 0, dim 3" in out
    code, out, _ = run(capsys, "scan", folder / "bad", "--json")
    answer = json.loads(out)
    assert code == 1 and tuple(answer["commit"]["counts"][kind] for kind in ("missing", "unexpected", "wrong")) == (
        1,
        1,
        0,
    )
    assert not answer["scan"]["ok"]
    code, out, _ = run(capsys, "scan", folder / "refused")
    assert code == 1 and "kvlab refuses: loc" in out and "64 is outside" in out
    assert run(capsys, "scan", folder / "other")[0] == 0


def test_doctor(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "_compiler", lambda: doctor.Check("compile", "works", "the lens", ""))
    monkeypatch.setattr(doctor, "_browser", lambda: doctor.Check("chromium", "here", "tests", ""))
    real = doctor._version
    monkeypatch.setattr(doctor, "_version", lambda name: real(name) or "1")
    code, out, _ = run(capsys, "doctor")
    assert (
        code == 0 and f"backend {kvlab.backend()}" in out and torch.__version__ in out and "nothing is missing" in out
    )
    monkeypatch.setattr(doctor, "_version", lambda name: None if name == "plotly" else "1")
    code, out, _ = run(capsys, "doctor")
    assert code == 1 and "MISSING, which switches off kvlab.figures and kvlab.widgets" in out
    assert "pip install plotly" in out and "1 missing: plotly" in out
    code, out, _ = run(capsys, "doctor", "--json")
    assert code == 1 and [c["name"] for c in json.loads(out)["checks"] if c["found"] is None] == ["plotly"]
    monkeypatch.setattr(doctor, "_version", lambda name: "1")
    monkeypatch.setattr(doctor, "_browser", lambda: doctor.Check("chromium", None, "tests", "get it", optional=True))
    code, out, _ = run(capsys, "doctor")
    assert code == 0 and "1 missing: chromium (optional)" in out


def test_doctor_tells_of_a_compiler_that_fails(monkeypatch):
    from kvlab import lens

    def fails(*_, **__):
        raise lens.CompileError("ptxas is gone\nand more")

    monkeypatch.setattr(lens, "inspect", fails)
    check = doctor._compiler()
    assert check.found is None and "the compiler says: ptxas is gone" in str(check)


@pytest.mark.slow
def test_doctor_compiles():
    pytest.importorskip("triton")
    assert doctor._compiler().found.startswith("for sm_90 works")


def test_bad_usage(files, capsys):
    folder, layout, _, _ = files
    good = folder / "good"
    refused(capsys, "the following arguments are required: COMMAND")
    refused(capsys, "invalid choice: 'frob'", "frob")
    refused(capsys, "--byte", "explain", good)
    refused(capsys, "invalid number value: 'x'", "explain", good, "--byte", "x")
    refused(capsys, "--byte -1 is outside 0 … ", "explain", good, "--byte", "-1")
    refused(capsys, f"--byte {layout.nbytes} is outside", "explain", good, "--byte", layout.nbytes)
    refused(capsys, "--buffer k is not one of raw", "explain", good, "--byte", 1, "--buffer", "k")
    refused(capsys, "several buffers; give --buffer, one of k, v", "explain", folder / "other", "--byte", 1)
    refused(capsys, "No such file", "scan", folder / "nothing")
    refused(capsys, "Is a directory", "scan", folder)
    (folder / "text").write_text("no case")
    refused(capsys, "no whole safetensors file", "diff", good, folder / "text")
    assert run(capsys, "explain", folder / "other", "--byte", 1, "--buffer", "v")[0] == 0


def test_a_strangers_text_cannot_steer_the_terminal(files, capsys):
    assert cli.printable("a\x1b[31mb\nc\x07") == "a?[31mb\nc?"


def test_safetensors_missing(files, capsys, monkeypatch):
    folder, _, _, _ = files
    monkeypatch.setitem(sys.modules, "safetensors", None)
    code, _, err = run(capsys, "scan", folder / "good")
    assert code == 2 and "safetensors is not installed: pip install safetensors" in err


def test_help(capsys):
    code, out, err = run(capsys, "--help")
    assert (
        code == 0
        and err == ""
        and "exit codes: 0" in out
        and all(n in out for n in ("explain", "diff", "scan", "doctor"))
    )
    for name in ("explain", "diff", "scan", "doctor"):
        code, out, _ = run(capsys, name, "--help")
        assert code == 0 and "--json" in out and "exit codes" in out


def test_as_a_command(files):
    folder, _, stray, _ = files
    command = [sys.executable, "-m", "kvlab", "explain", str(folder / "bad"), "--byte", str(stray), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 1 and done.stderr == "" and json.loads(done.stdout)["hex"] == "0x41"
