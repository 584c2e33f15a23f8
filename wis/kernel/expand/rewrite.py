"""Applies the expansions to a whole kernel."""

from __future__ import annotations

import msgspec

from wis.kernel.expand.forms import form_of, in_place
from wis.kernel.model import Block, Kernel, Math, Op, RegType
from wis.kernel.ops import BY_CODE

__all__ = ["expand", "expanded_ops"]


def expand(flat: Kernel) -> Kernel:
    """``flat`` (no functions) with core ops only, block for block, ops that may trap in the same order.

    Under Math.STRICT named functions become their strict forms; those without one (in a type) stay. The kernel itself when nothing changes.
    """
    if not any(_changes(flat, op) for block in flat.blocks for op in block.code):
        return flat
    registers = _Temporaries(list(flat.regs))
    blocks: list[Block] = []
    lines: list[int] = []
    at = 0
    for block in flat.blocks:
        code: list[Op] = []
        for op in block.code:
            form = form_of(op, flat.regs) if _changes(flat, op) else None
            before = len(code)
            if form is None:
                code.append(op)
            else:
                registers.reuse()
                code += [inner for inner, _ in in_place(form, op, registers.take)]
            lines += flat.lines[at : at + 1] * (len(code) - before)
            at += 1
        blocks.append(Block(tuple(code), block.end))
    return msgspec.structs.replace(flat, regs=tuple(registers.types), blocks=tuple(blocks), lines=tuple(lines))


def expanded_ops(flat: Kernel) -> int:
    """The number of ops of ``expand(flat)``, found without doing it: some ops become a hundred."""
    total = 0
    for block in flat.blocks:
        for op in block.code:
            form = form_of(op, flat.regs) if _changes(flat, op) else None
            total += 1 if form is None else len(form.blocks[0].code)
    return total


def _changes(kernel: Kernel, op: Op) -> bool:
    row = BY_CODE[op.op]
    return not row.core or (row.named and kernel.math == Math.STRICT)


class _Temporaries:
    """Registers behind the kernel's own. No temporary outlives the op it was taken for, so all ops share them."""

    def __init__(self, types: list[int]) -> None:
        self.types = types
        self._made: dict[RegType, list[int]] = {}
        self._used: dict[RegType, int] = {}

    def reuse(self) -> None:
        self._used = {}

    def take(self, type_: RegType) -> int:
        made, used = self._made.setdefault(type_, []), self._used.get(type_, 0)
        if used == len(made):
            self.types.append(int(type_))
            made.append(len(self.types) - 1)
        self._used[type_] = used + 1
        return made[used]
