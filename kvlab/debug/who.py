"""Who wrote it: the program instances of Triton kernels, and the bytes that each one stored and loaded.

Triton's interpreter runs one program instance after another, and every load, store and atomic of a kernel passes four
functions with its addresses and its mask. They are wrapped while ``call`` runs; compiled kernels show nothing of this.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, contextmanager

import numpy as np
import torch

from ..pool import KVPool
from .accesses import Recorder, Region
from .trace import Trace

LINE = 1024  # bytes: longer rows are shown in several lines


def who(pool_or_buffers, call: Callable[[], object], also=None) -> Trace:
    """Run ``call`` and record which program instance loaded and stored which bytes.

    Every ``@triton.jit`` kernel that runs in Triton's interpreter inside ``call`` is seen: kvlab's own and any other.
    Lanes that a mask switches off count neither as loads nor as stores.

    Parameters
    ----------
    pool_or_buffers : KVPool, tensor, or dict of str to tensor
        The memory to watch, on the CPU. A strided tensor is watched from its first byte to its last.
    call : callable without arguments
        What launches the kernels. It runs once; its result is kept in ``.result``.
    also : dict of str to tensor, optional
        Names of other memory, such as the K and V rows that a commit reads: loads from there, and stores to there,
        are listed under these names.

    Returns
    -------
    Trace
        ``.programs`` (one per program instance), ``.of(buffer, byte)``, ``.races``, ``.outside``, ``str()``,
        ``.to_dict()``.

    Raises
    ------
    RuntimeError
        A kernel that runs compiled (raised before it runs), no kernel at all, or no Triton.
    TypeError, ValueError
        Buffers that are not tensors, or not on the CPU.

    Notes
    -----
    Recording takes 4 bytes of memory for each byte that is stored, and about as long as the kernel in the interpreter.
    Coordinates are worked out when asked for: for each program one pass over the buffers it touched, 1 s for 256 MiB.

    Examples
    --------
    >>> trace = who(pool, lambda: pool.commit(loc, k, v), also={"k rows": k, "v rows": v})     # doctest: +SKIP
    >>> trace.of("k", 4096).last.coordinate                                                    # doctest: +SKIP
    (0, 1)
    """
    layout, regions = _regions(pool_or_buffers, also or {})
    if not callable(call):
        raise TypeError(f"who: call must be a function without arguments, not {type(call).__name__}")
    try:
        from triton.runtime import interpreter, jit
    except ImportError as error:
        raise RuntimeError(
            "who: needs Triton, whose interpreter tells what a program does: pip install triton"
        ) from error
    recorder = Recorder(regions)
    with _watching(interpreter, jit, recorder):
        result = call()
    if not recorder.launches:
        raise RuntimeError(_nothing(pool_or_buffers))
    return Trace(layout, recorder, result)


@contextmanager
def _watching(interpreter, jit, recorder: Recorder):
    """Wrap what every interpreted kernel passes; undone when the block ends, by an error too."""
    builder = interpreter.interpreter_builder
    run_grid = interpreter.GridExecutor.__call__
    set_grid_dim, set_grid_idx = builder.set_grid_dim, builder.set_grid_idx
    running = []

    def grid_runs(executor, *args, **kwargs):
        running.append(executor)
        try:
            return run_grid(executor, *args, **kwargs)
        finally:
            running.pop()

    def launch_begins(*grid):
        set_grid_dim(*grid)
        executor = running[-1]
        recorder.launch(executor.fn.__name__, grid, None if callable(executor.grid) else len(executor.grid))

    def program_begins(*coordinate):
        set_grid_idx(*coordinate)
        recorder.program(coordinate)

    def compiled(function, *args, **kwargs):
        raise RuntimeError(
            f"who: kernel {function.__name__!r} is compiled for a GPU, and only Triton's interpreter tells which "
            "program stores a byte. Start Python with TRITON_INTERPRET=1, set before triton and kvlab are imported"
        )

    with ExitStack() as stack:
        for owner, name, value in (
            (interpreter, "_interpreter", _Memory(interpreter._interpreter, recorder)),
            (interpreter.GridExecutor, "__call__", grid_runs),
            (builder, "set_grid_dim", launch_begins),
            (builder, "set_grid_idx", program_begins),
            (jit.JITFunction, "run", compiled),
        ):
            stack.enter_context(_replaced(owner, name, value))
        yield


@contextmanager
def _replaced(owner, name: str, value):
    """``owner.name`` is ``value`` inside the block."""
    own = name in vars(owner)  # else it is a method of the class, seen again once the attribute is gone
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if own:
            setattr(owner, name, before)
        else:
            delattr(owner, name)


class _Memory:
    """The interpreter's C++ functions that touch memory, each noted after it ran; all else is passed on."""

    def __init__(self, real, recorder: Recorder):
        self._real, self._recorder = real, recorder

    def __getattr__(self, name: str):
        return getattr(self._real, name)

    def load(self, pointers, mask, other, dtype):
        values = self._real.load(pointers, mask, other, dtype)
        self._recorder.loaded(_chosen(pointers, mask), np.dtype(dtype).itemsize)
        return values

    def store(self, pointers, values, mask):
        self._real.store(pointers, values, mask)
        self._recorder.stored(_chosen(pointers, mask), values.itemsize)

    def atomic_rmw(self, operation, pointers, values, mask, order):
        old = self._real.atomic_rmw(operation, pointers, values, mask, order)
        self._recorder.loaded(_chosen(pointers, mask), values.itemsize)
        self._recorder.stored(_chosen(pointers, mask), values.itemsize, atomic=True)
        return old

    def atomic_cas(self, pointers, expected, values, order):
        old = self._real.atomic_cas(pointers, expected, values, order)
        self._recorder.loaded(_chosen(pointers, True), values.itemsize)
        # where memory does not hold what was expected, nothing is stored
        self._recorder.stored(_chosen(pointers, old == expected), values.itemsize, atomic=True)
        return old


def _chosen(pointers, mask) -> np.ndarray:
    """Addresses of the lanes that a mask leaves on, ``(lanes,)``."""
    pointers = np.asarray(pointers)
    return pointers[np.broadcast_to(np.asarray(mask, dtype=bool), pointers.shape)].astype(np.int64)


def _regions(watched, also) -> tuple[object, list[Region]]:
    """The layout, where there is one, and the address range of every named tensor; the watched ones first."""
    layout = watched.layout if isinstance(watched, KVPool) else None
    if isinstance(watched, KVPool):
        watched = watched.buffers
    elif isinstance(watched, torch.Tensor):
        watched = {"tensor": watched}
    if not isinstance(watched, dict) or not watched:
        raise TypeError(f"who: watch a KVPool, a tensor, or a dict of names to tensors, not {type(watched).__name__}")
    if not isinstance(also, dict):
        raise TypeError(f'who: also must be a dict of names to tensors such as {{"k": k}}, not {type(also).__name__}')
    regions = []
    for given, mine in ((watched, True), (also, False)):
        for name, x in given.items():
            if not isinstance(x, torch.Tensor):
                raise TypeError(f"who: {name!r} must be a tensor, not {type(x).__name__}")
            if x.device.type != "cpu":
                raise ValueError(f"who: {name!r} is on {x.device}; the interpreter runs on CPU tensors: use .cpu()")
            if name in watched and not mine:
                raise ValueError(f"who: also names {name!r}, which is a watched buffer; give it another name")
            span = sum((n - 1) * s for n, s in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
            steps = [s * x.element_size() for s in x.stride()[:-1]]  # a row: the longest step that fits into a line
            line = max([s for s in steps if 0 < s <= LINE], default=LINE if len(steps) > 0 else 0)
            regions.append(Region(name, x.data_ptr(), span * x.element_size(), mine, line))
    return layout, regions


def _nothing(watched) -> str:
    """Why no kernel was seen, and what to do."""
    from ..backends import backend

    words = "who: no Triton kernel was launched inside call; give a function that launches one, such as "
    words += "lambda: pool.commit(loc, k, v)"
    if isinstance(watched, KVPool) and backend(watched.device) == "reference":
        words += ". kvlab runs plain torch here (backend 'reference'); start Python with TRITON_INTERPRET=1"
    return words
