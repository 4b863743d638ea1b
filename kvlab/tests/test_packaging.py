"""What is installed, what an import costs, and what the repository holds."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOP = {"notebooks", "kvlab", "data", "environment.yml", "README.md", "pyproject.toml", "LICENSE", ".ci"}
WITHOUT_TRITON = """
import importlib.abc, sys
class Blocked(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "triton" or name.startswith("triton."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Blocked())
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, package=None: None if name == "triton" else found(name, package)
"""


def fresh(code: str) -> subprocess.CompletedProcess:
    """Run code in a new interpreter, without what kvlab's import sets in this one's environment."""
    chosen = ("TRITON_DEFAULT_FP_FUSION", "TRITON_INTERPRET")
    env = {name: value for name, value in os.environ.items() if name not in chosen}
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120)


def python(code: str) -> str:
    """Standard output of a fresh interpreter."""
    done = fresh(code)
    assert done.returncode == 0, done.stderr
    return done.stdout


def tracked() -> list[str]:
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        pytest.skip("not a git checkout")
    return [name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_import_needs_only_torch_numpy_and_triton():
    heavy = ("plotly", "ipywidgets", "anywidget", "safetensors", "matplotlib", "IPython", "jupyterlab")
    before = set(python("import sys, torch, numpy, triton; print(*sys.modules)").split()) if has_triton() else set()
    after = set(python("import sys, kvlab; print(*sys.modules)").split())
    assert "kvlab.pool" in after
    assert [name for name in heavy if name in after - before] == []


def has_triton() -> bool:
    import importlib.util

    return importlib.util.find_spec("triton") is not None


def test_without_triton_the_reference_serves():
    out = python(
        WITHOUT_TRITON
        + """
import torch, kvlab
assert kvlab.backend() == "reference", kvlab.backend()
print(kvlab.describe_backend())
g = kvlab.Geometry(layers=2, heads=2, head_dim=64, v_head_dim=32, page_size=4, pages=16)
for builder in (kvlab.token_major, kvlab.page_major, kvlab.head_major):
    pool = kvlab.KVPool(builder(g, torch.bfloat16))
    k, v = torch.randn(2, 4, 2, 64).bfloat16(), torch.randn(2, 4, 2, 32).bfloat16()
    pool.commit(torch.tensor([[5, 6], [7, 0]]), k, v, commit_lens=torch.tensor([2, 2]))
    got = pool.gather(torch.tensor([5, 6, 7]))
    assert torch.equal(got[0], k[:, :3]) and torch.equal(got[1], v[:, :3])
assert not any(name.split(".")[0] == "triton" for name, module in sys.modules.items() if module is not None)
"""
    )
    assert "Triton" in out


def test_import_and_a_commit_print_nothing():
    """A learner's notebook stays clean. Triton 3.9 warns where a kernel compiles and FP fusion was left unchosen."""
    code = """
import os, torch, kvlab
assert kvlab.backend() == "reference" or "TRITON_DEFAULT_FP_FUSION" in os.environ
pool = kvlab.KVPool(kvlab.token_major(kvlab.Geometry(layers=1, heads=1, head_dim=8), torch.bfloat16))
x = torch.ones(1, 1, 8, dtype=torch.bfloat16, device=pool.device)
pool.commit(torch.tensor([3], device=pool.device), x, x, layer=0)
"""
    done = fresh(code)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def project() -> dict:
    tomllib = pytest.importorskip("tomllib")
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_environment_and_pyproject_are_in_step():
    """pyproject.toml is the one list: environment.yml names Python and pip, and installs the package itself."""
    yaml = pytest.importorskip("yaml")
    environment = yaml.safe_load((ROOT / "environment.yml").read_text())
    assert environment["name"] == "kvlab"
    conda = [x for x in environment["dependencies"] if isinstance(x, str)]
    (pip,) = (x["pip"] for x in environment["dependencies"] if isinstance(x, dict))
    assert sorted(re.split(r"[=<> ]", x)[0] for x in conda) == ["pip", "python"], "a dependency only conda knows of"
    assert pip in (["-e ."], ["-e .[test]"]), "a dependency only environment.yml knows of"
    (python_pin,) = (x for x in conda if x.startswith("python"))
    minor = int(re.fullmatch(r"python ?[=>]=?3\.(\d+)(\..*)?", python_pin)[1])
    floor = int(re.match(r">=3\.(\d+)", project()["requires-python"])[1])
    assert minor >= floor == 10


def test_triton_and_torch_are_pinned_to_a_tested_range():
    for name in ("torch", "triton"):
        (line,) = (x for x in project()["dependencies"] if re.match(rf"{name}\b", x))
        assert re.match(rf"{name}>=[\d.]+,<[\d.]+", line), line


def test_every_import_of_the_library_is_a_dependency():
    """A module that only the author's machine has would break a fresh install."""
    extras = project()["optional-dependencies"]
    known = [*project()["dependencies"], *(x for extra in extras.values() for x in extra)]
    known = {re.match(r"[\w-]+", x)[0].lower().replace("-", "_") for x in known}
    brought = {
        "IPython",
        "ipykernel",
        "traitlets",
        "nbformat",
        "nbclient",
        "yaml",
        "playwright",
    }  # jupyterlab's, nbmake's
    missing = {}
    for path in tracked():
        if path.endswith(".py") and path.startswith("kvlab/"):
            text = (ROOT / path).read_text()
            for name in re.findall(r"^\s*(?:import|from) ([A-Za-z_]\w*)", code_only(text), re.M):
                if name not in sys.stdlib_module_names | known | brought | {"kvlab"}:
                    missing.setdefault(name, path)
    assert missing == {}


def code_only(text: str) -> str:
    """Source without its triple-quoted strings, where prose may begin a line with "from"."""
    return re.sub(r'"""[\s\S]*?"""', "", text)


def test_notebooks_have_no_outputs():
    notebooks = [name for name in tracked() if name.endswith(".ipynb")]
    for name in notebooks:
        for cell in json.loads((ROOT / name).read_text())["cells"]:
            if cell["cell_type"] == "code":
                assert cell["outputs"] == [], f"{name}: outputs; run nbstripout"
                assert cell["execution_count"] is None, f"{name}: execution count; run nbstripout"
    if not notebooks:
        pytest.skip("no notebook is committed yet")


def test_the_top_level_stays_tidy():
    extra = {name.split("/")[0] for name in tracked()} - TOP
    assert {name for name in extra if not name.startswith(".")} == set()


def test_no_file_is_over_4_mib():
    large = {name: size for name in tracked() if (size := (ROOT / name).stat().st_size) > 4 * 2**20}
    assert large == {}


def test_links_between_notebooks_lead_somewhere():
    import re

    for book in sorted((ROOT / "notebooks").glob("*.ipynb")):
        for target in re.findall(r"\]\((\w+\.ipynb)\)", book.read_text()):
            assert (book.parent / target).is_file(), f"{book.name} links to {target}"
