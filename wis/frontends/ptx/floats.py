"""Lowers float arithmetic: f32 and f64 directly, halves by way of f32 with one rounding.

f16 and bf16: operands are widened (exact), the operation is done in f32 (f64 for fma) and rounded to the half type. For sums,
products, quotients and roots that is the correctly rounded result, because f32 has more than twice the bits; an fma in f64 is correctly
rounded for f16, and for bf16 except where the exact sum lies within 2**-53 of a tie. ``.ftz`` is accepted and denormals are kept;
``.approx`` ops are the correctly rounded ones where the kernel tier has them, else the named function.
"""

from __future__ import annotations

from typing import Final

from wis.frontends.ptx.lowering import FLOATS, HALVES, RoutineLowering, lowers
from wis.frontends.ptx.syntax import Instruction, Operand
from wis.kernel.model import RegType, Rounding

__all__ = ["float_arithmetic", "half_bits", "half", "joined", "rounding", "widened", "narrowed", "saturated", "ROUNDINGS"]

_I16, _I32, _F32, _F64, _PRED = RegType.I16, RegType.I32, RegType.F32, RegType.F64, RegType.PRED
ROUNDINGS: Final = {"rn": Rounding.NEAREST, "rz": Rounding.ZERO, "rm": Rounding.DOWN, "rp": Rounding.UP}


def rounding(ins: Instruction) -> Rounding:
    return next((ROUNDINGS[m] for m in ins.mods if m in ROUNDINGS), Rounding.NEAREST)


def widened(low: RoutineLowering, arg: Operand, type_: str, to: RegType) -> int:
    """An operand of a float type as f32 or f64."""
    have = FLOATS[type_]
    value = low.read(arg, have)
    return value if have is to else low.op("cvt", to, value)


def narrowed(low: RoutineLowering, value: int, type_: str) -> int:
    """A value in f32 or f64 rounded once to a float type."""
    have, to = low.code.types[value], FLOATS[type_]
    if have is to:
        return value
    if have is _F64 and to is not _F32:
        return low.op("cvt_r", to, value, attrs=(int(Rounding.NEAREST),))
    return low.op("cvt", to, value)


def saturated(low: RoutineLowering, value: int) -> int:
    """Clamped to 0 .. 1; NaN becomes 0."""
    type_ = low.code.types[value]
    return low.op("fmin", type_, low.op("fmax", type_, value, low.number(type_, 0.0)), low.number(type_, 1.0))


def float_arithmetic(low: RoutineLowering, ins: Instruction, name: str) -> None:
    """add, sub, mul, div, fma, min, max of any float type, also packed."""
    type_ = ins.mods[-1]
    if type_.endswith("x2"):
        _packed(low, ins, name, type_[:-2])
        return
    work = _work(name, type_)
    values = [widened(low, arg, type_, work) for arg in ins.args[1:]]
    low.put(ins.args[0], _finished(low, ins, _calculated(low, ins, name, values), type_))


def _work(name: str, type_: str) -> RegType:
    return _F64 if type_ == "f64" or (name == "fma" and type_ in HALVES) else _F32


def _calculated(low: RoutineLowering, ins: Instruction, name: str, values: list[int]) -> int:
    type_ = low.code.types[values[0]]
    if name in ("min", "max"):
        return _extreme(low, ins, name, values)
    how = rounding(ins)
    if how is not Rounding.NEAREST and name in ("add", "mul", "fma", "div"):
        return low.op(f"{name}_r", type_, *values, attrs=(int(how),))
    if how is not Rounding.NEAREST:  # a - b is a + -b, in every rounding
        return low.op("add_r", type_, values[0], low.op("neg", type_, values[1]), attrs=(int(how),))
    return low.op(name, type_, *values)


def _extreme(low: RoutineLowering, ins: Instruction, name: str, values: list[int]) -> int:
    type_ = low.code.types[values[0]]
    op = name if "NaN" in ins.mods else f"f{name}"
    signs = values[:2]
    if "abs" in ins.mods:
        values = [low.op("abs", type_, value) for value in values]
    result = values[0]
    for value in values[1:]:
        result = low.op(op, type_, result, value)
    if "xorsign" in ins.mods:
        product = low.op("mul", type_, *(low.op("copysign", type_, low.number(type_, 1.0), sign) for sign in signs))
        result = low.op("copysign", type_, result, product)
    return result


def _finished(low: RoutineLowering, ins: Instruction, value: int, type_: str) -> int:
    if "sat" in ins.mods:
        value = saturated(low, value)
    if "relu" in ins.mods:
        kind = low.code.types[value]
        value = low.op("max", kind, value, low.number(kind, 0.0))
    return narrowed(low, value, type_)


def _packed(low: RoutineLowering, ins: Instruction, name: str, type_: str) -> None:
    words = [low.read(arg, _I32) for arg in ins.args[1:]]
    work = _work(name, type_)
    halves = []
    for upper in (False, True):
        values = [half(low, word, type_, upper, work) for word in words]
        halves.append(_finished(low, ins, _calculated(low, ins, name, values), type_))
    low.put(ins.args[0], joined(low, *halves))


def half(low: RoutineLowering, word: int, type_: str, upper: bool, work: RegType) -> int:
    """One half of a word as f32 or f64."""
    sixteen = low.const(_I32, 16)
    if type_ == "bf16":  # the upper half of an f32
        bits = low.op("and", _I32, word, low.const(_I32, -65536)) if upper else low.op("shl", _I32, word, sixteen)
        value = low.op("reinterpret", _F32, bits)
        return value if work is _F32 else low.op("cvt", work, value)
    bits = low.op("narrow", _I16, low.op("shr_u", _I32, word, sixteen) if upper else word)
    return low.op("cvt", work, low.op("reinterpret", RegType.F16, bits))


def joined(low: RoutineLowering, lower: int, upper: int) -> int:
    """Two halves as one word."""
    first, second = (low.op("zext", _I32, low.convert(half, _I16)) for half in (lower, upper))
    return low.op("or", _I32, first, low.op("shl", _I32, second, low.const(_I32, 16)))


def half_bits(low: RoutineLowering, ins: Instruction, name: str) -> None:
    """abs and neg of halves: the sign bit."""
    double = ins.mods[-1].endswith("x2")
    kind = _I32 if double else _I16
    value = low.read(ins.args[1], kind)
    if name == "abs":
        low.put(ins.args[0], low.op("and", kind, value, low.const(kind, 0x7FFF7FFF if double else 0x7FFF)))
    else:
        low.put(ins.args[0], low.op("xor", kind, value, low.const(kind, 0x80008000 if double else 0x8000)))


@lowers("fma", "rn rz rm rp ftz sat relu oob", 4)
def _fma(low: RoutineLowering, ins: Instruction) -> None:
    float_arithmetic(low, ins, "fma")


@lowers("sqrt", "rn rz rm rp ftz approx", 2)
def _sqrt(low: RoutineLowering, ins: Instruction) -> None:
    type_ = FLOATS[ins.mods[-1]]
    value, how = low.read(ins.args[1], type_), rounding(ins)
    if how is Rounding.NEAREST:
        low.emit("sqrt", [low.write(ins.args[0], type_)], [value])
    else:
        low.emit("sqrt_r", [low.write(ins.args[0], type_)], [value], (int(how),))


@lowers("rcp", "rn rz rm rp ftz approx", 2)
def _rcp(low: RoutineLowering, ins: Instruction) -> None:
    type_ = FLOATS[ins.mods[-1]]
    values, how = [low.number(type_, 1.0), low.read(ins.args[1], type_)], rounding(ins)
    if how is Rounding.NEAREST:
        low.emit("div", [low.write(ins.args[0], type_)], values)
    else:
        low.emit("div_r", [low.write(ins.args[0], type_)], values, (int(how),))


@lowers("rsqrt", "ftz approx", 2)
def _rsqrt(low: RoutineLowering, ins: Instruction) -> None:
    """The named function in f32; in f64, where it has no strict form, the quotient of the root."""
    type_ = FLOATS[ins.mods[-1]]
    value = low.read(ins.args[1], type_)
    if type_ is _F32:
        low.emit("rsqrt", [low.write(ins.args[0], type_)], [value])
    else:
        low.emit("div", [low.write(ins.args[0], type_)], [low.number(type_, 1.0), low.op("sqrt", type_, value)])


_NAMED: Final = {"ex2": "exp2", "lg2": "log2", "sin": "sin", "cos": "cos", "tanh": "tanh"}


@lowers("ex2 lg2 sin cos tanh", "ftz approx", 2)
def _named(low: RoutineLowering, ins: Instruction) -> None:
    type_, name = ins.mods[-1], _NAMED[ins.op]
    if type_.endswith("x2"):
        word = low.read(ins.args[1], _I32)
        halves = [narrowed(low, low.op(name, _F32, half(low, word, type_[:-2], upper, _F32)), type_[:-2]) for upper in (False, True)]
        low.put(ins.args[0], joined(low, *halves))
    elif type_ in FLOATS and type_ != "f64":
        value = low.op(name, _F32, widened(low, ins.args[1], type_, _F32))
        low.put(ins.args[0], narrowed(low, value, type_))
    else:
        raise low.fail(f"{ins.text} is not supported")


@lowers("copysign", "", 3)
def _copysign(low: RoutineLowering, ins: Instruction) -> None:
    """The magnitude of the second operand with the sign of the first."""
    type_ = FLOATS[ins.mods[-1]]
    sign, magnitude = (low.read(arg, type_) for arg in ins.args[1:])
    low.emit("copysign", [low.write(ins.args[0], type_)], [magnitude, sign])


@lowers("testp", "finite infinite number notanumber normal subnormal", 2)
def _testp(low: RoutineLowering, ins: Instruction) -> None:
    type_ = FLOATS[ins.mods[-1]]
    value = low.read(ins.args[1], type_)
    size = low.op("abs", type_, value)
    infinity = low.number(type_, float("inf"))
    least = low.number(type_, 2.0 ** (-126 if type_ is _F32 else -1022))
    zero = low.number(type_, 0.0)
    question = ins.mods[0]
    if question == "finite":
        result = low.op("lt", _PRED, size, infinity)
    elif question == "infinite":
        result = low.op("eq", _PRED, size, infinity)
    elif question in ("number", "notanumber"):
        result = low.op("eq" if question == "number" else "ne", _PRED, value, value)
    elif question == "normal":
        result = low.op("and", _PRED, low.op("le", _PRED, least, size), low.op("lt", _PRED, size, infinity))
    else:
        result = low.op("and", _PRED, low.op("lt", _PRED, size, least), low.op("lt", _PRED, zero, size))
    low.put(ins.args[0], result)
