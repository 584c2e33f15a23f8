"""How far the strict functions are from the truth: ``python -m tests.property.strict_ulp [names] [--step N] [--type f32|f64]``.

f32, one argument: all 2**32 patterns (every ``--step``-th), against f64 functions rounded nowhere. Two arguments: ``--pairs`` random
pairs of patterns and of ordinary numbers. The unit is the distance between f32 neighbours at the true value, at least 2**-149; an
infinite result counts as 2**128. A NaN that should not be one, or the other way round, counts as infinitely far.
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
from wis.kernel.model import RegType
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
"""The true values, as f64 functions of f64 arrays."""


BOUNDS: dict[str, float] = {
    "exp": 0.9, "exp2": 0.9, "exp10": 0.9, "expm1": 1.5, "log": 1.0, "log2": 1.5, "log10": 1.1, "log1p": 1.6, "sin": 1.6, "cos": 1.6,
    "tan": 1.8, "asin": 1.8, "acos": 1.4, "atan": 1.4, "sinh": 1.7, "cosh": 1.4, "tanh": 1.4, "asinh": 1.2, "acosh": 1.9, "atanh": 1.2,
    "sigmoid": 1.6, "rsqrt": 1.5, "erf": 1.2, "pow": 1.5, "atan2": 1.6, "hypot": 1.1,
}  # fmt: skip
"""What each may be off at most, in units of the last place of f32."""


def distance(got: Array, truth: Array) -> Array:
    """|got - truth| in units of the last place of f32 at the truth; ``got`` f32, ``truth`` f64."""
    top = 2.0**128
    y = np.clip(got.astype(np.float64), -top, top)
    t = np.clip(truth, -top, top)
    exponent = np.frexp(np.minimum(np.abs(t), top / 2))[1] - 24
    with np.errstate(invalid="ignore"):
        far = np.abs(y - t) / np.exp2(np.maximum(exponent, -149))
    return np.where(np.isnan(got) | np.isnan(truth), np.where(np.isnan(got) & np.isnan(truth), 0.0, np.inf), far)


def patterns(step: int) -> Iterator[tuple[Array, ...]]:
    """All f32 values whose pattern is a multiple of ``step``."""
    for start in range(0, 1 << 32, _CHUNK * step):
        yield (np.arange(start, min(start + _CHUNK * step, 1 << 32), step, np.int64).astype(np.uint32).view(np.float32),)


def pairs(count: int, seed: int = 1) -> Iterator[tuple[Array, ...]]:
    """Random pairs: patterns, and numbers whose exponents make most results finite."""
    rng = np.random.default_rng(seed)
    for number in range(max(1, count // _CHUNK)):
        if number % 2:
            yield tuple(rng.integers(0, 1 << 32, _CHUNK, np.uint32).view(np.float32) for _ in range(2))
        else:
            a = np.exp2(rng.uniform(-128, 128, _CHUNK) * rng.choice([2.0**-16, 0.01, 0.1, 1.0], _CHUNK)).astype(np.float32)
            near = rng.uniform(-160, 160, _CHUNK) / np.log2(a.astype(np.float64))  # a**near is finite
            b = np.where(number % 4, near, a * rng.uniform(-4, 4, _CHUNK))
            yield a, b.astype(np.float32)


def measure(name: str, chunks: Iterator[tuple[Array, ...]]) -> tuple[float, tuple[float, ...], int]:
    """The largest distance, where it is, and how many values were tried."""
    form = strict_form(name, RegType.F32)
    assert form is not None, name
    f = native(form)
    worst, where, count = 0.0, (0.0,) * len(form.ins), 0
    with np.errstate(all="ignore"):
        for arguments in chunks:
            far = distance(f(*arguments), TRUTH[name](*(a.astype(np.float64) for a in arguments)))
            i = int(np.argmax(far))
            count += len(far)
            if far[i] > worst:
                worst, where = float(far[i]), tuple(float(a[i]) for a in arguments)
    return worst, where, count


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("names", nargs="*")
    arguments.add_argument("--step", type=int, default=1)
    arguments.add_argument("--pairs", type=int, default=1 << 28)
    options = arguments.parse_args()
    names = options.names or [name for name, type_ in STRICT_FORMS if type_ is RegType.F32]
    for name in names:
        form = strict_form(name, RegType.F32)
        assert form is not None, name
        start = time.monotonic()
        worst, where, count = measure(name, patterns(options.step) if BY_NAME[name].n_ins == 1 else pairs(options.pairs))
        ops = sum(1 for op in form.blocks[0].code if op.op != BY_NAME["const"].code)
        at = ", ".join(f"{x!r} ({x.hex()})" for x in where)
        print(
            f"{name}: {ops} ops, {len(form.regs)} registers, {worst:.3f} ulp at {at}, {count} values, {time.monotonic() - start:.0f} s",
            flush=True,
        )


if __name__ == "__main__":
    main()
