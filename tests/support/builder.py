"""Builds a program by hand: buffers, operands and instructions in, (Program, dims, scalars) out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from wis.dtypes import DType
from wis.errors import BuildError
from wis.ops import BY_NAME
from wis.program import BoundInstr, BoundProgram, BufferKind, Operand, Program, Scalar, unbind
from wis.views import contiguous_strides

__all__ = ["Builder", "Number", "flip"]

Number = int | float | complex


class Builder:
    """Collects buffers, scalars and instructions. Every buffer starts with one operand that covers it."""

    def __init__(self) -> None:
        self._kinds: list[BufferKind] = []
        self._nbytes: list[int] = []
        self._code: list[BoundInstr] = []
        self._scalars: list[Number] = []
        self._kernels: list[bytes] = []

    def external(
        self, dtype: DType, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0, nbytes: int | None = None
    ) -> Operand:
        """A buffer that existed before. ``nbytes`` defaults to what the operand reaches."""
        return self._buffer(BufferKind.EXTERNAL, dtype, shape, strides, offset, nbytes)

    def created(
        self, dtype: DType, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0, nbytes: int | None = None
    ) -> Operand:
        """A buffer that this program makes and that outlives it; zeros until written."""
        return self._buffer(BufferKind.CREATED, dtype, shape, strides, offset, nbytes)

    def temp(
        self, dtype: DType, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0, nbytes: int | None = None
    ) -> Operand:
        """A buffer that lives inside this program only."""
        return self._buffer(BufferKind.TEMP, dtype, shape, strides, offset, nbytes)

    def operand(self, like: Operand, dtype: DType, shape: Sequence[int], strides: Sequence[int] | None = None, offset: int = 0) -> Operand:
        """Another operand on the buffer of ``like``, under any type and shape."""
        return Operand(like.buffer, dtype, tuple(shape), contiguous_strides(shape) if strides is None else tuple(strides), offset)

    def scalar(self, value: Number) -> int:
        """A new immediate with this value; returns its slot."""
        self._scalars.append(value)
        return len(self._scalars) - 1

    def imm(self, slot: int, dtype: DType) -> Scalar:
        """The immediate in ``slot`` as an operand of type ``dtype``."""
        if not 0 <= slot < len(self._scalars):
            raise BuildError(f"there is no scalar slot {slot}")
        return Scalar(slot, dtype)

    def const(self, value: Number, dtype: DType) -> Scalar:
        """A new immediate with this value as an operand of type ``dtype``."""
        return self.imm(self.scalar(value), dtype)

    def emit(self, name: str, outs: Operand | Sequence[Operand], ins: Sequence[Operand | Scalar] = (), attrs: Sequence[int] = ()) -> None:
        """Append one instruction of the op called ``name``."""
        op = BY_NAME.get(name)
        if op is None:
            raise BuildError(f"there is no op called {name!r}")
        self._code.append(BoundInstr(op, (outs,) if isinstance(outs, Operand) else tuple(outs), tuple(ins), tuple(attrs)))

    def launch(
        self,
        kernel: bytes,
        grid: Sequence[int],
        block: Sequence[int],
        outs: Sequence[Operand],
        ins: Sequence[Operand | Scalar],
        dynamic_bytes: int = 0,
    ) -> None:
        """Append a launch of the kernel with this digest: ``outs`` for its writable buffer parameters, ``ins`` for all others, in order."""
        if kernel not in self._kernels:
            self._kernels.append(kernel)
        sizes = [self.const(n, DType.I64) for n in grid]
        self.emit("launch", tuple(outs), (*sizes, *ins), (self._kernels.index(kernel), *block, dynamic_bytes))

    def bound(self) -> BoundProgram:
        """What was collected so far, with its dims."""
        program, _ = unbind(self._kinds, self._nbytes, self._code, len(self._scalars), tuple(self._kernels))
        return BoundProgram(program, tuple(self._nbytes), tuple(self._code))

    def finish(self) -> tuple[Program, bytes, list[Number]]:
        """The structure, its dims, and the scalars' values."""
        program, dims = unbind(self._kinds, self._nbytes, self._code, len(self._scalars), tuple(self._kernels))
        return program, dims, list(self._scalars)

    def _buffer(
        self, kind: BufferKind, dtype: DType, shape: Sequence[int], strides: Sequence[int] | None, offset: int, nbytes: int | None
    ) -> Operand:
        steps = contiguous_strides(shape) if strides is None else tuple(strides)
        operand = Operand(len(self._kinds), dtype, tuple(shape), steps, offset)
        self._kinds.append(kind)
        self._nbytes.append(operand.span()[1] * dtype.itemsize if nbytes is None else nbytes)
        return operand


def flip(x: Operand, dim: int) -> Operand:
    """Dimension ``dim`` in reverse order."""
    dim %= len(x.shape)
    size, stride = x.shape[dim], x.strides[dim]
    strides = (*x.strides[:dim], -stride, *x.strides[dim + 1 :])
    return replace(x, strides=strides, offset=x.offset + max(size - 1, 0) * stride)
