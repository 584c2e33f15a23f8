"""Rewrites kernels to core ops only: every other op of the table is replaced inside of its block, in a straight line, by a form of one
block for its types and attributes, which is made once.

Bit fields, tables, byte permutations and funnel shifts become shifts and masks, by the rules below; ops with a rounding of their own have
theirs in ``rounding``. Shifts past the width give 0, which most rules for bits rely on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Final

import msgspec

from wis.kernel.expand import rounding
from wis.kernel.model import Block, Function, Kernel, Math, Op, RegType, Rounding
from wis.kernel.ops import BY_CODE
from wis.kernel.strict import strict_form
from wis.kernel.strict.trace import Trace, Value, sel

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
    if name in _OF_BITS:
        result = _OF_BITS[name](*attrs)(*values)
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


def _amount(x: Value, like: Value) -> Value:
    """An i32 position or length, mod 256, as an amount for values of ``like``'s type."""
    low = x & 255
    return low if like.type is RegType.I32 else low.to("zext", like.type)


def _ones(like: Value, count: Value) -> Value:
    """So many low bits set; all from the width on."""
    return ~(like.like(-1) << count)


def _bfe_u(x: Value, position: Value, length: Value) -> Value:
    return x.shr(_amount(position, x)) & _ones(x, _amount(length, x))


def _bfe_s(x: Value, position: Value, length: Value) -> Value:
    """The field's top end to the top of the register, then arithmetic right; a field that reaches beyond the register stays where it is."""
    width = x.type.bits
    by, count = _amount(position, x), _amount(length, x)
    above = x.like(width) - x.trace.op("min_s", x.type, by + count, x.like(width))
    return sel(count.equals(0), x.like(0), (x << above) >> (above + by))


def _bfi(field: Value, into: Value, position: Value, length: Value) -> Value:
    by = _amount(position, field)
    place = _ones(field, _amount(length, field)) << by
    return ((field << by) & place) | (into & ~place)


def _lop2(table: int, b: Value, c: Value) -> Value:
    """The function of two bits whose result for (b, c) is bit 2b + c of ``table``."""
    if table in (0, 15):
        return b.like(-(table & 1))
    first = (
        lambda: ~(b | c), lambda: c & ~b, lambda: ~b, lambda: b & ~c, lambda: ~c, lambda: b ^ c, lambda: ~(b & c),
        lambda: b & c, lambda: ~(b ^ c), lambda: c, lambda: c | ~b, lambda: b, lambda: b | ~c, lambda: b | c,
    )  # fmt: skip
    return first[table - 1]()


def _lop3(table: int) -> Callable[..., Value]:
    """Chosen by a between two functions of (b, c)."""

    def rule(a: Value, b: Value, c: Value) -> Value:
        low, high = table & 15, table >> 4
        if low == high:
            return _lop2(low, b, c)
        chosen = a & _lop2(low ^ high, b, c)
        return chosen if low == 0 else _lop2(low, b, c) ^ chosen

    return rule


_BYTES: Final = {  # of modes 1 to 6: for byte k of the result, hexadecimal digit c tells which byte of (b:a) it is
    1: (0x3210, 0x4321, 0x5432, 0x6543),
    2: (0x3210, 0x2107, 0x1076, 0x0765),
    3: (0x3210, 0x3210, 0x3210, 0x3210),
    4: (0x3210, 0x3211, 0x3222, 0x3333),
    5: (0x0000, 0x1110, 0x2210, 0x3210),
    6: (0x2020, 0x3131, 0x2020, 0x3131),
}


def _pair(a: Value, b: Value) -> Value:
    """(b:a) as 64 bits."""
    return (b.to("zext", RegType.I64) << 32) | a.to("zext", RegType.I64)


def _prmt(mode: int) -> Callable[..., Value]:
    def rule(a: Value, b: Value, c: Value) -> Value:
        both, result = _pair(a, b), a.like(0)
        for k in range(4):
            if mode:
                chosen = c.like(_BYTES[mode][k]).shr((c & 3) << 2) & 7
            else:
                chosen = c.shr(4 * k) & 7
            byte = both.shr((chosen << 3).to("zext", RegType.I64)).to("narrow", RegType.I32)
            if not mode:
                byte = sel((c & (8 << 4 * k)).equals(0), byte, (byte << 24) >> 31)
            result = result | ((byte & 255) << 8 * k)
        return result

    return rule


def _turn(wrap: int, c: Value) -> Value:
    low = c & 31 if wrap else c.trace.op("min_u", c.type, c, c.like(32))
    return low.to("zext", RegType.I64)


def _shf_l(wrap: int) -> Callable[..., Value]:
    return lambda a, b, c: (_pair(a, b) << _turn(wrap, c)).shr(32).to("narrow", RegType.I32)


def _shf_r(wrap: int) -> Callable[..., Value]:
    return lambda a, b, c: _pair(a, b).shr(_turn(wrap, c)).to("narrow", RegType.I32)


def _highest(x: Value) -> Value:
    leading = x.trace.op("clz", RegType.I32, x)
    return leading.like(x.type.bits - 1) - leading


_OF_BITS: Final[dict[str, Callable[..., Callable[..., Value]]]] = {
    "bfe_s": lambda: _bfe_s,
    "bfe_u": lambda: _bfe_u,
    "bfi": lambda: _bfi,
    "lop3": _lop3,
    "prmt": _prmt,
    "shf_l": _shf_l,
    "shf_r": _shf_r,
    "bfind_s": lambda: lambda x: _highest(x ^ (x >> (x.type.bits - 1))),
    "bfind_u": lambda: _highest,
}
"""By name: the rule for these attributes."""
