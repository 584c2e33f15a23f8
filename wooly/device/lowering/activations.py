"""Activation functions and their gradients."""

from __future__ import annotations

import math

from wis.dtypes import FLOATS
from wooly.device.lowering.dtypes import result_type
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Derived, Meta, Number, ScalarArg, Value

__all__: list[str] = []


@lowers("aten::relu")
def relu(t: Trace, x: Meta) -> Meta:
    return t.map("max", x, 0, dtype=x.dtype)


@lowers("aten::hardtanh")
def hardtanh(t: Trace, x: Meta, min_val: Value = -1, max_val: Value = 1) -> Meta:
    return t.map("min", t.map("max", x, min_val, dtype=x.dtype), max_val, dtype=x.dtype)


@lowers("aten::hardtanh_backward")
def hardtanh_backward(t: Trace, dy: Meta, x: Meta, min_val: Value, max_val: Value) -> Meta:
    inside = t.map("and", t.map("gt", x, min_val, dtype=x.dtype), t.map("lt", x, max_val, dtype=x.dtype))
    return t.where(inside, dy, 0, dtype=dy.dtype)


@lowers("aten::threshold")
def threshold(t: Trace, x: Meta, threshold: Value, value: Value) -> Meta:
    return t.where(t.map("le", x, threshold, dtype=x.dtype), value, x, dtype=x.dtype)


@lowers("aten::threshold_backward")
def threshold_backward(t: Trace, dy: Meta, x: Meta, threshold: Value) -> Meta:
    return t.where(t.map("le", x, threshold, dtype=x.dtype), 0, dy, dtype=dy.dtype)


@lowers("aten::sigmoid_backward")
def sigmoid_backward(t: Trace, dy: Meta, y: Meta) -> Meta:
    dy, y = _wide(t, dy, y)
    y = t.map("conj", y) if y.dtype not in FLOATS else y
    return t.map("mul", dy, t.map("mul", t.map("sub", 1, y), y))


@lowers("aten::tanh_backward")
def tanh_backward(t: Trace, dy: Meta, y: Meta) -> Meta:
    dy, y = _wide(t, dy, y)
    y = t.map("conj", y) if y.dtype not in FLOATS else y
    return t.map("mul", dy, t.map("sub", 1, t.map("mul", y, y)))


def _wide(t: Trace, *xs: Meta) -> list[Meta]:
    dtype = result_type(xs)
    return [t.acc(t.cast(x, dtype)) for x in xs]


@lowers("aten::gelu")
def gelu(t: Trace, x: Meta, *, approximate: str = "none") -> Meta:
    return t.map("gelu", x, attrs=(approximate == "tanh",))


@lowers("aten::gelu_backward")
def gelu_backward(t: Trace, dy: Meta, x: Meta, *, approximate: str = "none") -> Meta:
    return t.map("gelu_dx", dy, x, attrs=(approximate == "tanh",))


@lowers("aten::silu")
def silu(t: Trace, x: Meta) -> Meta:
    return t.map("silu", x) if x.dtype in FLOATS else t.map("mul", x, t.map("sigmoid", x))


@lowers("aten::silu_backward")
def silu_backward(t: Trace, dy: Meta, x: Meta) -> Meta:
    return t.map("silu_dx", dy, x)


def _softplus(t: Trace, x: Meta) -> Meta:
    """log(1 + e**x) = max(x, 0) + log1p(e**-|x|)."""
    return t.map("add", t.map("max", x, 0.0), t.map("log1p", t.map("exp", t.map("neg", t.map("abs", x)))))


@lowers("aten::softplus")
def softplus(t: Trace, x: Meta, beta: Value = 1, threshold: Value = 20) -> Meta:
    x = t.acc(x)
    scaled = t.map("mul", x, beta)
    return t.where(t.map("gt", scaled, threshold), x, t.map("div", _softplus(t, scaled), beta), dtype=x.dtype)


@lowers("aten::softplus_backward")
def softplus_backward(t: Trace, dy: Meta, x: Meta, beta: Value, threshold: Value) -> Meta:
    dy, x = _wide(t, dy, x)
    scaled = t.map("mul", x, beta)
    return t.where(t.map("gt", scaled, threshold), dy, t.map("mul", dy, t.map("sigmoid", scaled)), dtype=dy.dtype)


@lowers("aten::mish")
def mish(t: Trace, x: Meta) -> Meta:
    x = t.acc(x)
    return t.map("mul", x, t.map("tanh", _softplus(t, x)))


@lowers("aten::mish_backward")
def mish_backward(t: Trace, dy: Meta, x: Meta) -> Meta:
    dy, x = _wide(t, dy, x)
    inner = t.map("tanh", _softplus(t, x))
    slope = t.map("mul", t.map("mul", x, t.map("sigmoid", x)), t.map("sub", 1.0, t.map("mul", inner, inner)))
    return t.map("mul", dy, t.map("add", inner, slope))


@lowers("aten::log_sigmoid_forward")
def log_sigmoid_forward(t: Trace, x: Meta) -> list[Meta | None]:
    """The second output is a buffer that only torch's CPU kernel uses."""
    wide = t.acc(x)
    tail = t.map("exp", t.map("neg", t.map("abs", wide)))
    out = t.map("sub", t.map("min", wide, 0.0), t.map("log1p", tail))
    buffer = t.want(1).shape if t.wanted(1) else None
    return [out, None if buffer is None else tail if buffer == x.shape else t.full(buffer, 0, x.dtype)]


@lowers("aten::log_sigmoid_backward")
def log_sigmoid_backward(t: Trace, dy: Meta, x: Meta, buffer: Meta | None = None) -> Meta:
    dy, x = _wide(t, dy, x)
    return t.map("mul", dy, t.map("sigmoid", t.map("neg", x)))


@lowers("aten::leaky_relu")
def leaky_relu(t: Trace, x: Meta, negative_slope: Value = 0.01) -> Meta:
    x = t.acc(x)
    return t.where(t.map("gt", x, 0.0), x, t.map("mul", x, negative_slope), dtype=x.dtype)


@lowers("aten::leaky_relu_backward")
def leaky_relu_backward(t: Trace, dy: Meta, x: Meta, negative_slope: Value, self_is_result: bool) -> Meta:
    dy, x = _wide(t, dy, x)
    return t.where(t.map("gt", x, 0.0), dy, t.map("mul", dy, negative_slope), dtype=dy.dtype)


@lowers("aten::_prelu_kernel")
def prelu(t: Trace, x: Meta, weight: Meta) -> Meta:
    x, weight = _wide(t, x, weight)
    return t.where(t.map("gt", x, 0.0), x, t.map("mul", x, weight), dtype=x.dtype)


@lowers("aten::_prelu_kernel_backward")
def prelu_backward(t: Trace, dy: Meta, x: Meta, weight: Meta) -> list[Meta]:
    dy, x, weight = _wide(t, dy, x, weight)
    above = t.map("gt", x, 0.0)
    return [t.where(above, dy, t.map("mul", dy, weight), dtype=dy.dtype), t.where(above, 0.0, t.map("mul", dy, x), dtype=dy.dtype)]


def _product(t: Trace, *factors: ScalarArg | Derived | Number) -> Derived | Number:
    return t.derive(lambda *values: math.prod(values), *factors)


@lowers("aten::elu")
def elu(t: Trace, x: Meta, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Meta:
    x = t.acc(x)
    below = t.map("mul", t.map("expm1", t.map("mul", x, input_scale)), _product(t, alpha, scale))
    return t.where(t.map("gt", x, 0.0), t.map("mul", x, scale), below, dtype=x.dtype)


@lowers("aten::elu_backward")
def elu_backward(t: Trace, dy: Meta, alpha: Number, scale: Number, input_scale: Number, is_result: bool, self_or_result: Meta) -> Meta:
    dy, x = _wide(t, dy, self_or_result)
    if is_result:
        slope = t.map("mul", t.map("add", x, _product(t, alpha, scale)), input_scale)
    else:
        slope = t.map("mul", t.map("exp", t.map("mul", x, input_scale)), _product(t, input_scale, alpha, scale))
    return t.where(t.map("gt", x, 0.0), t.map("mul", dy, scale), t.map("mul", dy, slope), dtype=dy.dtype)


@lowers("aten::celu")
def celu(t: Trace, x: Meta, alpha: Number = 1.0) -> Meta:
    return elu(t, x, alpha, 1.0, t.derive(lambda a: 1.0 / a, alpha))  # type: ignore[arg-type]


@lowers("aten::hardsigmoid")
def hardsigmoid(t: Trace, x: Meta) -> Meta:
    x = t.acc(x)
    return t.map("div", t.map("min", t.map("max", t.map("add", x, 3.0), 0.0), 6.0), 6.0)


@lowers("aten::hardsigmoid_backward")
def hardsigmoid_backward(t: Trace, dy: Meta, x: Meta) -> Meta:
    dy, x = _wide(t, dy, x)
    inside = t.map("and", t.map("gt", x, -3.0), t.map("lt", x, 3.0))
    return t.where(inside, t.map("mul", dy, 1 / 6), 0.0, dtype=dy.dtype)


@lowers("aten::hardswish")
def hardswish(t: Trace, x: Meta) -> Meta:
    x = t.acc(x)
    return t.map("div", t.map("mul", x, t.map("min", t.map("max", t.map("add", x, 3.0), 0.0), 6.0)), 6.0)


@lowers("aten::hardswish_backward")
def hardswish_backward(t: Trace, dy: Meta, x: Meta) -> Meta:
    dy, x = _wide(t, dy, x)
    middle = t.map("mul", dy, t.map("add", t.map("div", x, 3.0), 0.5))
    return t.where(t.map("le", x, -3.0), 0.0, t.where(t.map("lt", x, 3.0), middle, dy, dtype=dy.dtype), dtype=dy.dtype)


@lowers("aten::hardshrink")
def hardshrink(t: Trace, x: Meta, lambd: Value = 0.5) -> Meta:
    return t.where(t.map("le", t.map("abs", x), lambd, dtype=x.dtype), 0, x, dtype=x.dtype)


@lowers("aten::hardshrink_backward", "aten::softshrink_backward")
def shrink_backward(t: Trace, dy: Meta, x: Meta, lambd: Value) -> Meta:
    return t.where(t.map("le", t.map("abs", x), lambd, dtype=x.dtype), 0, dy, dtype=dy.dtype)


@lowers("aten::softshrink")
def softshrink(t: Trace, x: Meta, lambd: Value = 0.5) -> Meta:
    x = t.acc(x)
    above = t.where(t.map("gt", x, lambd), t.map("sub", x, lambd), t.map("mul", x, 0.0), dtype=x.dtype)
    return t.where(t.map("le", t.map("neg", x), lambd), above, t.map("add", x, lambd), dtype=x.dtype)


@lowers("aten::glu")
def glu(t: Trace, x: Meta, dim: int = -1) -> Meta:
    a, b = _halves(t, x, dim)
    return t.map("mul", t.acc(a), t.map("sigmoid", t.acc(b)))


@lowers("aten::glu_backward")
def glu_backward(t: Trace, dy: Meta, x: Meta, dim: int) -> Meta:
    a, b = (t.acc(half) for half in _halves(t, x, dim))
    gate, dy = t.map("sigmoid", b), t.acc(dy)
    out = t.temp(a.dtype, x.shape)
    low, high = _halves(t, out, dim)
    t.store(low, t.map("mul", gate, dy))
    t.store(high, t.map("mul", t.map("mul", t.map("mul", t.map("sub", 1.0, gate), gate), dy), a))
    return out


def _halves(t: Trace, x: Meta, dim: int) -> tuple[Meta, Meta]:
    half = x.shape[dim] // 2
    return x.narrow(dim, 0, half), x.narrow(dim, half, half)
