"""Checks for the notebooks' exercises: each compares your answer with the library's, and hints at what went wrong.

``check("slots.byte", answer)`` prints one line and returns whether the answer is right. ``...`` means "not yet".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from .builders import head_major, page_major, token_major
from .geometry import Geometry

GEOMETRY = Geometry(layers=4, heads=3, head_dim=64, page_size=16, pages=8)


@dataclass(frozen=True)
class Exercise:
    """What is asked, the right answer (computed, not typed in), and a hint for the most common slip."""

    question: str
    answer: Callable[[], object]
    hint: str


def _byte():
    return page_major(GEOMETRY, torch.bfloat16).locate("v", 2, 37, 1, 10)[1]


def _owner():
    cell = page_major(GEOMETRY, torch.bfloat16).explain("raw", 60_000)
    return cell.field, cell.layer, cell.slot


EXERCISES = {
    "tour.slot": Exercise(
        "the slot of offset 5 in page 3, pages of 16 slots",
        lambda: 3 * GEOMETRY.page_size + 5,
        "slot = page * page_size + offset",
    ),
    "tour.rows": Exercise(
        "rows written by a prefix-valid commit with commit_lens [3, 0, 8, 1], all slots real",
        lambda: sum([3, 0, 8, 1]),
        "each request keeps its first commit_lens[b] rows, and nothing else",
    ),
    "slots.byte": Exercise(
        "byte of V, layer 2, slot 37, head 1, dim 10 in the page-major pool",
        _byte,
        "37//16 times the envelope, plus 2 layers, plus K's part, plus 37%16 times the row, plus head and dim",
    ),
    "slots.owner": Exercise(
        "(field, layer, slot) of byte 60,000 of the page-major buffer",
        _owner,
        "divide by the envelope first: that is the page. The rest says layer, then K or V, then the offset",
    ),
    "slots.runs": Exercise(
        "contiguous runs of one page under token-major, page-major and head-major",
        lambda: [build(GEOMETRY, torch.bfloat16).runs("page").count for build in (token_major, page_major, head_major)],
        "one field of one layer is one piece where pages are not enveloped; the envelope holds all of them",
    ),
    "prefix.slots": Exercise(
        "slots written by loc_2d [[17, 18, 19], [0, 33, -1]] with commit_lens [2, 3], in rising order",
        lambda: [17, 18, 33],
        "take each prefix first; then drop slot 0 and what is negative",
    ),
    "prefix.nextstep": Exercise(
        "row of the block in step i+1 that reuses the slot of the first rejected row of step i",
        lambda: 0,
        "the next block starts at start_pos + commit_lens",
    ),
}


def check(name: str, answer) -> bool:
    """Compare ``answer`` with the exercise's own; prints a line and returns whether it is right.

    Raises
    ------
    KeyError
        No exercise of that name.
    """
    if name not in EXERCISES:
        raise KeyError(f"check: name={name!r} is not one of {list(EXERCISES)}")
    exercise = EXERCISES[name]
    if answer is ...:
        print(f"Not answered yet: {exercise.question}.")
        return False
    right = _plain(answer) == _plain(exercise.answer())
    print(f"Right: {exercise.question}." if right else f"Not yet. Hint: {exercise.hint}.")
    return right


def _plain(x):
    """Tensors, tuples and numpy numbers as plain lists and ints, so that ``(1, 2)`` equals ``[1, 2]``."""
    if hasattr(x, "tolist"):
        x = x.tolist()
    return [_plain(y) for y in x] if isinstance(x, (list, tuple)) else x
