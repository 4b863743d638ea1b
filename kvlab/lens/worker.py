"""The compiling process: ``python -m kvlab.lens.worker FOLDER`` turns requests.json into answers.json.

Runs with TRITON_INTERPRET=0 in a process of its own.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from pathlib import Path

import triton
from triton.compiler.errors import CompilationError

from .ask import PACKAGE, file_digest
from .compiling import Refused, compile_kernel, compile_operation
from .report import Report
from .stages import change_stages


def answer(request: dict, at_start: dict) -> dict:
    try:
        found = compile_operation(**request) if "operation" in request else compile_kernel(**request)
        return {"report": Report(**found).to_dict(), "files": own_files() | at_start}
    except Exception as error:
        return {"error": explain(error, request)}


def explain(error: BaseException, request: dict) -> str:
    """What the compiler said, without its traceback, and which argument to change."""
    title = f"{request.get('operation') or request['kernel']} for {request['arch']}"
    if isinstance(error, Refused):
        return f"{title}: {error}"
    said = str(error)
    inner = error
    while inner is not None:  # the innermost compilation error stands where the mistake is
        if isinstance(inner, CompilationError):
            line = (inner.src or "").split("\n")[getattr(inner.node, "lineno", 1) - 1].strip()
            said = f"{inner.error_message or inner.__cause__ or 'invalid'}\n    at: {line}"
        inner = inner.__cause__
    complaints = [x for x in said.splitlines() if re.search(r"error|fatal", x)]
    if "PTXAS" in said.upper() and complaints:
        said = "\n".join(complaints[:3])
    return f"{title} does not compile: {said[:1000]}\n{advice(said, request)}"


def advice(said: str, request: dict) -> str:
    if "not supported in this architecture" in said or "sm_" in said:
        return f"Change arch={request['arch']!r}, or use a type that this target has."
    if "operation" in request:
        return "The kernel is kvlab's own: try another arch, layout or source, and report this."
    if re.search(r"constexpr|arange|power of 2|shape", said):
        return f"Change constexprs={request['constexprs']!r}, or the kernel."
    if re.search(r"pointer|dtype|type|cast", said):
        return f"Change signature={request['signature']!r}, or the kernel."
    return "Change the kernel."


def own_files() -> dict[str, str | None]:
    """Digests of the imported files of kvlab and the user: if one changes, a cached answer is void."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    paths = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    own = [p for p in paths if p.endswith(".py") and (p.startswith(str(PACKAGE)) or not p.startswith(installed))]
    return {p: file_digest(p) for p in sorted(own)}


def main() -> None:
    folder = Path(sys.argv[1])
    triton.knobs.runtime.add_stages_inspection_hook = change_stages
    at_start = own_files()  # a file that is edited meanwhile was read before
    answers = [answer(request, at_start) for request in json.loads((folder / "requests.json").read_text())]
    (folder / "answers.json").write_text(json.dumps(answers))


if __name__ == "__main__":
    main()
