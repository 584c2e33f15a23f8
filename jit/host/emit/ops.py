"""LLVM IR of each MAP operation and cast of WIS, for every element type but complex.

``supported`` decides, ``emit`` writes; both read one table, so they cannot disagree. f16 and bf16 values live in registers as f32 and are
rounded once after each operation, as WIS says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jit.host.emit.code import Lanes, register
from jit.host.emit.maths import DOUBLE, DOUBLE2, SINGLE
from wis.dtypes import DType

__all__ = ["supported", "emit", "load_convert", "store_convert", "round_to"]


def _signed(dtype: DType) -> bool:
    return dtype in (DType.I8, DType.I16, DType.I32, DType.I64)


def _kind(dtype: DType) -> str:
    """f float, s signed, u unsigned, b bool, c complex."""
    if dtype.is_complex:
        return "c"
    if dtype.is_float:
        return "f"
    return "b" if dtype is DType.BOOL else ("s" if _signed(dtype) else "u")


# --- memory and rounding
def round_to(v: Lanes, dtype: DType, x: str) -> str:
    """The register value ``x`` rounded to what ``dtype`` can hold (f16 and bf16; a no-op for the others)."""
    if dtype is DType.F16:
        return v.convert("fpext", "half", v.convert("fptrunc", "float", x, "half"), "float")
    if dtype is DType.BF16:
        return _bf16_to_float(v, _float_to_bf16(v, x))
    return x


def _float_to_bf16(v: Lanes, x: str) -> str:
    """The upper half of the bits, ties to even; a NaN stays one."""
    i = v.convert("bitcast", "float", x, "i32")
    upper = v.op("lshr", "i32", i, v.const("i32", 16))
    bias = v.op("add", "i32", v.op("and", "i32", upper, v.const("i32", 1)), v.const("i32", 0x7FFF))
    rounded = v.op("lshr", "i32", v.op("add", "i32", i, bias), v.const("i32", 16))
    nan = v.compare("fcmp uno", "float", x, x)
    return v.convert("trunc", "i32", v.select("i32", nan, v.op("or", "i32", upper, v.const("i32", 0x40)), rounded), "i16")


def _bf16_to_float(v: Lanes, x: str) -> str:
    wide = v.op("shl", "i32", v.convert("zext", "i16", x, "i32"), v.const("i32", 16))
    return v.convert("bitcast", "i32", wide, "float")


def load_convert(v: Lanes, dtype: DType, x: str) -> str:
    """From the memory form to the register form."""
    if dtype is DType.BOOL:
        return v.compare("icmp ne", "i8", x, v.const("i8", 0))
    if dtype is DType.F16:
        return v.convert("fpext", "half", x, "float")
    return _bf16_to_float(v, x) if dtype is DType.BF16 else x


def store_convert(v: Lanes, dtype: DType, x: str) -> str:
    """From the register form to the memory form; f16 and bf16 values are already rounded."""
    if dtype is DType.BOOL:
        return v.convert("zext", "i1", x, "i8")
    if dtype is DType.F16:
        return v.convert("fptrunc", "float", x, "half")
    return _float_to_bf16(v, x) if dtype is DType.BF16 else x


# --- casts
def _cast(v: Lanes, source: DType, target: DType, x: str) -> str:
    a, b = register(source), register(target)
    from_kind, to_kind = _kind(source), _kind(target)
    if source is target:
        return x
    if to_kind == "b":
        how = "fcmp une" if from_kind == "f" else "icmp ne"
        return v.compare(how, a, x, v.const(a, 0))
    if from_kind == "b":
        return v.convert("uitofp" if to_kind == "f" else "zext", a, x, b)
    if from_kind == "f" and to_kind == "f":
        if a != b:
            x = v.convert("fptrunc" if a == "double" else "fpext", a, x, b)
        return round_to(v, target, x)
    if from_kind == "f":
        name = f"llvm.fpto{'s' if to_kind == 's' else 'u'}i.sat.{v.suffix(b)}.{v.suffix(a)}"
        return v.code.call(v.type(b), name, (v.type(a), x))
    if to_kind == "f":
        return round_to(v, target, v.convert("sitofp" if from_kind == "s" else "uitofp", a, x, b))
    width, wanted = int(a[1:]), int(b[1:])
    if width == wanted:
        return x
    return v.convert("trunc" if width > wanted else ("sext" if from_kind == "s" else "zext"), a, x, b)


# --- one function an op and kind of type: (lanes, LLVM type, element type, operands) -> value
Emit = Callable[[Lanes, str, DType, Sequence[str]], str]


def _binary(name: str) -> Emit:
    return lambda v, t, d, a: v.op(name, t, a[0], a[1])


def _intrinsic(name: str) -> Emit:
    return lambda v, t, d, a: v.intrinsic(name, t, *a)


def _named(name: str) -> Emit:
    """A named function: the f32 version where there is one, else through f64."""

    def f(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
        if t == "double":
            return DOUBLE2[name](v, a[0], a[1]) if name in DOUBLE2 else DOUBLE[name](v, a[0])
        if name in SINGLE:
            return SINGLE[name](v, a[0])
        wide = [v.convert("fpext", "float", x, "double") for x in a]
        y = DOUBLE2[name](v, wide[0], wide[1]) if name in DOUBLE2 else DOUBLE[name](v, wide[0])
        return v.convert("fptrunc", "double", y, "float")

    return f


def _fneg(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    return v.code.value(f"fneg {v.type(t)} {a[0]}")


def _fsign(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    zero = v.const(t, 0)
    unit = v.select(t, v.compare("fcmp ogt", t, a[0], zero), v.const(t, 1), zero)
    return v.select(t, v.compare("fcmp olt", t, a[0], zero), v.const(t, -1), unit)


def _one_over(v: Lanes, t: str, x: str) -> str:
    return v.op("fdiv", t, v.const(t, 1), x)


def _rsqrt(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    """In f64 for f32 (one rounding, as the definition has it); in f64 itself with two."""
    if t == "double":
        return _one_over(v, t, v.intrinsic("sqrt", t, a[0]))
    wide = v.convert("fpext", "float", a[0], "double")
    return v.convert("fptrunc", "double", _one_over(v, "double", v.intrinsic("sqrt", "double", wide)), "float")


def _extreme(how: str, drop_nan: bool) -> Emit:
    """Lesser or greater of two floats; a NaN wins, or loses when ``drop_nan``."""

    def f(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
        x, y = a
        best = v.select(t, v.compare(f"fcmp {how}", t, x, y), x, y)  # y when unordered
        if drop_nan:
            return v.select(t, v.compare("fcmp uno", t, y, y), x, best)
        return v.select(t, v.compare("fcmp uno", t, x, x), x, best)

    return f


def _fmod_exact(v: Lanes, t: str, a: Sequence[str]) -> str:
    return v.op("frem", t, a[0], a[1])


def _fmod(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    return _fmod_exact(v, t, a)


def _mod(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    m, zero = _fmod_exact(v, t, a), v.const(t, 0)
    unlike = v.op("xor", "i1", v.compare("fcmp olt", t, a[1], zero), v.compare("fcmp olt", t, m, zero))
    fix = v.op("and", "i1", unlike, v.compare("fcmp une", t, m, zero))
    return v.select(t, fix, v.op("fadd", t, m, a[1]), m)


def _floor_div(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    """From what fmod leaves: floor(a / b) alone is off by one where the division rounds up to a whole number."""
    zero, one = v.const(t, 0), v.const(t, 1)
    m, plain = _fmod_exact(v, t, a), v.op("fdiv", t, a[0], a[1])
    q = v.op("fdiv", t, v.op("fsub", t, a[0], m), a[1])
    unlike = v.op("xor", "i1", v.compare("fcmp olt", t, a[1], zero), v.compare("fcmp olt", t, m, zero))
    fix = v.op("and", "i1", unlike, v.compare("fcmp une", t, m, zero))
    q = v.select(t, fix, v.op("fsub", t, q, one), q)
    whole = v.intrinsic("floor", t, q)
    up = v.compare("fcmp ogt", t, v.op("fsub", t, q, whole), v.const(t, 0.5))
    whole = v.select(t, up, v.op("fadd", t, whole, one), whole)
    nothing = v.intrinsic("copysign", t, zero, plain)
    whole = v.select(t, v.compare("fcmp oeq", t, q, zero), nothing, whole)
    return v.select(t, v.compare("fcmp oeq", t, a[1], zero), plain, whole)


def _float_sign_bit(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    i = "i64" if t == "double" else "i32"
    return v.compare("icmp slt", i, v.convert("bitcast", t, a[0], i), v.const(i, 0))


def _is_inf(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    return v.compare("fcmp oeq", t, v.intrinsic("fabs", t, a[0]), v.const(t, float("inf")))


def _int_abs(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    if not _signed(d):
        return a[0]
    zero = v.const(t, 0)
    return v.select(t, v.compare("icmp slt", t, a[0], zero), v.op("sub", t, zero, a[0]), a[0])


def _int_sign(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    zero, one = v.const(t, 0), v.const(t, 1)
    if not _signed(d):
        return v.select(t, v.compare("icmp ne", t, a[0], zero), one, zero)
    above = v.select(t, v.compare("icmp sgt", t, a[0], zero), one, zero)
    return v.select(t, v.compare("icmp slt", t, a[0], zero), v.const(t, -1), above)


def _int_divide(remainder: bool, floor: bool) -> Emit:
    """Division by 0 gives 0; by -1 goes around the one overflow the processor traps on."""

    def f(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
        x, y = a
        zero, one = v.const(t, 0), v.const(t, 1)
        none = v.compare("icmp eq", t, y, zero)
        if not _signed(d):
            result = v.op("urem" if remainder else "udiv", t, x, v.select(t, none, one, y))
            return v.select(t, none, zero, result)
        minus = v.compare("icmp eq", t, y, v.const(t, -1))
        safe = v.select(t, v.op("or", "i1", none, minus), one, y)
        q = v.select(t, minus, v.op("sub", t, zero, x), v.op("sdiv", t, x, safe))
        r = v.select(t, minus, zero, v.op("sub", t, x, v.op("mul", t, q, safe)))
        if floor:
            unlike = v.compare("icmp slt", t, v.op("xor", t, r, y), zero)
            fix = v.op("and", "i1", unlike, v.compare("icmp ne", t, r, zero))
            r = v.select(t, fix, v.op("add", t, r, y), r)
            q = v.select(t, fix, v.op("sub", t, q, one), q)
        return v.select(t, none, zero, r if remainder else q)

    return f


def _int_extreme(greater: bool) -> Emit:
    def f(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
        how = f"icmp {'s' if _signed(d) else 'u'}{'gt' if greater else 'lt'}"
        return v.select(t, v.compare(how, t, a[0], a[1]), a[0], a[1])

    return f


def _shift(left: bool) -> Emit:
    def f(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
        width, zero = int(t[1:]), v.const(t, 0)
        inside = v.compare("icmp ult", t, a[1], v.const(t, width))
        by = v.select(t, inside, a[1], zero)
        y = v.op("shl" if left else ("ashr" if _signed(d) else "lshr"), t, a[0], by)
        beyond = v.op("ashr", t, a[0], v.const(t, width - 1)) if not left and _signed(d) else zero
        return v.select(t, inside, y, beyond)

    return f


def _where(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    return v.select(t, a[0], a[1], a[2])


def _not(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    return v.op("xor", t, a[0], v.const(t, 1 if t == "i1" else -1))


def _same(v: Lanes, t: str, d: DType, a: Sequence[str]) -> str:
    return a[0]


_FLOAT: Final[dict[str, Emit]] = {
    "neg": _fneg, "abs": _intrinsic("fabs"), "sign": _fsign, "sqrt": _intrinsic("sqrt"), "rsqrt": _rsqrt,
    "recip": lambda v, t, d, a: _one_over(v, t, a[0]), "floor": _intrinsic("floor"), "ceil": _intrinsic("ceil"),
    "round": _intrinsic("rint"), "trunc": _intrinsic("trunc"), "conj": _same, "is_inf": _is_inf, "sign_bit": _float_sign_bit,
    "is_nan": lambda v, t, d, a: v.compare("fcmp uno", t, a[0], a[0]), "add": _binary("fadd"), "sub": _binary("fsub"),
    "mul": _binary("fmul"), "div": _binary("fdiv"), "floor_div": _floor_div, "mod": _mod, "fmod": _fmod,
    "trunc_div": lambda v, t, d, a: v.intrinsic("trunc", t, v.op("fdiv", t, a[0], a[1])), "min": _extreme("olt", False),
    "max": _extreme("ogt", False), "fmin": _extreme("olt", True), "fmax": _extreme("ogt", True), "copysign": _intrinsic("copysign"),
    "fma": _intrinsic("fma"), "where": _where,
} | {name: _named(name) for name in (*DOUBLE, "erf", "erfc", "atan2", "hypot", "pow")}  # fmt: skip
_INT: Final[dict[str, Emit]] = {
    "neg": lambda v, t, d, a: v.op("sub", t, v.const(t, 0), a[0]), "abs": _int_abs, "sign": _int_sign, "not": _not,
    "add": _binary("add"), "sub": _binary("sub"), "mul": _binary("mul"), "floor_div": _int_divide(False, True),
    "trunc_div": _int_divide(False, False), "mod": _int_divide(True, True), "fmod": _int_divide(True, False), "min": _int_extreme(False),
    "max": _int_extreme(True), "fmin": _int_extreme(False), "fmax": _int_extreme(True), "and": _binary("and"), "or": _binary("or"),
    "xor": _binary("xor"), "shl": _shift(True), "shr": _shift(False), "where": _where,
    "sign_bit": lambda v, t, d, a: v.compare("icmp slt", t, a[0], v.const(t, 0)) if _signed(d) else v.const("i1", 0),
}  # fmt: skip
_BOOL: Final[dict[str, Emit]] = {
    "not": _not, "and": _binary("and"), "or": _binary("or"), "xor": _binary("xor"), "min": _binary("and"), "max": _binary("or"),
    "where": _where,
}  # fmt: skip
_TABLE: Final = {"f": _FLOAT, "s": _INT, "u": _INT, "b": _BOOL}
_COMPARE: Final = {
    "eq": ("oeq", "eq"),
    "ne": ("une", "ne"),
    "lt": ("olt", "lt"),
    "le": ("ole", "le"),
    "gt": ("ogt", "gt"),
    "ge": ("oge", "ge"),
}
_SINGLE_ONLY: Final = frozenset({"erf", "erfc"})
"""No f64 version accurate enough: the reference computes these in f64."""


def supported(name: str, out: DType, ins: Sequence[DType]) -> bool:
    """Whether ``emit`` can write this operation for these element types."""
    if out.is_complex or any(x.is_complex for x in ins):
        return False
    if name == "cast":
        return True
    if name in _COMPARE:
        return True
    operand = ins[-1]
    return name in _TABLE[_kind(operand)] and not (name in _SINGLE_ONLY and operand is DType.F64)


def emit(v: Lanes, name: str, out: DType, ins: Sequence[DType], args: Sequence[str]) -> str:
    """The value of one operation, rounded to ``out``; ``ins`` are the element types of ``args``."""
    if name == "cast":
        return _cast(v, ins[0], out, args[0])
    operand = ins[-1]
    t, kind = register(operand), _kind(operand)
    if name in _COMPARE:
        real, whole = _COMPARE[name]
        if kind == "f":
            return v.compare(f"fcmp {real}", t, args[0], args[1])
        sign = "" if name in ("eq", "ne") else ("s" if kind == "s" else "u")
        return v.compare(f"icmp {sign}{whole}", t, args[0], args[1])
    value = _TABLE[kind][name](v, t, operand, args)
    return value if out is DType.BOOL else round_to(v, out, value)
