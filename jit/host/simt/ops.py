"""LLVM IR of each op that computes, over scalars or vectors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from jit.errors import KernelRefused
from jit.host.emit import ops as tensor
from jit.host.emit.code import Lanes
from jit.host.simt.registers import LLVM
from wis.dtypes import DType
from wis.kernel.model import RegType
from wis.kernel.ops import KernelOp, Sig

__all__ = ["value_of"]

_SIGNED: Final = {RegType.PRED: DType.BOOL, RegType.I16: DType.I16, RegType.I32: DType.I32, RegType.I64: DType.I64, RegType.F32: DType.F32,
                  RegType.F64: DType.F64}  # fmt: skip
_UNSIGNED: Final = {RegType.I16: DType.U16, RegType.I32: DType.U32, RegType.I64: DType.U64}
_PLAIN: Final = {"add", "sub", "mul", "neg", "abs", "div", "fma", "sqrt", "floor", "ceil", "trunc", "copysign", "and", "or", "xor", "not"}
_RENAMED: Final = {
    "rint": "round", "rem": "fmod", "div_s": "trunc_div", "div_u": "trunc_div", "rem_s": "fmod", "rem_u": "fmod", "min_s": "min",
    "min_u": "min", "max_s": "max", "max_u": "max", "shl": "shl", "shr_s": "shr", "shr_u": "shr",
}  # fmt: skip
_COMPARE: Final = {"eq": "eq", "ne": "ne", "lt_s": "slt", "lt_u": "ult", "le_s": "sle", "le_u": "ule"}
_COMPARE_FLOAT: Final = {"eq": "oeq", "ne": "une", "lt": "olt", "le": "ole"}
_FLOATS: Final = (RegType.F32, RegType.F64)
Emit = Callable[[Lanes, str, Sequence[str]], str]


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
    if name in _EXTREMES:
        return v.intrinsic(_EXTREMES[name], t, *args)
    if name in _BITS:
        return _BITS[name](v, t, args)
    if row.named:
        return _named(v, name, kind, args)
    dtype = (_UNSIGNED if name.endswith("_u") else _SIGNED)[kind]
    word = _RENAMED.get(name, name)
    assert word in _PLAIN or name in _RENAMED, name
    return tensor.emit(v, word, dtype, [dtype] * len(args), args)


_EXTREMES: Final = {"min": "minimum", "max": "maximum", "fmin": "minimumnum", "fmax": "maximumnum"}


def _named(v: Lanes, name: str, kind: RegType, args: Sequence[str]) -> str:
    dtype = _SIGNED[kind]
    if name == "exp10":
        return _exp10(v, LLVM[kind], args[0])
    if tensor.supported(name, dtype, [dtype] * len(args)):
        return tensor.emit(v, name, dtype, [dtype] * len(args), args)
    if name in _LIBRARY:
        return _each(v, LLVM[kind], _LIBRARY[name], args)
    raise KernelRefused(f"this back end has no {name} for {kind.text}")


_LIBRARY: Final = {"erf": "erf", "erfc": "erfc", "lgamma": "lgamma"}
"""Functions of the C library, called for each lane in f64."""


def _exp10(v: Lanes, t: str, x: str) -> str:
    """2 ** (x * log2(10)), in f64 with the product's error added to its argument."""
    wide = v.convert("fpext", "float", x, "double") if t == "float" else x
    c = v.const("double", 3.321928094887362)
    high = v.op("fmul", "double", wide, c)
    y = tensor.emit(v, "exp2", DType.F64, [DType.F64], [high])
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


# --- bits
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


_BITS: Final[dict[str, Emit]] = {
    "popc": _count("ctpop"),
    "clz": _count("ctlz"),
    "brev": lambda v, t, args: v.intrinsic("bitreverse", t, args[0]),
    "mul_hi_s": _mul_hi("sext"),
    "mul_hi_u": _mul_hi("zext"),
    "mov": lambda v, t, args: args[0],
}


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
        return tensor.load_convert(v, DType.BF16, x)
    return tensor.load_convert(v, DType.F16, v.convert("bitcast", "i16", x, "half"))


def _float_to_half(v: Lanes, target: RegType, x: str) -> str:
    if target is RegType.BF16:
        return tensor.store_convert(v, DType.BF16, x)
    return v.convert("bitcast", "half", tensor.store_convert(v, DType.F16, x), "i16")


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
