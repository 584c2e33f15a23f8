"""Prints kernels as text."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import count
from typing import Final

from wis.errors import Finding
from wis.kernel.model import (
    Access,
    Bar,
    Block,
    Br,
    BufferParam,
    Call,
    Cbr,
    Kernel,
    Math,
    Op,
    RegType,
    Ret,
    ScalarParam,
    Switch,
    Sync,
    Terminator,
)
from wis.kernel.ops import BY_CODE
from wis.kernel.text.attributes import attributes_text
from wis.kernel.text.words import dtype_text, name_text, reg_type_text, registers_text

__all__ = ["print_kernel", "ACCESS", "HEX_LINE", "constant_type"]

ACCESS: Final = {Access.READ: "r", Access.WRITE: "w", Access.READ_WRITE: "rw"}
HEX_LINE: Final = 64
"""Bytes in a line of hex."""


class _Lines:
    """Lines of text, each with the findings about its place."""

    def __init__(self, findings: Iterable[Finding]) -> None:
        self._notes: dict[str, list[str]] = defaultdict(list)
        for finding in findings:
            place, _, number = finding.place.rpartition(" ")
            at_regs = place.endswith("reg")  # a register's type stands in the line of all of them
            note = f"[{finding.rule}] {f'reg {number}: ' if at_regs else ''}{finding.text}"
            self._notes[f"{place}s" if at_regs else finding.place].append(note)
        self._lines: list[tuple[str, list[str]]] = []

    def add(self, text: str, place: str = "") -> None:
        self._lines.append((text, self._notes.pop(place, [])))

    def text(self) -> str:
        """All lines; what was found about places without a line is said in the first one."""
        self._lines[0][1].extend(note for notes in self._notes.values() for note in notes)
        return "".join("  ; error: ".join((text, *notes)) + "\n" for text, notes in self._lines)


def print_kernel(kernel: Kernel, findings: Iterable[Finding] = ()) -> str:
    """The text of ``kernel``. Works on kernels that break rules."""
    out = _Lines(findings)
    out.add(f"kernel {kernel.version} {name_text(kernel.name)}", "kernel")
    out.add(f"math {Math(kernel.math).name.lower() if kernel.math in Math._value2member_map_ else f'#{kernel.math}'}")
    out.add(f"threads {kernel.threads_max}")
    for number, param in enumerate(kernel.params):
        out.add(f"param {_param_text(param)}", f"param {number}")
    for number, array in enumerate(kernel.shared):
        out.add(f"shared {dtype_text(array.dtype)}[{array.n}]", f"shared {number}")
    for word, value in (("dynamic", kernel.dynamic), ("local", kernel.local_bytes)):
        if value:
            out.add(f"{word} {value}")
    for first in range(0, len(kernel.constants), HEX_LINE):
        out.add(f"constants {kernel.constants[first : first + HEX_LINE].hex()}")
    if kernel.file:
        out.add(f"file {name_text(kernel.file)}")
    ops = [op for blocks in (kernel.blocks, *(f.blocks for f in kernel.functions)) for block in blocks for op in block.code]
    beside = len(kernel.lines) == len(ops) and any(kernel.lines)
    if kernel.lines and not beside:
        out.add(" ".join(["lines", *map(str, kernel.lines)]), "lines")
    lines = iter(kernel.lines) if beside else iter([0] * len(ops))
    _print_body(out, "", kernel.regs, kernel.blocks, lines)
    for number, function in zip(count(), kernel.functions, strict=False):
        head = f"function {number} {name_text(function.name)} ({registers_text(function.ins)}) -> ({registers_text(function.outs)})"
        out.add(head, f"function {number}")
        _print_body(out, f"function {number} ", function.regs, function.blocks, lines)
    return out.text()


def _print_body(out: _Lines, place: str, regs: Sequence[int], blocks: Sequence[Block], lines: Iterable[int]) -> None:
    source = iter(lines)
    out.add(" ".join(["regs", *map(reg_type_text, regs)]), f"{place}regs")
    for b, block in enumerate(blocks):
        out.add(f"block {b}")
        for i, op in enumerate(block.code):
            line = next(source)
            out.add(f"  {_op_text(regs, op)}{f' @{line}' if line else ''}", f"{place}block {b} op {i}")
        out.add(f"  {_end_text(block.end)}", f"{place}block {b} end")


def _param_text(param: BufferParam | ScalarParam) -> str:
    if isinstance(param, ScalarParam):
        return reg_type_text(param.reg_type)
    access = ACCESS[Access(param.access)] if param.access in Access._value2member_map_ else f"#{param.access}"
    return f"buf {dtype_text(param.dtype)} {access}"


def _end_text(end: Terminator) -> str:
    match end:
        case Br(target):
            return f"br {target}"
        case Bar(target):
            return f"bar {target}"
        case Cbr(pred, yes, no):
            return f"cbr r{pred}, {yes}, {no}"
        case Switch(index, targets, default):
            return f"switch r{index}, [{', '.join(map(str, targets))}], {default}"
        case Call(function, ins, outs, target):
            return f"call {function} ({registers_text(ins)}) -> ({registers_text(outs)}), {target}"
        case Sync(target, barrier, n, arrive) if arrive in (0, 1) and n >= -1:
            return f"{'arrive' if arrive else 'sync'} {target}, {barrier}{f', r{n}' if n >= 0 else ''}"
        case Sync(target, barrier, n, arrive):
            return f"sync #{target} {barrier} {n} {arrive}"
        case Ret():
            return "ret"


def _op_text(regs: Sequence[int], op: Op) -> str:
    row = BY_CODE.get(op.op)
    words = f"#{' '.join(map(str, op.attrs))}" if op.attrs else ""
    if row is not None and len(op.attrs) == len(row.attrs):
        said = attributes_text(row, op.attrs, constant_type(regs, op.outs)) if op.attrs else ""
        words = words if said is None else said
    result = f"{registers_text(op.outs)} = " if op.outs else ""
    head = row.name if row is not None else f"op#{op.op}"
    return f"{result}{head}{f'({words})' if words else ''} {registers_text(op.ins)}".rstrip()


def constant_type(regs: Sequence[int], outs: Sequence[int]) -> RegType | None:
    """The type of a constant: its one register's, when that exists."""
    code = regs[outs[0]] if len(outs) == 1 and 0 <= outs[0] < len(regs) else -1
    return RegType(code) if code in RegType._value2member_map_ else None
