"""One byte of a case in words: its owner, the formula with the numbers in it, its value, and what the commit did."""

from __future__ import annotations

from dataclasses import replace

from ..layout import Padding
from ..pool import KVPool
from .recompute import recompute
from .recorded import Case
from .values import decoded, formula, owner_words


def explain_byte(case: Case, buffer: str, byte: int) -> dict:
    """Everything that a case says about one byte, JSON-ready.

    Returns
    -------
    dict
        ``ok`` (False: it is not what the recorded commit should have left), ``lines`` (the answer in words), and the
        facts behind them: ``owner``, ``formula``, ``hex``, ``value``, ``before``, ``rows``, ``expected``, ``note``.

    Raises
    ------
    KeyError, IndexError
        No such buffer; a byte outside it.
    """
    layout, cell = case.layout, case.layout.explain(buffer, byte)
    saved = bool(case.saved_bytes(buffer)[byte])
    now = int(case.pool.buffers[buffer][byte])
    facts = {"buffer": buffer, "byte": byte, "in_file": saved, "hex": f"0x{now:02X}", "ok": True}
    facts["note"] = case.note
    lines = [f"byte {byte:,} of {buffer!r}"] + [f"note     {' '.join(case.note.split())}"] * bool(case.note)
    if isinstance(cell, Padding):
        facts["owner"] = None
        lines.append("owner    none: padding that no field reaches")
    else:
        facts["owner"] = dict(vars(cell))
        facts["formula"] = formula(layout, cell)
        facts["value"] = decoded(layout, case.pool.buffers, cell)
        lines.append(f"owner    {owner_words(layout, cell)}")
        lines.append(f"formula  {facts['formula']}")
    if not saved:
        lines.append("value    not in the file, which holds only some pages; it reads as 0x00")
        return {**facts, "lines": lines}
    lines.append(f"value    {facts['hex']}" + (f", {facts['value']}" if "value" in facts else ""))
    if case.before is not None:
        was = int(case.before.buffers[buffer][byte])
        facts["before"] = f"0x{was:02X}"
        lines.append(f"before   {facts['before']}" + ("" if was != now else ", the same"))
    if case.loc is not None and not isinstance(cell, Padding):
        facts["rows"] = rows_of(case, cell)
        lines += [f"loc      {words}" for words in facts["rows"]]
    if None not in (case.loc, case.k, case.v):
        facts.update(_judged(case, buffer, byte, now, lines))
    return {**facts, "lines": lines}


def _judged(case: Case, buffer: str, byte: int, now: int, lines: list[str]) -> dict:
    """Whether the recorded commit should have written this byte, and whether it holds what it should."""
    known = case.before is not None  # else over zeros: what the commit writes does not depend on what was there
    try:
        judged = recompute(case if known else replace(case, before=KVPool(case.layout, device="cpu")))
    except (ValueError, IndexError, TypeError) as error:
        lines.append(f"commit   kvlab refuses it: {error}")
        return {"ok": False, "refused": str(error)}
    want, expected = int(judged.values[buffer][byte]), bool(judged.expected[buffer][byte])
    if not (known or expected):
        lines.append("commit   has no business with this byte; what it held before is not in the file")
        return {"written_by_commit": False}
    words = "writes this byte" if expected else "has no business with this byte"
    lines.append(f"commit   {words}; it should hold 0x{want:02X}" + (", and does" if want == now else ", and does not"))
    return {"ok": want == now, "written_by_commit": expected, "expected": f"0x{want:02X}"}


def rows_of(case: Case, cell, most: int = 8) -> list[str]:
    """Every row of ``loc`` that names a cell's slot, and what keeps the commit from writing it."""
    loc = case.loc
    found = (loc == cell.slot).nonzero().tolist()
    mask = None if case.row_mask is None else case.row_mask.reshape(loc.shape)
    words = []
    for at in found[:most]:
        kept = []
        if cell.slot == 0:
            kept.append("slot 0 is the padding sink")
        if case.layer is not None and case.layer != cell.layer:
            kept.append(f"the commit is for layer {case.layer}")
        if case.commit_lens is not None and at[1] >= case.commit_lens[at[0]]:
            kept.append(f"commit_lens[{at[0]}] = {int(case.commit_lens[at[0]])} leaves it out")
        if mask is not None and not mask[tuple(at)]:
            kept.append("row_mask leaves it out")
        words.append(f"loc{at} = {cell.slot}: {'not written, ' + ', '.join(kept) if kept else 'written'}")
    if len(found) > most:
        words.append(f"and {len(found) - most:,} more rows")
    return words or [f"no row names slot {cell.slot}"]
