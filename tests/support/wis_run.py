"""Running single instructions through verify and the reference, arrays in and arrays out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wis.builder import Builder
from wis.dtypes import DType
from wis.encoding import decode_program, encode_program
from wis.program import Operand, Scalar
from wis.reference import run
from wis.verify import verify

__all__ = ["Imm", "Result", "apply", "bytes_of", "dtype_of"]

Array = npt.NDArray[Any]
_DTYPES = {d.numpy: d for d in DType}


class Imm(NamedTuple):
    """An immediate operand."""

    value: int | float | complex
    dtype: DType


class Result(NamedTuple):
    outs: list[Array]
    trapped: bool


def dtype_of(x: Array) -> DType:
    return _DTYPES[x.dtype]


def bytes_of(x: Array) -> Array:
    """The bytes of ``x`` in row-major order, as a buffer."""
    return np.frombuffer(bytearray(np.ascontiguousarray(x).tobytes()), np.uint8)


def apply(name: str, outs: Sequence[tuple[DType, Sequence[int]] | Array], ins: Sequence[Array | Imm], attrs: Sequence[int] = ()) -> Result:
    """Run one instruction. An output given as an array starts with its contents; every operand is contiguous in a buffer of its own."""
    b = Builder()
    buffers: list[Array] = []
    out_operands: list[Operand] = []
    for out in outs:
        start = out if isinstance(out, np.ndarray) else np.zeros(tuple(out[1]), out[0].numpy)
        out_operands.append(b.external(dtype_of(start), start.shape))
        buffers.append(bytes_of(start))
    operands: list[Operand | Scalar] = []
    for x in ins:
        if isinstance(x, Imm):
            operands.append(b.const(x.value, x.dtype))
        else:
            operands.append(b.external(dtype_of(x), x.shape))
            buffers.append(bytes_of(x))
    b.emit(name, out_operands, operands, attrs)
    program, dims, scalars = b.finish()
    verified = verify(decode_program(encode_program(program)), dims)
    traps = run(verified, scalars, buffers)
    results = [np.frombuffer(raw.tobytes(), o.dtype.numpy).reshape(o.shape) for o, raw in zip(out_operands, buffers, strict=False)]
    return Result(results, bool(traps))
