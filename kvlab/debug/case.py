"""Case files: a pool and the commit that went wrong in it, in one safetensors file that a bug report can carry.

Tensors are raw bytes and the rest is JSON in the file's metadata; nothing of a file is ever executed.

    pool/<buffer>, before/<buffer>   uint8: the whole buffer, or the bytes of ``pages`` (see PageBytes)
    pages                            int64, only where not all are in the file
    loc, commit_lens, row_mask, k, v, k_scale, v_scale    the commit, where it was saved
    metadata: kvlab_case (version of this format), layout (Layout.to_dict()), about {layer, note, versions}
"""

from __future__ import annotations

import json
import os
import platform
from importlib import metadata

import numpy as np
import torch

from .. import checks
from ..backends import backend
from ..layout import Layout
from ..pool import KVPool
from .case_checks import CaseError, check_call, parse_layout
from .case_read import FORMAT, read_case
from .page_bytes import PageBytes
from .recorded import CALL, Case
from .shared import held_elsewhere


def save_case(
    path, pool: KVPool, *, before=None, slots=None, loc=None, commit_lens=None, row_mask=None, layer=None,
    k=None, v=None, k_scale=None, v_scale=None, note: str = "",
) -> None:  # fmt: skip
    """Write a case to one safetensors file; :func:`load_case` reads it back.

    The file is complete or not there: it is written beside ``path`` and then renamed.

    Parameters
    ----------
    path : str or path
    pool : KVPool
        As it is now, after the commit. It is not changed.
    before : KVPool of the same layout, or dict of buffer to uint8 tensor ``(nbytes,)``, optional
        The bytes before the commit.
    slots : int tensor or sequence of int, optional
        Save only the pages of these slots (negative ones are left out); without it the whole buffers.
    loc, commit_lens, row_mask, layer, k, v, k_scale, v_scale : optional
        The commit, as :meth:`kvlab.KVPool.commit` took it. Its values are saved as they are, wrong slots too.
    note : str

    Raises
    ------
    ValueError, TypeError, IndexError
        Arguments that do not fit the pool. Nothing is written then.
    OSError
        A path that cannot be written.
    """
    from safetensors.torch import save_file

    if not isinstance(pool, KVPool):
        raise TypeError(f"save_case: pool is a {type(pool).__name__}; wrap an engine's tensors with kvlab.KVPool.adopt")
    layout = pool.layout
    parse_layout(json.loads(json.dumps(layout.to_dict())))  # a file that could not be read back is of no use
    before = before.buffers if isinstance(before, KVPool) else before
    _check_before(layout, before)
    call = dict(zip(CALL, (loc, commit_lens, row_mask, k, v, k_scale, v_scale), strict=True))
    if loc is not None:
        layer = None if layer is None else checks.layer_range(layer, layout.geometry.layers)[0]
    check_call(layout, pool.device, layer, call)
    pages = None if slots is None else _pages(layout, slots)
    tensors = {} if pages is None else {"pages": torch.tensor(pages, dtype=torch.int64)}
    take = None if pages is None else PageBytes(layout, pages)
    for prefix, buffers in (("pool", pool.buffers), ("before", before or {})):
        for name, data in buffers.items():
            tensors[f"{prefix}/{name}"] = _own_bytes(pool, name, data) if take is None else take.read(data, name)
    for name, x in call.items():
        if x is not None:
            x = x.view(torch.uint8) if getattr(x, "dtype", None) == torch.float8_e8m0fnu else x
            tensors[name] = torch.as_tensor(x, dtype=None if isinstance(x, torch.Tensor) else torch.float64)
    # safetensors takes no tensors that share memory, as slices of fused K and V rows do
    tensors = {n: x.detach().to("cpu", copy=n in CALL).contiguous() for n, x in tensors.items()}
    about = {"layer": layer, "note": str(note), "versions": versions()}
    header = {"kvlab_case": FORMAT, "layout": json.dumps(layout.to_dict()), "about": json.dumps(about)}
    _atomically(os.fspath(path), lambda to: save_file(tensors, to, metadata=header))


def load_case(path) -> Case:
    """Read a case file. The pool lies on the CPU; nothing of the file is executed.

    Raises
    ------
    FileNotFoundError, IsADirectoryError, PermissionError
        No such file, or one that may not be read.
    CaseError
        A file that is cut short, is no safetensors file or no case, is of another version of the format, or whose
        tensors and description do not fit each other. It is a ValueError.
    """
    from safetensors import SafetensorError, safe_open

    path = os.fspath(path)
    with open(path, "rb"):  # safetensors' own errors for a directory or a missing file name neither
        pass
    try:
        with safe_open(path, framework="pt") as file:
            return read_case(path, file)
    except SafetensorError as error:
        raise CaseError(
            f"{path}: no whole safetensors file ({error}); it was cut short on its way or is of another kind: "
            "copy it again, or save the case again"
        ) from error
    except CaseError:
        raise
    except MemoryError as error:
        raise CaseError(f"{path}: its pool does not fit into this machine's memory; open it on a larger one") from error
    except (ValueError, TypeError, KeyError, IndexError, RecursionError) as error:
        raise CaseError(f"{path}: {error}; save the case again with kvlab.debug.save_case") from error


def versions() -> dict[str, str]:
    """Versions of what a commit depends on, and the backend that runs it."""
    found = {"backend": backend(), "python": platform.python_version()}
    for name in ("kvlab", "torch", "triton", "numpy"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    return found


def _check_before(layout: Layout, before) -> None:
    if before is None:
        return
    if not isinstance(before, dict) or set(before) != set(layout.buffers):
        have = list(before) if isinstance(before, dict) else type(before).__name__
        raise ValueError(f"before is {have}; legal is a pool or a dict of this layout's buffers {list(layout.buffers)}")
    for name, size in layout.buffers.items():
        x = before[name]
        if not isinstance(x, torch.Tensor) or x.dtype != torch.uint8 or tuple(x.shape) != (size,):
            have = f"{x.dtype} {tuple(x.shape)}" if isinstance(x, torch.Tensor) else type(x).__name__
            raise ValueError(f"before[{name!r}] is {have}; it must be the raw bytes, uint8 ({size},)")


def _pages(layout: Layout, slots) -> list[int]:
    """Pages of some slots, rising; negative slots are padding."""
    slots = np.asarray(slots.cpu() if isinstance(slots, torch.Tensor) else slots).reshape(-1)
    if slots.size and slots.dtype.kind not in "iu":
        raise TypeError(f"slots are {slots.dtype}; they must be ints")
    beyond = slots[slots >= layout.geometry.slots]
    if len(beyond):
        raise IndexError(f"slots: {beyond[0]} is outside the pool's slots 0 … {layout.geometry.slots - 1}")
    return np.unique(slots[slots >= 0].astype(np.int64) // layout.geometry.page_size).tolist()


def _own_bytes(pool: KVPool, name: str, data: torch.Tensor) -> torch.Tensor:
    """``data`` of a buffer without the bytes that another buffer holds: they are saved there, and the buffers of a
    pool read back share no memory."""
    spans = {n: (b.data_ptr(), b.numel()) for n, b in pool.buffers.items()}
    start, nbytes = spans[name]
    if not any(n != name and start < s + size and s < start + nbytes for n, (s, size) in spans.items()):
        return data
    data = data.clone()
    for part in range(0, nbytes, 1 << 20):
        at = np.arange(part, min(part + (1 << 20), nbytes))
        data[torch.from_numpy(at[held_elsewhere(pool.layout, spans, name, at)]).to(data.device)] = 0
    return data


def _atomically(path: str, write) -> None:
    """``write(temporary file)``, which then takes the place of ``path``; an error leaves what was there."""
    temporary = f"{path}.{os.getpid()}.part"
    try:
        with open(temporary, "wb") as file:  # names the path where it cannot be written; safetensors' error does not
            mode = os.stat(file.fileno()).st_mode
        write(temporary)
        os.chmod(temporary, mode)  # safetensors makes files that only their owner can read
        os.replace(temporary, path)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
