"""Running single instructions through verify and the reference, arrays in and arrays out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tests.support.builder import Builder
from wis.decompose import decompose_instr
from wis.dtypes import DType
from wis.encoding import decode_program, encode_program
from wis.ops import Kind
from wis.program import BoundInstr, BoundProgram, BufferKind, Operand, Scalar, unbind
from wis.reference import Traps, run, run_bound
from wis.verify import Verified, verify

__all__ = ["Imm", "Result", "apply", "apply_decomposed", "bytes_of", "decompose", "dtype_of"]

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


Outs = Sequence[tuple[DType, Sequence[int]] | Array]
Run = Callable[[Verified, Sequence[int | float | complex], Sequence[Array | None]], Traps]


def _apply(execute: Run, name: str, outs: Outs, ins: Sequence[Array | Imm], attrs: Sequence[int], in_place: Sequence[int]) -> Result:
    b = Builder()
    buffers: list[Array] = []
    out_operands: list[Operand] = []
    for out in outs:
        start = out if isinstance(out, np.ndarray) else np.zeros(tuple(out[1]), out[0].numpy)
        out_operands.append(b.external(dtype_of(start), start.shape))
        buffers.append(bytes_of(start))
    operands: list[Operand | Scalar] = [out_operands[i] for i in in_place]
    for x in ins:
        if isinstance(x, Imm):
            operands.append(b.const(x.value, x.dtype))
            continue
        # Dimensions broadcast by NumPy stay broadcast: the buffer holds them once.
        held = x[tuple(slice(0, 1) if stride == 0 and n > 1 else slice(None) for n, stride in zip(x.shape, x.strides, strict=True))]
        dense = np.ascontiguousarray(held).reshape(held.shape)
        strides = [0 if a != h else s // x.itemsize for a, h, s in zip(x.shape, held.shape, dense.strides, strict=True)]
        operands.append(b.external(dtype_of(x), x.shape, strides))
        buffers.append(bytes_of(dense))
    b.emit(name, out_operands, operands, attrs)
    program, dims, scalars = b.finish()
    verified = verify(decode_program(encode_program(program)), dims)
    traps = execute(verified, scalars, buffers)
    results = [np.frombuffer(raw.tobytes(), o.dtype.numpy).reshape(o.shape) for o, raw in zip(out_operands, buffers, strict=False)]
    return Result(results, bool(traps))


def apply(name: str, outs: Outs, ins: Sequence[Array | Imm], attrs: Sequence[int] = (), in_place: Sequence[int] = ()) -> Result:
    """Run one instruction. An output given as an array starts with its contents; every operand is in a buffer of its own.

    ``in_place``: outputs that are the first inputs too.
    """
    return _apply(run, name, outs, ins, attrs, in_place)


def decompose(bound: BoundProgram) -> tuple[BoundProgram, tuple[float, ...]]:
    """``bound`` without coarse instructions, and the constants that follow the program's own scalars: run it with scalars + constants."""
    if all(instr.op.kind is not Kind.COARSE for instr in bound.code):
        return bound, ()
    nbytes = list(bound.nbytes)
    constants: dict[float, int] = {}

    def new_temp(size: int) -> int:
        nbytes.append(size)
        return len(nbytes) - 1

    def new_constant(value: float) -> int:
        return constants.setdefault(value, bound.program.n_scalars + len(constants))

    code: list[BoundInstr] = []
    for instr in bound.code:
        code += decompose_instr(instr, new_temp, new_constant) if instr.op.kind is Kind.COARSE else [instr]
    kinds = [*bound.program.buffers, *[BufferKind.TEMP] * (len(nbytes) - len(bound.nbytes))]
    program, _ = unbind(kinds, nbytes, code, bound.program.n_scalars + len(constants), bound.program.kernels)
    return BoundProgram(program, tuple(nbytes), tuple(code)), tuple(constants)


def apply_decomposed(name: str, outs: Outs, ins: Sequence[Array | Imm], attrs: Sequence[int] = (), in_place: Sequence[int] = ()) -> Result:
    """As ``apply``, by the instruction's decomposition, which is verified too."""

    def execute(verified: Verified, scalars: Sequence[int | float | complex], buffers: Sequence[Array | None]) -> Traps:
        bound, constants = decompose(verified.bound)
        program, dims = unbind(bound.program.buffers, bound.nbytes, bound.code, bound.program.n_scalars)
        assert verify(program, dims).bound == bound
        extra = [None] * (len(bound.nbytes) - len(buffers))
        return run_bound(bound, [*scalars, *constants], [*buffers, *extra])

    return _apply(execute, name, outs, ins, attrs, in_place)
