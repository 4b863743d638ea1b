"""Answers in coordinates: which bytes were written, whose they are, what lies there, and who wrote them."""

from .case import load_case, save_case
from .case_checks import CaseError
from .describe import describe
from .diff import diff
from .guard import guarded, poison
from .recorded import Case
from .scan import scan
from .watch import watch
from .where import where
from .who import who

__all__ = [
    "Case",
    "CaseError",
    "describe",
    "diff",
    "guarded",
    "load_case",
    "poison",
    "save_case",
    "scan",
    "watch",
    "where",
    "who",
]
