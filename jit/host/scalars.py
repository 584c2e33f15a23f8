"""Program scalars as argument words.

The meaning of a conversion is ``wis.reference.immediate``; the common case, Python floats for f32 and f64, takes a vectorised path
that gives the same bits.
May live here: number to 64-bit word. May not: which scalar goes where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wis.dtypes import DType
from wis.reference.access import Number, compute_type, convert, immediate

__all__ = ["scalar_words"]


def scalar_words(dtype: DType, values: Sequence[Number]) -> npt.NDArray[np.int64]:
    """One word a value: f16, bf16 and f32 as the bits of an f32, f64 as its bits, integers and bool widened."""
    kind = compute_type(dtype)
    if dtype is DType.F64 and all(type(x) is float for x in values):
        return np.array(values, np.float64).view(np.int64)
    if dtype is DType.F32 and all(type(x) is float for x in values):
        with np.errstate(over="ignore"):
            return np.array(values, np.float64).astype(np.float32).view(np.uint32).astype(np.int64)
    singles: list[Any] = [convert(immediate(x, dtype), dtype, kind) for x in values]
    array = np.array(singles, kind.numpy)
    if kind is DType.F32:
        return array.view(np.uint32).astype(np.int64)
    if kind is DType.F64:
        return array.view(np.int64)
    return array.astype(np.int64)
