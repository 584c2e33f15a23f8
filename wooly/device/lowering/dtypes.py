"""Element types at the seam between torch and WIS: the table between them, and torch's promotion rules."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import torch

from wis.dtypes import ACCUMULATE, COMPLEX, FLOATS, DType
from wooly.device.lowering.values import Unsupported

if TYPE_CHECKING:
    from wooly.device.lowering.values import Value

__all__ = [
    "FROM_TORCH",
    "TO_TORCH",
    "wis_dtype",
    "promote",
    "result_type",
    "accumulate",
    "float_type",
    "real_of",
    "complex_of",
    "kind_dtype",
]

FROM_TORCH: Final[dict[torch.dtype, DType]] = {
    torch.bool: DType.BOOL,
    torch.uint8: DType.U8,
    torch.int8: DType.I8,
    torch.int16: DType.I16,
    torch.int32: DType.I32,
    torch.int64: DType.I64,
    torch.float16: DType.F16,
    torch.bfloat16: DType.BF16,
    torch.float32: DType.F32,
    torch.float64: DType.F64,
    torch.complex64: DType.C64,
    torch.complex128: DType.C128,
    torch.uint16: DType.U16,
    torch.uint32: DType.U32,
    torch.uint64: DType.U64,
}
TO_TORCH: Final[dict[DType, torch.dtype]] = {wis: ours for ours, wis in FROM_TORCH.items()}

_REAL_OF: Final = {DType.C64: DType.F32, DType.C128: DType.F64}
_COMPLEX_OF: Final = {DType.F32: DType.C64, DType.F64: DType.C128, DType.BF16: DType.C64}
_KINDS: Final = {bool: 0, int: 1, float: 2, complex: 3}


def wis_dtype(dtype: torch.dtype) -> DType:
    """The WIS type of ``dtype``; raises Unsupported for types that WIS does not have (fp8, quantised)."""
    try:
        return FROM_TORCH[dtype]
    except KeyError:
        raise Unsupported(f"element type {dtype}") from None


def promote(a: DType, b: DType) -> DType:
    """The smallest type that holds both, as torch.promote_types says; raises Unsupported where torch knows none."""
    if a == b:
        return a
    try:
        return wis_dtype(torch.promote_types(TO_TORCH[a], TO_TORCH[b]))
    except RuntimeError as error:
        raise Unsupported(str(error)) from None


def accumulate(dtype: DType) -> DType:
    """The type in which sums of ``dtype`` are formed (f32 for the half types, else itself)."""
    return ACCUMULATE.get(dtype, dtype)


def float_type(dtype: DType) -> DType:
    """``dtype`` if it is a float or complex type, else torch's default float type (plans are forgotten when it changes)."""
    return dtype if dtype in FLOATS or dtype in COMPLEX else wis_dtype(torch.get_default_dtype())


def real_of(dtype: DType) -> DType:
    """The type of the parts of a complex type; other types are their own."""
    return _REAL_OF.get(dtype, dtype)


def complex_of(dtype: DType) -> DType:
    """The complex type torch joins the float type ``dtype`` to; complex types are their own. Raises Unsupported for f16 (complex32)."""
    if dtype == DType.F16:
        raise Unsupported("complex numbers with parts of 16 bits")
    return _COMPLEX_OF.get(dtype, dtype)


def category(dtype: DType) -> int:
    """0 bool, 1 integer, 2 float, 3 complex: the order of torch's promotion."""
    if dtype in COMPLEX:
        return 3
    if dtype in FLOATS:
        return 2
    return 0 if dtype == DType.BOOL else 1


def kind_dtype(kind: type) -> DType:
    """The type that a Python number of ``kind`` becomes when no tensor decides."""
    if kind in (bool, int):
        return DType.BOOL if kind is bool else DType.I64
    default = float_type(DType.I64)
    return default if kind is float else complex_of(default)


def result_type(values: Iterable[Value]) -> DType:
    """torch.result_type over tensors, scalars and Python numbers: dimensions win over 0-d, 0-d over numbers, inside one category."""
    from wooly.device.lowering.values import Meta, ScalarArg, kind_of

    levels: list[DType | None] = [None, None, None]  # tensors with dimensions, 0-d tensors, numbers
    for value in values:
        if isinstance(value, Meta):
            level, dtype = (0 if value.shape else 1), value.dtype
        elif isinstance(value, ScalarArg) and value.dtype is not None:
            level, dtype = 1, value.dtype
        else:
            level, dtype = 2, kind_dtype(kind_of(value))
        known = levels[level]
        levels[level] = dtype if known is None else promote(known, dtype)
    result: DType | None = None
    for dtype_or_none in levels:
        if dtype_or_none is None:
            continue
        if result is None:
            result = dtype_or_none
        elif category(dtype_or_none) > category(result):
            # Something complex of lower standing joins a float tensor at the tensor's precision.
            result = complex_of(result) if category(dtype_or_none) == 3 and category(result) == 2 else dtype_or_none
    if result is None:
        raise ValueError("result_type of nothing")
    return result
