"""Semantics of register-only ops, as functions of arrays.

Registers are arrays of one value a thread, or of one value that all threads have; integers are signless (NumPy's signed types).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wis.dtypes import DType
from wis.kernel.interpret import arithmetic
from wis.kernel.model import RegType
from wis.kernel.ops import NAMED, KernelOp, Sig
from wis.reference.access import convert
from wis.reference.elementwise import MAP, wide

Array = npt.NDArray[Any]

WIS: Final[dict[RegType, DType]] = {
    RegType.PRED: DType.BOOL,
    RegType.F16: DType.F16,
    RegType.BF16: DType.BF16,
    RegType.F32: DType.F32,
    RegType.F64: DType.F64,
    RegType.I16: DType.I16,
    RegType.I32: DType.I32,
    RegType.I64: DType.I64,
}
"""The element type of what a register holds."""
NUMPY: Final = {register: dtype.numpy for register, dtype in WIS.items()}
_UNSIGNED: Final = {DType.I16: DType.U16, DType.I32: DType.U32, DType.I64: DType.U64}


def value(row: KernelOp, attrs: tuple[int, ...], target: RegType, ins: Sequence[Array]) -> Array:
    """The result of an op that has one, from registers and attributes alone."""
    if row.sig in _CONVERSIONS:
        return _CONVERSIONS[row.sig](row.name, ins[0], target)
    if row.sig in arithmetic.CONVERSIONS:
        return arithmetic.CONVERSIONS[row.sig](row.name, ins[0], NUMPY[target], attrs[0])
    if row.sig is Sig.ROUNDED:
        return arithmetic.ROUNDED_FUNCTIONS[row.name](attrs[0], *ins)
    if attrs:
        return arithmetic.WITH_ATTRIBUTE[row.name](attrs[0], *ins)
    return np.asarray(_FUNCTIONS[row.name](*ins))


def from_bits(values: Array, target: RegType) -> Array:
    """Registers whose bits are those of the i64 ``values``."""
    if target is RegType.PRED:
        return np.asarray(values != 0)
    return values.astype(f"i{target.bits // 8}").view(NUMPY[target])


def _unsigned(x: Array) -> Array:
    return x.view(f"u{x.dtype.itemsize}")


def _widen(name: str, x: Array, target: RegType) -> Array:
    return (_unsigned(x) if name == "zext" else x).astype(NUMPY[target])


def _int_float(name: str, x: Array, target: RegType) -> Array:
    return (_unsigned(x) if name == "u2f" else x).astype(NUMPY[target])


def _float_int(name: str, x: Array, target: RegType) -> Array:
    source, to = DType.F32 if x.dtype == np.float32 else DType.F64, WIS[target]
    return convert(x, source, _UNSIGNED[to] if name == "f2u" else to).view(NUMPY[target])


def _float_float(name: str, x: Array, target: RegType) -> Array:
    source = next(wis for wis in (DType.F16, DType.BF16, DType.F32, DType.F64) if wis.numpy == x.dtype)
    return convert(x, source, WIS[target])


_CONVERSIONS: Final[dict[Sig, Callable[[str, Array, RegType], Array]]] = {
    Sig.WIDEN: _widen,
    Sig.NARROW: lambda name, x, target: x.astype(NUMPY[target]),
    Sig.FLOAT_FLOAT: _float_float,
    Sig.INT_FLOAT: _int_float,
    Sig.FLOAT_INT: _float_int,
    Sig.REINTERPRET: lambda name, x, target: x.view(NUMPY[target]),
}


def _as_unsigned(f: Callable[..., Array]) -> Callable[..., Array]:
    """``f`` on the unsigned reading of its operands; an integer result is read back as signless."""

    def g(*args: Array) -> Array:
        result = np.asarray(f(*(_unsigned(a) for a in args)))
        return result.view(args[0].dtype) if result.dtype.kind == "u" else result

    return g


def _zeros_ordered(f: Callable[..., Array], of_zeros: Callable[..., Array]) -> Callable[..., Array]:
    """A minimum or maximum for which -0 is less than +0, which comparing does not tell."""

    def g(a: Array, b: Array) -> Array:
        both = (a == 0) & (b == 0)
        result = f(a, b)
        return np.where(both, of_zeros(_unsigned(a), _unsigned(b)).view(a.dtype), result) if both.any() else result

    return g


_FUNCTIONS: Final[dict[str, Callable[..., Array]]] = {
    **{name: MAP[name] for name in NAMED if name in MAP},
    "exp10": wide(lambda x: np.power(10.0, x)),
    **arithmetic.BIT_FUNCTIONS,
    **{name: MAP[name] for name in ("add", "sub", "mul", "neg", "abs", "div", "fma", "sqrt", "floor", "ceil")},
    "min": _zeros_ordered(np.minimum, np.bitwise_or),
    "max": _zeros_ordered(np.maximum, np.bitwise_and),
    "fmin": _zeros_ordered(MAP["fmin"], np.bitwise_or),
    "fmax": _zeros_ordered(MAP["fmax"], np.bitwise_and),
    **{name: MAP[name] for name in ("trunc", "copysign", "and", "or", "xor", "not", "eq", "ne", "lt", "le")},
    "mov": lambda x: x,
    "sel": lambda p, a, b: np.asarray(np.where(p, a, b)),
    "rint": MAP["round"],
    "div_s": MAP["trunc_div"],
    "div_u": _as_unsigned(MAP["trunc_div"]),
    "rem": MAP["fmod"],
    "rem_s": MAP["fmod"],
    "rem_u": _as_unsigned(MAP["fmod"]),
    "min_s": np.minimum,
    "min_u": _as_unsigned(np.minimum),
    "max_s": np.maximum,
    "max_u": _as_unsigned(np.maximum),
    "shl": MAP["shl"],  # a signed amount below 0 is, read unsigned, past the width too
    "shr_s": MAP["shr"],
    "shr_u": _as_unsigned(MAP["shr"]),
    "lt_s": np.less,
    "lt_u": _as_unsigned(np.less),
    "le_s": np.less_equal,
    "le_u": _as_unsigned(np.less_equal),
}
