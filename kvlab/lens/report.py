"""What the lens answers: one report for an operation or a kernel, compiled for one target."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field

# The keys of `python -m kvlab.lens --json`, in the order of the printed table's columns.
COLUMNS = (
    "kernel",
    "layout",
    "format",
    "arch",
    "payload_load_bits",
    "payload_store_bits",
    "scale_store_bits",
    "registers",
    "spill_bytes",
    "sass_instructions",
    "launches",
    "programs",
)


class CompileError(RuntimeError):
    """The compiler refused a kernel. The message holds what it said, and which argument to change."""


@dataclass(frozen=True)
class Access:
    """Load or store instructions of one width at one place of the source.

    Attributes
    ----------
    kind : "load" or "store"
    space : "global", "local" (spills and stack) or "shared"
    bits : int
        Moved per thread by one instruction.
    count : int
        How many such instructions the machine code holds.
    what : str
        What the pointer points to: a field ("k", "v_scale"), an input ("loc", "k rows"), or an argument's name.
    role : "payload", "scale" or "bookkeeping"
    where : str
        ``file:line`` of the source.
    """

    kind: str
    space: str
    bits: int
    count: int
    what: str
    role: str
    where: str


@dataclass(frozen=True)
class Report:
    """One operation or kernel, compiled for one target.

    Attributes
    ----------
    kernel, layout, format, arch : str
        ``layout`` and ``format`` are None for a kernel of your own.
    payload_load_bits, payload_store_bits, scale_store_bits : int or None
        The narrowest such instruction in the machine code; None where there is none. For AMD a lower bound: its
        compiler drops the source position of some scalar loads, and they count where the instruction before stands.
    registers : int
        Per thread (AMD: vector registers).
    spill_bytes : int
        Local memory of a thread, spills and stack.
    sass_instructions : int
        Machine instructions without NOPs; of all the operation's kernels together.
    launches, programs : int or None
        Kernel launches of the operation and program instances of its grids; None for a kernel of your own.
    tile : (rows, columns, warps) or None
        What a program works on at once: rows, payload elements of each, and how many warps do it.
    shared_bytes : int
        Shared memory of a program.
    accesses : tuple of Access
    loads, stores : dict of int to int
        Global accesses in the machine code: bits per thread -> instructions.
    ptx_loads, ptx_stores : dict of int to int
        The same in PTX; empty for AMD, which has none.
    sass : str
        The machine code with the source line above the instructions that came from it.
    ptx : str
    """

    kernel: str
    layout: str | None
    format: str | None
    arch: str
    payload_load_bits: int | None
    payload_store_bits: int | None
    scale_store_bits: int | None
    registers: int
    spill_bytes: int
    sass_instructions: int
    launches: int | None
    programs: int | None
    tile: tuple[int, int, int] | None
    shared_bytes: int
    accesses: tuple[Access, ...]
    loads: dict[int, int]
    stores: dict[int, int]
    ptx_loads: dict[int, int]
    ptx_stores: dict[int, int]
    sass: str = field(repr=False)
    ptx: str = field(repr=False)

    def row(self) -> dict:
        """The report as one row of the command line's table; JSON-ready."""
        return {name: getattr(self, name) for name in COLUMNS}

    def to_dict(self) -> dict:
        """Everything, JSON-ready; :meth:`from_dict` is the inverse."""
        return asdict(self)

    @classmethod
    def from_dict(cls, d: dict) -> Report:
        tables = ("loads", "stores", "ptx_loads", "ptx_stores")  # JSON turns their keys into strings
        widths = {name: {int(bits): n for bits, n in d[name].items()} for name in tables}
        tile = d["tile"] and tuple(d["tile"])
        return cls(**{**d, **widths, "tile": tile, "accesses": tuple(Access(**a) for a in d["accesses"])})

    def __str__(self) -> str:
        title = ", ".join(x for x in (self.kernel, self.layout, self.format, self.arch) if x)
        lines = [
            f"{title}: {self.registers} registers, {self.spill_bytes} bytes spilled, "
            f"{self.shared_bytes} bytes shared, {self.sass_instructions} instructions"
        ]
        if self.launches is not None:
            lines[0] += f"; {self.launches} launch{'es' * (self.launches != 1)}, {self.programs} programs"
        if self.tile is not None:
            lines[0] += " of {} x {} elements, {} warps".format(*self.tile)
        for a in self.accesses:
            lines.append(f"  {a.count:4} x {a.kind:5} {a.bits:3} bits  {a.space:6}  {a.role:11}  {a.what}  ({a.where})")
        return "\n".join(lines)


def narrowest(accesses, kind: str, role: str) -> int | None:
    """Bits of the narrowest global access of this kind and role, or None."""
    return min((a.bits for a in accesses if (a.kind, a.role, a.space) == (kind, role, "global")), default=None)


def by_width(accesses, kind: str) -> dict[int, int]:
    """``{bits: instructions}`` of the global accesses of one kind, widest first."""
    widths: dict[int, int] = {}
    for a in accesses:
        if a.kind == kind and a.space == "global":
            widths[a.bits] = widths.get(a.bits, 0) + a.count
    return dict(sorted(widths.items(), reverse=True))
