"""Lowers cvt, with every rounding and saturation, to the kernel tier's conversions."""

from __future__ import annotations

from typing import Final

from wis.frontends.ptx.classes import BITS, INTEGER
from wis.frontends.ptx.floats import ROUNDINGS, joined, narrowed, saturated
from wis.frontends.ptx.lowering import FLOATS, HALVES, RoutineLowering, lowers
from wis.frontends.ptx.syntax import Instruction, Operand, Register
from wis.kernel.model import RegType, Rounding

__all__: list[str] = []

_I16, _I32, _F32, _F64 = RegType.I16, RegType.I32, RegType.F32, RegType.F64
_WHOLE: Final = {"rni": "rint", "rzi": "trunc", "rmi": "floor", "rpi": "ceil"}


def _is_signed(type_: str) -> bool:
    return type_[0] == "s"


@lowers("cvt", "rn rz rm rp rni rzi rmi rpi rna rs ftz sat satfinite relu pack", (2, 4))
def _cvt(low: RoutineLowering, ins: Instruction) -> None:
    if len(ins.mods) < 2 or ins.mods[-1] not in BITS or ins.mods[-2] not in BITS or "rna" in ins.mods or "rs" in ins.mods:
        raise low.fail(f"{ins.text} is not supported", "formats of less than 16 bits and tf32 are not portable")
    to, source = ins.mods[-2:]
    target, arg = ins.args[:2]
    if "pack" in ins.mods:
        _packed(low, ins)
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
        exact = low.op(name, work, value)
        if how is Rounding.NEAREST:
            return narrowed(low, exact, to)
        return low.op("cvt_r", FLOATS[to], exact, attrs=(int(how),))
    kind = FLOATS[to]
    if how is Rounding.NEAREST or BITS[source] <= (16 if kind is _F32 else 32):
        result = low.op(name, kind, value)
    else:
        result = low.op(f"{name}_r", kind, value, attrs=(int(how),))
    return saturated(low, result) if "sat" in ins.mods else result


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


def _packed(low: RoutineLowering, ins: Instruction) -> None:
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
