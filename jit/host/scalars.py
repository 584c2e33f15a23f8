"""Program scalars as argument words.

The meaning of a conversion is ``wis.reference.immediate``; ordinary numbers take a vectorised path that gives the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from jit.host.tables import Plan
from jit.plan.calls import Words
from wis.dtypes import DType
from wis.reference.access import Number, compute_type, convert, immediate

__all__ = ["given_scalars", "scalar_words"]


def given_scalars(plan: Plan, n_scalars: int) -> list[tuple[DType, Words, list[int]]]:
    """Where the scalars that a run is given go: type, slots, numbers. The constants of the plan, whose numbers come after those, are put
    into its arguments here, once."""
    given = []
    for dtype, (slots, numbers) in plan.scalar_slots.items():
        own = np.array([number < n_scalars for number in numbers], bool)
        constants = [plan.constants[number - n_scalars] for number in numbers if number >= n_scalars]
        plan.args[slots[~own]] = scalar_words(dtype, constants)
        if own.any():
            given.append((dtype, slots[own], [number for number in numbers if number < n_scalars]))
    return given


def scalar_words(dtype: DType, values: Sequence[Number]) -> npt.NDArray[np.int64]:
    """One word a value: f16, bf16 and f32 as the bits of an f32, f64 as its bits, integers and bool widened."""
    kind = compute_type(dtype)
    try:
        array = _fast(dtype, kind, values)
    except (TypeError, OverflowError, ValueError):  # complex numbers, pairs, integers beyond 64 bits: one by one
        array = np.array([convert(immediate(x, dtype), dtype, kind) for x in values], kind.numpy)
    if kind is DType.F32:
        return array.view(np.uint32).astype(np.int64)
    return array.view(np.int64) if kind is DType.F64 else array.astype(np.int64)


def _fast(dtype: DType, kind: DType, values: Sequence[Number]) -> npt.NDArray[Any]:
    """All values at once; raises for what NumPy does not take as f64 or i64."""
    if dtype is DType.F64 or dtype is DType.F32:  # nearly all there are
        wide = np.array(values, np.float64)
        with np.errstate(over="ignore"):
            return wide if dtype is DType.F64 else wide.astype(np.float32)
    if dtype.is_float:
        return convert(convert(np.array([float(x) for x in values], np.float64), DType.F64, dtype), dtype, kind)  # type: ignore[arg-type]
    if any(type(x) is not int for x in values):
        raise TypeError("not all integers")
    return np.array(values, np.int64).astype(dtype.numpy)
