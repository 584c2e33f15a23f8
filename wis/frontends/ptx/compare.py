"""Lowers comparisons and selections."""

from __future__ import annotations

from typing import Final

from wis.frontends.ptx.classes import BITS, FIXED, INTEGER
from wis.frontends.ptx.floats import half, widened
from wis.frontends.ptx.lowering import FLOATS, HALVES, RoutineLowering, lowers, pair
from wis.frontends.ptx.syntax import Instruction, Name, Operand, Register
from wis.kernel.model import RegType

__all__: list[str] = []

_I32, _F32, _PRED = RegType.I32, RegType.F32, RegType.PRED
_SIGNED: Final = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})
_UNSIGNED: Final = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
_UNORDERED: Final = {"equ": "ne", "neu": "eq", "ltu": "ge", "leu": "gt", "gtu": "le", "geu": "lt"}
_COMPARISONS: Final = " ".join([*_SIGNED, *_UNSIGNED, *_UNORDERED, "num", "nan"])
_COMBINE: Final = ("and", "or", "xor")


def _integers(low: RoutineLowering, how: str, a: int, b: int, signed: bool) -> int:
    if how in _UNSIGNED:
        how, signed = _UNSIGNED[how], False
    if how in ("eq", "ne"):
        return low.op(how, _PRED, a, b)
    if how in ("gt", "ge"):
        a, b, how = b, a, {"gt": "lt", "ge": "le"}[how]
    return low.op(f"{how}_{'s' if signed else 'u'}", _PRED, a, b)


def _floats(low: RoutineLowering, how: str, a: int, b: int) -> int:
    """Ordered comparisons are false and unordered ones true when an operand is NaN."""
    if how == "num" or how == "nan":
        one, other = ("eq", "and") if how == "num" else ("ne", "or")
        return low.op(other, _PRED, low.op(one, _PRED, a, a), low.op(one, _PRED, b, b))
    if how == "neu":
        return low.op("ne", _PRED, a, b)
    if how == "ne":
        return low.op("or", _PRED, low.op("lt", _PRED, a, b), low.op("lt", _PRED, b, a))
    if how in _UNORDERED:
        return low.op("not", _PRED, _floats(low, _UNORDERED[how], a, b))
    if how == "eq":
        return low.op("eq", _PRED, a, b)
    if how in ("gt", "ge"):
        a, b, how = b, a, {"gt": "lt", "ge": "le"}[how]
    return low.op(how, _PRED, a, b)


def _compared(low: RoutineLowering, ins: Instruction, type_: str) -> int:
    how = next((m for m in ins.mods if m in _SIGNED or m in _UNSIGNED or m in _UNORDERED or m in ("num", "nan")), "")
    if not how:
        raise low.fail(f"{ins.text} does not say how to compare")
    if type_ in FLOATS:
        work = _F32 if type_ in HALVES else FLOATS[type_]
        return _floats(low, how, *(widened(low, arg, type_, work) for arg in ins.args[1:3]))
    kind = _PRED if type_ == "pred" else INTEGER[BITS[type_]]
    a, b = (low.read(arg, kind) for arg in ins.args[1:3])
    return _integers(low, how, a, b, type_[0] == "s")


def _combined(low: RoutineLowering, ins: Instruction, value: int) -> int:
    how = next((m for m in ins.mods if m in _COMBINE), None)
    if how is None:
        return value
    if len(ins.args) != 4:
        raise low.fail(f"{ins.text} combines with a predicate, which is missing")
    return low.op(how, _PRED, value, low.read(ins.args[3], _PRED))


@lowers("setp", f"{_COMPARISONS} and or xor ftz", (3, 4))
def _setp(low: RoutineLowering, ins: Instruction) -> None:
    type_ = ins.mods[-1]
    if type_.endswith("x2"):
        _setp_packed(low, ins, type_[:-2])
        return
    first, second = pair(ins.args[0])
    value = _compared(low, ins, type_)
    result = _combined(low, ins, value)
    if not (isinstance(second, Name) and second.text == "_"):
        other = _combined(low, ins, low.op("not", _PRED, value))
        low.put(second, other)
    low.put(first, result)


def _setp_packed(low: RoutineLowering, ins: Instruction, type_: str) -> None:
    words = [low.read(arg, _I32) for arg in ins.args[1:3]]
    how = next((m for m in ins.mods if m in _SIGNED or m in _UNORDERED or m in ("num", "nan")), "")
    if not how:
        raise low.fail(f"{ins.text} does not say how to compare")
    results = []
    for upper in (False, True):
        values = [half(low, word, type_, upper, _F32) for word in words]
        results.append(_combined(low, ins, _floats(low, how, *values)))
    for target, result in zip(pair(ins.args[0]), results, strict=True):
        low.put(target, result)


@lowers("set", f"{_COMPARISONS} and or xor ftz", (3, 4))
def _set(low: RoutineLowering, ins: Instruction) -> None:
    """All ones (1.0 for floats) where the comparison holds, else zero."""
    if len(ins.mods) < 3:
        raise low.fail(f"{ins.text} needs two types")
    to, type_ = ins.mods[-2:]
    if type_.endswith("x2") or to.endswith("x2"):
        _set_packed(low, ins, to, type_)
        return
    result = _combined(low, ins, _compared(low, ins, type_))
    low.put(ins.args[0], _mask(low, result, to))


def _mask(low: RoutineLowering, pred: int, to: str) -> int:
    if to in FLOATS:
        bits = {"f16": 0x3C00, "bf16": 0x3F80, "f32": 0x3F800000, "f64": 0x3FF0000000000000}[to]
        kind = FLOATS[to]
        return low.op("sel", kind, pred, low.const(kind, bits), low.const(kind, 0))
    kind = INTEGER[BITS[to]]
    return low.op("sel", kind, pred, low.const(kind, -1), low.const(kind, 0))


def _set_packed(low: RoutineLowering, ins: Instruction, to: str, type_: str) -> None:
    words = [low.read(arg, _I32) for arg in ins.args[1:3]]
    how = next((m for m in ins.mods if m in _SIGNED or m in _UNORDERED or m in ("num", "nan")), "")
    if not how or not type_.endswith("x2"):
        raise low.fail(f"{ins.text} is not supported")
    one = {"f16x2": 0x3C00, "bf16x2": 0x3F80}.get(to, 0xFFFF)
    parts = []
    for upper in (False, True):
        values = [half(low, word, type_[:-2], upper, _F32) for word in words]
        pred = _combined(low, ins, _floats(low, how, *values))
        parts.append(low.op("sel", _I32, pred, low.const(_I32, one << (16 if upper else 0)), low.const(_I32, 0)))
    low.put(ins.args[0], low.op("or", _I32, *parts))


def _kind(low: RoutineLowering, type_: str, arg: Operand) -> RegType:
    """The register type for a value that is only moved: the target's own, when it has the width."""
    natural = FIXED[type_] if type_ in FIXED else INTEGER[BITS[type_]]
    if isinstance(arg, Register) and low.type_of(arg).bits == natural.bits:
        return low.type_of(arg)
    return natural


@lowers("selp", "", 4)
def _selp(low: RoutineLowering, ins: Instruction) -> None:
    kind = _kind(low, ins.mods[-1], ins.args[0])
    a, b = (low.read(arg, kind) for arg in ins.args[1:3])
    low.emit("sel", [low.write(ins.args[0], kind)], [low.read(ins.args[3], _PRED), a, b])


@lowers("slct", "ftz", 4)
def _slct(low: RoutineLowering, ins: Instruction) -> None:
    """The first operand where the third is not negative (nor NaN)."""
    kind = _kind(low, ins.mods[-2], ins.args[0])
    a, b = (low.read(arg, kind) for arg in ins.args[1:3])
    if ins.mods[-1] == "f32":
        pred = low.op("le", _PRED, low.f32(0.0), low.read(ins.args[3], _F32))
    else:
        pred = low.op("le_s", _PRED, low.const(_I32, 0), low.read(ins.args[3], _I32))
    low.emit("sel", [low.write(ins.args[0], kind)], [pred, a, b])
