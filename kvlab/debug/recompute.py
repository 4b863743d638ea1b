"""What the recorded commit of a case should have written, computed again in plain torch, against what is there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..backends import reference_backend
from .commit_data import UNTOUCHED, expected_mask
from .expect import CODES, Verdict, verdict_of
from .recorded import Case


@dataclass(frozen=True)
class Recomputed:
    """A recorded commit, judged byte for byte.

    Attributes
    ----------
    verdict : Verdict
        Missing, unexpected and wrong bytes; ``.ok``.
    expected, values : dict of buffer to ``(nbytes,)`` array
        Bytes that a right commit writes, bool, and what the buffer should hold after it, uint8.
    """

    verdict: Verdict
    expected: dict[str, np.ndarray]
    values: dict[str, np.ndarray]

    def content(self) -> np.ndarray:
        """Slots that should have content once the commit is done, ``(n,)`` int64: what :func:`kvlab.scan` takes."""
        slots = []
        for name, values in self.values.items():
            at = np.flatnonzero((values != 0x00) & (values != 0xFF))  # neither a fresh pool's fill nor poison
            cells = self.verdict.layout.explain(name, at)
            slots.append(np.unique(cells.slot[cells.field >= 0]))
        return np.unique(np.concatenate(slots))


def recompute(case: Case) -> Recomputed:
    """Judge the recorded commit of a case.

    Only bytes that are in the file are judged.

    Raises
    ------
    ValueError, IndexError, TypeError
        As :meth:`Case.replay`: no commit in the file, or one that kvlab refuses.
    """
    with reference_backend():
        right = case.replay()
    call = (x if x is None else x.numpy() for x in (case.loc, case.commit_lens, case.row_mask))
    expected = expected_mask(case.layout, *call, layer=case.layer)
    states, values = {}, {}
    for name, before in case.before.buffers.items():
        before, after = before.numpy(), case.pool.buffers[name].numpy()
        want = values[name] = right.buffers[name].cpu().numpy()
        written, judged = expected[name], case.saved_bytes(name)
        states[name] = np.select(
            [~judged, (after == want) & written, after == want, ~written, after == before],
            [UNTOUCHED, CODES["right"], UNTOUCHED, CODES["unexpected"], CODES["missing"]],
            CODES["wrong"],
        ).astype(np.uint8)
    note = "" if case.pages is None else "only the pages in the file were judged"
    verdict = verdict_of(case.layout, states, ("wrong",), case.pool.buffers, right.buffers, note)
    return Recomputed(verdict, expected, values)
