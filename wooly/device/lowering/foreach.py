"""Operations over lists of tensors: each is its single-tensor lowering, unrolled."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import torch

from wooly.device.lowering import binary, reduce
from wooly.device.lowering.registry import LOWERINGS, lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Meta, Number, Value

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
