"""Program scalars as argument words.

The meaning of a conversion is ``wis.reference.immediate``; ordinary numbers take a vectorised path that gives the same bits.
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
    try:
        array = _fast(dtype, kind, values)
    except (TypeError, OverflowError, ValueError):  # complex numbers, pairs, integers beyond 64 bits: one by one
        array = np.array([convert(immediate(x, dtype), dtype, kind) for x in values], kind.numpy)
    if kind is DType.F32:
        return array.view(np.uint32).astype(np.int64)
    return array.view(np.int64) if kind is DType.F64 else array.astype(np.int64)


def _fast(dtype: DType, kind: DType, values: Sequence[Number]) -> npt.NDArray[Any]:
    """All values at once; raises for what NumPy does not take as f64 or i64."""
    if dtype.is_float:
        return convert(convert(np.array([float(x) for x in values], np.float64), DType.F64, dtype), dtype, kind)  # type: ignore[arg-type]
    if any(type(x) is not int for x in values):
        raise TypeError("not all integers")
    return np.array(values, np.int64).astype(dtype.numpy)
