"""Elementwise operations of two or more tensors: arithmetic, comparisons, bits, selection, complex numbers from parts and polar form."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Final

from wis.dtypes import FLOATS, DType
from wis.views import broadcast_shapes
from wooly.device.lowering.dtypes import accumulate, category, complex_of, float_type, result_type
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Number, ScalarArg, Unsupported, Value

__all__ = ["add", "mul", "div", "scaled", "scaled_bool", "clamp_to"]

_ONE: Final = {"alpha": (1,)}


def scaled(t: Trace, x: Value, factor: Value, dtype: DType) -> Value:
    """``x * factor`` in ``dtype``; no instruction when the factor is the plain number 1 or both are numbers."""
    if isinstance(factor, bool | int | float) and factor == 1:
        return x
    if isinstance(x, Meta) or isinstance(factor, Meta):
        return t.map("mul", x, factor, dtype=dtype)
    return t.derive(_times, x, factor, kind=float if dtype in FLOATS else int)


def _times(a: Number, b: Number) -> Number:
    return a * b


def _wide(dtype: DType, factor: Value) -> DType:
    """Where a factor comes in, torch rounds once at the end: compute in the accumulate type."""
    return dtype if isinstance(factor, int | float) and factor == 1 else accumulate(dtype)


@lowers("aten::add.Tensor", "aten::add.Scalar", special=_ONE)
def add(t: Trace, a: Value, b: Value, alpha: Value = 1) -> Meta:
    dtype = result_type((a, b))
    if dtype == DType.BOOL:
        b = scaled_bool(t, b, alpha)
        return t.map("or", a, b, dtype=dtype)
    wide = _wide(dtype, alpha)
    return t.map("add", a, scaled(t, b, alpha, wide), dtype=wide)


def scaled_bool(t: Trace, x: Value, alpha: Value) -> Value:
    return x if isinstance(alpha, bool | int) and alpha == 1 else t.map("and", x, alpha, dtype=DType.BOOL)


def _is_bool(x: Value) -> bool:
    if isinstance(x, ScalarArg):
        return x.dtype == DType.BOOL if x.dtype is not None else x.kind is bool
    return x.dtype == DType.BOOL if isinstance(x, Meta) else isinstance(x, bool)


@lowers("aten::sub.Tensor", "aten::sub.Scalar", special=_ONE)
def sub(t: Trace, a: Value, b: Value, alpha: Value = 1) -> Meta:
    if _is_bool(a) or _is_bool(b):
        raise Unsupported("torch does not subtract bool")
    dtype = result_type((a, b))
    wide = _wide(dtype, alpha)
    return t.map("sub", a, scaled(t, b, alpha, wide), dtype=wide)


@lowers("aten::rsub.Tensor", "aten::rsub.Scalar", special=_ONE)
def rsub(t: Trace, a: Value, b: Value, alpha: Value = 1) -> Meta:
    return sub(t, b, a, alpha)


@lowers("aten::mul.Tensor", "aten::mul.Scalar")
def mul(t: Trace, a: Value, b: Value) -> Meta:
    dtype = result_type((a, b))
    return t.map("and" if dtype == DType.BOOL else "mul", a, b, dtype=dtype)


@lowers("aten::div.Tensor", "aten::div.Scalar")
def div(t: Trace, a: Value, b: Value) -> Meta:
    return t.map("div", a, b, dtype=float_type(result_type((a, b))))


@lowers("aten::div.Tensor_mode", "aten::div.Scalar_mode")
def div_mode(t: Trace, a: Value, b: Value, *, rounding_mode: str | None = None) -> Meta:
    if rounding_mode is None:
        return div(t, a, b)
    dtype = result_type((a, b))
    if dtype in (DType.F16, DType.BF16) and isinstance(b, Meta) and b.numel != 1:
        return _halves_divided(t, a, b, dtype, rounding_mode)
    return t.map({"floor": "floor_div", "trunc": "trunc_div"}[rounding_mode], a, b, dtype=_no_bool(dtype))


def _halves_divided(t: Trace, a: Value, b: Meta, dtype: DType, rounding_mode: str) -> Meta:
    """As torch's kernels divide two tensors of half precision: each step is rounded to their type (c10::div_floor_floating)."""
    quotient = t.map("div", a, b, dtype=dtype)
    if rounding_mode == "trunc":
        return t.map("trunc", quotient)
    rest = t.map("fmod", a, b, dtype=dtype)
    whole = t.map("div", t.map("sub", a, rest, dtype=dtype), b, dtype=dtype)
    other_sign = t.map("ne", t.map("lt", b, 0), t.map("lt", rest, 0))
    whole = t.where(t.map("and", t.map("ne", rest, 0), other_sign), t.map("sub", whole, 1), whole)
    floor = t.map("floor", whole)
    floor = t.where(t.map("gt", t.map("sub", whole, floor), 0.5), t.map("add", floor, 1), floor)
    floor = t.where(t.map("eq", whole, 0), t.map("copysign", 0.0, quotient, dtype=dtype), floor)
    return t.where(t.map("eq", b, 0), quotient, floor)


def _no_bool(dtype: DType) -> DType:
    """Bool arithmetic that torch does in bool is done in u8 (and cast back by the binding)."""
    return DType.U8 if dtype == DType.BOOL else dtype


@lowers("aten::floor_divide", "aten::floor_divide.Scalar")
def floor_divide(t: Trace, a: Value, b: Value) -> Meta:
    return div_mode(t, a, b, rounding_mode="floor")


def _same(op: str) -> Callable[[Trace, Value, Value], Meta]:
    return lambda t, a, b: t.map(op, a, b, dtype=_no_bool(result_type((a, b))))


def _rest(op: str) -> Callable[[Trace, Value, Value], Meta]:
    """Remainders are taken of a number as the tensor's type has it."""

    def lowering(t: Trace, a: Value, b: Value) -> Meta:
        dtype = _no_bool(result_type((a, b)))
        if dtype in (DType.F16, DType.BF16):
            a, b = (x if isinstance(x, Meta) else t.full((), x, dtype) for x in (a, b))
        return t.map(op, a, b, dtype=dtype)

    return lowering


def _integers(a: Value, b: Value) -> DType:
    dtype = result_type((a, b))
    if not dtype.is_integer:
        raise Unsupported(f"common divisors in {dtype.text}")
    return dtype


@lowers("aten::gcd")
def gcd(t: Trace, a: Value, b: Value) -> Meta:
    """Euclid's algorithm, in as many steps as the greatest consecutive Fibonacci numbers of the type take. Remainders have the sign of the
    dividend: of the least number of a type, which has no magnitude in it, results are as odd as torch's."""
    dtype = _integers(a, b)
    a, b = t.map("abs", a, dtype=dtype), t.map("abs", b, dtype=dtype)
    for _ in range(math.ceil(8 * dtype.itemsize / math.log2((1 + math.sqrt(5)) / 2)) + 1):
        a, b = t.map("fmod", b, a), t.where(t.map("eq", a, 0), b, a)
    return b


@lowers("aten::lcm")
def lcm(t: Trace, a: Value, b: Value) -> Meta:
    """0 with a 0; small types in 32 bits, cut off at the end."""
    dtype = _integers(a, b)
    wide = DType.I32 if dtype.itemsize < 4 else dtype
    divisor = t.cast(gcd(t, a, b), wide)
    return t.map("abs", t.map("mul", t.map("trunc_div", a, divisor, dtype=wide), b, dtype=wide))


def _any(op: str) -> Callable[[Trace, Value, Value], Meta]:
    return lambda t, a, b: t.map(op, a, b, dtype=result_type((a, b)))


def _as_float(op: str) -> Callable[[Trace, Value, Value], Meta]:
    return lambda t, a, b: t.map(op, a, b, dtype=float_type(result_type((a, b))))


def _logical(op: str) -> Callable[[Trace, Value, Value], Meta]:
    return lambda t, a, b: t.map(op, a, b, dtype=DType.BOOL)


def _register(overloads: Iterable[str], lowering: Callable[..., Meta]) -> None:
    lowers(*(f"aten::{name}" for name in overloads))(lowering)


_register(["remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor"], _rest("mod"))
_register(["fmod.Tensor", "fmod.Scalar"], _rest("fmod"))
_register(["maximum"], _any("max"))
_register(["minimum"], _any("min"))
_register(["fmax"], _same("fmax"))
_register(["fmin"], _same("fmin"))
_register(["atan2"], _as_float("atan2"))
_register(["hypot"], _as_float("hypot"))
_register(["copysign.Tensor", "copysign.Scalar"], _as_float("copysign"))
_register(["nextafter"], _as_float("nextafter"))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _register([f"{_name}.Tensor", f"{_name}.Scalar"], _any(_name))
for _name, _op in (("bitwise_and", "and"), ("bitwise_or", "or"), ("bitwise_xor", "xor")):
    _register([f"{_name}.Tensor", f"{_name}.Scalar", f"{_name}.Scalar_Tensor"], _any(_op))
for _name, _op in (("bitwise_left_shift", "shl"), ("bitwise_right_shift", "shr")):
    _register([f"{_name}.Tensor", f"{_name}.Tensor_Scalar", f"{_name}.Scalar_Tensor"], _any(_op))
for _name, _op in (("__lshift__", "shl"), ("__rshift__", "shr")):
    _register([f"{_name}.Tensor", f"{_name}.Scalar"], _any(_op))
for _name, _op in (("logical_and", "and"), ("logical_or", "or"), ("logical_xor", "xor")):
    _register([_name], _logical(_op))


@lowers("aten::pow.Tensor_Scalar", special={"exponent": (0, 1, 2, 3, 0.5, -0.5, -1, -2)})
def pow_scalar(t: Trace, x: Meta, exponent: Value) -> Meta:
    dtype = result_type((x, exponent))
    if isinstance(exponent, bool | int | float):
        special = _pow_special(t, x, exponent, dtype)
        if special is not None:
            return special
    return t.map("pow", x, exponent, dtype=_no_bool(dtype))


def _pow_special(t: Trace, x: Meta, exponent: Number, dtype: DType) -> Meta | None:
    """Small exponents by multiplications and roots, as torch computes them."""
    if exponent == 0:
        return t.full(x.shape, 1, dtype)
    if dtype == DType.BOOL:
        return x
    x = t.cast(x, accumulate(dtype))
    if exponent == 1:
        return x
    if exponent in (2, 3):
        squared = t.map("mul", x, x)
        return squared if exponent == 2 else t.map("mul", squared, x)
    if category(dtype) < 2:
        return None
    if exponent == 0.5:
        return t.map("sqrt", x)
    if exponent == -1:
        return t.map("recip", x)
    if exponent == -2:
        return t.map("recip", t.map("mul", x, x))
    if exponent == -0.5 and dtype in FLOATS:
        return t.map("rsqrt", x)
    return None


@lowers("aten::pow.Tensor_Tensor", "aten::pow.Scalar")
def pow_tensor(t: Trace, a: Value, b: Value) -> Meta:
    return t.map("pow", a, b, dtype=_no_bool(result_type((a, b))))


@lowers("aten::lerp.Scalar", concrete=("weight",))
def lerp_scalar(t: Trace, start: Meta, end: Meta, weight: Number) -> Meta:
    wide = accumulate(start.dtype)
    difference = t.map("sub", end, start, dtype=wide)
    if abs(weight) < 0.5:
        return t.map("add", start, t.map("mul", difference, weight, dtype=wide), dtype=wide)
    return t.map("sub", end, t.map("mul", difference, 1 - weight, dtype=wide), dtype=wide)


@lowers("aten::lerp.Tensor")
def lerp_tensor(t: Trace, start: Meta, end: Meta, weight: Value) -> Meta:
    wide = accumulate(start.dtype)
    difference = t.map("sub", end, start, dtype=wide)
    near = t.map("add", start, t.map("mul", difference, weight, dtype=wide), dtype=wide)
    if category(wide) == 3:
        return near
    far = t.map("sub", end, t.map("mul", difference, t.map("sub", 1, weight, dtype=wide), dtype=wide), dtype=wide)
    small = t.map("lt", t.map("abs", weight, dtype=wide), 0.5, dtype=wide)
    return t.where(small, near, far, dtype=wide)


@lowers("aten::addcmul", special={"value": (1,)})
def addcmul(t: Trace, x: Meta, a: Value, b: Value, value: Value = 1) -> Meta:
    wide = accumulate(result_type((x, a, b)))
    return t.map("add", x, t.map("mul", scaled(t, a, value, wide), b, dtype=wide), dtype=wide)


@lowers("aten::addcdiv", special={"value": (1,)})
def addcdiv(t: Trace, x: Meta, a: Value, b: Value, value: Value = 1) -> Meta:
    wide = accumulate(result_type((x, a, b)))
    return t.map("add", x, t.map("div", scaled(t, a, value, wide), b, dtype=wide), dtype=wide)


@lowers("aten::where.self")
def where(t: Trace, condition: Meta, a: Value, b: Value) -> Meta:
    return t.where(t.cast(condition, DType.BOOL), a, b)


@lowers("aten::masked_fill.Scalar", "aten::masked_fill.Tensor")
def masked_fill(t: Trace, x: Meta, mask: Meta, value: Value) -> Meta:
    shape = broadcast_shapes(x.shape, mask.shape)
    return t.where(t.cast(mask, DType.BOOL).expand(shape), value, x, dtype=x.dtype)


def clamp_to(t: Trace, x: Value, low: Value | None, high: Value | None) -> Meta:
    """``x`` not below low and not above high (high wins), NaN kept."""
    bounds = [v for v in (low, high) if v is not None]
    dtype = result_type((x, *bounds))
    if category(dtype) == 3:
        raise Unsupported("clamp of a complex tensor")
    if low is not None:
        x = t.map("max", x, low, dtype=dtype)
    if high is not None:
        x = t.map("min", x, high, dtype=dtype)
    assert isinstance(x, Meta)
    return x


@lowers("aten::clamp", "aten::clamp.Tensor")
def clamp(t: Trace, x: Meta, min: Value | None = None, max: Value | None = None) -> Meta:
    return clamp_to(t, x, min, max)


@lowers("aten::clamp_min", "aten::clamp_min.Tensor")
def clamp_min(t: Trace, x: Meta, min: Value) -> Meta:
    return clamp_to(t, x, min, None)


@lowers("aten::clamp_max", "aten::clamp_max.Tensor")
def clamp_max(t: Trace, x: Meta, max: Value) -> Meta:
    return clamp_to(t, x, None, max)


@lowers("aten::heaviside")
def heaviside(t: Trace, x: Meta, values: Value) -> Meta:
    dtype = result_type((x, values))
    above = t.map("gt", x, 0, dtype=x.dtype)
    return t.where(t.map("eq", x, 0, dtype=x.dtype), values, t.cast(above, dtype), dtype=dtype)


@lowers("aten::logaddexp")
def logaddexp(t: Trace, a: Value, b: Value) -> Meta:
    return _log_add(t, a, b, "exp", "log1p", None)


@lowers("aten::logaddexp2")
def logaddexp2(t: Trace, a: Value, b: Value) -> Meta:
    return _log_add(t, a, b, "exp2", "log1p", 1.4426950408889634)


def _log_add(t: Trace, a: Value, b: Value, exp: str, log1p: str, factor: float | None) -> Meta:
    """max + log(1 + exp(-|a - b|)); equal infinities give themselves."""
    wide = accumulate(float_type(result_type((a, b))))
    if category(wide) == 3:
        raise Unsupported("logaddexp of a complex tensor")
    greater = t.map("max", a, b, dtype=wide)
    gap = t.map("neg", t.map("abs", t.map("sub", a, b, dtype=wide)))
    tail: Value = t.map(log1p, t.map(exp, gap))
    if factor is not None:
        tail = t.map("mul", tail, factor)
    infinite = t.map("and", t.map("eq", a, b, dtype=wide), t.map("is_inf", a, dtype=wide))
    return t.where(infinite, a, t.map("add", greater, tail), dtype=wide)


@lowers("aten::complex")
def complex_(t: Trace, real: Meta, imag: Meta) -> Meta:
    shape = broadcast_shapes(real.shape, imag.shape)
    out = t.temp(complex_of(real.dtype), shape)
    t.emit("complex", [out], [real.expand(shape), imag.expand(shape)])
    return out


@lowers("aten::polar")
def polar(t: Trace, size: Meta, angle: Meta) -> Meta:
    return complex_(t, t.map("mul", size, t.map("cos", angle)), t.map("mul", size, t.map("sin", angle)))
