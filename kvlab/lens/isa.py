"""Machine code as data: which instructions load and store, how wide, and which source lines they came from."""

from __future__ import annotations

import linecache
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Instruction:
    """One machine instruction and its source position: ``(path, line)``, then where that was inlined, outwards."""

    opcode: str
    text: str
    stack: tuple[tuple[str, int], ...]


_SASS_LINE = re.compile(r'//## File "(.+?)", line (\d+)')
_SASS_CODE = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(.*?)\s*;")


def parse_sass(text: str) -> list[Instruction]:
    """Instructions of ``nvdisasm -gi`` text, NOPs left out."""
    found, stack, fresh = [], (), False
    for line in text.splitlines():
        if position := _SASS_LINE.search(line):
            # one line per inlining level; the first after an instruction starts a new stack
            level = (position[1], int(position[2]))
            stack, fresh = ((*stack, level) if fresh else (level,)), True
        elif code := _SASS_CODE.search(line):
            fresh = False
            opcode = re.sub(r"^@!?U?P\w+\s+", "", code[1]).split()[0]
            if opcode != "NOP":
                found.append(Instruction(opcode, code[1], stack))
    return found


_AMD_FILE = re.compile(r'\.file\s+(\d+)\s+(?:"(.*?)"\s+)?"(.+?)"')
_AMD_LOC = re.compile(r"\.loc\s+(\d+)\s+(\d+)")
_AMD_INLINED = re.compile(r"([^\s\[]+):(\d+):\d+(?=\s*(?:@\[|\]))")


def parse_amdgcn(text: str) -> list[Instruction]:
    """Instructions of a kernel in AMD's assembly text."""
    found, files, stack = [], {}, ()
    for line in text.splitlines():
        if file := _AMD_FILE.search(line):
            files[file[1]] = str(Path(file[2] or "") / file[3])
        elif position := _AMD_LOC.search(line):
            if position[2] != "0":  # line 0: the compiler names no place
                outer = [(path, int(n)) for path, n in _AMD_INLINED.findall(line.partition("@[")[2])]
                stack = ((files[position[1]], int(position[2])), *outer)
        elif line.startswith(".Lfunc_end"):
            break
        elif code := re.match(r"\t([a-z]\w+)\b[^;]*", line):
            found.append(Instruction(code[1], code[0].strip(), stack))
    return found


_SASS_SPACE = {"G": "global", "L": "local", "S": "shared", "": "global"}
_AMD_SPACE = {"scratch": "local", "ds": "shared"}


def access_of(opcode: str) -> tuple[str, str, int] | None:
    """``(kind, space, bits per thread)`` of a load or store instruction, None for any other."""
    if sass := re.fullmatch(r"(LD|ST)(G|L|S|)(STS)?(\.[A-Z0-9._]+)?", opcode):
        kind = "load" if sass[1] == "LD" else "store"
        width = re.search(r"\.[US]?(8|16|64|128|256)(?=\.|$)", sass[4] or "")
        return kind, _SASS_SPACE[sass[2]], int(width[1]) if width else 32
    if amd := re.match(r"(global|buffer|flat|scratch|ds)_(load|store|read|write)_(\w+)", opcode):
        kind = "load" if amd[2] in ("load", "read") else "store"
        return kind, _AMD_SPACE.get(amd[1], "global"), _amd_bits(amd[3])
    return None


def _amd_bits(suffix: str) -> int:
    """Width in ``dwordx4``, ``ushort``, ``byte_d16_hi``, ``b128``."""
    if dwords := re.match(r"dword(?:x(\d))?", suffix):
        return 32 * int(dwords[1] or 1)
    if bits := re.match(r"[bui](\d+)", suffix):
        return int(bits[1])
    return 8 if "byte" in suffix else 16


def ptx_widths(ptx: str, kind: str) -> dict[int, int]:
    """``{bits per thread: instructions}`` of PTX's global loads or stores, widest first."""
    opcode = {"load": "ld", "store": "st"}[kind]
    found = re.findall(rf"\b{opcode}\.global\b(?:\.(?!v\d|[bfsu]\d)[\w:]+)*(?:\.v(\d))?\.[bfsu](\d+)", ptx)
    widths = Counter(int(lanes or 1) * int(bits) for lanes, bits in found)
    return dict(sorted(widths.items(), reverse=True))


def annotate(instructions: list[Instruction]) -> str:
    """The code as text, with the source line above the instructions that came from it."""
    lines, last = [], None
    for i in instructions:
        if i.stack and i.stack[0] != last:
            path, number = last = i.stack[0]
            lines.append(f"// {place(i.stack)}  {linecache.getline(path, number).strip()}")
        lines.append(f"    {i.text}")
    return "\n".join(lines)


def place(stack) -> str:
    """``file:line`` of an instruction's source, by the file's short name."""
    return f"{Path(stack[0][0]).name}:{stack[0][1]}" if stack else "?"
