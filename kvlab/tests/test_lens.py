"""The lens: what the compiler makes of the kernels, without a GPU. One batch of compilations serves all tests."""

import json
import subprocess
import sys
from dataclasses import fields

import numpy as np
import pytest
import torch

import kvlab
from kvlab import lens, zoo
from kvlab.lens import __main__ as command
from kvlab.lens.isa import access_of, parse_amdgcn, parse_sass, ptx_widths
from kvlab.lens.report import COLUMNS, narrowest

pytest.importorskip("triton", reason="the lens compiles with Triton, which is not installed here")

BUILDERS = (kvlab.token_major, kvlab.page_major, kvlab.head_major)
E4M3 = torch.float8_e4m3fn
# head_dim, dtype of rows and pool
MOVES = {"bf16 8x128": (128, torch.bfloat16), "bf16 8x72": (72, torch.bfloat16), "e4m3 8x128": (128, E4M3)}

KERNELS = """
import triton
import triton.language as tl

@triton.jit
def rows(source, target, loc, scales, stride, WIDTH: tl.constexpr):
    column = tl.arange(0, WIDTH)
    slot = tl.load(loc + tl.program_id(0))
    first = tl.load(source + slot * stride + column)
    again = tl.load(target + slot * WIDTH + column)
    tl.store(target + slot * WIDTH + column, first + again)
    tl.store(scales + slot, 1)
"""
SIGNATURE = {"source": "*bf16", "target": "*bf16", "loc": "*i64", "scales": "*u8", "stride": "i64"}


def layout(build, head_dim, fmt, page_size=16):
    return build(kvlab.Geometry(layers=32, heads=8, head_dim=head_dim, page_size=page_size, pages=64), fmt)


@pytest.fixture(scope="session")
def kernel_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("lens") / "my_kernels.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture(scope="session")
def cases(kernel_file):
    """Arguments by name; what is compiled once for all tests."""
    found = {}
    for move, (head_dim, dtype) in MOVES.items():
        for build in BUILDERS:
            for operation in ("commit", "gather"):
                case = {"operation": operation, "layout": layout(build, head_dim, dtype), "source": dtype}
                found[operation, build.__name__, move] = case
    for arch in ("sm_80", "sm_100"):
        found["commit", arch] = {"layout": layout(kvlab.page_major, 128, torch.bfloat16), "arch": arch}
    tile = layout(kvlab.page_major, 128, kvlab.MXFP8("interleaved"), page_size=128)
    found["mxfp8"] = {"layout": tile}
    found["copy"] = {"operation": "copy", "layout": tile}
    mine = {"kernel": f"{kernel_file}:rows", "signature": SIGNATURE, "constexprs": {"WIDTH": 1024}}
    found["narrow"] = mine
    found["wide"] = {**mine, "signature": {**SIGNATURE, "stride": "i64:16"}}
    found["amd"] = {**found["wide"], "arch": "gfx942"}
    found["refused"] = {**mine, "constexprs": {"WIDTH": 1000}}
    found["fp8 on sm_80"] = {**mine, "signature": {**SIGNATURE, "source": "*fp8e4nv"}, "arch": "sm_80"}
    found["incomplete"] = {**mine, "signature": {"source": "*bf16"}}
    return found


@pytest.fixture(scope="session")
def cache(tmp_path_factory):
    """A cache of the tests' own, so that they really compile and leave the user's alone."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        yield folder


@pytest.fixture(scope="session")
def compiled(cases, cache):
    return dict(zip(cases, lens.inspect_many(list(cases.values())), strict=True))


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize("operation", ["commit", "gather"])
def test_payload_moves_sixteen_bytes_per_instruction(compiled, operation, build, move):
    r = compiled[operation, build.__name__, move]
    assert (r.payload_load_bits, r.payload_store_bits) == (128, 128), str(r)
    assert set(r.stores) == set(r.ptx_stores) == {128}
    assert r.spill_bytes == 0
    assert r.scale_store_bits is None
    # K and V are both there, and what is narrower is known by name
    assert {"k", "v"} <= {a.what for a in r.accesses if a.role == "payload"}
    bookkeeping = {a.what.split()[-1] for a in r.accesses if a.role == "bookkeeping"}
    assert bookkeeping == {"loc", "origins"} | ({"commit_lens"} if operation == "commit" else set())


@pytest.mark.parametrize("move", MOVES)
@pytest.mark.parametrize("build", BUILDERS)
def test_a_commit_is_one_launch(compiled, build, move):
    r = compiled["commit", build.__name__, move]
    assert r.launches == 1
    assert r.programs % 32 == 0  # the layers are in the grid
    if move == "bf16 8x128":
        assert r.programs == 512 // 4 * 32  # programs of 4 rows and 8 KiB
    assert (r.kernel, r.layout, r.arch) == ("commit", build.__name__, "sm_90")


@pytest.mark.parametrize("arch", ["sm_80", "sm_100"])
def test_other_targets(compiled, arch):
    r = compiled["commit", arch]
    assert (r.payload_load_bits, r.payload_store_bits, r.spill_bytes, r.arch) == (128, 128, 0, arch)
    assert f".target {arch}" in r.ptx and ".loc" not in r.ptx and ".debug" not in r.ptx


@pytest.mark.parametrize("case", ["mxfp8", "copy"])
def test_scales_and_payload_are_told_apart(compiled, case):
    r = compiled[case]
    stored = {(a.what, a.role): a.bits for a in r.accesses if a.kind == "store" and a.space == "global"}
    assert stored == {("k", "payload"): 128, ("v", "payload"): 128, ("k_scale", "scale"): 32, ("v_scale", "scale"): 32}
    assert (r.payload_load_bits, r.payload_store_bits, r.spill_bytes, r.launches) == (128, 128, 0, 1)
    assert r.scale_store_bits == 32  # the four scale bytes of a head
    assert r.format == "mxfp8(interleaved, rceil)"


def test_accesses_are_told_apart_in_a_kernel_of_ones_own(compiled):
    r = compiled["narrow"]
    # the stride is not known to be even: 2 bytes at a time; a masking "minimum over all" would hide which one it is
    assert r.payload_load_bits == 16 and r.payload_store_bits == 128
    found = {(a.what, a.kind): (a.bits, a.role, a.where) for a in r.accesses}
    assert found["source", "load"] == (16, "payload", "my_kernels.py:9")
    assert found["target", "load"] == (128, "payload", "my_kernels.py:10")
    assert found["target", "store"] == (128, "payload", "my_kernels.py:11")
    assert found["loc", "load"] == (64, "bookkeeping", "my_kernels.py:8")
    assert found["scales", "store"] == (8, "scale", "my_kernels.py:12")
    assert r.scale_store_bits == 8
    assert (r.layout, r.format, r.launches, r.programs) == (None,) * 4
    assert compiled["wide"].payload_load_bits == 128


def test_machine_code_carries_its_source(compiled):
    sass = compiled["wide"].sass
    line = "// my_kernels.py:9  first = tl.load(source + slot * stride + column)"
    assert line in sass
    after = sass[sass.rindex(line) :]
    assert "LDG.E.128" in after[: after.index("//", 2)]
    assert sum(not x.startswith("//") for x in sass.splitlines()) == compiled["wide"].sass_instructions


def test_amd(compiled):
    r = compiled["amd"]
    # 1024 elements of 2 bytes over 4 wavefronts of 64 lanes: 8 bytes each
    assert (r.payload_load_bits, r.payload_store_bits, r.scale_store_bits) == (64, 64, 8)
    assert r.registers > 0 and r.ptx == "" and "global_" in r.sass + r.sass.replace("buffer_", "global_")


def test_errors_of_the_compiler_say_what_to_change(compiled):
    refused, fp8, incomplete = (compiled[n] for n in ("refused", "fp8 on sm_80", "incomplete"))
    for error in (refused, fp8, incomplete):
        assert isinstance(error, lens.CompileError) and len(str(error)) < 1000 and "Traceback" not in str(error)
    assert "power of 2" in str(refused) and "tl.arange(0, WIDTH)" in str(refused) and "constexprs=" in str(refused)
    assert "fp8e4nv not supported" in str(fp8) and "arch='sm_80'" in str(fp8)
    assert "['target', 'loc', 'scales', 'stride']" in str(incomplete) and "signature" in str(incomplete)


def test_single_calls_use_the_cache(cases, compiled, cache, kernel_file, monkeypatch):
    monkeypatch.setattr(lens.ask, "_start", lambda *a: pytest.fail("compiled again"))
    assert lens.inspect(**cases["mxfp8"]) == compiled["mxfp8"]
    assert lens.inspect_kernel(**cases["wide"]) == compiled["wide"]
    kernel_file.write_text(KERNELS.replace("first + again", "first"))
    try:
        with pytest.raises(pytest.fail.Exception, match="compiled again"):
            lens.inspect_kernel(**cases["wide"])
    finally:
        kernel_file.write_text(KERNELS)


def test_report_survives_json(compiled):
    for r in (compiled["mxfp8"], compiled["amd"]):
        assert lens.Report.from_dict(json.loads(json.dumps(r.to_dict()))) == r
        assert "128" in str(r) or "64" in str(r)


def test_command_prints_a_table_and_json(cases, compiled, monkeypatch, capsys):
    few = [cases["commit", b.__name__, "bf16 8x128"] for b in BUILDERS] + [cases["mxfp8"]]
    monkeypatch.setattr(command, "standard_cases", lambda arch, formats: few)
    monkeypatch.setattr(sys, "argv", ["lens", "--json"])
    assert command.main() == 0
    rows = json.loads(capsys.readouterr().out)
    assert [r["layout"] for r in rows] == ["token_major", "page_major", "head_major", "page_major"]
    assert all(tuple(r) == COLUMNS for r in rows)
    assert rows[0] == compiled["commit", "token_major", "bf16 8x128"].row()
    monkeypatch.setattr(sys, "argv", ["lens"])
    assert command.main() == 0
    table = capsys.readouterr().out
    assert "mxfp8(interleaved, rceil)" in table and "minimum" in table


def test_command_fails_with_the_kernel_that_does(compiled, monkeypatch, capsys):
    monkeypatch.setattr(command, "inspect_many", lambda given: [compiled["refused"]])
    monkeypatch.setattr(sys, "argv", ["lens", "--json"])
    assert command.main() == 1
    said = capsys.readouterr()
    assert json.loads(said.out) == [] and "power of 2" in said.err


def test_standard_cases_cover_operations_layouts_and_formats():
    cases = lens.standard_cases("sm_90")
    assert {c["operation"] for c in cases} == set(lens.OPERATIONS)
    names = {(c["operation"], c["layout"].name, kvlab.formats.format_name(c["layout"].format)) for c in cases}
    assert len(names) == len(cases)
    assert {n[1] for n in names} == {b.__name__ for b in BUILDERS}
    g = cases[0]["layout"].geometry
    assert (g.layers, g.heads, g.head_dim) == (32, 8, 128)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"arch": "sm_99"}, ValueError, ["arch='sm_99'", "sm_90", "gfx942"]),
        ({"arch": 90}, ValueError, ["arch=90", "sm_90"]),
        ({"operation": "comit"}, ValueError, ["operation='comit'", "commit"]),
        ({"operation": "gather_raw"}, ValueError, ["gather_raw", "MXFP8"]),
        ({"layout": "token_major"}, TypeError, ["layout='token_major'", "kvlab.token_major"]),
        ({"source": torch.int8}, ValueError, ["source=torch.int8", "torch.bfloat16"]),
    ],
)
def test_bad_arguments(change, error, words):
    good = {"layout": layout(kvlab.token_major, 128, torch.bfloat16)}
    with pytest.raises(error) as raised:
        lens.inspect(**{**good, **change})
    assert all(w in str(raised.value) for w in words), raised.value


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"arch": "gfx90a"}, ValueError, ["arch='gfx90a'", "gfx942"]),
        ({"kernel": "no_such.py:rows"}, ValueError, ["no_such.py", "no file"]),
        ({"kernel": "rows"}, ValueError, ["kernel='rows'", "file.py:name"]),
        ({"kernel": print}, TypeError, ["@triton.jit"]),
        ({"signature": {"x": "*bf17"}}, ValueError, ["signature['x']='*bf17'", "bf16"]),
        ({"signature": {"x": ("i32", "long")}}, ValueError, ["signature['x'][1]='long'"]),
        ({"constexprs": {"D": torch.int8}}, TypeError, ["constexprs['D']=torch.int8"]),
        ({"num_warps": 3}, ValueError, ["num_warps=3", "power of two"]),
    ],
)
def test_bad_arguments_for_a_kernel(kernel_file, change, error, words):
    good = {"kernel": f"{kernel_file}:rows", "signature": SIGNATURE, "constexprs": {"WIDTH": 1024}}
    with pytest.raises(error) as raised:
        lens.inspect_kernel(**{**good, **change})
    assert all(w in str(raised.value) for w in words), raised.value


def test_unknown_arch_on_the_command_line(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["lens", "--arch", "sm_99"])
    with pytest.raises(SystemExit) as raised:
        command.main()
    assert raised.value.code == 2 and "sm_99" in capsys.readouterr().err


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    ("head_dim", "fmt", "page_size"),
    [
        (72, torch.bfloat16, 16),
        (64, torch.float8_e5m2, 1),
        (96, kvlab.MXFP8("flat"), 16),
        (128, kvlab.MXFP8("interleaved"), 128),
    ],
)
def test_sectors_against_a_count_of_bytes(build, head_dim, fmt, page_size):
    """The bytes of each row by `locate`, in a set of sectors."""
    g = kvlab.Geometry(layers=2, heads=3, head_dim=head_dim, page_size=page_size, pages=2)
    where = build(g, fmt)
    counts = []
    for layer in range(2):
        for slot in range(2 * page_size):
            touched = set()
            for name, field in where.fields.items():
                head, dim = np.arange(3)[:, None], np.arange(field.extents["dim"])
                buffer, byte = where.locate(name, layer, slot, head, dim)
                touched |= {(buffer, (b + i) // 32) for b in byte.ravel().tolist() for i in range(field.item)}
            counts.append(len(touched))
    least = sum(-(-3 * f.extents["dim"] * f.item // 32) for f in where.fields.values())
    touched, minimum = lens.sectors(where)
    assert touched == pytest.approx(sum(counts) / len(counts))
    assert minimum == least <= touched


@pytest.mark.parametrize("build", [*BUILDERS, zoo.vllm_first])
@pytest.mark.parametrize(
    ("slots", "heads"), [([5], None), (range(4, 8), None), (range(4, 8), [1]), ([1, 6, 3], [2, 0])]
)
def test_a_footprint_against_a_count_of_bytes(build, slots, heads):
    where = build(kvlab.Geometry(layers=2, heads=3, head_dim=64, page_size=4, pages=3), kvlab.MXFP8("flat"))
    for name, field in where.fields.items():
        found = set()
        for slot in slots:
            for head in range(3) if heads is None else heads:
                for dim in range(field.extents["dim"]):
                    _, byte = where.locate(name, 1, slot, head, dim)
                    found |= set(range(byte, byte + field.item))
        seen = lens.footprint(where, name, slots, heads, layer=1)
        runs = sum(byte - 1 not in found for byte in found)
        assert (seen.nbytes, seen.runs, seen.sectors) == (len(found), runs, len({byte // 32 for byte in found}))
        assert seen.minimum == -(-len(found) // 32)
    with pytest.raises(KeyError, match="'q' is not one of"):
        lens.footprint(where, "q", [1])
    with pytest.raises(IndexError, match="slot=12 is outside"):
        lens.footprint(where, "k", [12])


def test_sectors_known():
    assert lens.sectors(layout(kvlab.token_major, 128, torch.bfloat16)) == (128, 128)
    # a head's four scale bytes lie alone in a sector once they are interleaved: 2 x 8 sectors where 2 would do
    assert lens.sectors(layout(kvlab.page_major, 128, kvlab.MXFP8("flat"))) == (66, 66)
    assert lens.sectors(layout(kvlab.page_major, 128, kvlab.MXFP8("interleaved"), page_size=128)) == (80, 66)


@pytest.mark.parametrize(
    ("opcode", "access"),
    [
        ("LDG.E.128", ("load", "global", 128)),
        ("LDG.E.128.CONSTANT", ("load", "global", 128)),
        ("LDG.E.U8", ("load", "global", 8)),
        ("LDG.E.S16", ("load", "global", 16)),
        ("LDG.E", ("load", "global", 32)),
        ("LDG.E.ENL2.256", ("load", "global", 256)),
        ("LDGSTS.E.BYPASS.128", ("load", "global", 128)),
        ("STG.E.64", ("store", "global", 64)),
        ("STG.E.EF.128.STRONG.GPU", ("store", "global", 128)),
        ("LDL.LU", ("load", "local", 32)),
        ("STS.U16", ("store", "shared", 16)),
        ("ULDC.64", None),
        ("LDC", None),
        ("LDSM.16.M88.4", None),
        ("global_load_dwordx4", ("load", "global", 128)),
        ("buffer_store_short_d16_hi", ("store", "global", 16)),
        ("buffer_load_ubyte", ("load", "global", 8)),
        ("global_store_b64", ("store", "global", 64)),
        ("scratch_store_dword", ("store", "local", 32)),
        ("ds_read_b128", ("load", "shared", 128)),
        ("s_load_dwordx4", None),
    ],
)
def test_width_of_an_instruction(opcode, access):
    assert access_of(opcode) == access


def test_ptx_widths():
    ptx = """
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    ld.global.L1::evict_first.v2.b64 { %rd1, %rd2 }, [ %rd3 + 0 ];
    ld.global.b16 { %rs1 }, [ %rd1 + 0 ];
    ld.param.b64 %rd1, [p];  ld.shared.b32 %r1, [%r2];
    st.global.b8 [ %rd4 + 0 ], { %rs1 };
    """
    assert ptx_widths(ptx, "load") == {128: 2, 16: 1}
    assert ptx_widths(ptx, "store") == {8: 1}


def test_inlining_is_read_from_both_disassemblies():
    sass = """
	//## File "/a/rows.py", line 7 inlined at "/a/commit.py", line 30
	//## File "/a/commit.py", line 30
        /*0010*/              @!P0 LDG.E.128 R4, desc[UR4][R2.64] ;
        /*0020*/                   NOP ;
	//## File "/a/commit.py", line 31
        /*0030*/                   EXIT ;
    """
    load, end = parse_sass(sass)
    assert load.opcode == "LDG.E.128" and load.stack == (("/a/rows.py", 7), ("/a/commit.py", 30))
    assert end.stack == (("/a/commit.py", 31),)
    amd = """
	.file	1 "/a" "rows.py"
	.loc	1 7 20                          ; rows.py:7:20 @[ commit.py:30:5 ]
	global_load_dwordx4 v[0:3], v4, s[0:1]
	s_endpgm
.Lfunc_end0:
	s_code_end
"""
    load, _ = parse_amdgcn(amd)
    assert load.opcode == "global_load_dwordx4" and load.stack == (("/a/rows.py", 7), ("commit.py", 30))


def test_narrowest_ignores_spills():
    access = lens.Access("store", "global", 128, 1, "k", "payload", "rows.py:1")
    spill = lens.Access("store", "local", 32, 1, "spill or stack", "payload", "rows.py:1")
    assert narrowest([access, spill], "store", "payload") == 128
    assert narrowest([spill], "store", "payload") is None


def test_importing_kvlab_leaves_the_lens_out():
    code = "import sys, kvlab; print([m for m in sys.modules if m.startswith('kvlab.lens')])"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said.strip() == "[]"
    assert {f.name for f in fields(lens.Report)} >= set(COLUMNS)
