"""Tensor constructors: filled, ranges, identity.

The shape and type come from the output that torch expects, so layouts, default types and ``*_like`` need no code here.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from wis.dtypes import COMPLEX, DType
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.errors import Unsupported
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Number, Value

__all__: list[str] = []


def _filled(t: Trace, value: Value) -> Meta:
    want = t.want()
    return t.full(want.shape, value, want.dtype)


@lowers("aten::zeros", "aten::zeros_like", "aten::new_zeros", "aten::_efficientzerotensor")
def zeros(t: Trace, shape_or_like: Any, *args: Any, **layout: Any) -> Meta:
    return _filled(t, 0)


@lowers("aten::ones", "aten::ones_like", "aten::new_ones")
def ones(t: Trace, shape_or_like: Any, *args: Any, **layout: Any) -> Meta:
    return _filled(t, 1)


@lowers("aten::full", "aten::full_like")
def full(t: Trace, shape_or_like: Any, fill_value: Value, **layout: Any) -> Meta:
    return _filled(t, fill_value)


@lowers("aten::new_full")
def new_full(t: Trace, x: Meta, size: Any, fill_value: Value, **layout: Any) -> Meta:
    return _filled(t, fill_value)


@lowers("aten::scalar_tensor")
def scalar_tensor(t: Trace, s: Value, **layout: Any) -> Meta:
    return _filled(t, s)


@lowers("aten::fill.Scalar", "aten::fill.Tensor")
def fill(t: Trace, x: Meta, value: Value) -> Meta:
    return t.cast(value, x.dtype).expand(x.shape) if isinstance(value, Meta) else t.full(x.shape, value, x.dtype)


@lowers("aten::zero")
def zero(t: Trace, x: Meta) -> Meta:
    return t.full(x.shape, 0, x.dtype)


@lowers("aten::zero_", mutates=(0,))
def zero_(t: Trace, x: Meta) -> None:
    t.write(x, t.full(x.shape, 0, x.dtype))


@lowers("aten::arange")
def arange(t: Trace, end: Value, **layout: Any) -> Meta:
    return _count(t, 0, 1)


@lowers("aten::arange.start")
def arange_start(t: Trace, start: Value, end: Value, **layout: Any) -> Meta:
    return _count(t, start, 1)


@lowers("aten::arange.start_step")
def arange_step(t: Trace, start: Value, end: Value, step: Value = 1, **layout: Any) -> Meta:
    return _count(t, start, step)


def _count(t: Trace, start: Value, step: Value) -> Meta:
    want = t.want()
    if want.dtype in COMPLEX or want.dtype == DType.BOOL:
        raise Unsupported(f"arange in {want.dtype.text}")
    wide = accumulate(want.dtype)
    return t.cast(t.iota(want.shape[0], wide, _whole(t, start, wide), _whole(t, step, wide)), want.dtype)


def _whole(t: Trace, number: Any, dtype: DType) -> Any:
    """A bound of a sequence in an integer type: rounded towards 0 before anything is counted, as on CUDA."""
    return t.derive(int, number, kind=int) if dtype.is_integer else number


def _between(start: Number, end: Number, steps: int) -> Number:
    return (end - start) / (steps - 1) if steps > 1 else 0.0


def _last_minus(end: Number, step: Number, back: int) -> Number:
    return end - step * back


@lowers("aten::linspace")
def linspace(t: Trace, start: Any, end: Any, steps: int, **layout: Any) -> Meta:
    """Counted from both ends, so that both are met exactly."""
    want = t.want()
    if isinstance(start, Meta) or isinstance(end, Meta) or want.dtype in COMPLEX:
        raise Unsupported("linspace between tensors or complex numbers")
    start, end = (_whole(t, bound, want.dtype) for bound in (start, end))
    step = t.derive(_between, start, end, steps)
    half = steps // 2 if steps != 1 else 1
    wide = want.dtype if want.dtype.is_float else DType.F64
    out = t.temp(wide, (steps,))
    t.emit("iota", [out.narrow(0, 0, half)], [t.imm(start, wide), t.imm(step, wide)], (0,))
    middle = t.derive(_last_minus, end, step, steps - 1 - half)
    t.emit("iota", [out.narrow(0, half, steps - half)], [t.imm(middle, wide), t.imm(step, wide)], (0,))
    return out


@lowers("aten::logspace")
def logspace(t: Trace, start: Any, end: Any, steps: int, base: Any = 10.0, **layout: Any) -> Meta:
    """Powers that are integers up to the rounding of ``pow`` are such: an integer type would cut them off by one."""
    exponents = linspace(t, start, end, steps)
    wide = DType.F64
    powers = t.map("pow", t.full((), base, wide), t.cast(exponents, wide), dtype=wide)
    if not t.want().dtype.is_integer:
        return powers
    whole = t.map("round", powers)
    error, bound = t.map("abs", t.map("sub", powers, whole)), t.map("mul", t.map("abs", whole), 4 * 2.0**-52)
    return t.where(t.map("le", error, bound), whole, powers)


@lowers("aten::eye", "aten::eye.m")
def eye(t: Trace, n: int, m: int | None = None, **layout: Any) -> Meta:
    want = t.want()
    out = t.full(want.shape, 0, want.dtype)
    rows, columns = want.shape
    length = min(rows, columns)
    t.store(replace(out, shape=(length,), strides=(columns + 1,)), 1)
    return out
