"""Expressions over registers: Python operators write the ops of one straight-line form; and building blocks that several strict functions
share.

A form is written as ordinary arithmetic on ``Value``s; ``Trace.form`` makes of it a ``Function`` of one block whose registers are reused as
soon as a value is dead. Equal expressions are written once, constants come right before their first use, and what nothing needs is dropped.

Coefficients of every polynomial of this package, unless its docstring says otherwise: the minimax fit of the stated function on the
stated interval under the stated weight, found by Lawson's iteration (weighted least squares on 600 Chebyshev nodes, weights multiplied by
the error until it is level), each coefficient from the lowest on rounded to the form's type and the rest fitted again. "2^-28" then is
the largest weighted error of the rounded polynomial.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Final

from wis.kernel.model import Block, Function, Op, RegType, Ret
from wis.kernel.ops import BY_NAME

_FLOATS: Final = {RegType.F32: "<f", RegType.F64: "<d"}
_PARTNER: Final = {RegType.F32: RegType.I32, RegType.F64: RegType.I64, RegType.I32: RegType.F32, RegType.I64: RegType.F64}


class Value:
    """What one op of a trace gives. Integers are signless; ``>>`` and ``<`` of integers are signed, see ``shr``."""

    __slots__ = ("number", "trace", "type")

    def __init__(self, trace: Trace, type_: RegType, number: int) -> None:
        self.trace, self.type, self.number = trace, type_, number

    def like(self, other: Value | float) -> Value:
        """``other`` as a value of this one's type."""
        return other if isinstance(other, Value) else self.trace.constant(self.type, other)

    def _same(self, name: str, *others: Value | float) -> Value:
        return self.trace.op(name, self.type, self, *(self.like(x) for x in others))

    def _test(self, name: str, other: Value | float) -> Value:
        return self.trace.op(name, RegType.PRED, self, self.like(other))

    def _order(self, name: str) -> str:
        return name if self.type in _FLOATS else name + "_s"

    def __add__(self, other: Value | float) -> Value:
        return self._same("add", other)

    def __radd__(self, other: float) -> Value:
        return self.like(other)._same("add", self)

    def __sub__(self, other: Value | float) -> Value:
        return self._same("sub", other)

    def __rsub__(self, other: float) -> Value:
        return self.like(other)._same("sub", self)

    def __mul__(self, other: Value | float) -> Value:
        return self._same("mul", other)

    def __rmul__(self, other: float) -> Value:
        return self.like(other)._same("mul", self)

    def __truediv__(self, other: Value | float) -> Value:
        return self._same("div", other)

    def __rtruediv__(self, other: float) -> Value:
        return self.like(other)._same("div", self)

    def __neg__(self) -> Value:
        return self._same("neg")

    def __abs__(self) -> Value:
        return self._same("abs")

    def __and__(self, other: Value | int) -> Value:
        return self._same("and", other)

    def __or__(self, other: Value | int) -> Value:
        return self._same("or", other)

    def __xor__(self, other: Value | int) -> Value:
        return self._same("xor", other)

    def __invert__(self) -> Value:
        return self._same("not")

    def __lshift__(self, other: Value | int) -> Value:
        return self._same("shl", other)

    def __rshift__(self, other: Value | int) -> Value:
        return self._same("shr_s", other)

    def shr(self, other: Value | int) -> Value:
        """Logical shift to the right."""
        return self._same("shr_u", other)

    def __lt__(self, other: Value | float) -> Value:
        return self._test(self._order("lt"), other)

    def __le__(self, other: Value | float) -> Value:
        return self._test(self._order("le"), other)

    def __gt__(self, other: Value | float) -> Value:
        return self.like(other)._test(self._order("lt"), self)

    def __ge__(self, other: Value | float) -> Value:
        return self.like(other)._test(self._order("le"), self)

    def equals(self, other: Value | float) -> Value:
        return self._test("eq", other)

    def differs(self, other: Value | float) -> Value:
        return self._test("ne", other)

    def sqrt(self) -> Value:
        return self._same("sqrt")

    def rint(self) -> Value:
        return self._same("rint")

    def copysign(self, sign: Value) -> Value:
        return self._same("copysign", sign)

    def to(self, name: str, type_: RegType) -> Value:
        """A conversion: sext, zext, narrow, cvt, s2f, u2f."""
        return self.trace.op(name, type_, self)


def fma(a: Value | float, b: Value | float, c: Value | float) -> Value:
    """a * b + c rounded once; at least one operand is a value."""
    one = next(x for x in (a, b, c) if isinstance(x, Value))
    return one.trace.op("fma", one.type, one.like(a), one.like(b), one.like(c))


def sel(p: Value, a: Value | float, b: Value | float) -> Value:
    """p ? a : b; at least one of a and b is a value."""
    one = next(x for x in (a, b) if isinstance(x, Value))
    return one.trace.op("sel", one.type, p, one.like(a), one.like(b))


def bits(x: Value) -> Value:
    """The bits of a float as an integer."""
    return x.trace.op("reinterpret", _PARTNER[x.type], x)


def real(x: Value) -> Value:
    """The float that an integer's bits are."""
    return x.trace.op("reinterpret", _PARTNER[x.type], x)


class Trace:
    """The ops written so far: (name, operands' numbers, attributes) a value, in order."""

    def __init__(self) -> None:
        self._code: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = []
        self._types: list[RegType] = []
        self._known: dict[tuple[str, tuple[int, ...], tuple[int, ...], RegType], Value] = {}

    def _put(self, name: str, type_: RegType, ins: tuple[int, ...], attrs: tuple[int, ...]) -> Value:
        key = (name, ins, attrs, type_)
        if key not in self._known:
            self._known[key] = Value(self, type_, len(self._code))
            self._code.append((name, ins, attrs))
            self._types.append(type_)
        return self._known[key]

    def op(self, name: str, type_: RegType, *ins: Value) -> Value:
        return self._put(name, type_, tuple(x.number for x in ins), ())

    def argument(self, type_: RegType, number: int) -> Value:
        return self._put("argument", type_, (), (number,))

    def constant(self, type_: RegType, x: float) -> Value:
        """A number rounded to ``type_``, or an integer of that many bits, signed or not."""
        if type_ in _FLOATS:
            layout = _FLOATS[type_]
            pattern = int.from_bytes(struct.pack(layout, x), "little", signed=True)
        else:
            if not isinstance(x, int):
                raise TypeError(f"{x!r} is not an integer")
            pattern = (x + (1 << type_.bits - 1)) % (1 << type_.bits) - (1 << type_.bits - 1)
        return self._put("const", type_, (), (pattern,))

    def form(self, name: str, result: Value, types: tuple[RegType, ...]) -> Function:
        """The ops that ``result`` needs, as a function of the arguments 0 .. len(types) - 1."""
        order = self._order(result.number)
        last = {i: position for position, number in enumerate(order) for i in self._code[number][1]}
        registers, types_of = _Registers(), {}
        place: dict[int, int] = {}
        inputs = tuple(registers.take(t) for t in types)  # never given back: a form does not write to its arguments
        code: list[Op] = []
        for position, number in enumerate(order):
            what, ins, attrs = self._code[number]
            types_of[number] = self._types[number]
            if what == "argument":
                place[number] = inputs[attrs[0]]
                continue
            operands = tuple(place[i] for i in ins)
            for i in dict.fromkeys(ins):
                if last[i] == position and self._code[i][0] != "argument":
                    registers.give(self._types[i], place[i])
            # The result has a register of its own, so that it may be the same as an argument's.
            place[number] = registers.fresh(self._types[number]) if number == result.number else registers.take(self._types[number])
            code.append(Op(BY_NAME[what].code, (place[number],), operands, attrs))
        return Function(name, inputs, (place[result.number],), tuple(registers.types), (Block(tuple(code), Ret()),))

    def _order(self, root: int) -> list[int]:
        """The values that ``root`` needs in the order they were written, each constant right before its first use."""
        needed, todo = {root}, [root]
        while todo:
            for i in self._code[todo.pop()][1]:
                if i not in needed:
                    needed.add(i)
                    todo.append(i)
        order: list[int] = []
        for number in sorted(needed):
            what, ins, _ = self._code[number]
            if what == "const" and number != root:
                continue
            order += [i for i in dict.fromkeys(ins) if self._code[i][0] == "const" and i not in order]
            order.append(number)
        return order


class _Registers:
    def __init__(self) -> None:
        self.types: list[int] = []
        self._free: dict[RegType, list[int]] = {}

    def fresh(self, type_: RegType) -> int:
        self.types.append(int(type_))
        return len(self.types) - 1

    def take(self, type_: RegType) -> int:
        free = self._free.get(type_)
        return free.pop() if free else self.fresh(type_)

    def give(self, type_: RegType, register: int) -> None:
        self._free.setdefault(type_, []).append(register)


def trace(name: str, rule: Callable[..., Value], types: tuple[RegType, ...]) -> Function:
    """The form of ``rule``, a function of values of ``types``."""
    t = Trace()
    return t.form(name, rule(*(t.argument(type_, i) for i, type_ in enumerate(types))), types)


INF: Final = float("inf")
NAN: Final = float("nan")
SIGN: Final = -(1 << 31)


def numbers(text: str) -> tuple[float, ...]:
    """Coefficients in C's hexadecimal form, lowest power first."""
    return tuple(float.fromhex(word) for word in text.split())


def horner(x: Value, coefficients: Sequence[float]) -> Value:
    """The polynomial with these coefficients, lowest power first, by fma."""
    result: Value | float = coefficients[-1]
    for c in coefficients[-2::-1]:
        result = fma(x, result, c)
    assert isinstance(result, Value)
    return result


def with_sign(y: Value, sign: Value) -> Value:
    """``y`` (f32) negated where the integer ``sign`` has its top bit; other bits of ``sign`` must be 0."""
    return real(bits(y) ^ sign)
