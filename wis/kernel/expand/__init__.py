"""Rewrites kernels to core ops only: every other op of the table is replaced inside of its block, in a straight line, by a form of one
block for its types and attributes, which is made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

import msgspec

from wis.kernel.expand import bits, rounding
from wis.kernel.model import Block, Function, Kernel, Math, Op, RegType, Rounding
from wis.kernel.ops import BY_CODE
from wis.kernel.strict import strict_form
from wis.kernel.strict.trace import Trace

__all__ = ["expand", "expanded_ops", "form_of", "in_place"]

_TO_NEAREST: Final = {
    "add_r": "add", "mul_r": "mul", "fma_r": "fma", "div_r": "div", "sqrt_r": "sqrt", "s2f_r": "s2f", "u2f_r": "u2f",
}  # fmt: skip


def form_of(op: Op, regs: Sequence[int]) -> Function | None:
    """The form of a named function or an op that is not core, in a kernel with registers of types ``regs``; None when it has none."""
    row = BY_CODE[op.op]
    if row.named:
        return strict_form(row.name, RegType(regs[op.ins[0]]))
    return _form(row.name, tuple(RegType(regs[r]) for r in op.ins), RegType(regs[op.outs[0]]), op.attrs)


@cache
def _form(name: str, types: tuple[RegType, ...], target: RegType, attrs: tuple[int, ...]) -> Function:
    t = Trace()
    values = [t.argument(type_, i) for i, type_ in enumerate(types)]
    if name in bits.RULES:
        result = bits.RULES[name](*attrs)(*values)
    elif attrs[0] == Rounding.NEAREST and name in _TO_NEAREST:
        result = t.op(_TO_NEAREST[name], target, *values)
    else:
        result = rounding.RULES[name](attrs[0], target)(*values)
    if any(result is value for value in values):
        result = t.op("mov", target, result)  # a form writes its result
    return t.form(name, result, types)


def in_place(form: Function, op: Op, temporary: Callable[[RegType], int]) -> Iterator[tuple[Op, RegType]]:
    """The form's ops with ``op``'s registers, each with the type of its output. ``temporary`` gives registers for the rest.

    A form writes its result last and never its operands, so one register may be several of ``op``'s.
    """
    place = dict(zip(form.ins, op.ins, strict=True)) | dict(zip(form.outs, op.outs, strict=True))
    for r, type_ in enumerate(form.regs):
        if r not in place:
            place[r] = temporary(RegType(type_))
    for inner in form.blocks[0].code:
        moved = Op(inner.op, tuple(place[r] for r in inner.outs), tuple(place[r] for r in inner.ins), inner.attrs)
        yield moved, RegType(form.regs[inner.outs[0]])


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
