"""Infers the register types of PTX registers; untyped ones (``.b32``) by their uses, so that few bits are reinterpreted."""

from __future__ import annotations

from typing import Final

from wis.frontends.ptx.syntax import Address, Instruction, Not, Operand, Pair, PtxError, Register, Routine, Vector
from wis.kernel.model import RegType

INTEGER: Final = {8: RegType.I16, 16: RegType.I16, 32: RegType.I32, 64: RegType.I64}
"""The integer register for a width."""
BITS: Final = {
    **{f"{kind}{bits}": bits for kind in "bus" for bits in (8, 16, 32, 64)},
    "f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32, "u16x2": 32, "s16x2": 32, "pred": 1,
}  # fmt: skip
FIXED: Final = {
    "pred": RegType.PRED, "f16": RegType.F16, "bf16": RegType.BF16, "f32": RegType.F32, "f64": RegType.F64, "f16x2": RegType.I32,
    "bf16x2": RegType.I32, "b8": RegType.I16, "u8": RegType.I16, "s8": RegType.I16,
}  # fmt: skip
_FLOATS: Final = {"f16": RegType.F16, "bf16": RegType.BF16, "f32": RegType.F32, "f64": RegType.F64}
_KINDS: Final = (RegType.F16, RegType.BF16, RegType.F32, RegType.F64)
_SAME: Final = frozenset({"mov", "selp", "shfl"})
_INDIFFERENT: Final = frozenset({"ld", "ldu", "st", "call", "bra", "ret", "bar", "barrier"})


class _Votes:
    """Open registers in classes that should have one type; votes are ``[integer, f16, bf16, f32, f64]``."""

    def __init__(self) -> None:
        self.parent: dict[Register, Register] = {}
        self.votes: dict[Register, dict[RegType, int]] = {}

    def find(self, register: Register) -> Register:
        parent = self.parent.get(register, register)
        while parent is not register:
            register, parent = parent, self.parent.get(parent, parent)
        return register

    def join(self, a: Register, b: Register) -> None:
        a, b = self.find(a), self.find(b)
        if a is not b:
            self.parent[a] = b
            mine, theirs = self.votes.pop(a, {}), self.votes.setdefault(b, {})
            for kind, n in mine.items():
                theirs[kind] = theirs.get(kind, 0) + n

    def vote(self, register: Register, kind: RegType, weight: int = 2) -> None:
        votes = self.votes.setdefault(self.find(register), {})
        votes[kind] = votes.get(kind, 0) + weight


def choose(routine: Routine) -> dict[Register, RegType]:
    """The type of each register that the code of ``routine`` names."""
    votes = _Votes()
    seen: dict[Register, int] = {}
    for ins in routine.code:
        registers = [r for arg in ins.args for r in registers_of(arg)]
        others = [] if ins.guard is None else [ins.guard]
        for given in ins.lists or ():
            others += [r for arg in given for r in registers_of(arg)]
        for register in (*registers, *others):
            if register not in seen:
                if register.type not in BITS:
                    raise PtxError(ins.line, f"registers of type .{register.type} are not supported")
                seen[register] = BITS[register.type]
        for arg in ins.args:
            if isinstance(arg, Address) and isinstance(arg.base, Register):
                registers.remove(arg.base)
                votes.vote(arg.base, INTEGER[max(16, seen[arg.base])])
        _ballot(votes, seen, ins, registers)
    return {
        register: FIXED[register.type] if register.type in FIXED else _elected(votes, register, bits) for register, bits in seen.items()
    }


def registers_of(arg: Operand) -> list[Register]:
    """The registers that an operand names."""
    if isinstance(arg, Register):
        return [arg]
    if isinstance(arg, Vector):
        return [r for item in arg.items for r in registers_of(item)]
    if isinstance(arg, Address):
        return [arg.base] if isinstance(arg.base, Register) else []
    if isinstance(arg, Not):
        return [arg.register]
    if isinstance(arg, Pair):
        return [*registers_of(arg.first), *registers_of(arg.second)]
    return []


def _ballot(votes: _Votes, seen: dict[Register, int], ins: Instruction, registers: list[Register]) -> None:
    if ins.op in _INDIFFERENT or not ins.mods:
        kind = _FLOATS.get(ins.mods[-1]) if ins.mods else None
        if kind is not None:
            _vote_type(votes, seen, registers, ins.mods[-1], 1)
        return
    if ins.op in _SAME and not any(isinstance(arg, Vector) for arg in ins.args):
        _same(votes, ins, [r for r in registers if r.type != "pred"][: 3 if ins.op == "selp" else 2])
        return
    last = ins.mods[-1]
    if ins.op in ("cvt", "set", "slct") and len(ins.mods) > 1 and registers:
        to = ins.mods[-2]
        _vote_type(votes, seen, registers[:1], to)
        _vote_type(votes, seen, registers[1:], last)
    else:
        _vote_type(votes, seen, registers, last)


def _same(votes: _Votes, ins: Instruction, registers: list[Register]) -> None:
    opened = [r for r in registers if r.type not in FIXED]
    for register in opened[1:]:
        votes.join(opened[0], register)
    for register in registers:
        if register.type in _FLOATS and opened:
            votes.vote(opened[0], _FLOATS[register.type])
    if ins.mods[-1] in _FLOATS and opened:
        votes.vote(opened[0], _FLOATS[ins.mods[-1]], 1)


def _vote_type(votes: _Votes, seen: dict[Register, int], registers: list[Register], type_: str, weight: int = 2) -> None:
    kind = _FLOATS.get(type_)
    for register in registers:
        if register.type in FIXED:
            continue
        if kind is None or seen[register] > kind.bits:
            votes.vote(register, INTEGER[seen[register]], weight)
        elif kind.bits == seen[register]:
            votes.vote(register, kind, weight)


def _elected(votes: _Votes, register: Register, bits: int) -> RegType:
    own = votes.votes.get(votes.find(register), {})
    integer = INTEGER[bits]
    best, most = integer, own.get(integer, 0)
    for kind in _KINDS:
        if own.get(kind, 0) > most and kind.bits == bits:
            best, most = kind, own[kind]
    return best
