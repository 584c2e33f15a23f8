"""Element types of WIS: one table, from which codes, names, sizes and NumPy types derive.

Codes are wire format: never renumber, only append.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import ml_dtypes
import numpy as np
import numpy.typing as npt

__all__ = ["DType", "ACCUMULATE", "FLOATS", "COMPLEX", "SIGNED", "UNSIGNED", "INTEGERS"]


class DType(IntEnum):
    """An element type; the value is its code on the wire."""

    BOOL = 0
    U8 = 1
    I8 = 2
    I16 = 3
    I32 = 4
    I64 = 5
    F16 = 6
    BF16 = 7
    F32 = 8
    F64 = 9
    C64 = 10
    C128 = 11
    U16 = 12
    U32 = 13
    U64 = 14

    @property
    def text(self) -> str:
        """The name in the text form, for example ``f32``."""
        return self.name.lower()

    @property
    def itemsize(self) -> int:
        """Size of one element in bytes."""
        return _ITEMSIZE[self]

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy type that stores one element (bf16 through ml_dtypes)."""
        return _NUMPY[self]

    @property
    def is_float(self) -> bool:
        return self in FLOATS

    @property
    def is_complex(self) -> bool:
        return self in COMPLEX

    @property
    def is_integer(self) -> bool:
        """True for every integer type; false for bool."""
        return self in INTEGERS

    @classmethod
    def parse(cls, text: str) -> DType:
        """The type called ``text``; raises ValueError when there is none."""
        try:
            return _BY_TEXT[text]
        except KeyError:
            raise ValueError(f"unknown element type {text!r}") from None


_NUMPY: Final[dict[DType, np.dtype[Any]]] = {
    DType.BOOL: np.dtype(np.bool_),
    DType.U8: np.dtype(np.uint8),
    DType.I8: np.dtype(np.int8),
    DType.I16: np.dtype(np.int16),
    DType.I32: np.dtype(np.int32),
    DType.I64: np.dtype(np.int64),
    DType.F16: np.dtype(np.float16),
    DType.BF16: np.dtype(ml_dtypes.bfloat16),
    DType.F32: np.dtype(np.float32),
    DType.F64: np.dtype(np.float64),
    DType.C64: np.dtype(np.complex64),
    DType.C128: np.dtype(np.complex128),
    DType.U16: np.dtype(np.uint16),
    DType.U32: np.dtype(np.uint32),
    DType.U64: np.dtype(np.uint64),
}
_ITEMSIZE: Final = {dtype: kind.itemsize for dtype, kind in _NUMPY.items()}
_BY_TEXT: Final = {d.text: d for d in DType}

FLOATS: Final = frozenset({DType.F16, DType.BF16, DType.F32, DType.F64})
COMPLEX: Final = frozenset({DType.C64, DType.C128})
SIGNED: Final = frozenset({DType.I8, DType.I16, DType.I32, DType.I64})
UNSIGNED: Final = frozenset({DType.U8, DType.U16, DType.U32, DType.U64})
INTEGERS: Final = SIGNED | UNSIGNED

ACCUMULATE: Final[dict[DType, DType]] = {DType.F16: DType.F32, DType.BF16: DType.F32}
"""The type in which an operation on the key type computes before one final rounding; others compute in themselves."""

Array = npt.NDArray[Any]
