"""LLVM IR of each op that computes, over scalars or vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jit.errors import KernelRefused
from jit.host.emit.code import Lanes
from jit.host.emit.maths import DOUBLE, DOUBLE2, SINGLE
from jit.host.simt.registers import LLVM
from wis.kernel.model import RegType
from wis.kernel.ops import KernelOp, Sig

__all__ = ["value_of"]

_COMPARE: Final = {"eq": "eq", "ne": "ne", "lt_s": "slt", "lt_u": "ult", "le_s": "sle", "le_u": "ule"}
_COMPARE_FLOAT: Final = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole"}
_FLOATS: Final = (RegType.F32, RegType.F64)
Emit = Callable[[Lanes, str, Sequence[str]], str]
"""(lanes, LLVM type, operands) -> value."""


def value_of(v: Lanes, row: KernelOp, out: RegType, kinds: Sequence[RegType], args: Sequence[str]) -> str:
    """The value of an op. Raises KernelRefused for named functions that this back end lacks."""
    name, kind = row.name, kinds[-1]
    t = LLVM[kind]
    if row.sig in _CONVERSIONS:
        return _CONVERSIONS[row.sig](v, name, kinds[0], out, args[0])
    if row.sig in (Sig.EQUAL, Sig.ORDER_INT, Sig.ORDER_FLOAT):
        how = f"fcmp {_COMPARE_FLOAT[name]}" if kind in _FLOATS else f"icmp {_COMPARE[name]}"
        return v.compare(how, t, args[0], args[1])
    if row.sig is Sig.SELECT:
        return v.select(t, args[0], args[1], args[2])
    if row.named:
        return _named(v, name, kind, args)
    return (_FLOAT if kind in _FLOATS and name in _FLOAT else _WHOLE)[name](v, t, args)


def _binary(name: str) -> Emit:
    return lambda v, t, args: v.op(name, t, args[0], args[1])


def _intrinsic(name: str) -> Emit:
    return lambda v, t, args: v.intrinsic(name, t, *args)


_FLOAT: Final[dict[str, Emit]] = {
    "add": _binary("fadd"), "sub": _binary("fsub"), "mul": _binary("fmul"), "div": _binary("fdiv"), "rem": _binary("frem"),
    "neg": lambda v, t, args: v.code.value(f"fneg {v.type(t)} {args[0]}"), "abs": _intrinsic("fabs"), "fma": _intrinsic("fma"),
    "sqrt": _intrinsic("sqrt"), "rint": _intrinsic("rint"), "floor": _intrinsic("floor"), "ceil": _intrinsic("ceil"),
    "trunc": _intrinsic("trunc"), "copysign": _intrinsic("copysign"), "min": _intrinsic("minimum"), "max": _intrinsic("maximum"),
    "fmin": _intrinsic("minimumnum"), "fmax": _intrinsic("maximumnum"),
}  # fmt: skip


# --- named functions
def _named(v: Lanes, name: str, kind: RegType, args: Sequence[str]) -> str:
    """The f32 version of a function where there is one, else the f64 version, else the C library's for each lane."""
    if name == "exp10":
        return _exp10(v, LLVM[kind], args[0])
    if name == "rsqrt":
        return _rsqrt(v, kind, args[0])
    if kind is RegType.F32 and name in SINGLE:
        return SINGLE[name](v, args[0])
    if name in _LIBRARY:
        return _each(v, LLVM[kind], _LIBRARY[name], args)
    if name not in DOUBLE and name not in DOUBLE2:
        raise KernelRefused(f"this back end has no {name} for {kind.text}")
    wide = [v.convert("fpext", "float", x, "double") for x in args] if kind is RegType.F32 else args
    y = DOUBLE2[name](v, wide[0], wide[1]) if name in DOUBLE2 else DOUBLE[name](v, wide[0])
    return v.convert("fptrunc", "double", y, "float") if kind is RegType.F32 else y


_LIBRARY: Final = {"erf": "erf", "erfc": "erfc", "lgamma": "lgamma"}
"""Functions of the C library, called for each lane in f64."""


def _rsqrt(v: Lanes, kind: RegType, x: str) -> str:
    """In f64 for f32 (one rounding, as the definition has it); in f64 itself with two."""
    wide = v.convert("fpext", "float", x, "double") if kind is RegType.F32 else x
    root = v.intrinsic("sqrt", "double", wide)
    y = v.op("fdiv", "double", v.const("double", 1), root)
    return v.convert("fptrunc", "double", y, "float") if kind is RegType.F32 else y


def _exp10(v: Lanes, t: str, x: str) -> str:
    """2 ** (x * log2(10)), in f64 with the product's error added to its argument."""
    wide = v.convert("fpext", "float", x, "double") if t == "float" else x
    c = v.const("double", 3.321928094887362)
    high = v.op("fmul", "double", wide, c)
    y = DOUBLE["exp2"](v, high)
    if t == "float":
        return v.convert("fptrunc", "double", y, "float")
    low = v.fma("double", wide, v.const("double", 1.661617516973592e-16), v.fma("double", wide, c, v.code.value(_negated(v, high))))
    fixed = v.fma("double", y, v.op("fmul", "double", low, v.const("double", 0.6931471805599453)), y)
    finite = v.compare("fcmp olt", "double", v.intrinsic("fabs", "double", fixed), v.const("double", float("inf")))
    return v.select("double", finite, fixed, y)


def _negated(v: Lanes, x: str) -> str:
    return f"fneg {v.type('double')} {x}"


def _each(v: Lanes, t: str, function: str, args: Sequence[str]) -> str:
    code = v.code
    wide = [v.convert("fpext", "float", x, "double") if t == "float" else x for x in args]
    if v.n == 1:
        y = code.call("double", function, *(("double", x) for x in wide))
    else:
        y = "poison"
        for lane in range(v.n):
            ones = [code.value(f"extractelement {v.type('double')} {x}, i32 {lane}") for x in wide]
            one = code.call("double", function, *(("double", x) for x in ones))
            y = code.value(f"insertelement {v.type('double')} {y}, double {one}, i32 {lane}")
    return v.convert("fptrunc", "double", y, "float") if t == "float" else y


# --- integers and predicates
def _divide(signed: bool, remainder: bool) -> Emit:
    """Division by 0 gives 0; by -1 goes around the one overflow the processor traps on."""

    def f(v: Lanes, t: str, args: Sequence[str]) -> str:
        x, y = args
        zero, one = v.const(t, 0), v.const(t, 1)
        none = v.compare("icmp eq", t, y, zero)
        if not signed:
            result = v.op("urem" if remainder else "udiv", t, x, v.select(t, none, one, y))
            return v.select(t, none, zero, result)
        minus = v.compare("icmp eq", t, y, v.const(t, -1))
        safe = v.select(t, v.op("or", "i1", none, minus), one, y)
        q = v.select(t, minus, v.op("sub", t, zero, x), v.op("sdiv", t, x, safe))
        r = v.select(t, minus, zero, v.op("sub", t, x, v.op("mul", t, q, safe)))
        return v.select(t, none, zero, r if remainder else q)

    return f


def _extreme(how: str) -> Emit:
    return lambda v, t, args: v.select(t, v.compare(f"icmp {how}", t, args[0], args[1]), args[0], args[1])


def _shift(name: str) -> Emit:
    def f(v: Lanes, t: str, args: Sequence[str]) -> str:
        width, zero = int(t[1:]), v.const(t, 0)
        inside = v.compare("icmp ult", t, args[1], v.const(t, width))
        by = v.select(t, inside, args[1], zero)
        y = v.op(name, t, args[0], by)
        beyond = v.op("ashr", t, args[0], v.const(t, width - 1)) if name == "ashr" else zero
        return v.select(t, inside, y, beyond)

    return f


def _abs(v: Lanes, t: str, args: Sequence[str]) -> str:
    zero = v.const(t, 0)
    return v.select(t, v.compare("icmp slt", t, args[0], zero), v.op("sub", t, zero, args[0]), args[0])


def _mul_hi(widen: str) -> Emit:
    def f(v: Lanes, t: str, args: Sequence[str]) -> str:
        bits = int(t[1:])
        a, b = (v.convert(widen, t, x, f"i{2 * bits}") for x in args)
        product = v.op("mul", f"i{2 * bits}", a, b)
        return v.convert("trunc", f"i{2 * bits}", v.op("lshr", f"i{2 * bits}", product, v.const(f"i{2 * bits}", bits)), t)

    return f


def _count(name: str) -> Emit:
    def f(v: Lanes, t: str, args: Sequence[str]) -> str:
        kind = v.type(t)
        more = (("i1", "false"),) if name == "ctlz" else ()
        n = v.code.call(kind, f"llvm.{name}.{v.suffix(t)}", (kind, args[0]), *more)
        return n if t == "i32" else v.convert("trunc" if t == "i64" else "zext", t, n, "i32")

    return f


_WHOLE: Final[dict[str, Emit]] = {
    "add": _binary("add"), "sub": _binary("sub"), "mul": _binary("mul"), "neg": lambda v, t, args: v.op("sub", t, v.const(t, 0), args[0]),
    "abs": _abs, "div_s": _divide(True, False), "div_u": _divide(False, False), "rem_s": _divide(True, True),
    "rem_u": _divide(False, True), "min_s": _extreme("slt"), "min_u": _extreme("ult"), "max_s": _extreme("sgt"),
    "max_u": _extreme("ugt"), "shl": _shift("shl"), "shr_s": _shift("ashr"), "shr_u": _shift("lshr"), "and": _binary("and"),
    "or": _binary("or"), "xor": _binary("xor"), "not": lambda v, t, args: v.op("xor", t, args[0], v.const(t, 1 if t == "i1" else -1)),
    "mul_hi_s": _mul_hi("sext"), "mul_hi_u": _mul_hi("zext"), "popc": _count("ctpop"), "clz": _count("ctlz"),
    "brev": _intrinsic("bitreverse"), "mov": lambda v, t, args: args[0],
}  # fmt: skip
"""Integers and predicates, and ``mov`` of any type."""


# --- conversions: (lanes, op, from, to, value)
def _widen(v: Lanes, name: str, source: RegType, target: RegType, x: str) -> str:
    return v.convert(name, LLVM[source], x, LLVM[target])


def _narrow(v: Lanes, name: str, source: RegType, target: RegType, x: str) -> str:
    return v.convert("trunc", LLVM[source], x, LLVM[target])


def _float_float(v: Lanes, name: str, source: RegType, target: RegType, x: str) -> str:
    """By way of f32 between the narrow types and f64."""
    if source in (RegType.F16, RegType.BF16):
        x = _half_to_float(v, source, x)
        if target is RegType.F32:
            return x
        return v.convert("fpext", "float", x, "double") if target is RegType.F64 else _float_to_half(v, target, x)
    if target is RegType.F64:
        return v.convert("fpext", "float", x, "double")
    if source is RegType.F64:
        x = v.convert("fptrunc", "double", x, "float")
    return x if target is RegType.F32 else _float_to_half(v, target, x)


def _half_to_float(v: Lanes, source: RegType, x: str) -> str:
    if source is RegType.BF16:
        wide = v.op("shl", "i32", v.convert("zext", "i16", x, "i32"), v.const("i32", 16))
        return v.convert("bitcast", "i32", wide, "float")
    return v.convert("fpext", "half", v.convert("bitcast", "i16", x, "half"), "float")


def _float_to_half(v: Lanes, target: RegType, x: str) -> str:
    """bf16: the upper half of the bits, ties to even; a NaN stays one."""
    if target is not RegType.BF16:
        return v.convert("bitcast", "half", v.convert("fptrunc", "float", x, "half"), "i16")
    i = v.convert("bitcast", "float", x, "i32")
    upper = v.op("lshr", "i32", i, v.const("i32", 16))
    bias = v.op("add", "i32", v.op("and", "i32", upper, v.const("i32", 1)), v.const("i32", 0x7FFF))
    rounded = v.op("lshr", "i32", v.op("add", "i32", i, bias), v.const("i32", 16))
    nan = v.compare("fcmp uno", "float", x, x)
    return v.convert("trunc", "i32", v.select("i32", nan, v.op("or", "i32", upper, v.const("i32", 0x40)), rounded), "i16")


def _int_float(v: Lanes, name: str, source: RegType, target: RegType, x: str) -> str:
    return v.convert("uitofp" if name == "u2f" else "sitofp", LLVM[source], x, LLVM[target])


def _float_int(v: Lanes, name: str, source: RegType, target: RegType, x: str) -> str:
    a, b = LLVM[source], LLVM[target]
    return v.code.call(v.type(b), f"llvm.fpto{name[-1]}i.sat.{v.suffix(b)}.{v.suffix(a)}", (v.type(a), x))


def _reinterpret(v: Lanes, name: str, source: RegType, target: RegType, x: str) -> str:
    a, b = LLVM[source], LLVM[target]
    return x if a == b else v.convert("bitcast", a, x, b)


_CONVERSIONS: Final[dict[Sig, Callable[[Lanes, str, RegType, RegType, str], str]]] = {
    Sig.WIDEN: _widen,
    Sig.NARROW: _narrow,
    Sig.FLOAT_FLOAT: _float_float,
    Sig.INT_FLOAT: _int_float,
    Sig.FLOAT_INT: _float_int,
    Sig.REINTERPRET: _reinterpret,
}
