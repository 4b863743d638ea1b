"""The lens's hand in Triton's own stages: marked accesses in the IR, right source lines in PTX."""

from __future__ import annotations

import re
import tempfile

from triton._C.libtriton import ir

from .pointers import mark


def change_stages(*stage_arguments):
    """Triton's hook into its stages: marks the accesses of the IR, and keeps source lines right in PTX."""
    if not stage_arguments:  # Triton asks for what the hook adds to its cache key
        return "kvlab.lens", "0"
    stages = stage_arguments[1]
    make_ttir = stages["ttir"]
    stages["ttir"] = lambda source, metadata: mark_module(make_ttir(source, metadata), metadata)
    if "ptx" in stages:
        make_ptx = stages["ptx"]
        stages["ptx"] = lambda source, metadata: straighten(make_ptx(source, metadata))


def mark_module(module, metadata: dict):
    """The module with marked accesses; what they are goes with the kernel's metadata."""
    text, metadata["kvlab_accesses"] = mark(str(module))
    with tempfile.NamedTemporaryFile("w", suffix=".ttir") as file:
        file.write(text)
        file.flush()
        marked = ir.parse_mlir_module(file.name, module.context)
    marked.context = module.context
    return marked


def straighten(ptx: str) -> str:
    """PTX without positions inside inline assembly.

    A load is several lines of inline assembly, and the LLVM of Triton 3.9 counts them as source lines: the machine
    code would name a line below the load.
    """
    return re.sub(
        r"// begin inline asm.*?// end inline asm",
        lambda block: re.sub(r"^\s*\.loc\b.*\n", "", block[0], flags=re.MULTILINE),
        ptx,
        flags=re.DOTALL,
    )


def without_debug_info(ptx: str) -> str:
    """PTX as a person reads it: no debug tables behind it, and none of the lens's marks."""
    code = ptx.partition("\t.section\t.debug_")[0]
    return re.sub(r"^\s*\.(loc|file)\b.*\n", "", code, flags=re.MULTILINE)
