"""What is installed here, what is missing, which feature that switches off, and how to get it."""

from __future__ import annotations

import platform
import sys
from dataclasses import asdict, dataclass
from importlib import metadata

from . import Geometry, token_major
from .backends import backend, default_device, describe_backend

# package: (what needs it, how to get it)
PACKAGES = {
    "torch": ("everything", "pip install torch"),
    "numpy": ("everything", "pip install numpy"),
    "triton": ("the kernels, kvlab.debug.who and kvlab.lens", "pip install triton (Linux only)"),
    "safetensors": ("case files and the sample data", "pip install safetensors"),
    "plotly": ("kvlab.figures and kvlab.widgets", "pip install plotly"),
    "ipywidgets": ("kvlab.widgets", "pip install ipywidgets"),
    "anywidget": ("kvlab.widgets", "pip install anywidget"),
    "jupyterlab": ("the notebooks", "pip install jupyterlab"),
}
NO_TRITON = sys.platform != "linux"  # pip does not bring it there: plain torch does its work


@dataclass(frozen=True)
class Check:
    """One thing that kvlab can use. ``found``: its version or state, None where it is missing.

    ``optional``: an installation without it is whole, as pip does not bring it here.
    """

    name: str
    found: str | None
    needed_for: str
    how: str
    optional: bool = False

    def __str__(self) -> str:
        if self.found is not None:
            return f"  {self.name:12} {self.found}"
        return f"  {self.name:12} MISSING, which switches off {self.needed_for}. To get it: {self.how}"


@dataclass(frozen=True)
class Report:
    """Result of :func:`examine`. ``backend`` runs operations, on ``device``."""

    backend: str
    words: str
    device: str
    checks: tuple[Check, ...]

    @property
    def missing(self) -> list[Check]:
        """What is not here."""
        return [c for c in self.checks if c.found is None]

    @property
    def ok(self) -> bool:
        """Nothing is missing but what is optional."""
        return all(c.optional for c in self.missing)

    def __str__(self) -> str:
        names = ", ".join(c.name + " (optional)" * c.optional for c in self.missing)
        last = f"{len(self.missing)} missing: {names}" if names else "nothing is missing"
        return "\n".join([f"backend {self.backend} on {self.device}: {self.words}", *map(str, self.checks), last])

    def to_dict(self) -> dict:
        """A JSON-ready description."""
        checks = [asdict(c) for c in self.checks]
        return {"backend": self.backend, "words": self.words, "device": self.device, "ok": self.ok, "checks": checks}


def examine() -> Report:
    """Look at this machine. Compiles one kernel for sm_90 unless that was done before, which takes seconds."""
    checks = [Check("python", platform.python_version(), "", "")]
    checks += [Check(name, _version(name), *words, name == "triton" and NO_TRITON) for name, words in PACKAGES.items()]
    checks += [_compiler(), _browser()]
    return Report(backend(), describe_backend(), _device(), tuple(checks))


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _device() -> str:
    import torch

    device = default_device()
    return torch.cuda.get_device_name() if device.type == "cuda" else f"CPU ({platform.machine()})"


def _compiler() -> Check:
    """Whether a kernel compiles for sm_90, which needs no GPU."""
    import torch

    from . import lens

    what = "kvlab.lens, which shows compiled kernels without a GPU"
    try:
        layout = token_major(Geometry(layers=1, heads=8, head_dim=128), torch.bfloat16)
        report = lens.inspect("commit", layout, arch="sm_90")
    except (RuntimeError, OSError) as error:  # CompileError is a RuntimeError
        how = f"Linux with triton; the compiler says: {str(error).splitlines()[0]:.200}"
        return Check("compile", None, what, how, NO_TRITON)
    return Check(
        "compile", f"for sm_90 works: {report.registers} registers, {report.spill_bytes} spilled bytes", what, ""
    )


def _browser() -> Check:
    from .bench import browser

    reason = browser.missing()
    return Check("chromium", None if reason else "can be driven", "browser tests", reason or "", optional=True)
