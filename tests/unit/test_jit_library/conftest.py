"""A bench for single instructions: operands in plain memory, native calls made and run as the engine would, in any cut and any order."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import numpy as np
import pytest

from jit.cache import ObjectCache
from jit.host.calls import Call, Lowering
from jit.host.tables import scalar_words
from jit.host.toolchain import Toolchain
from wis import reference
from wis.dtypes import DType
from wis.ops import BY_NAME
from wis.program import BoundInstr, Operand, Scalar
from wis.traps import NO_TRAP

Array = np.ndarray[Any, np.dtype[Any]]
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@cache
def lowering() -> Lowering:
    return Lowering(Toolchain(ObjectCache(None)))


def _aligned(nbytes: int) -> Array:
    """Bytes at a 64-byte boundary, filled with ones (NaN as any float) so that reading what was never written shows."""
    raw = np.full(nbytes + 64, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + nbytes]


class Bench:
    """Memory, operands and immediates of one instruction."""

    def __init__(self) -> None:
        self.buffers: list[Array] = []
        self.scalars: list[Any] = []
        self.trap = NO_TRAP
        self.rng = np.random.default_rng(7)

    def operand(self, value: Array, strides: Sequence[int] | None = None, offset: int = 0) -> Operand:
        """A buffer operand that holds ``value``; strides in elements (0 repeats), by default row-major."""
        dtype = next(d for d in DType if d.numpy == value.dtype)
        if strides is None:
            strides = [prod(value.shape[d + 1 :]) for d in range(value.ndim)]
        low = sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True) if s < 0 and n)
        high = sum((n - 1) * s for n, s in zip(value.shape, strides, strict=True) if s > 0 and n)
        memory = _aligned((offset - low + high + 1) * dtype.itemsize + 64)
        self.buffers.append(memory)
        made = Operand(len(self.buffers) - 1, dtype, value.shape, tuple(strides), offset - low)
        self.array(made)[...] = value
        return made

    def dense(self, value: Array, order: Sequence[int] | None = None, offset: int = 0) -> Operand:
        """An operand whose memory order is the given permutation of its dimensions (widest first)."""
        order = list(range(value.ndim)) if order is None else order
        strides, step = [0] * value.ndim, 1
        for d in reversed(order):
            strides[d] = step
            step *= max(1, value.shape[d])
        return self.operand(value, strides, offset)

    def like(self, shape: Sequence[int], dtype: DType, order: Sequence[int] | None = None) -> Operand:
        """An operand full of garbage."""
        made = self.dense(np.zeros(tuple(shape), dtype.numpy), order, offset=3)
        self.buffers[made.buffer][...] = 0xFF
        return made

    def scalar(self, value: float, dtype: DType) -> Scalar:
        self.scalars.append(value)
        return Scalar(len(self.scalars) - 1, dtype)

    def array(self, operand: Operand) -> Array:
        """A NumPy view of an operand's memory."""
        size = operand.dtype.itemsize
        whole = self.buffers[operand.buffer]
        typed = whole[: len(whole) // size * size].view(operand.dtype.numpy)
        return np.lib.stride_tricks.as_strided(typed[operand.offset :], operand.shape, [size * s for s in operand.strides])

    def native(self, name: str, outs: Sequence[Operand], ins: Sequence[Operand | Scalar], attrs: Sequence[int] = ()) -> list[Call] | None:
        """The calls of an instruction; None where the reference runs it. Temporaries are put behind the operands' buffers."""
        made = lowering().single(BoundInstr(BY_NAME[name], tuple(outs), tuple(ins), tuple(attrs)), self._temp)
        calls = [call for call in made if isinstance(call, Call)]
        return calls if len(calls) == len(made) else None

    def _temp(self, nbytes: int) -> int:
        self.buffers.append(_aligned(nbytes))
        return len(self.buffers) - 1

    def run(self, name: str, outs: Sequence[Operand], ins: Sequence[Operand | Scalar], attrs: Sequence[int] = ()) -> list[Array]:
        """Run once whole and once cut in pieces, last piece first; both must give the same bits. Returns the outs."""
        kept = len(self.buffers)
        calls = self.native(name, outs, ins, attrs)
        assert calls is not None, f"{name} has no native form"
        before = [buffer.copy() for buffer in self.buffers]
        self.execute(calls, pieces=1)
        whole = [buffer.copy() for buffer in self.buffers]
        for buffer, old in zip(self.buffers, before, strict=True):
            buffer[...] = old
        self.execute(calls, pieces=3)
        for buffer, first in zip(self.buffers, whole, strict=True):
            assert np.array_equal(buffer, first), f"{name}: the result depends on how units are cut"
        del self.buffers[kept:], before[kept:]
        for i, (buffer, old) in enumerate(zip(self.buffers, before, strict=True)):
            elsewhere = self._untouchable(i, outs)
            assert np.array_equal(buffer[elsewhere], old[elsewhere]), f"{name} wrote outside of its outputs"
        return [self.array(out) for out in outs]

    def _untouchable(self, buffer: int, outs: Sequence[Operand]) -> Array:
        """Which bytes of a buffer belong to no output."""
        mine, self.buffers = self.buffers, [np.zeros_like(b) for b in self.buffers]
        for out in outs:
            raw = Operand(out.buffer, DType.U8, (*out.shape, out.dtype.itemsize), (*(s * out.dtype.itemsize for s in out.strides), 1), 0)
            start = out.offset * out.dtype.itemsize
            self.array(Operand(raw.buffer, raw.dtype, raw.shape, raw.strides, start))[...] = 1
        marks, self.buffers = self.buffers, mine
        return marks[buffer] == 0

    def check(
        self, name: str, outs: Sequence[Operand], ins: Sequence[Operand | Scalar], attrs: Sequence[int] = (), tolerance: float = 0.0
    ) -> list[Array]:
        """As ``run``; the outs must equal the reference's: bit for bit, or within ``tolerance`` of the greatest value."""
        memory = [buffer.copy() for buffer in self.buffers]
        instr = BoundInstr(BY_NAME[name], tuple(outs), tuple(ins), tuple(attrs))
        trap = reference.step(instr, self.scalars, memory)
        mine, self.buffers = self.buffers, memory
        want = [self.array(out).copy() for out in outs]
        self.buffers = mine
        got = self.run(name, outs, ins, attrs)
        assert self.trap == trap
        for a, b in zip(got, want, strict=True):
            if tolerance:
                wide_a, wide_b = a.astype(np.float64), b.astype(np.float64)
                assert np.array_equal(np.isfinite(wide_a), np.isfinite(wide_b))
                finite = np.isfinite(wide_b)
                assert np.array_equal(wide_a[~finite], wide_b[~finite], equal_nan=True)
                scale = np.abs(wide_b[finite]).max(initial=0.0)
                assert np.abs(wide_a[finite] - wide_b[finite]).max(initial=0.0) <= tolerance * max(scale, 0.1)
            else:
                if a.dtype.kind in "fcV":
                    a, b = np.asarray(a, np.complex128), np.asarray(b, np.complex128)
                assert np.array_equal(a, b, equal_nan=True)
        return got

    def execute(self, calls: Sequence[Call], pieces: int) -> None:
        trap = np.full(1, NO_TRAP, np.int64)
        for call in calls:
            words = call.block.words.copy()
            for slot, buffer, offset in call.block.pointers.tolist():
                words[slot] = self.buffers[buffer].ctypes.data + offset
            for dtype, slot, number in call.block.scalars:
                words[slot] = scalar_words(dtype, [self.scalars[number]])[0]
            words[list(call.block.traps)] = trap.ctypes.data
            scratch = _aligned(call.scratch_bytes)
            cuts = [call.units * i // pieces for i in range(pieces + 1)]
            for r0, r1 in reversed(list(itertools.pairwise(cuts))):
                if r0 < r1:
                    _FUNCTION(call.address)(words.ctypes.data, r0, r1, scratch.ctypes.data)
        self.trap = int(trap[0])


@pytest.fixture
def bench() -> Bench:
    return Bench()
