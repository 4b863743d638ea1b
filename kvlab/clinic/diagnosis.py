"""Is that the fault? A diagnosis is a cause and a number that only someone who has looked can give."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from ..debug import scan, watch
from .patients import Patient, patient

CAUSES = {
    "packed rows": "the kernel takes slot * heads * head_dim for the row, in a pool whose rows are not packed",
    "one width": "V rows are masked with the width of K rows",
    "wrapped -1": "padding slot -1 indexes the last slot",
    "no scales": "the payload is committed and its scales are not",
    "tile order": "scales lie in the right tile, in another order than its readers assume",
    "rebuilt page stride": "the page stride is computed from page_size, not read from the tensor",
    "32-bit offset": "slot times stride is computed in 32 bits",
    "pad slot written": "rows of slot 0 are stored, whatever they hold",
    "rejected rows": "rows beyond commit_lens are stored",
    "K and V swapped": "K rows go where V rows belong",
    "stale read": "the pool is right, its reader came too early",
    "rounding": "values are rounded twice",
}


@dataclass(frozen=True)
class Answer:
    """The cause, what to count or read off, and the right number, computed by running the case."""

    cause: str
    evidence: str
    right: Callable[[Patient], int]
    hint: str


def _verdict(p: Patient):
    return watch(p.pool, p.run).expect(p.loc, p.commit_lens, layer=p.layer, k=p.k, v=p.v)


def _first(kind: str, field: str):
    """The lowest slot of a field among the bytes of a kind."""
    return lambda p: min(r.slots[0] for r in getattr(_verdict(p), kind) if getattr(r, "field", None) == field)


def _nan_elements(p: Patient) -> int:
    p.run()
    return sum(f.count for f in scan(p.pool).findings if f.kind == "nan")


def _distance(p: Patient) -> int:
    """The store ends one row later than it begins; :func:`kvlab.debug.who` counts from the end."""
    return (1 << 32) - (p.k[0].nbytes - 1)


ANSWERS = {
    1: Answer(
        "packed rows",
        "the lowest slot of V that was written and should not have been",
        _first("unexpected", "v"),
        "where would row `slot` of a packed (slots, heads, head_dim) tensor lie in this envelope?",
    ),
    2: Answer(
        "one width",
        "the lowest slot of V that was written and should not have been",
        _first("unexpected", "v"),
        "compare how many bytes of K and of V were written for one row",
    ),
    3: Answer(
        "wrapped -1",
        "the slot that was written and should not have been",
        _first("unexpected", "k"),
        "which slot is it, counted from the end of the pool?",
    ),
    4: Answer(
        "no scales",
        "how many bytes are missing",
        lambda p: _verdict(p).counts["missing"],
        "which fields do the missing ranges name?",
    ),
    5: Answer(
        "tile order",
        "the lowest slot of K's scales that is missing",
        _first("missing", "k_scale"),
        "as many scale bytes are unexpected as are missing: they went to other rows of the same tile",
    ),
    6: Answer(
        "rebuilt page stride",
        "the lowest slot of V that was written and should not have been",
        _first("unexpected", "v"),
        "ask describe(pool.get_key_buffer(0)) for the page stride, and compare with page_size times a row",
    ),
    7: Answer(
        "32-bit offset",
        "how many bytes before its place K's row of slot 2,100,001 was stored, as `who` counts them",
        _distance,
        "compare the distance with powers of two: `who` counts from the last of the stored bytes",
    ),
    8: Answer(
        "pad slot written",
        "how many NaN elements the pool holds",
        _nan_elements,
        "which slot holds them, and who may write it?",
    ),
}


@cache
def _number(number: int) -> int:
    return ANSWERS[number].right(patient(number))


def diagnose(number: int, cause, evidence=...) -> bool:
    """Check a diagnosis; prints a line and returns whether it is right.

    Parameters
    ----------
    number : int
        The case, 1 … 8.
    cause : str
        A key of ``CAUSES``; ``...`` prints what is asked.
    evidence : int
        The number that is asked for.

    Raises
    ------
    ValueError
        No such case or cause.
    """
    if number not in ANSWERS:
        raise ValueError(f"diagnose: number={number!r} is not one of 1 … {len(ANSWERS)}")
    answer = ANSWERS[number]
    if cause is ... or evidence is ...:
        print(f"Case {number}, not diagnosed yet: which cause of CAUSES is it, and {answer.evidence}?")
        return False
    if cause not in CAUSES:
        raise ValueError(f"diagnose: cause={cause!r} is not one of {list(CAUSES)}")
    right = cause == answer.cause
    number_right = right and evidence == _number(number)
    if right and number_right:
        print(f"Right. Case {number}: {CAUSES[cause]}.")
    elif right:
        print(f"Case {number}: the cause may be right, the number is not: {answer.evidence}?")
    else:
        print(f"Case {number}: that is not it. Hint: {answer.hint}")
    return right and number_right
