"""The conformance kit: every operation, on a layout that somebody else wrote, against the reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from ..formats import MXFP8, format_name
from ..geometry import Geometry
from .described import described
from .operations import OPERATIONS
from .twin import Twin

# Small, and awkward: V of another width, and rows and pages that are no power of two.
SLIM = Geometry(layers=2, heads=3, head_dim=48, page_size=5, pages=4)
WIDE_V = Geometry(layers=2, heads=2, head_dim=32, v_head_dim=80, page_size=4, pages=4)
CASES = (
    (torch.bfloat16, SLIM),
    (torch.bfloat16, WIDE_V),
    (torch.float16, WIDE_V),
    (torch.float32, SLIM),
    (torch.float8_e4m3fn, WIDE_V),
    (torch.float8_e5m2, SLIM),
    (MXFP8("flat"), Geometry(layers=2, heads=3, head_dim=64, page_size=5, pages=4)),
    (MXFP8("flat"), Geometry(layers=1, heads=2, head_dim=32, v_head_dim=96, page_size=4, pages=4)),
    (MXFP8("interleaved"), Geometry(layers=2, heads=2, head_dim=64, v_head_dim=32, page_size=128, pages=2)),
    (MXFP8("interleaved"), Geometry(layers=1, heads=2, head_dim=192, page_size=256, pages=2)),
)
REFUSALS = (ValueError, TypeError, NotImplementedError)


@dataclass
class Report:
    """What :func:`check_layout` ran: ``passed`` ``(format, geometry, operations)`` and ``refused`` ``(format,
    geometry, the builder's words)``."""

    name: str
    passed: list[tuple[str, Geometry, tuple[str, ...]]] = field(default_factory=list)
    refused: list[tuple[str, Geometry, str]] = field(default_factory=list)

    def line(self, i: int) -> str:
        """One passed pool in words."""
        fmt, g, names = self.passed[i]
        return f"{fmt:26} {_sizes(g)}: {len(names)} operations"

    def __str__(self) -> str:
        lines = [f"{self.name}: every operation is right on {len(self.passed)} pools"]
        lines += [f"  {self.line(i)}" for i in range(len(self.passed))]
        for fmt, g, words in self.refused:
            lines.append(f"  {fmt:26} {_sizes(g)}: refused by the layout: {words}")
        return "\n".join(lines)


def check_layout(builder, progress: Callable[[str], None] | None = None) -> Report:
    """Run every operation on the layouts that ``builder`` makes, and compare each byte with the reference.

    Ten small pools, every format among them, with sizes that are no powers of two, and V wider or narrower than K.
    First the description: fields inside their buffers, no byte with two owners, ``explain`` the inverse of ``locate``,
    JSON and back. Then commits (plain, prefix-valid, masked, cast, scaled, quantised), gathers, copies, moves, host
    copies, page regions and views, by the kernels of this machine's backend, over random bytes. The same operation
    runs on a token-major pool on the reference path; each cell must then hold the same bytes, and every other byte what
    it held before.

    Parameters
    ----------
    builder : callable ``(geometry, fmt) -> Layout``
        As :func:`kvlab.page_major`. It may refuse a format or a geometry with ValueError, TypeError or
        NotImplementedError; the report names each refusal.
    progress : callable, optional
        Called with a line for each pool that has passed, such as ``print``: in the interpreter a pool takes seconds.

    Returns
    -------
    Report

    Raises
    ------
    AssertionError
        The first thing that is wrong: format, geometry, operation, and the first wrong byte as a coordinate. Also where
        the builder refuses everything.
    TypeError
        ``builder`` cannot be called.

    Examples
    --------
    >>> import kvlab.testing
    >>> print(kvlab.testing.check_layout(kvlab.page_major))     # doctest: +ELLIPSIS
    page_major: every operation is right on 10 pools
      ...
    """
    if not callable(builder):
        raise TypeError(f"check_layout: builder={builder!r} must be a function (geometry, fmt) -> Layout")
    report = Report(getattr(builder, "__name__", "layout"))
    sound = []
    for fmt, geometry in CASES:
        try:
            layout = builder(geometry, fmt)
        except REFUSALS as error:
            report.refused.append((format_name(fmt), geometry, f"{type(error).__name__}: {error}"))
            continue
        where = f"check_layout({report.name}): {format_name(fmt)}, {_sizes(geometry)}"
        if problem := described(layout, geometry, fmt):
            raise AssertionError(f"{where}: {problem}")
        sound.append((fmt, geometry, layout, where))
    for fmt, geometry, layout, where in sound:
        report.passed.append((format_name(fmt), geometry, _run(layout, where)))
        if progress is not None:
            progress(report.line(-1))
    if not report.passed:
        fmt, geometry, words = report.refused[0]
        raise AssertionError(f"check_layout({report.name}): the builder refuses every pool; {fmt}: {words}")
    return report


def _run(layout, where: str) -> tuple[str, ...]:
    done = []
    for name, (operation, applies) in OPERATIONS.items():
        if not applies(layout):
            continue
        twin = Twin(layout, seed=len(done))
        try:
            problem = twin.run(operation)
        except Exception as error:
            raise AssertionError(f"{where}: {name} raised {type(error).__name__}: {error}") from error
        if problem:
            raise AssertionError(f"{where}: {name}: {problem}")
        done.append(name)
    return tuple(done)


def _sizes(g: Geometry) -> str:
    wide = f"{g.head_dim}" if g.v_head_dim == g.head_dim else f"{g.head_dim}/{g.v_head_dim}"
    return f"{g.layers} layers x {g.heads} heads x {wide}, {g.pages} pages of {g.page_size}"
