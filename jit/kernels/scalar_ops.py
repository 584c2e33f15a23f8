"""Kernel-tier ops of each MAP operation, cast and fold of WIS.

How elements are held: bool as pred; integers of 8 bits as i16, always within the element type's range; other integers as their width; f16
and bf16 as f32, rounded once after each operation; f32 and f64 as themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from typing import Final

from jit.errors import Inexpressible
from jit.kernels.assemble import Assembler
from wis.dtypes import DType
from wis.kernel.model import RegType
from wis.kernel.ops import NAMED
from wis.kernel.strict import strict_form

_HELD: Final = {
    DType.BOOL: RegType.PRED, DType.U8: RegType.I16, DType.I8: RegType.I16, DType.U16: RegType.I16, DType.I16: RegType.I16,
    DType.U32: RegType.I32, DType.I32: RegType.I32, DType.U64: RegType.I64, DType.I64: RegType.I64, DType.F16: RegType.F32,
    DType.BF16: RegType.F32, DType.F32: RegType.F32, DType.F64: RegType.F64,
}  # fmt: skip
_SHORT: Final = {DType.F16: RegType.F16, DType.BF16: RegType.BF16}
_NO_NATIVE_FORM: Final = frozenset({"erfinv", "digamma"})  # device languages have no such function
_UNSIGNED: Final = frozenset({DType.U8, DType.U16, DType.U32, DType.U64})


def held(dtype: DType) -> RegType:
    """The register type of an element type. Raises Inexpressible for complex numbers."""
    if dtype not in _HELD:
        raise Inexpressible(f"no register holds {dtype.text}")
    return _HELD[dtype]


def round_to(a: Assembler, dtype: DType, x: int) -> int:
    """``x`` as what ``dtype`` can hold: f16 and bf16 rounded, integers of 8 bits wrapped, others as they are."""
    if dtype in _SHORT:
        return from_memory(a, dtype, to_memory(a, dtype, x))
    if dtype is DType.U8:
        return a.same("and", x, a.const(RegType.I16, 255))
    if dtype is DType.I8:
        eight = a.const(RegType.I16, 8)
        return a.same("shr_s", a.same("shl", x, eight), eight)
    return x


def from_memory(a: Assembler, dtype: DType, x: int) -> int:
    """From the form that is loaded (or given as a parameter) to the form that is computed with."""
    return a.op("cvt", RegType.F32, x) if dtype in _SHORT else x


def to_memory(a: Assembler, dtype: DType, x: int) -> int:
    """Back to the form that is stored."""
    return a.op("cvt", _SHORT[dtype], x) if dtype in _SHORT else x


def memory_kind(dtype: DType) -> RegType:
    """The register type that elements are loaded into and stored from."""
    return _SHORT.get(dtype) or held(dtype)


def operation(a: Assembler, name: str, out: DType, ins: Sequence[DType], x: Sequence[int]) -> int:
    """The value of one operation; ``ins`` are the element types of ``x``. Raises Inexpressible."""
    operand = ins[-1]
    if name == "cast":
        return round_to(a, out, _cast(a, operand, out, x[0]))
    if name == "where":
        return a.same("sel", *x)
    if name in ("gt", "ge"):
        name, x = ("lt" if name == "gt" else "le"), x[::-1]
    if operand is DType.BOOL:
        return _bool(a, name, x)
    if name in ("eq", "ne"):
        return a.test(name, x[0], x[1])
    value = _real(a, name, x) if operand.is_float else _whole(a, name, operand, x)
    return value if out is DType.BOOL else round_to(a, out, value)


def supported(name: str, out: DType, ins: Sequence[DType]) -> bool:
    """Whether kernels can do a MAP operation on these element types."""
    return _is_expressible(name, out, tuple(ins))


@cache
def _is_expressible(name: str, out: DType, ins: tuple[DType, ...]) -> bool:
    a = Assembler()
    try:
        operation(a, name, out, ins, [a.register(held(kind)) for kind in ins])
    except Inexpressible:
        return False
    return name not in _NO_NATIVE_FORM or strict_form(name, held(out)) is not None


def _cast(a: Assembler, source: DType, target: DType, x: int) -> int:
    to, kind = held(target), a.kind(x)
    if source is target:
        return x
    if target is DType.BOOL:
        return a.test("ne", x, a.const(kind, 0))
    if source is DType.BOOL:
        return a.same("sel", x, a.const(to, 1), a.const(to, 0))
    if source.is_float:
        if target.is_float:
            return x if kind is to else a.op("cvt", to, x)
        if target in (DType.U8, DType.I8):
            low, high = (0, 255) if target is DType.U8 else (-128, 127)
            wide = a.op("f2s", RegType.I32, x)
            kept = a.same("min_s", a.same("max_s", wide, a.const(RegType.I32, low)), a.const(RegType.I32, high))
            return a.op("narrow", RegType.I16, kept)
        return a.op("f2u" if target in _UNSIGNED else "f2s", to, x)
    if target.is_float:
        return a.op("u2f" if source in _UNSIGNED else "s2f", to, x)
    if kind.bits == to.bits:
        return x
    return a.op("narrow" if kind.bits > to.bits else ("zext" if source in _UNSIGNED else "sext"), to, x)


def _bool(a: Assembler, name: str, x: Sequence[int]) -> int:
    if name == "not":
        return a.same("not", x[0])
    if name == "eq":
        return a.same("not", a.same("xor", x[0], x[1]))
    if name in ("lt", "le"):
        return a.same("and" if name == "lt" else "or", a.same("not", x[0]), x[1])
    plain = {"and": "and", "or": "or", "xor": "xor", "min": "and", "max": "or", "ne": "xor"}.get(name)
    if plain is None:
        raise Inexpressible(f"{name} of bool")
    return a.same(plain, x[0], x[1])


_REAL: Final = frozenset({
    "neg", "abs", "sqrt", "floor", "ceil", "trunc", "add", "sub", "mul", "div", "min", "max", "fmin", "fmax", "copysign", "fma", "rem",
}) | NAMED  # fmt: skip


def _real(a: Assembler, name: str, x: Sequence[int]) -> int:
    kind = a.kind(x[0])
    if name in _REAL:
        return a.same(name, *x)
    if name in ("lt", "le"):
        return a.test(name, x[0], x[1])
    if name == "round":
        return a.same("rint", x[0])
    if name == "recip":
        return a.same("div", a.const(kind, 1), x[0])
    if name == "trunc_div":
        return a.same("trunc", a.same("div", *x))
    if name in ("fmod", "mod", "floor_div"):
        return _remainder(a, name, x)
    if name == "sign":
        zero = a.const(kind, 0)
        above = a.same("sel", a.test("lt", zero, x[0]), a.const(kind, 1), zero)
        return a.same("sel", a.test("lt", x[0], zero), a.const(kind, -1), above)
    if name == "is_nan":
        return a.test("ne", x[0], x[0])
    if name == "is_inf":
        return a.test("eq", a.same("abs", x[0]), a.const(kind, math.inf))
    if name == "sign_bit":
        whole = RegType.I64 if kind is RegType.F64 else RegType.I32
        return a.test("lt_s", a.op("reinterpret", whole, x[0]), a.const(whole, 0))
    if name == "conj":
        return x[0]
    raise Inexpressible(f"{name} of floats")


def _remainder(a: Assembler, name: str, x: Sequence[int]) -> int:
    """Remainder towards 0 or -inf, and the quotient towards -inf: from what the remainder leaves, because floor(a / b) alone is off by one
    where the division rounds up to a whole number."""
    kind = a.kind(x[1])
    rest = a.same("rem", *x)
    if name == "fmod":
        return rest
    zero, one = a.const(kind, 0), a.const(kind, 1)
    unlike = a.same("xor", a.test("lt", x[1], zero), a.test("lt", rest, zero))
    fix = a.same("and", unlike, a.test("ne", rest, zero))
    if name == "mod":
        return a.same("sel", fix, a.same("add", rest, x[1]), rest)
    plain = a.same("div", *x)
    quotient = a.same("div", a.same("sub", x[0], rest), x[1])
    quotient = a.same("sel", fix, a.same("sub", quotient, one), quotient)
    whole = a.same("floor", quotient)
    up = a.test("lt", a.const(kind, 0.5), a.same("sub", quotient, whole))
    whole = a.same("sel", up, a.same("add", whole, one), whole)
    whole = a.same("sel", a.test("eq", quotient, zero), a.same("copysign", zero, plain), whole)
    return a.same("sel", a.test("eq", x[1], zero), plain, whole)


_PLAIN: Final = frozenset({"neg", "not", "add", "sub", "mul", "and", "or", "xor", "shl"})
_SIGNED_PAIR: Final = {
    "lt": "lt", "le": "le", "min": "min", "max": "max", "fmin": "min", "fmax": "max", "trunc_div": "div", "fmod": "rem", "shr": "shr",
}  # fmt: skip


def _whole(a: Assembler, name: str, dtype: DType, x: Sequence[int]) -> int:
    kind, unsigned = a.kind(x[0]), dtype in _UNSIGNED
    zero = a.const(kind, 0)
    if name in _PLAIN:
        return a.same(name, *x)
    if name in _SIGNED_PAIR:
        full = _SIGNED_PAIR[name] + ("_u" if unsigned else "_s")
        return a.test(full, x[0], x[1]) if name in ("lt", "le") else a.same(full, *x)
    if name == "abs":
        return x[0] if unsigned else a.same("abs", x[0])
    if name in ("floor_div", "mod"):
        return _floored(a, name, unsigned, x)
    if name == "sign":
        above = a.same("sel", a.test("ne", x[0], zero), a.const(kind, 1), zero)
        return above if unsigned else a.same("sel", a.test("lt_s", x[0], zero), a.const(kind, -1), above)
    if name == "sign_bit":
        return a.test("lt_u" if unsigned else "lt_s", x[0], zero)
    raise Inexpressible(f"{name} of {dtype.text}")


def _floored(a: Assembler, name: str, unsigned: bool, x: Sequence[int]) -> int:
    """Quotient towards -inf, or its remainder; both are 0 where the divisor is."""
    if unsigned:
        return a.same("div_u" if name == "floor_div" else "rem_u", *x)
    kind = a.kind(x[0])
    zero, rest = a.const(kind, 0), a.same("rem_s", *x)
    fix = a.same("and", a.test("ne", rest, zero), a.test("lt_s", a.same("xor", rest, x[1]), zero))
    if name == "mod":
        return a.same("sel", fix, a.same("add", rest, x[1]), rest)
    quotient = a.same("div_s", *x)
    return a.same("sel", fix, a.same("sub", quotient, a.const(kind, 1)), quotient)


_FOLD: Final = {"sum": "add", "prod": "mul", "reduce_max": "max", "reduce_min": "min"}


def fold(a: Assembler, name: str, dtype: DType, total: int, x: int) -> int:
    """One step of a reduction of elements of ``dtype``. f16 and bf16 are not rounded in between."""
    if dtype is DType.BOOL:
        return _bool(a, _FOLD[name], (total, x))
    if dtype.is_float:
        return _real(a, _FOLD[name], (total, x))
    return round_to(a, dtype, _whole(a, _FOLD[name], dtype, (total, x)))


def identity(name: str, dtype: DType) -> float:
    """What a reduction starts from; integers in the reading of ``dtype``."""
    if name in ("sum", "prod"):
        return 0 if name == "sum" else 1
    greatest = name == "reduce_max"
    if dtype.is_float:
        return -math.inf if greatest else math.inf
    if dtype is DType.BOOL:
        return 0 if greatest else 1
    bits = 8 * dtype.itemsize
    if dtype in _UNSIGNED:
        return 0 if greatest else (1 << bits) - 1
    return -(1 << bits - 1) if greatest else (1 << bits - 1) - 1


EXTREMES: Final = {"max": True, "fmax": True, "reduce_max": True, "min": False, "fmin": False, "reduce_min": False}
"""Whether each of these is the greater of two values."""


def extreme(a: Assembler, name: str, x: int, y: int) -> int:
    """The greater or lesser of two floats by selects, which are one instruction of a processor; 0 and -0 are equal."""
    more = a.test("lt", y, x) if EXTREMES[name] else a.test("lt", x, y)
    best = a.same("sel", more, x, y)  # y when unordered
    if name.startswith("f"):
        return a.same("sel", a.test("ne", y, y), x, best)
    return a.same("sel", a.test("ne", x, x), a.const(a.kind(x), math.nan), best)
