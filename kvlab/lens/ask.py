"""The asking side: checks, the cache on disk, and the subprocesses that compile."""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path

from .cases import request
from .report import CompileError, Report
from .user import kernel_request

PACKAGE = Path(__file__).parents[1]
KEEP_DAYS = 14
IN_WORKER = "KVLAB_LENS_WORKER"


def inspect(
    operation: str = "commit", layout=None, source=None, arch: str = "sm_90", rows=None, columns=None, num_warps=None
) -> Report:
    """Compile an operation of kvlab for a target, and say what came out.

    Parameters
    ----------
    operation : str
        One of ``lens.OPERATIONS``.
    layout : Layout
    source : torch.dtype, optional
        Dtype of the committed rows; bfloat16, or E4M3 for "commit_with_scales", where not given.
    arch : str
        One of ``lens.ARCHES``.
    rows, columns, num_warps : int, optional
        A program's tile: rows, payload elements of each, and warps; powers of two. What is not given stays as kvlab
        launches it.

    Returns
    -------
    Report
        Of a batch of 64 requests x 8 rows, all layers of the layout in one call. Cached on disk.

    Raises
    ------
    ValueError, TypeError
        An argument that is not legal, with the values that are.
    CompileError
        What the compiler said, and what to change.
    """
    tile = {"rows": rows, "columns": columns, "num_warps": num_warps}
    return _only(inspect_many([{"operation": operation, "layout": layout, "source": source, "arch": arch, **tile}]))


def inspect_kernel(kernel, signature: dict, constexprs: dict | None = None, arch: str = "sm_90", num_warps: int = 4):
    """Compile a Triton kernel of your own for a target, and say what came out.

    Parameters
    ----------
    kernel : str or @triton.jit function
        ``"path/to/file.py:name"``, ``"package.module:name"``, or a function that was imported from a file.
    signature : dict
        Argument -> type: ``"*bf16"``, ``"i32"`` …, or a tuple of types. Pointers count as multiples of 16 bytes, as
        torch allocates; write ``"*bf16:1"`` where they are not, and ``"i64:16"`` for a number that is.
    constexprs : dict
        Argument -> value, for ``tl.constexpr`` and for numbers that the compiler may know.
    arch : str
        One of ``lens.ARCHES``.
    num_warps : int

    Returns
    -------
    Report
        Arguments with "scale" in their name are scales, other pointers to i32 and i64 bookkeeping, the rest payload.

    Raises
    ------
    ValueError, TypeError
        An argument that is not legal, with the values that are.
    CompileError
        What the compiler said, and what to change.
    """
    case = {"kernel": kernel, "signature": signature, "constexprs": constexprs}
    return _only(inspect_many([{**case, "arch": arch, "num_warps": num_warps}]))


def inspect_many(cases: list[dict]) -> list[Report | CompileError]:
    """:func:`inspect` and :func:`inspect_kernel` for many dicts of arguments at once, compiled in parallel.

    Errors of the compiler are returned in place of the report; those of an argument are raised.
    """
    return _answer([kernel_request(**case) if "kernel" in case else request(**case) for case in cases])


def _only(answers: list) -> Report:
    if isinstance(answers[0], CompileError):
        raise answers[0]
    return answers[0]


def _answer(requests: list[dict]) -> list[Report | CompileError]:
    if importlib.util.find_spec("triton") is None:
        raise RuntimeError("kvlab.lens compiles with Triton, and Triton is not installed here (it needs Linux)")
    keys = [_key(r) for r in requests]
    answers = [_load(key) for key in keys]
    missing = [i for i, answer in enumerate(answers) if answer is None]
    for i, answer in zip(missing, _compile([requests[i] for i in missing]), strict=True):
        answers[i] = answer
        if "report" in answer:
            _save(keys[i], answer)
    return [Report.from_dict(a["report"]) if "report" in a else CompileError(a["error"]) for a in answers]


# ------------------------------------------------------------------------------------------------------- subprocesses


def _compile(requests: list[dict]) -> list[dict]:
    """Answers of the workers, in the order of the requests."""
    if not requests:
        return []
    if IN_WORKER in os.environ:
        raise RuntimeError(
            "kvlab.lens was called while it imports the file of a kernel: put that call under if __name__ == '__main__'"
        )
    # Layouts of one format often share a kernel: they go to one worker, which compiles it once.
    groups: dict = {}
    for i, r in enumerate(requests):
        key = (r["operation"], r["layout"]["format"], r["arch"]) if "operation" in r else i
        groups.setdefault(key, []).append(i)
    workers = min(len(groups), os.cpu_count() or 1, 4)
    shares = [list(chain(*list(groups.values())[w::workers])) for w in range(workers)]
    answers: list = [None] * len(requests)
    with tempfile.TemporaryDirectory(prefix="kvlab-lens-") as folder:
        parts = [Path(folder) / str(w) for w in range(workers)]
        started = [_start([requests[i] for i in share], part) for share, part in zip(shares, parts, strict=True)]
        try:
            for process in started:
                _, said = process.communicate()
                if process.returncode:  # the compiler itself crashed: no answer was written
                    raise RuntimeError(
                        f"kvlab.lens: the compiling process ended with {process.returncode}: {said[-2000:]}"
                    )
        finally:
            for process in started:
                process.kill()
        for share, part in zip(shares, parts, strict=True):
            for i, answer in zip(share, json.loads((part / "answers.json").read_text()), strict=True):
                answers[i] = answer
    return answers


def _start(requests: list[dict], folder: Path) -> subprocess.Popen:
    folder.mkdir()
    (folder / "requests.json").write_text(json.dumps(requests))
    environment = {
        **os.environ,
        IN_WORKER: "1",
        "TRITON_INTERPRET": "0",
        "TRITON_DISABLE_LINE_INFO": "0",
        # Triton's own cache ignores where a kernel's file lies: a hit from another checkout names the wrong files
        "TRITON_CACHE_DIR": str(folder.parent / "triton"),
        "CUDA_VISIBLE_DEVICES": "",  # nothing here may depend on the machine's own GPU
        "HIP_VISIBLE_DEVICES": "",
        "PYTHONPATH": os.pathsep.join([str(PACKAGE.parent), *(p for p in sys.path if p)]),
    }
    command = [sys.executable, "-m", "kvlab.lens.worker", str(folder)]
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    )


# -------------------------------------------------------------------------------------------------------------- cache


def _folder() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "kvlab" / "lens"


def _key(request: dict) -> str:
    """What was asked, of which Triton and which kvlab; the answer itself knows the files that it depends on."""
    import triton

    asked = json.dumps([triton.__version__, str(PACKAGE), request], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:32]


def _load(key: str) -> dict | None:
    """A cached answer, if the files it was made from are unchanged."""
    path = _folder() / f"{key}.json"
    try:
        answer = json.loads(path.read_text())
        os.utime(path)
    except (OSError, ValueError):
        return None
    return answer if all(file_digest(name) == digest for name, digest in answer["files"].items()) else None


def _save(key: str, answer: dict) -> None:
    with contextlib.suppress(OSError):  # a read-only home costs time, nothing else
        folder = _folder()
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.json"):
            if old.stat().st_mtime < time.time() - KEEP_DAYS * 86400:
                old.unlink()
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
            json.dump(answer, file)
        os.replace(file.name, folder / f"{key}.json")


def file_digest(name: str) -> str | None:
    """SHA-256 of a file's content; None where it is gone."""
    try:
        return hashlib.sha256(Path(name).read_bytes()).hexdigest()
    except OSError:
        return None
