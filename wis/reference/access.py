"""Element access of the reference: views on byte buffers, immediates, and conversion between element types."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from wis.dtypes import ACCUMULATE, DType
from wis.program import Operand, Scalar

Array = npt.NDArray[Any]
Buffers = Sequence[Array | None]  # one u8 array (1-D, contiguous) a buffer; None where a TEMP is still to be made
Number = int | float | complex | tuple[float, float]  # a pair is a complex number as it comes off the wire


def view(x: Operand, buffers: Buffers) -> Array:
    """The operand's elements in place, in its own type (bool as bool). The buffer's bytes are shared, not copied."""
    if 0 in x.shape:
        return np.empty(x.shape, x.dtype.numpy)
    buffer = buffers[x.buffer]
    assert buffer is not None, "run() made every TEMP"
    size = x.dtype.itemsize
    return np.ndarray(x.shape, x.dtype.numpy, buffer, x.offset * size, tuple(stride * size for stride in x.strides))


def compute_type(dtype: DType) -> DType:
    """The type in which operands of ``dtype`` are computed."""
    return ACCUMULATE.get(dtype, dtype)


def load(x: Operand | Scalar, scalars: Sequence[Number], buffers: Buffers) -> Array:
    """The operand's elements in the type it computes in; immediates have shape ().

    A bool is read as "the byte is not 0", so no byte pattern in a buffer can have another meaning on another backend.
    """
    if isinstance(x, Scalar):
        return convert(immediate(scalars[x.slot], x.dtype), x.dtype, compute_type(x.dtype))
    if x.dtype is DType.BOOL:
        raw = view(Operand(x.buffer, DType.U8, x.shape, x.strides, x.offset), buffers)
        return np.asarray(raw != 0)
    return convert(view(x, buffers), x.dtype, compute_type(x.dtype))


def store(x: Operand, values: Array, buffers: Buffers) -> None:
    """Write ``values`` (in any type; broadcast to the shape), rounded once to the operand's type."""
    if 0 not in x.shape:
        view(x, buffers)[...] = convert(values, _wis_type(values), x.dtype)


_BY_NUMPY = {dtype.numpy: dtype for dtype in DType}


def _wis_type(values: Array) -> DType:
    return _BY_NUMPY[values.dtype]


def immediate(value: Number, dtype: DType) -> Array:
    """A scalar's value in ``dtype``, shape (). Integers wrap, floats become integers as ``cast`` says, complex ones real by real part."""
    if isinstance(value, tuple):
        value = complex(value[0], value[1])
    if isinstance(value, complex) and not dtype.is_complex and dtype is not DType.BOOL:
        value = value.real
    if dtype is DType.BOOL:
        return np.asarray(value != 0)
    if dtype.is_complex:
        return np.asarray(value if isinstance(value, complex) else _to_f64(value)).astype(dtype.numpy)
    if dtype.is_integer:
        if isinstance(value, int):
            bits = 8 * dtype.itemsize
            return np.asarray(value & ((1 << bits) - 1), f"u{dtype.itemsize}").view(dtype.numpy)
        return convert(np.asarray(value, np.float64), DType.F64, dtype)
    assert not isinstance(value, complex)
    return convert(np.asarray(_to_f64(value)), DType.F64, dtype)


def _to_f64(value: int | float) -> np.float64:
    try:
        return np.float64(float(value))
    except OverflowError:  # an int beyond the range of f64
        return np.float64(math.inf if value > 0 else -math.inf)


def convert(values: Array, source: DType, target: DType) -> Array:
    """``values`` of type ``source`` as ``target``: the meaning of ``cast``. May return ``values`` itself.

    To an integer: a float is truncated towards 0 and saturates, NaN gives 0; an integer wraps. To bool: is not 0. Complex to real: the
    real part. To f16 and bf16 from anything wider than f32: through f32.
    """
    if source is target:
        return values
    with np.errstate(all="ignore"):
        if target is DType.BOOL:
            return np.asarray(values.astype(np.float32) != 0) if source is DType.BF16 else np.asarray(values != 0)
        if source.is_complex and not target.is_complex:
            values, source = values.real, DType.F32 if source is DType.C64 else DType.F64
        if source.is_float and target.is_integer:
            return _float_to_int(values.astype(np.float32) if source is DType.BF16 else values, target)
        if target in ACCUMULATE or (source is DType.BF16 and target is not DType.F32):
            values = values.astype(np.float32)
        return values.astype(target.numpy)


def _float_to_int(values: Array, target: DType) -> Array:
    info = np.iinfo(target.numpy)
    whole = np.trunc(values.astype(np.float64))
    # Both bounds are exact in f64: the upper one is the first value that is too large.
    low, high = float(info.min), math.ldexp(1.0, info.bits - (info.min < 0))
    inside = (whole >= low) & (whole < high)
    result = np.where(inside, whole, 0.0).astype(target.numpy)
    if not inside.all():
        result = np.where(whole < low, target.numpy.type(info.min), np.where(whole >= high, target.numpy.type(info.max), result))
    return result
