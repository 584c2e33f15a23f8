"""Tensor constructors: filled, ranges, identity, and random tensors: every draw is one counter-based instruction, shaped here into the
distributions of torch.

The shape and type come from the output that torch expects, so layouts, default types and ``*_like`` need no code here.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from wis.dtypes import COMPLEX, FLOATS, DType
from wis.ops import Dist
from wooly.device.lowering.dtypes import accumulate, real_of
from wooly.device.lowering.registry import lowers
from wooly.device.lowering.trace import Trace
from wooly.device.lowering.values import Expected, Meta, Number, Unsupported, Value

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


_MANTISSA_BITS = {DType.F16: 11, DType.BF16: 8, DType.F32: 24, DType.F64: 53}


def _float(t: Trace, like: Meta | Expected, dist: Dist) -> Meta:
    """Draws in the accumulate type of ``like``."""
    if like.dtype not in FLOATS:
        raise Unsupported(f"random numbers in {like.dtype.text}")
    return t.random(like.shape, accumulate(like.dtype), dist)


def _difference(a: Number, b: Number) -> Number:
    return a - b


# --- uniform and normal


@lowers("aten::uniform", special={"from": (0,), "to": (1,)})
def uniform(t: Trace, x: Meta, low: Any = 0.0, high: Any = 1.0, *, generator: Any = None, **bounds: Any) -> Meta:
    low, high = bounds.get("from", low), bounds.get("to", high)
    draw = _float(t, x, Dist.UNIFORM)
    if low == 0 and high == 1:
        return draw
    return t.map("add", t.map("mul", draw, t.derive(_difference, high, low)), low)


@lowers("aten::rand", "aten::rand.generator", "aten::rand_like", "aten::rand_like.generator")
def rand(t: Trace, shape_or_like: Any, **options: Any) -> Meta:
    want = t.want()
    if want.dtype in COMPLEX:
        return _complex_draw(t, want, Dist.UNIFORM, 1.0)
    return t.random(want.shape, want.dtype, Dist.UNIFORM) if want.dtype in FLOATS else _float(t, want, Dist.UNIFORM)


@lowers("aten::randn", "aten::randn.generator", "aten::randn_like", "aten::randn_like.generator")
def randn(t: Trace, shape_or_like: Any, **options: Any) -> Meta:
    want = t.want()
    if want.dtype in COMPLEX:
        return _complex_draw(t, want, Dist.NORMAL, math.sqrt(0.5))
    return t.random(want.shape, want.dtype, Dist.NORMAL) if want.dtype in FLOATS else _float(t, want, Dist.NORMAL)


def _complex_draw(t: Trace, want: Meta | Expected, dist: Dist, factor: float, mean: Value = 0.0, std: Value = 1.0) -> Meta:
    """Both parts are drawn, and scaled and shifted alike."""
    part = real_of(want.dtype)
    draw = t.random((*want.shape, 2), part, dist)
    draw = _spread(t, draw if factor == 1.0 else t.map("mul", draw, factor), mean, std)
    out = t.temp(want.dtype, want.shape)
    t.emit("complex", [out], [draw.select(draw.ndim - 1, 0), draw.select(draw.ndim - 1, 1)])
    return out


@lowers("aten::normal_functional", "aten::normal.float_float", special={"mean": (0,), "std": (1,)})
def normal(t: Trace, x: Any, mean: Value = 0.0, std: Value = 1.0, *, generator: Any = None, **layout: Any) -> Meta:
    if not isinstance(x, Meta):  # normal.float_float(mean, std, size)
        x, mean, std = t.want(), x, mean
    return _normal_draw(t, x, mean, std)


@lowers("aten::normal_", mutates=(0,), special={"mean": (0,), "std": (1,)})
def normal_in_place(t: Trace, x: Meta, mean: Value = 0.0, std: Value = 1.0, *, generator: Any = None) -> None:
    t.write(x, t.cast(_normal_draw(t, x, mean, std), x.dtype))


def _normal_draw(t: Trace, like: Meta | Expected, mean: Value, std: Value) -> Meta:
    """With a mean and a deviation that are numbers."""
    if like.dtype in COMPLEX:
        return _complex_draw(t, like, Dist.NORMAL, math.sqrt(0.5), mean, std)
    return _spread(t, _float(t, like, Dist.NORMAL), mean, std)


@lowers("aten::normal.Tensor_float", "aten::normal.float_Tensor", "aten::normal.Tensor_Tensor", special={"mean": (0,), "std": (1,)})
def normal_of(t: Trace, mean: Value, std: Value = 1.0, *, generator: Any = None) -> Meta:
    if isinstance(std, Meta) and std.dtype not in COMPLEX:
        t.check(t.map("ge", std, 0), "normal expects all elements of std >= 0.0")
    return _spread(t, _normal_draw(t, t.want(), 0.0, 1.0), mean, std)


def _spread(t: Trace, draw: Meta, mean: Value, std: Value) -> Meta:
    if isinstance(std, Meta) or std != 1:
        draw = t.map("mul", draw, std, dtype=draw.dtype)
    if isinstance(mean, Meta) or mean != 0:
        draw = t.map("add", draw, mean, dtype=draw.dtype)
    return draw


@lowers("aten::log_normal", special={"mean": (0,), "std": (1,)})
def log_normal(t: Trace, x: Meta, mean: Value = 1.0, std: Value = 2.0, *, generator: Any = None) -> Meta:
    return t.map("exp", _spread(t, _float(t, x, Dist.NORMAL), mean, std))


@lowers("aten::cauchy")
def cauchy(t: Trace, x: Meta, median: Value = 0.0, sigma: Value = 1.0, *, generator: Any = None) -> Meta:
    angle = t.map("mul", t.map("sub", _float(t, x, Dist.UNIFORM), 0.5), math.pi)
    return t.map("add", t.map("mul", t.map("tan", angle), sigma), median)


def _exponential_draw(t: Trace, like: Meta | Expected) -> Meta:
    """-log(1 - u), never exactly 0 (half the type's epsilon instead, as on CUDA)."""
    draw = _float(t, like, Dist.UNIFORM)
    least = 2.0 ** -_MANTISSA_BITS[draw.dtype]
    return t.map("max", t.map("neg", t.map("log1p", t.map("neg", draw))), least)


@lowers("aten::exponential", special={"lambd": (1,)})
def exponential(t: Trace, x: Meta, lambd: Value = 1.0, *, generator: Any = None) -> Meta:
    draw = _exponential_draw(t, x)
    return draw if isinstance(lambd, int | float) and lambd == 1 else t.map("div", draw, lambd)


def _log_of_rest(p: float) -> float:
    """log(1 - p); for p = 1 what makes every trial the first."""
    return math.log1p(-p) if p < 1 else -math.inf


@lowers("aten::geometric")
def geometric(t: Trace, x: Meta, p: Any, *, generator: Any = None) -> Meta:
    """Number of trials: ceil(log(1 - u) / log(1 - p)), at least 1."""
    draw = t.random(x.shape, accumulate(x.dtype) if x.dtype in FLOATS else DType.F32, Dist.UNIFORM)
    scale = t.derive(_log_of_rest, p)
    return t.map("max", t.map("ceil", t.map("div", t.map("log1p", t.map("neg", draw)), scale)), 1.0)


# --- integers


def _below(t: Trace, like: Meta | Expected, low: int, high: int) -> Meta:
    """Integers in [low, high), in i64."""
    draw = t.random(like.shape, DType.I64, Dist.BITS)
    draw = t.map("mod", draw, high - low)
    return draw if low == 0 else t.map("add", draw, low)


@lowers("aten::randint", "aten::randint.generator")
def randint(t: Trace, high: int, size: Any, **options: Any) -> Meta:
    return _below(t, t.want(), 0, high)


@lowers("aten::randint.low", "aten::randint.low_generator")
def randint_low(t: Trace, low: int, high: int, size: Any, **options: Any) -> Meta:
    return _below(t, t.want(), low, high)


@lowers("aten::randint_like", "aten::randint_like.generator")
def randint_like(t: Trace, x: Meta, high: int, **options: Any) -> Meta:
    return _below(t, t.want(), 0, high)


@lowers("aten::randint_like.low_dtype", "aten::randint_like.low_generator_dtype")
def randint_like_low(t: Trace, x: Meta, low: int, high: int, **options: Any) -> Meta:
    return _below(t, t.want(), low, high)


@lowers("aten::random")
def random(t: Trace, x: Meta, *, generator: Any = None) -> Meta:
    """Everything the type can hold: [0, 2**mantissa] for floats, [0, greatest] for integers."""
    if x.dtype in FLOATS:
        return _below(t, x, 0, (1 << _MANTISSA_BITS[x.dtype]) + 1)
    if x.dtype == DType.BOOL:
        return _below(t, x, 0, 2)
    if x.dtype == DType.I64:
        return t.random(x.shape, DType.I64, Dist.BITS)
    bits = 8 * x.dtype.itemsize - (1 if x.dtype.name.startswith("I") else 0)
    return _below(t, x, 0, min(1 << bits, (1 << 63) - 1))


@lowers("aten::random.to")
def random_to(t: Trace, x: Meta, to: int, *, generator: Any = None) -> Meta:
    return _below(t, x, 0, to)


@lowers("aten::random.from")
def random_from(t: Trace, x: Meta, low: int, to: int | None, *, generator: Any = None) -> Meta:
    if to is None or to - low >= 1 << 63:
        raise Unsupported("random_ without an upper bound")
    return _below(t, x, low, to)


@lowers("aten::randperm", "aten::randperm.generator")
def randperm(t: Trace, n: int, **options: Any) -> Meta:
    """The order of n random numbers of 63 bits."""
    keys = t.random((n,), DType.I64, Dist.BITS)
    outs = [t.temp(DType.I64, (n,)), t.temp(DType.I64, (n,))]
    t.emit("sort", outs, [keys], (0, 0))
    return outs[1]


# --- chance


def _chance(t: Trace, shape: tuple[int, ...], p: Value) -> Meta:
    """bool: true with probability ``p``."""
    wide = DType.F64 if isinstance(p, Meta) and p.dtype == DType.F64 else DType.F32
    return t.map("lt", t.random(shape, wide, Dist.UNIFORM), p, dtype=wide)


def _check_chance(t: Trace, p: Meta) -> None:
    t.check(t.map("and", t.map("ge", p, 0), t.map("le", p, 1)), "Expected p_in >= 0 && p_in <= 1 to be true, but got false")


@lowers("aten::bernoulli")
def bernoulli(t: Trace, p: Meta, *, generator: Any = None) -> Meta:
    _check_chance(t, p)
    return t.cast(_chance(t, p.shape, p), p.dtype)


@lowers("aten::bernoulli.p", "aten::bernoulli.Tensor")
def bernoulli_p(t: Trace, x: Meta, p: Value = 0.5, *, generator: Any = None) -> Meta:
    if isinstance(p, Meta):
        _check_chance(t, p)
    return t.cast(_chance(t, x.shape, p), x.dtype)


def _keep_scale(p: float) -> float:
    return 1.0 / (1.0 - p)


@lowers("aten::native_dropout", special={"p": (0, 1)})
def native_dropout(t: Trace, x: Meta, p: Any, train: bool | None) -> list[Meta]:
    if train is False or p == 0:
        return [x, t.full(x.shape, True, DType.BOOL)]
    if p == 1:
        return [t.full(x.shape, 0, x.dtype), t.full(x.shape, False, DType.BOOL)]
    kept = _chance(t, x.shape, t.derive(lambda q: 1.0 - q, p))
    scaled = t.map("mul", x, t.derive(_keep_scale, p))
    return [t.where(kept, scaled, 0, dtype=x.dtype), kept]


@lowers("aten::native_dropout_backward")
def native_dropout_backward(t: Trace, dy: Meta, mask: Meta, scale: Value) -> Meta:
    return t.where(t.cast(mask, DType.BOOL), t.map("mul", dy, scale), 0)


@lowers("aten::multinomial")
def multinomial(t: Trace, weights: Meta, num_samples: int, replacement: bool = False, *, generator: Any = None) -> Meta:
    """Without replacement: the greatest of weight / exponential draw. With: uniform draws into the running sum."""
    weights = t.acc(weights)
    possible = t.map("and", t.map("ge", weights, 0), t.map("lt", weights, math.inf))
    t.check(possible, "probability tensor contains either `inf`, `nan` or element < 0")
    total = t.reduce("sum", weights, [weights.ndim - 1])
    t.check(t.map("gt", total, 0), "invalid multinomial distribution (sum of probabilities <= 0)")
    if not replacement or num_samples == 1:
        key = t.map("div", weights, _exponential_draw(t, weights))
        shape = (*weights.shape[:-1], num_samples)
        outs = [t.temp(key.dtype, shape), t.temp(DType.I64, shape)]
        t.emit("topk", outs, [key], (weights.ndim - 1, 1))
        return outs[1]
    running = t.temp(weights.dtype, weights.shape)
    t.emit("cumsum", [running], [weights], (weights.ndim - 1,))
    n = weights.shape[-1]
    total = running.narrow(running.ndim - 1, n - 1, 1)
    draw = t.map("mul", t.random((*weights.shape[:-1], num_samples), weights.dtype, Dist.UNIFORM), total)
    out = t.temp(DType.I64, draw.shape)
    t.emit("search_sorted", [out], [running, draw], (1,))
    return t.map("min", out, n - 1)


@lowers("aten::rrelu_with_noise", mutates=(1,))
def rrelu_with_noise(
    t: Trace, x: Meta, noise: Meta, lower: Any = 0.125, upper: Any = 1 / 3, training: bool = False, generator: Any = None
) -> Meta:
    wide = t.acc(x)
    if not training:
        slope: Value = t.derive(lambda a, b: (a + b) / 2, lower, upper)
        return t.where(t.map("le", wide, 0.0), t.map("mul", wide, slope), wide, dtype=wide.dtype)
    draw = t.map("add", t.map("mul", t.random(x.shape, wide.dtype, Dist.UNIFORM), t.derive(_difference, upper, lower)), lower)
    factor = t.where(t.map("le", wide, 0.0), draw, 1.0, dtype=wide.dtype)
    t.write(noise, t.cast(factor, noise.dtype))
    return t.map("mul", wide, factor)
