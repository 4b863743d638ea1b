"""What came out of a compilation: machine code read back, and each access with the memory it belongs to."""

from __future__ import annotations

import functools
import re
import subprocess
import tempfile
from collections import Counter

import triton

from .isa import Instruction, access_of, annotate, parse_amdgcn, parse_sass, place, ptx_widths
from .pointers import FIRST_MARK, argument_names
from .report import Access, by_width, narrowest
from .stages import without_debug_info


def describe(compiled: list, arch: str) -> dict:
    """Fields of a Report that the machine code decides, over all kernels of an operation."""
    amd = arch.startswith("gfx")
    accesses, codes, instructions, usages = [], [], 0, []
    for kernel, contents in compiled:
        code, usage = read_amdgcn(kernel.asm["amdgcn"]) if amd else read_cubin(kernel.asm["cubin"])
        usages.append(usage)
        names = argument_names(kernel.src.signature)
        code, known = unmark(code, kernel.metadata.kvlab_accesses, names, contents)
        accesses += accesses_of(code, known)
        codes.append(annotate(code))
        instructions += len(code)
    ptx = "" if amd else "\n".join(without_debug_info(kernel.asm["ptx"]) for kernel, _ in compiled)
    return {
        "payload_load_bits": narrowest(accesses, "load", "payload"),
        "payload_store_bits": narrowest(accesses, "store", "payload"),
        "scale_store_bits": narrowest(accesses, "store", "scale"),
        "registers": max(registers for registers, _ in usages),
        "spill_bytes": max(spilled for _, spilled in usages),
        "sass_instructions": instructions,
        "shared_bytes": max(kernel.metadata.shared for kernel, _ in compiled),
        "accesses": tuple(accesses),
        "loads": by_width(accesses, "load"),
        "stores": by_width(accesses, "store"),
        "ptx_loads": ptx_widths(ptx, "load"),
        "ptx_stores": ptx_widths(ptx, "store"),
        "sass": "\n".join(codes),
        "ptx": ptx,
    }


def unmark(code, marks: list[dict], names: list[str], contents: dict[str, tuple[str, str]]):
    """The code with real positions again, and per instruction what it touches: a list of ``(what, role)``."""
    plain, known = [], []
    for instruction in code:
        line = instruction.stack[0][1] if instruction.stack else 0
        touched = []
        if line >= FIRST_MARK:
            found = marks[line - FIRST_MARK]
            stack = tuple((path, n) for path, n in found["stack"])
            instruction = Instruction(instruction.opcode, instruction.text, stack)
            touched = [contents[names[i]] for i in found["arguments"] if names[i] in contents]
        plain.append(instruction)
        known.append(touched)
    return plain, known


def accesses_of(code, known) -> list[Access]:
    """Loads and stores, counted by width, what they touch, and where in the source they stand."""
    counts: Counter = Counter()
    for instruction, touched in zip(code, known, strict=True):
        if access := access_of(instruction.opcode):
            kind, space, bits = access
            if space != "global":
                touched = [("spill or stack" if space == "local" else "between threads", "bookkeeping")]
            # what cannot be told counts as payload: a narrow access must not hide
            what = "/".join(dict.fromkeys(w for w, _ in touched)) or "?"
            roles = [r for r in ("payload", "scale", "bookkeeping") if r in {role for _, role in touched}]
            role = roles[0] if roles else "payload"
            counts[kind, space, bits, what, role, place(instruction.stack)] += 1
    return [
        Access(kind, space, bits, n, what, role, where) for (kind, space, bits, what, role, where), n in counts.items()
    ]


@functools.cache  # layouts share kernels, and nvdisasm takes half a second to start
def read_cubin(cubin: bytes) -> tuple[list[Instruction], tuple[int, int]]:
    """Instructions, and registers and local bytes of a thread."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        # -ndf: no branch-stack analysis, a quarter of the time
        sass = run_tool(triton.knobs.nvidia.nvdisasm.path, "-c", "-gi", "-ndf", file.name)
        said = run_tool(triton.knobs.nvidia.cuobjdump.path, "-res-usage", file.name)
    usage = {name: int(n) for name, n in re.findall(r"\b(REG|STACK|LOCAL):(\d+)", said)}
    return parse_sass(sass), (usage["REG"], usage["STACK"] + usage["LOCAL"])


def run_tool(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def read_amdgcn(text: str) -> tuple[list[Instruction], tuple[int, int]]:
    """Instructions, and vector registers and scratch bytes of a lane."""
    found = dict(re.findall(r"^\s*\.(vgpr_count|private_segment_fixed_size):\s*(\d+)", text, re.M))
    return parse_amdgcn(text), (int(found["vgpr_count"]), int(found["private_segment_fixed_size"]))
