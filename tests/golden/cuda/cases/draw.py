"""Random inputs in the types that kernels take."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Rng", "f32", "f64", "integers"]

Rng = np.random.Generator


def f32(rng: Rng, *shape: int) -> npt.NDArray[np.float32]:
    """Normal deviates."""
    return rng.standard_normal(shape).astype(np.float32)


def f64(rng: Rng, *shape: int) -> npt.NDArray[np.float64]:
    """Normal deviates."""
    return rng.standard_normal(shape)


def integers(rng: Rng, dtype: Any, *shape: int, low: int | None = None, high: int | None = None) -> npt.NDArray[Any]:
    """Whole numbers of the type from ``low`` up to and not including ``high``; all of its range when not given."""
    info = np.iinfo(dtype)
    return rng.integers(info.min if low is None else low, info.max + 1 if high is None else high, shape, dtype=dtype)
