"""The README's code runs as it stands and prints what its comments say."""

import contextlib
import io
import re
from pathlib import Path

README = (Path(__file__).resolve().parents[2] / "README.md").read_text()


def test_python_blocks_print_their_comments():
    """All blocks in one namespace, one after the other; a comment is a line of the output, up to its "…"."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert len(blocks) == 2
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile("\n".join(blocks), "README.md", "exec"), {})
    lines = [line for block in blocks for line in block.splitlines() if line.startswith(("print", "# "))]
    said = [line.split("# ", 1)[1] if line.startswith("print") else line.removeprefix("# ") for line in lines]
    printed = out.getvalue().splitlines()
    assert len(printed) == len(said) == 10
    for line, comment in zip(printed, said, strict=True):
        assert line.startswith(comment.split("…")[0].rstrip()), (line, comment)


def test_links_point_to_files():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (Path(__file__).resolve().parents[2] / target).exists(), target


def test_ci_runs_the_readmes_test_command():
    ci = (Path(__file__).resolve().parents[2] / ".ci" / "run").read_text()
    command = next(b for b in re.findall(r"```bash\n(.*?)\n```", README, re.S) if "pytest" in b)
    assert command.replace("pip install -e", "pip install -q -e") in ci
