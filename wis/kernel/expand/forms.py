"""Expansions of non-core ops: a form of one block for its types and attributes, made once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

from wis.kernel.expand import bits, rounding
from wis.kernel.model import Function, Op, RegType, Rounding
from wis.kernel.ops import BY_CODE
from wis.kernel.strict import strict_form
from wis.kernel.strict.trace import Trace

__all__ = ["form_of", "in_place"]

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
