"""Operations over lists of tensors, each of which is its single-tensor lowering, unrolled: arithmetic, optimiser steps over lists of
parameters, and what the gradient scaler does to gradients.

Their step counters live on the device, so what depends on them (bias corrections) is computed there: one template serves all steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch

from wis.dtypes import DType
from wooly.device.lowering import binary, reduce
from wooly.device.lowering.dtypes import accumulate
from wooly.device.lowering.registry import LOWERINGS, lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Derived, Meta, Number, ScalarArg, Unsupported, Value

__all__: list[str] = []

_UNARY: Final = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma", "log",
    "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
)  # fmt: skip


def _named(name: str) -> Callable[..., Any]:
    """The lowering of a single-tensor operation, looked up when used (its module may register later)."""
    return lambda t, *args, **options: LOWERINGS[f"aten::{name}"].fn(t, *args, **options)


def _over_list(fn: Callable[..., Any]) -> Callable[..., list[Meta]]:
    return lambda t, xs: [fn(t, x) for x in xs]


for _name in _UNARY:
    lowers(f"aten::_foreach_{_name}")(_over_list(_named(_name)))


def _pairs(fn: Callable[..., Any]) -> Callable[..., list[Meta]]:
    """tensors x tensors (or numbers, one each)."""

    def lowering(t: Trace, xs: Sequence[Meta], ys: Sequence[Value], **options: Any) -> list[Meta]:
        return [fn(t, x, y, **options) for x, y in zip(xs, ys, strict=True)]

    return lowering


def _with_one(fn: Callable[..., Any]) -> Callable[..., list[Meta]]:
    """tensors x one number (or 0-dim tensor)."""
    return lambda t, xs, y, **options: [fn(t, x, y, **options) for x in xs]


_BINARY: Final = {
    "add": binary.add, "sub": binary.sub, "mul": binary.mul, "div": binary.div, "maximum": _named("maximum"), "minimum": _named("minimum"),
    "clamp_min": binary.clamp_min, "clamp_max": binary.clamp_max, "pow": binary.pow_tensor,
}  # fmt: skip
_ONE: Final = {"alpha": (1,)}
for _name, _fn in _BINARY.items():
    lowers(f"aten::_foreach_{_name}.List", special=_ONE)(_pairs(_fn))
    lowers(f"aten::_foreach_{_name}.ScalarList")(_pairs(_fn))
    if _name != "pow":
        lowers(f"aten::_foreach_{_name}.Scalar")(_with_one(_fn))
for _name in ("add", "mul", "div"):
    lowers(f"aten::_foreach_{_name}.Tensor", special=_ONE)(_with_one(_BINARY[_name]))
lowers("aten::_foreach_pow.Scalar", special={"exponent": (0, 1, 2, 3, 0.5, -0.5, -1, -2)})(_with_one(binary.pow_scalar))


@lowers("aten::_foreach_pow.ScalarAndTensor")
def pow_of_scalar(t: Trace, base: Value, exponents: Sequence[Meta]) -> list[Meta]:
    return [binary.pow_tensor(t, base, e) for e in exponents]


def _three(fn: Callable[..., Any]) -> Callable[..., list[Meta]]:
    def lowering(t: Trace, xs: Sequence[Meta], a: Sequence[Meta], b: Sequence[Meta], value: Any = 1) -> list[Meta]:
        factors = list(value) if isinstance(value, list | tuple) else [value] * len(xs)
        return [fn(t, *row) for row in zip(xs, a, b, factors, strict=True)]

    return lowering


for _name in ("addcmul", "addcdiv"):
    lowers(f"aten::_foreach_{_name}.Scalar", special={"value": (1,)})(_three(_named(_name)))
    lowers(f"aten::_foreach_{_name}.ScalarList")(_three(_named(_name)))


@lowers("aten::_foreach_lerp.Scalar", concrete=("weight",))
def lerp_scalar(t: Trace, xs: Sequence[Meta], ends: Sequence[Meta], weight: Number) -> list[Meta]:
    return [binary.lerp_scalar(t, x, end, weight) for x, end in zip(xs, ends, strict=True)]


@lowers("aten::_foreach_lerp.ScalarList", concrete=("weight",))
def lerp_scalars(t: Trace, xs: Sequence[Meta], ends: Sequence[Meta], weight: Sequence[Number]) -> list[Meta]:
    return [binary.lerp_scalar(t, *row) for row in zip(xs, ends, weight, strict=True)]


@lowers("aten::_foreach_lerp.List")
def lerp_list(t: Trace, xs: Sequence[Meta], ends: Sequence[Meta], weights: Sequence[Meta]) -> list[Meta]:
    return [binary.lerp_tensor(t, *row) for row in zip(xs, ends, weights, strict=True)]


@lowers("aten::_foreach_norm.Scalar", concrete=("ord",))
def norm(t: Trace, xs: Sequence[Meta], ord: Number = 2, dtype: torch.dtype | None = None) -> list[Meta]:
    return [reduce.vector_norm(t, x, ord, None, dtype=dtype) for x in xs]


@lowers("aten::_foreach_max")
def max_(t: Trace, xs: Sequence[Meta]) -> list[Meta]:
    return [reduce.max_(t, x) for x in xs]


@lowers("aten::_foreach_copy")
def copy(t: Trace, xs: Sequence[Meta], sources: Sequence[Meta], non_blocking: bool = False) -> list[Meta]:
    return [t.cast(source, x.dtype).expand(x.shape) for x, source in zip(xs, sources, strict=True)]


@lowers("aten::_foreach_zero")
def zero(t: Trace, xs: Sequence[Meta]) -> list[Meta]:
    return [t.full(x.shape, 0, x.dtype) for x in xs]


Known = ScalarArg | Derived | Number
_ZERO: Final = {"weight_decay": (0,), "momentum": (0,), "dampening": (0,), "lr_decay": (0,)}


def _is(x: Value, number: float) -> bool:
    return isinstance(x, bool | int | float) and x == number


@dataclass(frozen=True, slots=True)
class _Gate:
    """What the gradient scaler asks of a fused step: gradients divided by ``scale``, nothing written when ``skip`` (0-dim bool)."""

    scale: Meta | None
    skip: Meta | None

    @staticmethod
    def of(t: Trace, grad_scale: Value | None, found_inf: Value | None) -> _Gate:
        if isinstance(grad_scale, ScalarArg) or isinstance(found_inf, ScalarArg):
            raise Unsupported("a gradient scaler on another device")
        skip = None if found_inf is None else t.map("ne", found_inf, 0.0, dtype=DType.F32)
        assert grad_scale is None or isinstance(grad_scale, Meta), "checked above"
        return _Gate(grad_scale, skip)

    def gradient(self, t: Trace, g: Meta, maximize: bool) -> Meta:
        """The gradient to step by; torch writes the unscaled one back."""
        wide = t.acc(g)
        if self.scale is not None:
            wide = t.map("div", wide, self.scale, dtype=wide.dtype)
            t.write(g, t.cast(wide, g.dtype) if g.dtype != wide.dtype else t.copy(wide))
        return t.map("neg", wide) if maximize else wide

    def write(self, t: Trace, target: Meta, value: Meta) -> None:
        if self.skip is not None:
            value = t.where(self.skip, target, value, dtype=value.dtype)
        t.write(target, t.cast(value, target.dtype))


def _steps_vector(t: Trace, steps: Sequence[Meta]) -> Meta:
    """The step counters side by side, in f64: what follows from them is computed for all parameters at once."""
    out = t.temp(DType.F64, (len(steps),))
    for i, step in enumerate(steps):
        t.store(out.select(0, i), step if step.ndim == 0 else t.reshape(step, ()))
    return out


def _precision(params: Sequence[Meta]) -> DType:
    """The type that what all parameters share is kept in."""
    return DType.F64 if any(p.dtype == DType.F64 for p in params) else DType.F32


def _adam(
    t: Trace,
    params: Sequence[Meta],
    grads: Sequence[Meta],
    exp_avgs: Sequence[Meta],
    exp_avg_sqs: Sequence[Meta],
    max_exp_avg_sqs: Sequence[Meta],
    state_steps: Sequence[Meta],
    *,
    lr: Value,
    beta1: Known,
    beta2: Known,
    weight_decay: Value,
    eps: Value,
    amsgrad: bool,
    maximize: bool,
    grad_scale: Value | None,
    found_inf: Value | None,
    decoupled: bool,
) -> None:
    if any(not isinstance(step, Meta) for step in state_steps):
        raise Unsupported("step counters on another device")
    if not params:
        return
    gate = _Gate.of(t, grad_scale, found_inf)
    steps = _steps_vector(t, state_steps)
    correction1 = t.map("sub", 1.0, t.map("pow", beta1, steps, dtype=DType.F64))
    correction2 = t.map("sqrt", t.map("sub", 1.0, t.map("pow", beta2, steps, dtype=DType.F64)))
    precision = _precision(params)
    step_sizes = t.cast(t.map("div", lr, correction1, dtype=DType.F64), precision)
    roots = t.cast(correction2, precision)
    for i, (p, g, m, v) in enumerate(zip(params, grads, exp_avgs, exp_avg_sqs, strict=True)):
        wide = accumulate(p.dtype)
        gradient = t.cast(gate.gradient(t, g, maximize), wide)
        value = t.cast(p, wide)
        if not _is(weight_decay, 0):
            if decoupled:
                value = t.map("mul", value, _decay(t, lr, weight_decay, wide), dtype=wide)
            else:
                gradient = t.map("add", gradient, t.map("mul", value, weight_decay, dtype=wide))
        first = _toward(t, t.cast(m, wide), gradient, beta1)
        second = _toward(t, t.cast(v, wide), t.map("mul", gradient, gradient), beta2)
        root_of = second
        if amsgrad:
            root_of = t.map("max", max_exp_avg_sqs[i], second, dtype=wide)
            gate.write(t, max_exp_avg_sqs[i], root_of)
        below = t.map("add", t.map("div", t.map("sqrt", root_of), roots.select(0, i), dtype=wide), eps)
        change = t.map("div", t.map("mul", first, step_sizes.select(0, i), dtype=wide), below)
        gate.write(t, p, t.map("sub", value, change))
        gate.write(t, m, first)
        gate.write(t, v, second)


def _decay(t: Trace, lr: Value, weight_decay: Value, dtype: DType) -> Value:
    """1 - lr * weight_decay."""
    if isinstance(lr, Meta) or isinstance(weight_decay, Meta):
        return t.map("sub", 1.0, t.map("mul", lr, weight_decay, dtype=dtype))
    return t.derive(lambda a, b: 1.0 - a * b, lr, weight_decay)


def _toward(t: Trace, old: Meta, new: Meta, beta: Known) -> Meta:
    """beta * old + (1 - beta) * new."""
    return t.map("add", t.map("mul", old, beta), t.map("mul", new, t.derive(lambda b: 1.0 - b, beta)))


@lowers("aten::_fused_adamw_", "aten::_fused_adamw_.tensor_lr", special=_ZERO)
def fused_adamw(t: Trace, *lists: Sequence[Meta], grad_scale: Value | None = None, found_inf: Value | None = None, **options: Any) -> None:
    _adam(t, *lists, **options, grad_scale=grad_scale, found_inf=found_inf, decoupled=True)


@lowers("aten::_fused_adam_", "aten::_fused_adam_.tensor_lr", special=_ZERO)
def fused_adam(t: Trace, *lists: Sequence[Meta], grad_scale: Value | None = None, found_inf: Value | None = None, **options: Any) -> None:
    _adam(t, *lists, **options, grad_scale=grad_scale, found_inf=found_inf, decoupled=False)


@lowers("aten::_fused_sgd_", "aten::_fused_sgd_.tensor_lr", special=_ZERO)
def fused_sgd(
    t: Trace,
    params: Sequence[Meta],
    grads: Sequence[Meta],
    momentum_buffers: Sequence[Meta],
    *,
    weight_decay: Value,
    momentum: Value,
    lr: Value,
    dampening: Any,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Value | None = None,
    found_inf: Value | None = None,
) -> None:
    gate = _Gate.of(t, grad_scale, found_inf)
    for i, (p, g) in enumerate(zip(params, grads, strict=True)):
        wide = accumulate(p.dtype)
        gradient, value = t.cast(gate.gradient(t, g, maximize), wide), t.cast(p, wide)
        if not _is(weight_decay, 0):
            gradient = t.map("add", gradient, t.map("mul", value, weight_decay, dtype=wide))
        if not _is(momentum, 0):
            buffer = momentum_buffers[i]
            moved = gradient
            if not is_first_step:
                fresh = gradient if _is(dampening, 0) else t.map("mul", gradient, t.derive(lambda d: 1.0 - d, dampening))
                moved = t.map("add", t.map("mul", buffer, momentum, dtype=wide), fresh)
            gate.write(t, buffer, moved if moved is not gradient else t.copy(gradient))
            gradient = t.map("add", gradient, t.map("mul", moved, momentum, dtype=wide)) if nesterov else moved
        gate.write(t, p, t.map("sub", value, t.map("mul", gradient, lr, dtype=wide)))


@lowers("aten::_fused_adagrad_", "aten::_fused_adagrad_.tensor_lr", special=_ZERO)
def fused_adagrad(
    t: Trace,
    params: Sequence[Meta],
    grads: Sequence[Meta],
    state_sums: Sequence[Meta],
    state_steps: Sequence[Meta],
    *,
    lr: Value,
    lr_decay: Value,
    weight_decay: Value,
    eps: Value,
    maximize: bool,
    grad_scale: Value | None = None,
    found_inf: Value | None = None,
) -> None:
    if any(not isinstance(step, Meta) for step in state_steps):
        raise Unsupported("step counters on another device")
    if not params:
        return
    gate = _Gate.of(t, grad_scale, found_inf)
    done = t.map("sub", _steps_vector(t, state_steps), 1.0)
    rates = t.cast(t.map("div", lr, t.map("add", t.map("mul", done, lr_decay), 1.0), dtype=DType.F64), _precision(params))
    for i, (p, g, total) in enumerate(zip(params, grads, state_sums, strict=True)):
        wide = accumulate(p.dtype)
        gradient, value = t.cast(gate.gradient(t, g, maximize), wide), t.cast(p, wide)
        if not _is(weight_decay, 0):
            gradient = t.map("add", gradient, t.map("mul", value, weight_decay, dtype=wide))
        squares = t.map("add", total, t.map("mul", gradient, gradient), dtype=wide)
        change = t.map("div", t.map("mul", gradient, rates.select(0, i), dtype=wide), t.map("add", t.map("sqrt", squares), eps))
        gate.write(t, p, t.map("sub", value, change))
        gate.write(t, total, squares)


# --- mixed precision


@lowers("aten::_amp_foreach_non_finite_check_and_unscale_")
def non_finite_check_and_unscale(t: Trace, grads: Sequence[Meta], found_inf: Meta, inv_scale: Value) -> None:
    """grads *= inv_scale; found_inf becomes 1 when any gradient was not finite, else stays."""
    found: Meta = found_inf
    for g in grads:
        wide = t.acc(g)
        # x - x is 0 for finite x and NaN for the others; NaN wins every maximum.
        bad = t.map("ne", t.map("sub", wide, wide), 0.0)
        if g.numel:
            any_bad = t.reduce("reduce_max", bad, list(range(g.ndim)))
            found = t.map("max", found, t.reshape(t.cast(any_bad, found_inf.dtype), found_inf.shape))
        t.write(g, t.cast(t.map("mul", wide, inv_scale, dtype=wide.dtype), g.dtype))
    if found is not found_inf:
        t.write(found_inf, found)


@lowers("aten::_amp_update_scale_", mutates=(0, 1))
def amp_update_scale(
    t: Trace, scale: Meta, growth_tracker: Meta, found_inf: Meta, growth_factor: Value, backoff_factor: Value, growth_interval: int
) -> None:
    """Back off after an overflow; grow after ``growth_interval`` steps without, unless the grown scale is infinite."""
    overflow = t.map("ne", found_inf, 0.0, dtype=found_inf.dtype)
    streak = t.map("add", growth_tracker, 1)
    due = t.map("eq", streak, growth_interval)
    grown = t.map("mul", scale, growth_factor)
    grown = t.where(t.map("is_inf", grown), scale, grown, dtype=scale.dtype)
    calm = t.where(due.expand(scale.shape), grown, scale, dtype=scale.dtype)
    t.write(scale, t.where(overflow.expand(scale.shape), t.map("mul", scale, backoff_factor), calm, dtype=scale.dtype))
    restarted = t.where(due, 0, streak, dtype=growth_tracker.dtype)
    t.write(growth_tracker, t.where(overflow.expand(restarted.shape), 0, restarted, dtype=growth_tracker.dtype))
