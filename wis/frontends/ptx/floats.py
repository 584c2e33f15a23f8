"""Lowers float arithmetic (f32 and f64 directly, halves by way of f32 with one rounding) and cvt, with every rounding and saturation, to
the kernel tier's conversions.

f16 and bf16: operands are widened (exact), the operation is done in f32 (f64 for fma) and rounded to the half type. For sums,
products, quotients and roots that is the correctly rounded result, because f32 has more than twice the bits; an fma in f64 is correctly
rounded for f16, and for bf16 except where the exact sum lies within 2**-53 of a tie. ``.ftz`` is accepted and denormals are kept;
``.approx`` ops are the correctly rounded ones where the kernel tier has them, else the named function.
"""

from __future__ import annotations

from typing import Final

from wis.frontends.ptx.classes import BITS, INTEGER
from wis.frontends.ptx.lowering import FLOATS, HALVES, RoutineLowering, lowers
from wis.frontends.ptx.syntax import Instruction, Operand, Register
from wis.kernel.model import RegType, Rounding

_I16, _I32, _I64, _F32, _F64, _PRED = RegType.I16, RegType.I32, RegType.I64, RegType.F32, RegType.F64, RegType.PRED
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


@lowers("fma", "rn rz rm rp ftz sat relu", 4)
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


_WHOLE: Final = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _is_signed(type_: str) -> bool:
    return type_[0] == "s"


@lowers("cvt", "rn rz rm rp rni rzi rmi rpi rna rs ftz sat satfinite relu pack tf32", (2, 4))
def _cvt(low: RoutineLowering, ins: Instruction) -> None:
    if ins.mods[-2:] == ("tf32", "f32"):
        low.put(ins.args[0], _tf32(low, ins))
        return
    if len(ins.mods) < 2 or ins.mods[-1] not in BITS or ins.mods[-2] not in BITS or "rna" in ins.mods or "rs" in ins.mods:
        raise low.fail(f"{ins.text} is not supported", "formats of less than 16 bits and tf32 are not portable")
    to, source = ins.mods[-2:]
    target, arg = ins.args[:2]
    if "pack" in ins.mods:
        _packed_integers(low, ins)
    elif to.endswith("x2"):
        _two(low, ins, to[:-2])
    elif source in FLOATS and to in FLOATS:
        low.put(target, _float_float(low, ins, arg, source, to))
    elif source in FLOATS:
        _deliver(low, target, _float_int(low, ins, arg, source, to), to)
    elif to in FLOATS:
        low.put(target, _int_float(low, ins, arg, source, to))
    else:
        _deliver(low, target, _int_int(low, ins, arg, source, to), to)


def _tf32(low: RoutineLowering, ins: Instruction) -> int:
    """f32 with 13 bits less, as bits: to nearest, ties away from zero (rna) or to even (rn); infinities and NaN stay."""
    rounding = ins.mods[:-2]
    if rounding not in (("rna",), ("rn",)):
        raise low.fail(f"{ins.text} is not supported")
    bits = low.read(ins.args[1], _I32)
    bias = low.const(_I32, 0x1000)
    if rounding == ("rn",):
        odd = low.op("and", _I32, low.op("shr_u", _I32, bits, low.const(_I32, 13)), low.const(_I32, 1))
        bias = low.op("add", _I32, odd, low.const(_I32, 0xFFF))
    exponent = low.const(_I32, 0x7F800000)
    special = low.op("eq", RegType.PRED, low.op("and", _I32, bits, exponent), exponent)
    rounded = low.op("and", _I32, low.op("add", _I32, bits, bias), low.const(_I32, -0x2000))
    return low.op("sel", _I32, special, bits, rounded)


def _deliver(low: RoutineLowering, target: Operand, value: int, to: str) -> None:
    """Into a register that may be wider than the result."""
    if isinstance(target, Register) and BITS[target.type] > low.code.types[value].bits:
        value = low.extend(value, INTEGER[BITS[target.type]], signed=_is_signed(to))
    low.put(target, value)


# -- integers --------------------------------------------------------------------------------------------------------------------------


def _source(low: RoutineLowering, arg: Operand, source: str) -> int:
    """An integer operand, extended out of its type to a register."""
    bits = BITS[source]
    value = low.read_low(arg, INTEGER[bits]) if bits >= 16 else low.read_int(arg, bits)
    if bits == 8:
        value = _byte(low, value, _is_signed(source))
    return value


def _byte(low: RoutineLowering, value: int, signed: bool) -> int:
    """The low byte, extended to the register."""
    kind = low.code.types[value]
    if not signed:
        return low.op("and", kind, value, low.const(kind, 255))
    if kind is _I16:
        eight = low.const(kind, 8)
        return low.op("shr_s", kind, low.op("shl", kind, value, eight), eight)
    return low.op("bfe_s", kind, value, low.const(_I32, 0), low.const(_I32, 8))


def _int_int(low: RoutineLowering, ins: Instruction, arg: Operand, source: str, to: str) -> int:
    value = _source(low, arg, source)
    if "sat" in ins.mods:
        value = _clamped(low, value, source, to)
    kind, have = INTEGER[BITS[to]], low.code.types[value]
    if have.bits > kind.bits:
        value = low.op("narrow", kind, value)
    elif have.bits < kind.bits:
        value = low.extend(value, kind, signed=_is_signed(source))
    if BITS[to] == 8 and not (BITS[source] == 8 and source[0] == to[0]) and "sat" not in ins.mods:
        value = _byte(low, value, _is_signed(to))
    return value


def _range(type_: str) -> tuple[int, int]:
    bits = BITS[type_]
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if _is_signed(type_) else (0, (1 << bits) - 1)


def _clamped(low: RoutineLowering, value: int, source: str, to: str) -> int:
    """A value of type ``source`` brought into the range of ``to``."""
    kind = low.code.types[value]
    sign = "s" if _is_signed(source) else "u"
    (least, most), (low_, high) = _range(source), _range(to)
    if low_ > least:
        value = low.op(f"max_{sign}", kind, value, low.const(kind, low_))
    if high < most:
        value = low.op(f"min_{sign}", kind, value, low.const(kind, high))
    return value


# -- integers and floats ---------------------------------------------------------------------------------------------------------------


def _int_float(low: RoutineLowering, ins: Instruction, arg: Operand, source: str, to: str) -> int:
    """Halves by way of f32 where that is exact or far beyond their range (f16), else of f64 (bf16)."""
    value = _source(low, arg, source)
    name = "s2f" if _is_signed(source) else "u2f"
    how = _how(ins)
    if to in HALVES:
        work = _F32 if BITS[source] <= 16 or (to == "f16" and BITS[source] == 32) else _F64
        exact = low.op(name, work, _short(low, value, source) if BITS[source] == 64 else value)
        if "sat" in ins.mods:
            exact = saturated(low, exact)
        if how is Rounding.NEAREST:
            return narrowed(low, exact, to)
        return low.op("cvt_r", FLOATS[to], exact, attrs=(int(how),))
    kind = FLOATS[to]
    if how is Rounding.NEAREST or BITS[source] <= (16 if kind is _F32 else 32):
        result = low.op(name, kind, value)
    else:
        result = low.op(f"{name}_r", kind, value, attrs=(int(how),))
    return saturated(low, result) if "sat" in ins.mods else result


def _short(low: RoutineLowering, value: int, source: str) -> int:
    """A 64-bit integer with at most 53 significant bits that every rounding takes to the same half: from 2**53 on, the low 12 bits only say
    whether one of them was set."""
    rest = low.op("eq", _PRED, low.op("and", _I64, value, low.const(_I64, 0xFFF)), low.const(_I64, 0))
    sticky = low.op("sel", _I64, rest, low.const(_I64, 0), low.const(_I64, 0x800))
    short = low.op("or", _I64, low.op("and", _I64, value, low.const(_I64, -0x1000)), sticky)
    size = low.op("abs", _I64, value) if _is_signed(source) else value
    return low.op("sel", _I64, low.op("lt_u", _PRED, size, low.const(_I64, 1 << 53)), value, short)


def _how(ins: Instruction) -> Rounding:
    return next((ROUNDINGS[m] for m in ins.mods if m in ROUNDINGS), Rounding.NEAREST)


def _float_int(low: RoutineLowering, ins: Instruction, arg: Operand, source: str, to: str) -> int:
    value = _as_work(low, arg, source)
    kind = low.code.types[value]
    whole = next((_WHOLE[m] for m in ins.mods if m in _WHOLE), "trunc")
    if whole != "trunc":  # the conversion itself goes towards zero
        value = low.op(whole, kind, value)
    integer = INTEGER[BITS[to]]
    result = low.op("f2s" if _is_signed(to) else "f2u", integer, value)
    if BITS[to] == 8:
        least, most = _range(to)
        sign = "s" if _is_signed(to) else "u"
        result = low.op(f"min_{sign}", integer, result, low.const(integer, most))
        if least:
            result = low.op("max_s", integer, result, low.const(integer, least))
    if source == "f64" or BITS[to] == 64:  # these take NaN to the highest bit alone, the others to 0
        highest = -1 << BITS[to] - 1 if _is_signed(to) else 1 << BITS[to] - 1
        result = low.op("sel", integer, low.op("eq", _PRED, value, value), result, low.const(integer, highest))
    return result


def _as_work(low: RoutineLowering, arg: Operand, source: str) -> int:
    kind = FLOATS[source]
    value = low.read_low(arg, kind)
    return low.op("cvt", _F32, value) if source in HALVES else value


# -- floats ----------------------------------------------------------------------------------------------------------------------------


def _float_float(low: RoutineLowering, ins: Instruction, arg: Operand, source: str, to: str) -> int:
    value = _as_work(low, arg, source)
    kind = low.code.types[value]
    whole = next((_WHOLE[m] for m in ins.mods if m in _WHOLE), None)
    if whole is not None:
        value = low.op(whole, kind, value)
    if "sat" in ins.mods:
        value = saturated(low, value)
    if "relu" in ins.mods:
        value = low.op("max", kind, value, low.number(kind, 0.0))
    return _rounded(low, value, to, _how(ins), "satfinite" in ins.mods)


def _rounded(low: RoutineLowering, value: int, to: str, how: Rounding, finite: bool) -> int:
    """A value in f32 or f64 as float type ``to``."""
    kind, have = FLOATS[to], low.code.types[value]
    if finite and to in HALVES:
        most = low.number(have, 65504.0 if to == "f16" else 3.3895313892515355e38)
        inside = low.op("min", have, low.op("max", have, value, low.op("neg", have, most)), most)
        value = inside
    if kind is have:
        return value
    if kind is _F64 or how is Rounding.NEAREST:
        return narrowed(low, value, to)
    return low.op("cvt_r", kind, value, attrs=(int(how),))


def _packed_integers(low: RoutineLowering, ins: Instruction) -> None:
    """Two s32 saturated and put side by side, the first above; with a third operand its low bits come above both."""
    types = [m for m in ins.mods if m in BITS]
    to, bits = types[0], BITS[types[0]]
    if types[1] != "s32" or bits not in (8, 16) or (bits == 8) != (len(ins.args) == 4):
        raise low.fail(f"{ins.text} is not supported")
    upper, lower = (_clamped(low, low.read(arg, _I32), "s32", to) for arg in ins.args[1:3])
    rest = low.op("shl", _I32, low.read(ins.args[3], _I32), low.const(_I32, 16)) if bits == 8 else low.const(_I32, 0)
    word = low.op("bfi", _I32, lower, rest, low.const(_I32, 0), low.const(_I32, bits))
    low.put(ins.args[0], low.op("bfi", _I32, upper, word, low.const(_I32, bits), low.const(_I32, bits)))


def _two(low: RoutineLowering, ins: Instruction, to: str) -> None:
    """Two f32 to one word of halves, the first operand above."""
    if ins.mods[-1] != "f32" or to not in HALVES or len(ins.args) != 3:
        raise low.fail(f"{ins.text} is not supported")
    upper, lower = (low.read(arg, _F32) for arg in ins.args[1:])
    if "relu" in ins.mods:
        upper, lower = (low.op("max", _F32, value, low.f32(0.0)) for value in (upper, lower))
    halves = [_rounded(low, value, to, _how(ins), "satfinite" in ins.mods) for value in (lower, upper)]
    low.put(ins.args[0], joined(low, *halves))
