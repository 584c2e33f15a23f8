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
            a = np.exp(rng.uniform(-88, 88, _CHUNK) * rng.choice([0.01, 0.1, 1.0], _CHUNK))
            b = rng.uniform(-150, 150, _CHUNK) * np.exp(rng.uniform(-12, 0, _CHUNK))
            yield a.astype(np.float32), b.astype(np.float32)


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
