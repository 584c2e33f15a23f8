"""Lowers integer arithmetic and bit operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wis.frontends.ptx.classes import BITS, INTEGER
from wis.frontends.ptx.floats import float_arithmetic, half_bits
from wis.frontends.ptx.lowering import FLOATS, RoutineLowering, lowers, pair
from wis.frontends.ptx.syntax import Instruction, Number, Operand
from wis.kernel.model import RegType

_I16, _I32, _I64, _PRED = RegType.I16, RegType.I32, RegType.I64, RegType.PRED
_FLOAT_MODS: Final = "rn rz rm rp ftz sat"
_FLOAT_TYPES: Final = frozenset({*FLOATS, "f16x2", "bf16x2"})


def _is_float(type_: str) -> bool:
    return type_ in _FLOAT_TYPES


def _ints(low: RoutineLowering, ins: Instruction) -> tuple[RegType, list[int]]:
    type_ = INTEGER[BITS[ins.mods[-1]]]
    return type_, [low.read(arg, type_) for arg in ins.args[1:]]


def _signed(ins: Instruction) -> bool:
    return ins.mods[-1][0] == "s"


def packed(low: RoutineLowering, ins: Instruction, one: Callable[[list[int]], int]) -> None:
    """An operation on both halves of 32-bit operands."""
    words = [low.read(arg, _I32) for arg in ins.args[1:]]
    sixteen = low.const(_I32, 16)
    halves = [
        one([low.op("narrow", _I16, low.op("shr_u", _I32, word, sixteen) if half else word) for word in words]) for half in (False, True)
    ]
    lower, upper = (low.op("zext", _I32, half) for half in halves)
    low.emit("or", [low.write(ins.args[0], _I32)], [lower, low.op("shl", _I32, upper, sixteen)])


@lowers("add sub", f"{_FLOAT_MODS} cc", 3)
def _add(low: RoutineLowering, ins: Instruction) -> None:
    type_ = ins.mods[-1]
    if _is_float(type_):
        float_arithmetic(low, ins, ins.op)
    elif type_.endswith("16x2"):
        packed(low, ins, lambda ab: low.op(ins.op, _I16, *ab))
    elif "cc" in ins.mods:
        _with_carry(low, ins, *_ints(low, ins)[1], use=False)
    elif "sat" in ins.mods:
        _saturated(low, ins)
    else:
        kind, values = _ints(low, ins)
        low.emit(ins.op, [low.write(ins.args[0], kind)], values)


def _saturated(low: RoutineLowering, ins: Instruction) -> None:
    a, b = (low.op("sext", _I64, value) for value in _ints(low, ins)[1])
    least = low.op("min_s", _I64, low.op(ins.op, _I64, a, b), low.const(_I64, (1 << 31) - 1))
    low.emit("narrow", [low.write(ins.args[0], _I32)], [low.op("max_s", _I64, least, low.const(_I64, -1 << 31))])


@lowers("addc subc", "cc", 3)
def _addc(low: RoutineLowering, ins: Instruction) -> None:
    _with_carry(low, ins, *_ints(low, ins)[1], use=True)


def _with_carry(low: RoutineLowering, ins: Instruction, a: int, b: int, *, use: bool) -> None:
    """Sum or difference, with the carry (borrow) of the instruction before when ``use``, and its own when the instruction says .cc."""
    type_ = low.code.types[a]
    subtract = ins.op.startswith("sub")
    name = "sub" if subtract else "add"
    result = low.op(name, type_, a, b)
    carries = [low.op("lt_u", _PRED, a, b) if subtract else low.op("lt_u", _PRED, result, a)]
    if use:
        if low.carry is None:
            raise low.fail("there is no carry: the instruction that makes it must stand before, in the same block")
        carried = low.op("sel", type_, low.carry, low.const(type_, 1), low.const(type_, 0))
        before, result = result, low.op(name, type_, result, carried)
        carries.append(low.op("lt_u", _PRED, before, carried) if subtract else low.op("lt_u", _PRED, result, carried))
    if "cc" in ins.mods:
        carry = low.op("or", _PRED, *carries) if use else carries[0]
        if low.guard is not None and low.carry is not None:  # threads whose guard is false keep the one before
            pred, negated = low.guard
            carry = low.op("sel", _PRED, pred, *((low.carry, carry) if negated else (carry, low.carry)))
        low.carry = carry
    low.put(ins.args[0], result)


@lowers("mul", f"{_FLOAT_MODS} lo hi wide", 3)
def _mul(low: RoutineLowering, ins: Instruction) -> None:
    type_ = ins.mods[-1]
    if _is_float(type_):
        float_arithmetic(low, ins, "mul")
    else:
        low.put(ins.args[0], _product(low, ins, *ins.args[1:3]))


def _product(low: RoutineLowering, ins: Instruction, a: Operand, b: Operand) -> int:
    type_ = INTEGER[BITS[ins.mods[-1]]]
    signed = _signed(ins)
    x, y = low.read(a, type_), low.read(b, type_)
    if "wide" in ins.mods:
        if type_ is _I64:
            raise low.fail("there are no products of 128 bits")
        wide = INTEGER[type_.bits * 2]
        return low.op("mul", wide, low.extend(x, wide, signed=signed), low.extend(y, wide, signed=signed))
    if "hi" in ins.mods:
        return low.op("mul_hi_s" if signed else "mul_hi_u", type_, x, y)
    return low.op("mul", type_, x, y)


@lowers("mad", f"{_FLOAT_MODS} lo hi wide cc", 4)
def _mad(low: RoutineLowering, ins: Instruction) -> None:
    type_ = ins.mods[-1]
    if _is_float(type_):
        float_arithmetic(low, ins, "fma")
        return
    if "sat" in ins.mods:
        raise low.fail("mad with .sat is not supported", "saturate the sum by itself")
    product = _product(low, ins, *ins.args[1:3])
    c = low.read(ins.args[3], low.code.types[product])
    if "cc" in ins.mods:
        _with_carry(low, ins, product, c, use=False)
    else:
        low.emit("add", [low.write(ins.args[0], low.code.types[product])], [product, c])


@lowers("madc", "lo hi cc", 4)
def _madc(low: RoutineLowering, ins: Instruction) -> None:
    product = _product(low, ins, *ins.args[1:3])
    _with_carry(low, ins, product, low.read(ins.args[3], low.code.types[product]), use=True)


@lowers("mul24 mad24", "lo hi", (3, 4))
def _mul24(low: RoutineLowering, ins: Instruction) -> None:
    """Low or high 32 bits of the 48-bit product of the operands' low 24 bits."""
    shift = "shr_s" if _signed(ins) else "shr_u"
    eight = low.const(_I32, 8)
    a, b = (low.op(shift, _I32, low.op("shl", _I32, low.read(arg, _I32), eight), eight) for arg in ins.args[1:3])
    if "hi" in ins.mods:
        x, y = (low.extend(value, _I64, signed=_signed(ins)) for value in (a, b))
        product = low.op("narrow", _I32, low.op("shr_u", _I64, low.op("mul", _I64, x, y), low.const(_I64, 16)))
    else:
        product = low.op("mul", _I32, a, b)
    if ins.op == "mad24":
        product = low.op("add", _I32, product, low.read(ins.args[3], _I32))
    low.put(ins.args[0], product)


@lowers("div", f"{_FLOAT_MODS} approx full", 3)
def _div(low: RoutineLowering, ins: Instruction) -> None:
    if _is_float(ins.mods[-1]):
        float_arithmetic(low, ins, "div")
    else:
        _plain(low, ins, "div")


@lowers("rem", "", 3)
def _rem(low: RoutineLowering, ins: Instruction) -> None:
    _plain(low, ins, "rem")


def _plain(low: RoutineLowering, ins: Instruction, name: str) -> None:
    kind, values = _ints(low, ins)
    low.emit(f"{name}_{'s' if _signed(ins) else 'u'}", [low.write(ins.args[0], kind)], values)


@lowers("min max", f"{_FLOAT_MODS} NaN xorsign abs relu", (3, 4))
def _least(low: RoutineLowering, ins: Instruction) -> None:
    type_ = ins.mods[-1]
    if _is_float(type_):
        float_arithmetic(low, ins, ins.op)
        return
    name = f"{ins.op}_{'s' if _signed(ins) else 'u'}"

    def one(ab: list[int]) -> int:
        kind = low.code.types[ab[0]]
        least = low.op(name, kind, *ab[:2])
        if len(ab) > 2:
            least = low.op(name, kind, least, ab[2])
        return low.op("max_s", kind, least, low.const(kind, 0)) if "relu" in ins.mods else least

    if type_.endswith("16x2"):
        packed(low, ins, one)
    else:
        low.put(ins.args[0], one(_ints(low, ins)[1]))


@lowers("abs neg", "ftz", 2)
def _unary(low: RoutineLowering, ins: Instruction) -> None:
    type_ = ins.mods[-1]
    if type_ in ("f16", "bf16", "f16x2", "bf16x2"):
        half_bits(low, ins, ins.op)
        return
    kind = FLOATS.get(type_) or INTEGER[BITS[type_]]
    low.emit(ins.op, [low.write(ins.args[0], kind)], [low.read(ins.args[1], kind)])


@lowers("sad", "", 4)
def _sad(low: RoutineLowering, ins: Instruction) -> None:
    kind, (a, b, c) = _ints(low, ins)
    sign = "s" if _signed(ins) else "u"
    distance = low.op("sub", kind, low.op(f"max_{sign}", kind, a, b), low.op(f"min_{sign}", kind, a, b))
    low.emit("add", [low.write(ins.args[0], kind)], [distance, c])


# -- bits ------------------------------------------------------------------------------------------------------------------------------


@lowers("and or xor", "", 3)
def _logic(low: RoutineLowering, ins: Instruction) -> None:
    kind = _PRED if ins.mods[-1] == "pred" else INTEGER[BITS[ins.mods[-1]]]
    values = [low.read(arg, kind) for arg in ins.args[1:]]
    low.emit(ins.op, [low.write(ins.args[0], kind)], values)


@lowers("not", "", 2)
def _not(low: RoutineLowering, ins: Instruction) -> None:
    kind = _PRED if ins.mods[-1] == "pred" else INTEGER[BITS[ins.mods[-1]]]
    low.emit("not", [low.write(ins.args[0], kind)], [low.read(ins.args[1], kind)])


@lowers("cnot", "", 2)
def _cnot(low: RoutineLowering, ins: Instruction) -> None:
    kind, (a,) = _ints(low, ins)
    zero = low.op("eq", _PRED, a, low.const(kind, 0))
    low.emit("sel", [low.write(ins.args[0], kind)], [zero, low.const(kind, 1), low.const(kind, 0)])


@lowers("shl shr", "", 3)
def _shift(low: RoutineLowering, ins: Instruction) -> None:
    kind = INTEGER[BITS[ins.mods[-1]]]
    name = "shl" if ins.op == "shl" else "shr_s" if _signed(ins) else "shr_u"
    amount = low.read(ins.args[2], _I32)
    if kind is _I64:
        amount = low.extend(amount, _I64, signed=False)
    elif kind is _I16:
        amount = low.op("narrow", _I16, low.op("min_u", _I32, amount, low.const(_I32, 16)))
    low.emit(name, [low.write(ins.args[0], kind)], [low.read(ins.args[1], kind), amount])


@lowers("shf", "l r wrap clamp", 4)
def _funnel(low: RoutineLowering, ins: Instruction) -> None:
    values = [low.read(arg, _I32) for arg in ins.args[1:]]
    low.emit("shf_l" if "l" in ins.mods else "shf_r", [low.write(ins.args[0], _I32)], values, (int("wrap" in ins.mods),))


@lowers("popc clz", "", 2)
def _count(low: RoutineLowering, ins: Instruction) -> None:
    low.emit(ins.op, [low.write(ins.args[0], _I32)], [low.read(ins.args[1], INTEGER[BITS[ins.mods[-1]]])])


@lowers("brev", "", 2)
def _brev(low: RoutineLowering, ins: Instruction) -> None:
    kind, values = _ints(low, ins)
    low.emit("brev", [low.write(ins.args[0], kind)], values)


@lowers("bfind", "shiftamt", 2)
def _bfind(low: RoutineLowering, ins: Instruction) -> None:
    kind, (a,) = _ints(low, ins)
    name = "bfind_s" if _signed(ins) else "bfind_u"
    if "shiftamt" not in ins.mods:
        low.emit(name, [low.write(ins.args[0], _I32)], [a])
        return
    place = low.op(name, _I32, a)
    none = low.op("eq", _PRED, place, low.const(_I32, -1))
    low.put(ins.args[0], low.op("sel", _I32, none, place, low.op("sub", _I32, low.const(_I32, kind.bits - 1), place)))


@lowers("bfe", "", 4)
def _bfe(low: RoutineLowering, ins: Instruction) -> None:
    kind = INTEGER[BITS[ins.mods[-1]]]
    values = [low.read(ins.args[1], kind), *(low.read(arg, _I32) for arg in ins.args[2:])]
    low.emit("bfe_s" if _signed(ins) else "bfe_u", [low.write(ins.args[0], kind)], values)


@lowers("bfi", "", 5)
def _bfi(low: RoutineLowering, ins: Instruction) -> None:
    kind = INTEGER[BITS[ins.mods[-1]]]
    values = [low.read(ins.args[1], kind), low.read(ins.args[2], kind), *(low.read(arg, _I32) for arg in ins.args[3:])]
    low.emit("bfi", [low.write(ins.args[0], kind)], values)


@lowers("szext", "clamp wrap", 3)
def _szext(low: RoutineLowering, ins: Instruction) -> None:
    """Sign or zero extension from the low b bits: a bit field at position 0."""
    a, b = (low.read(arg, _I32) for arg in ins.args[1:])
    length = low.op("and", _I32, b, low.const(_I32, 31)) if "wrap" in ins.mods else low.op("min_u", _I32, b, low.const(_I32, 32))
    low.emit("bfe_s" if _signed(ins) else "bfe_u", [low.write(ins.args[0], _I32)], [a, low.const(_I32, 0), length])


@lowers("bmsk", "clamp wrap", 3)
def _bmsk(low: RoutineLowering, ins: Instruction) -> None:
    """b bits set, from position a upwards."""
    a, b = (low.read(arg, _I32) for arg in ins.args[1:])
    if "wrap" in ins.mods:
        a, b = (low.op("and", _I32, value, low.const(_I32, 31)) for value in (a, b))
    one = low.const(_I32, 1)
    ones = low.op("sub", _I32, low.op("shl", _I32, one, b), one)
    low.emit("shl", [low.write(ins.args[0], _I32)], [ones, a])


_PRMT_MODES: Final = {"f4e": 1, "b4e": 2, "rc8": 3, "ecl": 4, "ecr": 5, "rc16": 6}


@lowers("prmt", " ".join(_PRMT_MODES), 4)
def _prmt(low: RoutineLowering, ins: Instruction) -> None:
    mode = next((_PRMT_MODES[m] for m in ins.mods if m in _PRMT_MODES), 0)
    values = [low.read(arg, _I32) for arg in ins.args[1:]]
    low.emit("prmt", [low.write(ins.args[0], _I32)], values, (mode,))


@lowers("lop3", "or and xor", (5, 6))
def _lop3(low: RoutineLowering, ins: Instruction) -> None:
    target, second = pair(ins.args[0])
    table = ins.args[4]
    if not isinstance(table, Number) or not 0 <= table.value <= 255:
        raise low.fail("the table of lop3 is a number from 0 to 255")
    values = [low.read(arg, _I32) for arg in ins.args[1:4]]
    result = low.op("lop3", _I32, *values, attrs=(table.value,))
    if len(ins.args) == 6:
        nonzero = low.op("ne", _PRED, result, low.const(_I32, 0))
        low.put(second, low.op(ins.mods[0], _PRED, nonzero, low.read(ins.args[5], _PRED)))
    low.put(target, result)


@lowers("dp4a dp2a", "lo hi", 4)
def _dot(low: RoutineLowering, ins: Instruction) -> None:
    """c plus the products of four bytes, or of two 16-bit halves of a with two bytes of b."""
    signed = [m[0] == "s" for m in ins.mods if m[0] in "su"]
    a, b, total = (low.read(arg, _I32) for arg in ins.args[1:])
    wide = ins.op == "dp2a"
    first = 2 if "hi" in ins.mods else 0
    for k in range(2 if wide else 4):
        x = _field(low, a, k * (16 if wide else 8), 16 if wide else 8, signed[0])
        y = _field(low, b, (first + k) * 8, 8, signed[-1])
        total = low.op("add", _I32, total, low.op("mul", _I32, x, y))
    low.put(ins.args[0], total)


def _field(low: RoutineLowering, word: int, position: int, length: int, signed: bool) -> int:
    return low.op("bfe_s" if signed else "bfe_u", _I32, word, low.const(_I32, position), low.const(_I32, length))


@lowers("fns", "", 4, effect=True)
def _fns(low: RoutineLowering, ins: Instruction) -> None:
    """The place of the n-th set bit at or beyond ``base``: upwards for n > 0, downwards for n < 0, ``base`` itself for 0; -1: none."""
    mask, base, n = (low.read(arg, _I32) for arg in ins.args[1:])
    zero, one, none = low.const(_I32, 0), low.const(_I32, 1), low.const(_I32, -1)
    at, left, found = (low.code.temp(_I32) for _ in range(3))
    down = low.op("lt_s", _PRED, n, zero)
    step = low.op("sel", _I32, down, none, one)
    low.emit("mov", [at], [base])
    low.emit("max_s", [left], [low.op("abs", _I32, n), one])
    low.emit("mov", [found], [none])
    head, inside, hit, on, after = (low.new_block() for _ in range(5))
    low.start(head)
    low.end("cbr", [inside, after], ins=[low.op("lt_u", _PRED, at, low.const(_I32, 32))])
    low.current = low.code.parts[inside]
    bit = low.op("and", _I32, low.op("shr_u", _I32, mask, at), one)
    low.emit("sub", [left], [left, bit])
    low.end("cbr", [hit, on], ins=[low.op("eq", _PRED, left, zero)])
    low.current = low.code.parts[hit]
    low.emit("mov", [found], [at])
    low.end("br", [after])
    low.current = low.code.parts[on]
    low.emit("add", [at], [at, step])
    low.end("cbr", [after, head], ins=[low.op("eq", _PRED, n, zero)])
    low.current = low.code.parts[after]
    low.put(ins.args[0], found)


@lowers("vadd2 vadd4 vsub2 vsub4 vavrg2 vavrg4 vabsdiff2 vabsdiff4 vmin2 vmin4 vmax2 vmax4", "sat add", 4)
def _video(low: RoutineLowering, ins: Instruction) -> None:
    """The operation on two or four parts of words, saturated to the type of the result when asked; with .add their sum and c."""
    types = [m for m in ins.mods if m in BITS]
    if len(types) != 3:
        raise low.fail(f"{ins.text} needs three types")
    to, types = types[0], types[1:]
    lanes = int(ins.op[-1])
    width = 32 // lanes
    a, b, c = (low.read(arg, _I32) for arg in ins.args[1:])
    result = c if "add" in ins.mods else low.const(_I32, 0)
    for k in range(lanes):
        x, y = (_field(low, word, k * width, width, type_[0] == "s") for word, type_ in zip((a, b), types, strict=True))
        part = _part(low, ins.op[1:-1], x, y)
        if "sat" in ins.mods:
            least, most = (-(1 << width - 1), (1 << width - 1) - 1) if to[0] == "s" else (0, (1 << width) - 1)
            part = low.op("min_s", _I32, low.op("max_s", _I32, part, low.const(_I32, least)), low.const(_I32, most))
        if "add" in ins.mods:
            result = low.op("add", _I32, result, part)
        else:
            result = low.op("bfi", _I32, part, result, low.const(_I32, k * width), low.const(_I32, width))
    low.put(ins.args[0], result)


def _part(low: RoutineLowering, name: str, x: int, y: int) -> int:
    if name == "absdiff":
        return low.op("abs", _I32, low.op("sub", _I32, x, y))
    if name == "avrg":
        total = low.op("add", _I32, x, y)  # halves go away from zero
        up = low.op("sel", _I32, low.op("lt_s", _PRED, total, low.const(_I32, 0)), low.const(_I32, 0), low.const(_I32, 1))
        return low.op("shr_s", _I32, low.op("add", _I32, total, up), low.const(_I32, 1))
    return low.op({"add": "add", "sub": "sub", "min": "min_s", "max": "max_s"}[name], _I32, x, y)
