"""``python -m kvlab.bench``: what commits, gathers, copies and attention cost on this machine, GPU or not."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from ..backends import describe_backend
from ..lens.__main__ import table
from .cases import LARGEST, STEP
from .run import is_quantising, run, tile_claim
from .timing import MODES, Cpu


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m kvlab.bench",
        description="Time kvlab's operations and the same work by others. On a GPU: medians over many launches, and "
        "the share of the bandwidth of torch's copy_ in the same run. Without one: the interpreter's times, which say "
        "nothing about a GPU.",
    )
    parser.add_argument("--quick", action="store_true", help="fewer cases and samples")
    parser.add_argument("--json", metavar="FILE", help="write everything as JSON to FILE, or to standard output for -")
    options = parser.parse_args()
    say = (lambda words: print(f"  {words}", file=sys.stderr)) if sys.stderr.isatty() else lambda words: None
    found = run(quick=options.quick, say=say)
    if found["backend"] == "interpreter":
        say("one program a tile: a thousand programs, four seconds a commit")
        found["tile_claim"] = tile_claim(Cpu(), options.quick)
    if options.json == "-":
        print(json.dumps(found, indent=1))
        return 0
    print("\n".join(report(found)))
    if options.json:
        Path(options.json).write_text(json.dumps(found, indent=1) + "\n")
    return 0


def report(found: dict) -> list[str]:
    """Everything that was found, as lines of text."""
    versions = ", ".join(f"{name} {v}" for name, v in found["versions"].items() if v)
    lines = [
        f"{found['device']}, {found['date']}, {versions}",
        describe_backend() if not found["note"] else found["note"],
    ]
    lines += [f"{mode}: {words}" for mode, words in MODES.items() if any(r["mode"] == mode for r in found["results"])]
    if found["copy_gb_per_s"]:
        empty = ", ".join(f"{mode} {us:.1f}" for mode, us in found["empty_launch_us"].items())
        lines.append(f"torch copy_: {found['copy_gb_per_s']:,.0f} GB/s. An empty launch, us: {empty}")
    lines += ["", results_table(found), ""]
    lines += aims(found)
    if claim := found.get("tile_claim"):
        lines += claim_words(claim)
    lines += [f"left out: {words}" for words in found["left_out"]]
    return lines


def claim_words(claim: dict) -> list[str]:
    """The comparison with one small tile per program."""
    return [
        "prefix-valid commit of 8 requests x 8 rows x 2 KiB, in the interpreter:",
        f"  kvlab: {claim['kvlab_us'] / 1e3:,.1f} ms, {claim['kvlab_programs']:,} program(s)",
        f"  one program a request, row and 128-byte tile: {claim['tile_us'] / 1e3:,.1f} ms, "
        f"{claim['tile_programs']:,} programs",
        f"  {claim['ratio']:.0f} times as long, " + ("same bytes" if claim["same_bytes"] else "NOT the same bytes"),
    ]


def results_table(found: dict) -> str:
    """One line for each result; columns that mean something without a GPU, or all."""
    on_gpu = found["copy_gb_per_s"] is not None
    unit, factor = ("us", 1) if on_gpu else ("ms", 1e-3)
    headings = [
        "operation",
        "layout",
        "format",
        "rows",
        "layers",
        "accepted",
        "by",
        "mode",
        f"median {unit}",
        "p10",
        "p90",
    ]
    headings += ["bytes", "GB/s", "of copy", "of bound", "bytes as kvlab"] if on_gpu else ["bytes", "bytes as kvlab"]
    rows = []
    for r in found["results"]:
        share = "all" if r["accepted"] is None else f"{r['accepted']:.0%}"
        row = [*(r[k] for k in ("operation", "layout", "format", "rows", "layers")), share, r["by"], r["mode"]]
        row += [f"{r[k] * factor:,.1f}" for k in ("median_us", "p10_us", "p90_us")] + [f"{r['bytes']:,}"]
        if on_gpu:
            row += [f"{r['gb_per_s']:,.0f}", f"{r['of_copy']:.0%}", f"{r['of_bound']:.2f}"]
        rows.append([*row, "yes" if r["same_bytes"] else "NO"])
    return table(headings, rows)


def aims(found: dict) -> list[str]:
    """On a GPU: how near kvlab's commits come to the copy, and to an empty launch."""
    if not found["copy_gb_per_s"]:
        return []
    mine = [r for r in found["results"] if r["by"] == "kvlab" and r["operation"] == "commit" and r["accepted"] is None]
    large = [r for r in mine if r["rows"] == LARGEST and r["mode"] == "cold"]
    step = [r for r in mine if r["rows"] == STEP and r["mode"] == "graph"]
    kinds = (
        ("moving commits", [r for r in large if r["format"] == "bfloat16"], "of_copy", "of the copy's bandwidth"),
        ("quantising commits", [r for r in large if is_quantising(r)], "of_copy", "of the copy's bandwidth"),
        ("one decode step, all layers, in a graph", step, "of_bound", "times an empty launch plus the bytes"),
    )
    lines = []
    for what, rows, key, unit in kinds:
        if values := sorted(r[key] for r in rows):
            lines.append(f"{what}: {values[0]:.2f} … {values[-1]:.2f} {unit}")
    return lines


if __name__ == "__main__":
    sys.exit(main())
