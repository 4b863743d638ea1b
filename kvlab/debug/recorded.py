"""A case in memory: a pool, the commit that went wrong in it, and what that commit should have written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ..layout import Layout
from ..pool import KVPool
from .page_bytes import PageBytes

CALL = ("loc", "commit_lens", "row_mask", "k", "v", "k_scale", "v_scale")  # arguments of a commit that are tensors


@dataclass
class Case:
    """What a case file holds; made by :func:`load_case`.

    Attributes
    ----------
    pool : KVPool
        On the CPU, as it was when the case was saved.
    before : KVPool or None
        The pool before the recorded commit.
    loc, commit_lens, row_mask, layer, k, v, k_scale, v_scale
        Arguments of the commit, as :meth:`kvlab.KVPool.commit` takes them; None where they were not saved.
    pages : list of int or None
        The pages whose bytes are in the file; None: all. The rest of the pool is zero.
    note : str
    versions : dict of str to str
        What the case was saved with.
    """

    path: str
    pool: KVPool
    before: KVPool | None
    loc: torch.Tensor | None
    commit_lens: torch.Tensor | None
    row_mask: torch.Tensor | None
    layer: int | None
    k: torch.Tensor | None
    v: torch.Tensor | None
    k_scale: torch.Tensor | float | None
    v_scale: torch.Tensor | float | None
    pages: list[int] | None
    note: str
    versions: dict[str, str]

    @property
    def layout(self) -> Layout:
        """Layout of the pool."""
        return self.pool.layout

    @property
    def replayable(self) -> bool:
        """Whether the file holds all that :meth:`replay` needs."""
        return None not in (self.before, self.loc, self.k, self.v)

    def saved_bytes(self, buffer: str) -> np.ndarray:
        """Which bytes of a buffer are in the file: ``(nbytes,)`` bool."""
        if self.pages is None:
            return np.ones(self.layout.buffers[buffer], bool)
        mask = np.zeros(self.layout.buffers[buffer], bool)
        PageBytes(self.layout, self.pages).mark(mask, buffer)
        return mask

    def replay(self) -> KVPool:
        """Run the recorded commit on a copy of ``before``, with the backend that is here, and return that pool.

        Nothing of the file is executed: the commit is kvlab's own, its arguments are the file's tensors.

        Raises
        ------
        ValueError
            The case holds no ``before``, ``loc``, ``k`` or ``v``.
        IndexError, ValueError, TypeError
            The commit refuses its arguments, as :meth:`kvlab.KVPool.commit` does.
        """
        if not self.replayable:
            missing = [n for n in ("before", "loc", "k", "v") if getattr(self, n) is None]
            raise ValueError(
                f"{self.path}: no commit to replay, the case holds no {', '.join(missing)}; save it with them"
            )
        pool = KVPool(self.layout)
        for name, buffer in self.before.buffers.items():
            pool.buffers[name].copy_(buffer)
        call = {name: getattr(self, name) for name in CALL}
        call = {name: x.to(pool.device) if isinstance(x, torch.Tensor) else x for name, x in call.items()}
        pool.commit(call.pop("loc"), call.pop("k"), call.pop("v"), layer=self.layer, **call)
        return pool

    def __str__(self) -> str:
        held = [f"{name} {tuple(x.shape)}" for name in CALL if isinstance(x := getattr(self, name), torch.Tensor)]
        held = ["before"] * (self.before is not None) + held
        g = self.layout.geometry
        part = "all pages" if self.pages is None else f"pages {', '.join(map(str, self.pages[:12]))}"
        part += f" … ({len(self.pages)} in all)" if self.pages and len(self.pages) > 12 else ""
        part += "" if self.pages is None else f" of {g.pages:,}; what is not in the file reads as zero"
        lines = [str(self.layout), f"in the file: {part}", f"commit: {', '.join(held) or 'not saved'}"]
        lines[-1] += "" if self.loc is None else f", layer {'all' if self.layer is None else self.layer}"
        lines.append("saved with " + ", ".join(f"{name} {version}" for name, version in self.versions.items()))
        return "\n".join([*lines, *([f"note: {self.note}"] if self.note else [])])

    def to_dict(self) -> dict:
        """A JSON-ready description, without the bytes."""
        call = {n: list(x.shape) if isinstance(x := getattr(self, n), torch.Tensor) else x for n in CALL}
        return {
            "layout": self.layout.to_dict(),
            "pages": self.pages,
            "before": self.before is not None,
            "layer": self.layer,
            "commit": call,
            "note": self.note,
            "versions": self.versions,
        }
