"""``python -m kvlab.lens``: every kernel x layout x format, compiled for one target."""

from __future__ import annotations

import argparse
import json
import sys

from . import ARCHES, CompileError, inspect_many, sectors, standard_cases
from .cases import FORMATS, MORE_FORMATS
from .report import COLUMNS

HEADINGS = dict.fromkeys(COLUMNS, "") | {
    "payload_load_bits": "load",
    "payload_store_bits": "store",
    "scale_store_bits": "scale",
    "registers": "regs",
    "spill_bytes": "spill",
    "sass_instructions": "SASS",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kvlab.lens",
        description="Compile kvlab's kernels without a GPU and show what a standard batch costs: 64 requests x 8 rows, "
        "32 layers, 8 heads x 128, bf16 rows. Load, store and scale are the narrowest payload and scale accesses, in "
        "bits per thread.",
    )
    parser.add_argument("--arch", default="sm_90", help=f"one of {', '.join(ARCHES)}; default sm_90")
    parser.add_argument("--json", action="store_true", help="a JSON list of objects instead of a table")
    parser.add_argument("--all", action="store_true", help="fp16, fp32 and e5m2 pools as well; takes twice as long")
    options = parser.parse_args()
    if options.arch not in ARCHES:
        parser.error(f"--arch {options.arch} is not a known target; legal are {', '.join(ARCHES)}")
    cases = standard_cases(options.arch, FORMATS + MORE_FORMATS if options.all else FORMATS)
    try:
        answers = inspect_many(cases)
    except RuntimeError as error:
        print(error, file=sys.stderr)
        return 1
    failed = [a for a in answers if isinstance(a, CompileError)]
    rows = [a.row() for a in answers if not isinstance(a, CompileError)]
    if options.json:
        print(json.dumps(rows, indent=1))
    else:
        print(table([HEADINGS[name] or name for name in COLUMNS], [list(row.values()) for row in rows]))
        print("\n32-byte sectors touched per committed row (K, V and scales of one token in one layer):\n")
        traffic = {(c["layout"].name, r["format"]): sectors(c["layout"]) for c, r in _pairs(cases, answers)}
        lines = [[*names, f"{touched:g}", least] for names, (touched, least) in traffic.items()]
        print(table(["layout", "format", "touched", "minimum"], lines))
    for error in failed:
        print(f"\n{error}", file=sys.stderr)
    return 1 if failed else 0


def _pairs(cases: list[dict], answers: list):
    return [(c, a.row()) for c, a in zip(cases, answers, strict=True) if not isinstance(a, CompileError)]


def table(headings: list[str], rows: list[list]) -> str:
    """Columns as wide as their widest cell; numbers to the right, and a dash for what does not exist."""
    cells = [["–" if x is None else str(x) for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(headings, *cells, strict=True)]
    right = [all(isinstance(x, (int, float, type(None))) for x in column) for column in zip(*rows, strict=True)]
    lines = []
    for line in [headings, *cells]:
        padded = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(line, widths, right or [False] * 99, strict=False)]
        lines.append("  ".join(padded).rstrip())
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
