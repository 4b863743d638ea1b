"""Which bytes did this code write? The memory before and after, compared, and named by coordinates."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from . import expect
from .ranges import fold
from .shared import each_byte_once
from .tensors import fold_tensors, storages
from .writes import Writes

CHUNK = 1 << 24  # bytes compared at a time: a comparison of all at once would need more memory than the mask


def watch(what, call: Callable[[], object] | None = None) -> Watch:
    """Watch memory while any code runs: a kernel of your own, torch indexing, another engine's function.

    As a context manager it names every byte whose value changed. With ``call`` it also names the bytes that were
    rewritten with the value they had: the call runs twice, over two fills that differ in every byte.

    Parameters
    ----------
    what : KVPool, or tensor, or list or dict of tensors
        A pool, also an adopted one: answers are layers, slots, heads and dims. Tensors, of any strides: the whole
        storage of each is watched, and answers are index ranges of its own axes.
    call : callable without arguments, optional
        It runs twice: first over the memory as it is, then over its bitwise complement, so whatever it reads from the
        watched memory differs the second time. Bytes written by either run count. Afterwards the memory holds what the
        first run left; if the call raises, it is put back as it was, and the error goes on.

    Returns
    -------
    Watch
        Filled when the block ends, or at once with ``call``.

    Raises
    ------
    ValueError
        A tensor that overlaps itself: one byte would have two coordinates.
    TypeError
        Neither a pool nor tensors; ``call`` cannot be called.

    Notes
    -----
    For each byte watched: two bytes on its device and one on the host while the result lives, and at most one more on
    the host meanwhile; ``expect`` takes three more while it runs, one of which its result keeps. Measured for a pool of
    1 GiB of bf16 on two cores of a busy CPU: 9 s for a call (of which 2 s its two runs), 7 s for a block, 8 s for
    ``expect``. No loop of Python runs over bytes.

    Examples
    --------
    >>> g = kvlab.Geometry(layers=2, heads=2, head_dim=64, page_size=4, pages=16)
    >>> pool = kvlab.KVPool(kvlab.page_major(g, torch.bfloat16))
    >>> with kvlab.watch(pool) as w:
    ...     pool.get_key_buffer(1)[2, 3] = 1.0
    >>> print(w)
    1 range, 256 bytes changed (a byte rewritten with its own value does not show)
      layer 1, K, slot 11, heads 0-1, dims 0-63
    """
    if call is not None and not callable(call):
        raise TypeError(f"watch: call={call!r} cannot be called; leave it out and use `with kvlab.watch(…) as w:`")
    watching = Watch(what)
    if call is not None:
        watching._run(call)
    return watching


class Watch(Writes):
    """Memory under watch, and after that what was written in it."""

    def __init__(self, what):
        self.pool, self.tensors, self.buffers = _memory(what)
        self.before = self.after = None

    def __enter__(self) -> Watch:
        self.before = self._snapshot()
        return self

    def _snapshot(self) -> dict[str, torch.Tensor]:
        """Copies of the buffers, once the GPU has finished what any stream of it was doing."""
        if any(buffer.is_cuda for buffer in self.buffers.values()):
            torch.cuda.synchronize()
        return {name: buffer.clone() for name, buffer in self.buffers.items()}

    def __exit__(self, *error) -> None:
        """Compare, also after an error: what was written by then is what one wants to see."""
        self.after = self._snapshot()
        self._found({name: differ(self.before[name], x) for name, x in self.after.items()}, both_fills=False)

    def _run(self, call) -> None:
        self.before = left = self._snapshot()
        try:
            call()
            self.after = self._snapshot()
            masks = {name: differ(self.before[name], x) for name, x in self.after.items()}
            for name, buffer in self.buffers.items():
                torch.bitwise_not(self.before[name], out=buffer)
            call()
            if any(buffer.is_cuda for buffer in self.buffers.values()):
                torch.cuda.synchronize()
            for name, buffer in self.buffers.items():
                differ(self.before[name], buffer, complement=True, into=masks[name])
            left = self.after
        finally:
            for name, buffer in self.buffers.items():
                buffer.copy_(left[name])
        self._found(masks, both_fills=True)

    def _found(self, masks: dict[str, np.ndarray], both_fills: bool) -> None:
        if self.pool is not None:
            each_byte_once(self.pool, masks)
        # of a value that changed, some bytes can be the same by chance; a write over two fills shows every byte
        elements = not both_fills
        if self.pool is not None:
            ranges = fold(self.pool.layout, masks, elements)
        else:
            ranges = fold_tensors(self.tensors, masks, elements)
        self._set(masks, ranges, both_fills)

    def expect(
        self, loc, commit_lens=None, row_mask=None, *, layer=None, k=None, v=None, k_scale=None, v_scale=None
    ) -> expect.Verdict:
        """Compare what was written with what a commit of these arguments writes: missing, unexpected, wrong value.

        Parameters
        ----------
        loc, commit_lens, row_mask, layer
            As :meth:`kvlab.KVPool.commit` takes them.
        k, v, k_scale, v_scale : optional
            As there. With k and v the values are compared too, with what the reference stores over the memory as it was
            before. Without them a byte of a ``with`` block that was rewritten with its own value counts as missing.

        Returns
        -------
        Verdict

        Raises
        ------
        ValueError
            Nothing has been watched yet; tensors were watched, which have no slots (adopt them as a pool).
        ValueError, IndexError, TypeError
            As :meth:`kvlab.KVPool.commit` for the same arguments.
        """
        if self.after is None:
            raise ValueError("expect: the block has not ended yet; ask after `with kvlab.watch(…) as w:`")
        if self.pool is None:
            raise ValueError("expect: tensors have no slots; watch kvlab.KVPool.adopt(k_tensors, v_tensors) instead")
        given = {"commit_lens": commit_lens, "row_mask": row_mask, "layer": layer}
        rows = {"k": k, "v": v, "k_scale": k_scale, "v_scale": v_scale}
        return expect.judge(self.pool, self.before, self.after, self.masks, self.both_fills, loc, given, rows)


def _memory(what):
    """``(pool or None, tensors or None, {name: 1-D uint8 tensor})`` of what is watched."""
    if hasattr(what, "layout") and hasattr(what, "buffers"):
        return what, None, dict(what.buffers)
    if isinstance(what, torch.Tensor):
        what = {"tensor": what}
    elif isinstance(what, (list, tuple)):
        what = {f"tensor {i}": x for i, x in enumerate(what)}
    if isinstance(what, dict) and not what:
        raise TypeError("watch: what is empty; give a KVPool, a tensor, or a list or dict of tensors")
    if not isinstance(what, dict) or not all(isinstance(x, torch.Tensor) for x in what.values()):
        raise TypeError(
            f"watch: what is a {type(what).__name__}; it must be a KVPool, a tensor, or a list or dict of tensors"
        )
    return (None, *storages(what))


def differ(a: torch.Tensor, b: torch.Tensor, complement: bool = False, into: np.ndarray | None = None) -> np.ndarray:
    """Where two ``(nbytes,)`` uint8 tensors differ, as a bool array on the host; ``complement``: ``~a`` and ``b``.

    With ``into`` the bytes that differ are added to that mask.
    """
    mask = np.zeros(a.numel(), bool) if into is None else into
    for at in range(0, len(mask), CHUNK):
        x = a[at : at + CHUNK]
        changed = ((~x if complement else x) != b[at : at + CHUNK]).cpu().numpy()
        mask[at : at + CHUNK] |= changed
    return mask
