"""The command line: explain a byte of a case, compare two cases, scan one, and say what is installed."""

from __future__ import annotations

import argparse
import json
import os
import sys

DESCRIPTION = (
    "Answers about KV-cache bytes: from case files (kvlab.debug.save_case writes them), and about this machine."
)
EXIT_CODES = (
    "exit codes: 0 fine, equal, nothing found; 1 differs, something found or missing; "
    "2 bad usage or unreadable input (one line on stderr)"
)
PROG = "python -m kvlab"


class UsageError(Exception):
    """Bad usage or input: its text is the one line on stderr."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str):
        raise UsageError(f"{message} (see {self.prog} --help)")


def main(argv: list[str] | None = None) -> int:
    """Run one command; returns the exit code. ``argv`` as ``sys.argv[1:]``."""
    try:
        options = parser().parse_args(argv)
        answer, words, code = options.run(options)
        print(json.dumps(answer, indent=1) if options.json else printable(words))
        sys.stdout.flush()
        return code
    except SystemExit as done:  # argparse has printed its help
        return int(done.code or 0)
    except BrokenPipeError:  # the reader, such as head, has seen enough; Python would complain at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ModuleNotFoundError as error:
        if error.name.startswith("kvlab"):
            raise
        print(f"{PROG}: {error.name} is not installed: pip install {error.name}", file=sys.stderr)
        return 2
    except (UsageError, OSError, ValueError) as error:
        message = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) and error.filename else str(error)
        print(printable(f"{PROG}: {message}".replace("\n", " ")), file=sys.stderr)
        return 2


def parser() -> argparse.ArgumentParser:
    """The argument parser, one subcommand for each question."""
    top = Parser(prog=PROG, description=DESCRIPTION, epilog=EXIT_CODES)
    commands = top.add_subparsers(required=True, metavar="COMMAND", dest="command")

    def command(name: str, run, summary: str, details: str) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=summary, description=details, epilog=EXIT_CODES)
        one.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        one.set_defaults(run=run)
        return one

    one = command(
        "explain",
        explain,
        "whose byte is this, and is it right",
        "Owner of a byte, the formula that leads to it, its value; and, where the case holds a commit, whether that "
        "commit should have written it and with what (1 where the byte is not as it should be).",
    )
    one.add_argument("case", metavar="CASE", help="a case file")
    one.add_argument("--byte", metavar="N", type=number, required=True, help="byte of the buffer, decimal or 0x…")
    one.add_argument("--buffer", metavar="NAME", help="needed where the layout has several")
    one = command("diff", diff, "which bytes differ between two cases", "Bytes that differ, as coordinates.")
    one.add_argument("a", metavar="A", help="a case file")
    one.add_argument("b", metavar="B", help="another one, of the same layout")
    one = command(
        "scan",
        scan,
        "what cannot be right in a pool",
        "NaN, infinity, lost scales, rows nobody wrote; and, where the case holds a commit, every byte that differs "
        "from what the reference stores: missing, unexpected, wrong.",
    )
    one.add_argument("case", metavar="CASE", help="a case file")
    command(
        "doctor",
        doctor,
        "what is installed here, and what is missing",
        "Backend, device and versions; what is missing, which feature that switches off, and how to get it (1 where "
        "something is missing that pip installs with kvlab, or where compiling for sm_90 fails).",
    )
    return top


def explain(options) -> tuple[dict, str, int]:
    from .debug.byte_words import explain_byte
    from .debug.case import load_case

    case = load_case(options.case)
    buffers = case.layout.buffers
    if options.buffer is None and len(buffers) > 1:
        raise UsageError(f"the case has several buffers; give --buffer, one of {', '.join(list(buffers)[:32])}")
    buffer = options.buffer or next(iter(buffers))
    if buffer not in buffers:
        raise UsageError(f"--buffer {buffer} is not one of {', '.join(list(buffers)[:32])}")
    if not 0 <= options.byte < buffers[buffer]:
        raise UsageError(f"--byte {options.byte} is outside 0 … {buffers[buffer] - 1}, the bytes of {buffer!r}")
    answer = explain_byte(case, buffer, options.byte)
    return answer, "\n".join(answer["lines"]), 0 if answer["ok"] else 1


def diff(options) -> tuple[dict, str, int]:
    import torch

    from .debug.case import load_case
    from .debug.diff import diff as compare

    a, b = load_case(options.a), load_case(options.b)
    if a.layout != b.layout:
        raise UsageError(f"{options.a} and {options.b} are of different layouts, so their bytes cannot be compared")
    apart = 0
    for name in a.layout.buffers:  # what only one file holds is not compared
        both = torch.from_numpy(a.saved_bytes(name) & b.saved_bytes(name))
        apart += int((torch.from_numpy(a.saved_bytes(name) | b.saved_bytes(name)) & ~both).sum())
        b.pool.buffers[name][~both] = a.pool.buffers[name][~both]
    found = compare(a.pool, b.pool)
    words = str(found) + f"\n{apart:,} bytes are in one of the files only, and were not compared" * bool(apart)
    return {**found.to_dict(), "not_compared": apart}, words, 1 if found.nbytes else 0


def scan(options) -> tuple[dict, str, int]:
    from .debug.case import load_case
    from .debug.recompute import recompute
    from .debug.scan import scan as look

    case, judged, refused = load_case(options.case), None, None
    if case.replayable:
        try:
            judged = recompute(case)
        except (ValueError, IndexError, TypeError) as error:
            refused = str(error)
    # without a commit, a free slot between two that are in use can only be told as a hole
    found = look(case.pool, None if judged is None else judged.content())
    answer, words, ok = {"scan": found.to_dict()}, [str(found)], found.ok
    if judged is not None:
        answer["commit"], ok = judged.verdict.to_dict(), ok and judged.verdict.ok
        words.append(f"the recorded commit: {judged.verdict}")
    if refused is not None:
        answer["commit"], ok = {"ok": False, "refused": refused}, False
        words.append(f"the recorded commit is one that kvlab refuses: {refused}")
    return answer, "\n\n".join(words), 0 if ok else 1


def doctor(options) -> tuple[dict, str, int]:
    from .doctor import examine

    report = examine()
    return report.to_dict(), str(report), 0 if report.ok else 1


def number(text: str) -> int:
    """A byte number, ``4096`` or ``0x1000``."""
    return int(text.replace(",", "").replace("_", ""), 0)


def printable(words: str) -> str:
    """Without control characters: a note in a stranger's file must not steer the terminal."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in words)
