"""Whose memory an instruction touches: loads and stores of Triton's IR, followed to an argument and given a mark.

Machine code only knows registers, and one source line can hold accesses of payload and scales (an unrolled loop over
fields). So each load and store of the IR gets a source line of its own, far beyond any real one, which the compiler
carries down to the machine code; the real position is kept beside it.
"""

from __future__ import annotations

import re

FIRST_MARK = 10_000_000

_DEFINITION = re.compile(r'^\s*(%[\w.]+)(?::\d+)? = "?([\w.]+)"?\s*(.*)$')
_ACCESS = re.compile(r"\btt\.(load|store|atomic_rmw|atomic_cas)\b[^%]*(%[\w.]+).*loc\((#loc\d*)\)\s*$")


def mark(ttir: str) -> tuple[str, list[dict]]:
    """The IR with access i on line ``FIRST_MARK + i``, and what access i is.

    Each is ``{"kind": "load" or "store", "arguments": [positions], "stack": [[path, line], …]}``; the stack starts at
    the innermost inlined function. Tuples count as their elements, and what was specialised away counts no more.
    """
    values: dict = {}
    positions = dict(re.findall(r"^(#loc\d*) = loc\((.*)\)$", ttir, re.M))
    lines, found = ttir.splitlines(), []
    for n, line in enumerate(lines):
        _define(line, values)
        if access := _ACCESS.search(line):
            kind, pointer, position = access.groups()
            lines[n] = f'{line[: access.start(3)]}"access":{FIRST_MARK + len(found)}:1)'
            found.append(
                {
                    "kind": "load" if kind == "load" else "store",
                    "arguments": sorted(_roots(pointer, values)),
                    "stack": _stack(position, positions),
                }
            )
    return "\n".join(lines), found


def _define(line: str, values: dict[str, int | list[str]]) -> None:
    """Note the values that a line defines: the position of an argument, or what it may point into the same memory as.

    Line by line, since the loops of a kernel reuse each other's names.
    """
    if "tt.func public" in line:
        values.update((name, i) for i, name in enumerate(re.findall(r"(%[\w.]+): ", line)))
    initial = line.partition("iter_args(")[2].partition(")")[0]
    values.update((name, [first]) for name, first in re.findall(r"(%[\w.]+) = (%[\w.]+)", initial))
    if definition := _DEFINITION.match(line):
        operands = re.findall(r"%[\w.]+", definition[3])
        # a select's first operand is the condition
        values[definition[1]] = operands[1:3] if definition[2] == "arith.select" else operands[:1]


def _roots(value: str, values: dict) -> set[int]:
    """Positions of the arguments that a pointer was computed from."""
    todo, seen, roots = [value], set(), set()
    while todo:
        value = todo.pop()
        source = values.get(value, [])
        if isinstance(source, int):
            roots.add(source)
        elif value not in seen:
            seen.add(value)
            todo += source
    return roots


def _stack(position: str, positions: dict[str, str]) -> list[list]:
    text = positions.get(position, "")
    if call := re.match(r"callsite\((#loc\d*) at (#loc\d*)\)", text):
        return _stack(call[1], positions) + _stack(call[2], positions)
    if plain := re.match(r'"(.*)":(\d+):\d+', text):
        return [[plain[1], int(plain[2])]]
    inner = re.search(r"#loc\d*", text)  # a name around a position, or the first of several fused ones
    return _stack(inner[0], positions) if inner else []


def argument_names(signature: dict) -> list[str]:
    """Arguments that a compiled kernel still has, in order. ``cells.2.0`` names one inside a tuple."""
    names = []

    def walk(name, kind):
        if isinstance(kind, (tuple, list)):
            for i, part in enumerate(kind):
                walk(f"{name}.{i}", part)
        elif kind != "constexpr":
            names.append(name)

    for name, kind in signature.items():
        walk(name, kind)
    return names
