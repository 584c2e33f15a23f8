"""How far the strict functions are from the truth: ``python -m tests.property.strict_ulp [names] [--type T] [--step N] [--samples N]``.

f32, one argument: every ``--step``-th of all 2**32 patterns, beside functions in f64. Two arguments, and f64: random values,
``--samples`` of them; f64 beside functions in the platform's longer type (on x86 11 bits more; elsewhere there may be none). The unit is
the distance between neighbours at the true value; an infinite result counts as the power of 2 behind the largest number. A NaN that
should not be one, or the other way round, counts as infinitely far.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tests.support.strict_forms import native
from wis.kernel.model import Function, RegType
from wis.kernel.ops import BY_NAME
from wis.kernel.strict import STRICT_FORMS, strict_form

Array = npt.NDArray[Any]
_CHUNK = 1 << 20


def _torch(f: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Array], Array]:
    return lambda x: f(torch.from_numpy(x)).numpy()


def _sigmoid(x: Array) -> Array:
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1.0, e) / (1.0 + e))


TRUTH: dict[str, Callable[..., Array]] = {
    "exp": np.exp, "exp2": np.exp2, "exp10": lambda x: np.float_power(10.0, x), "expm1": np.expm1, "log": np.log, "log2": np.log2,
    "log10": np.log10, "log1p": np.log1p, "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh,
    "sigmoid": _sigmoid, "rsqrt": lambda x: 1.0 / np.sqrt(x), "erf": _torch(torch.erf), "erfc": _torch(torch.erfc),
    "erfinv": _torch(torch.erfinv), "lgamma": _torch(torch.lgamma), "digamma": _torch(torch.digamma), "pow": np.power,
    "atan2": np.arctan2, "hypot": np.hypot,
}  # fmt: skip
"""The true values, as functions of arrays of a wider type."""


BOUNDS: dict[str, float] = {
    "exp": 0.9, "exp2": 0.9, "exp10": 1.0, "expm1": 1.5, "log": 1.0, "log2": 1.6, "log10": 1.3, "log1p": 1.3, "sin": 1.6, "cos": 1.6,
    "tan": 1.8, "asin": 1.8, "acos": 1.4, "atan": 1.5, "sinh": 1.7, "cosh": 1.4, "tanh": 1.5, "asinh": 1.2, "acosh": 1.4, "atanh": 1.2,
    "sigmoid": 1.6, "rsqrt": 1.5, "erf": 1.3, "erfc": 0.6, "erfinv": 0.8, "lgamma": 0.9, "digamma": 0.9,
    "pow": 1.8, "atan2": 1.6, "hypot": 1.1,
}  # fmt: skip
"""What each may be off at most in f32, in units of the last place. In f64 it is 2."""

_WIDER = {np.dtype(np.float32): np.float64, np.dtype(np.float64): np.longdouble}


def distance(got: Array, truth: Array) -> Array:
    """|got - truth| in units of the last place of ``got``'s type at the truth, which is of a wider type."""
    about, wide = np.finfo(got.dtype), truth.dtype.type
    top = wide(2) ** about.maxexp
    y, t = np.clip(got.astype(wide), -top, top), np.clip(truth, -top, top)
    exponent = np.frexp(np.minimum(np.abs(t), top / 2))[1] - about.nmant - 1
    with np.errstate(invalid="ignore"):
        far = np.abs(y - t) / np.exp2(np.maximum(exponent, about.minexp - about.nmant).astype(wide))
    both = np.isnan(got) & np.isnan(truth)
    return np.where(np.isnan(got) | np.isnan(truth), np.where(both, 0.0, np.inf), far)


def patterns(step: int) -> Iterator[tuple[Array, ...]]:
    """All f32 values whose pattern is a multiple of ``step``."""
    for start in range(0, 1 << 32, _CHUNK * step):
        yield (np.arange(start, min(start + _CHUNK * step, 1 << 32), step, np.int64).astype(np.uint32).view(np.float32),)


def between(least: float, most: float) -> Iterator[tuple[Array, ...]]:
    """All f32 values from ``least`` to ``most``, both positive."""
    first, last = (int(np.float32(x).view(np.uint32)) for x in (least, most))
    for start in range(first, last + 1, _CHUNK):
        yield (np.arange(start, min(start + _CHUNK, last + 1), dtype=np.uint32).view(np.float32),)


def pairs(count: int, seed: int = 1) -> Iterator[tuple[Array, ...]]:
    """Random pairs of f32: patterns, and numbers whose exponents make most results finite."""
    rng = np.random.default_rng(seed)
    for number in range(max(1, count // _CHUNK)):
        if number % 2:
            yield tuple(rng.integers(0, 1 << 32, _CHUNK, np.uint32).view(np.float32) for _ in range(2))
        else:
            a = np.exp2(rng.uniform(-128, 128, _CHUNK) * rng.choice([2.0**-16, 0.01, 0.1, 1.0], _CHUNK)).astype(np.float32)
            near = rng.uniform(-160, 160, _CHUNK) / np.log2(a.astype(np.float64))  # a**near is finite
            b = np.where(number % 4, near, a * rng.uniform(-4, 4, _CHUNK))
            yield a, b.astype(np.float32)


def doubles(count: int, seed: int = 1) -> Iterator[tuple[Array, ...]]:
    """Random f64 values: patterns, ordinary numbers, numbers of all sizes, numbers beside 1."""
    rng = np.random.default_rng(seed)
    size = min(count, _CHUNK) // 4
    for _ in range(max(1, count // (4 * size))):
        yield (rng.integers(0, 1 << 64, size, np.uint64).view(np.float64),)
        yield (rng.uniform(-750, 720, size),)
        yield (np.exp(rng.uniform(-700, 700, size)) * rng.choice([-1, 1], size),)
        yield (np.exp(rng.normal(0, 0.5, size)) * rng.choice([-1, 1], size),)


def measure(form: Function, chunks: Iterator[tuple[Array, ...]]) -> tuple[float, tuple[float, ...], int]:
    """The largest distance, where it is, and how many values were tried."""
    f = native(form)
    worst, where, count = 0.0, (0.0,) * len(form.ins), 0
    with np.errstate(all="ignore"):
        for arguments in chunks:
            far = distance(f(*arguments), TRUTH[form.name](*(a.astype(_WIDER[a.dtype]) for a in arguments)))
            i = int(np.argmax(far))
            count += len(far)
            if far[i] > worst:
                worst, where = float(far[i]), tuple(float(a[i]) for a in arguments)
    return worst, where, count


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--type", choices=("f32", "f64"), default="f32")
    arguments.add_argument("--step", type=int, default=1)
    arguments.add_argument(
        "--range", type=float, nargs=2, metavar=("LEAST", "MOST"), help="every f32 in it instead (one argument, positive)"
    )
    arguments.add_argument("--samples", type=int, default=1 << 28)
    options = arguments.parse_args()
    type_ = RegType.F32 if options.type == "f32" else RegType.F64
    for name in options.names or [name for name, other in STRICT_FORMS if other is type_]:
        form = strict_form(name, type_)
        assert form is not None, name
        if type_ is RegType.F64:
            chunks = doubles(options.samples)
        elif len(form.ins) > 1:
            chunks = pairs(options.samples)
        else:
            chunks = between(*options.range) if options.range else patterns(options.step)
        start = time.monotonic()
        worst, where, count = measure(form, chunks)
        ops = sum(1 for op in form.blocks[0].code if op.op != BY_NAME["const"].code)
        at, took = ", ".join(f"{x!r} ({x.hex()})" for x in where), time.monotonic() - start
        print(f"{name}: {ops} ops, {len(form.regs)} registers, {worst:.3f} ulp at {at}, {count} values, {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
