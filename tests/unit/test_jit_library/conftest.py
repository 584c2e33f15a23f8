"""A bench for single instructions: operands in plain memory, records compiled and run as the engine would, in any cut and any order."""

from __future__ import annotations

import ctypes
import itertools
import struct
from collections.abc import Sequence
from functools import cache
from math import prod
from typing import Any

import llvmlite.binding as llvm
import numpy as np
import pytest

from jit.host import library
from jit.host.record import F32, F64, SCRATCH_BYTES, Arg, Ptr, Record, ScalarArg, Symbol, TempPtr, TempRef, TrapPtr, TrapSite
from wis import reference
from wis.dtypes import DType
from wis.ops import BY_NAME
from wis.program import BoundInstr, Operand, Scalar
from wis.traps import NO_TRAP, index_key

Array = np.ndarray[Any, np.dtype[Any]]
_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_void_p)


@cache
def _codegen() -> Any:
    return _machine()


def _machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = {name: on for name, on in llvm.get_host_cpu_features().items() if not name.startswith("avx10")}
    flat = ",".join(("+" if on else "-") + name for name, on in sorted(features.items()))
    return llvm.Target.from_default_triple().create_target_machine(cpu=llvm.get_host_cpu_name(), features=flat, opt=3, jit=True)


@cache
def _engine() -> Any:
    """One engine for all: modules find each other's functions in it."""
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


@cache
def compiled(symbol: str) -> Any:
    """The native function of a library symbol."""
    for other in library.requires(symbol):
        compiled(other)
    module = llvm.parse_assembly(library.source(symbol))
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_vectorization = True
    passes = llvm.create_pass_builder(_codegen(), options)
    passes.getModulePassManager().run(module, passes)
    _engine().add_object_file(llvm.ObjectFileRef.from_data(_codegen().emit_object(module)))
    _engine().finalize_object()
    return _FUNCTION(_engine().get_function_address(symbol))


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

    def lower(self, name: str, outs: Sequence[Operand], ins: Sequence[Operand | Scalar], attrs: Sequence[int] = ()) -> list[Record]:
        records = library.lower(BoundInstr(BY_NAME[name], tuple(outs), tuple(ins), tuple(attrs)))
        assert records is not None, f"{name} has no native form"
        return records

    def run(self, name: str, outs: Sequence[Operand], ins: Sequence[Operand | Scalar], attrs: Sequence[int] = ()) -> list[Array]:
        """Run once whole and once cut in pieces, last piece first; both must give the same bits. Returns the outs."""
        records = self.lower(name, outs, ins, attrs)
        before = [buffer.copy() for buffer in self.buffers]
        self.execute(records, pieces=1)
        whole = [buffer.copy() for buffer in self.buffers]
        for buffer, old in zip(self.buffers, before, strict=True):
            buffer[...] = old
        self.execute(records, pieces=3)
        for buffer, first in zip(self.buffers, whole, strict=True):
            assert np.array_equal(buffer, first), f"{name}: the result depends on how units are cut"
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

    def execute(self, records: Sequence[Record], pieces: int) -> None:
        temps: dict[int, Array] = {}
        trap = np.full(1, NO_TRAP, np.int64)
        for record in records:
            for ref in (*record.reads, *record.writes):
                if isinstance(ref, TempRef) and ref.id not in temps:
                    temps[ref.id] = _aligned(ref.nbytes)
            args = np.array([self._arg(arg, temps, trap) for arg in record.args], np.uint64)
            scratch = _aligned(max(SCRATCH_BYTES, record.scratch_bytes))
            function = compiled(record.fn)
            cuts = [record.units * i // pieces for i in range(pieces + 1)]
            for r0, r1 in reversed(list(itertools.pairwise(cuts))):
                if r0 < r1:
                    function(args.ctypes.data, r0, r1, scratch.ctypes.data)
        self.trap = int(trap[0])

    def _arg(self, arg: Arg, temps: dict[int, Array], trap: Array) -> int:
        match arg:
            case int():
                return arg & (1 << 64) - 1
            case Ptr(buffer, offset):
                return int(self.buffers[buffer].ctypes.data) + offset & (1 << 64) - 1
            case TempPtr(id, offset):
                return int(temps[id].ctypes.data) + offset
            case ScalarArg(slot, dtype):
                value = self.scalars[slot]
                if dtype is DType.F64:
                    return int(struct.unpack("<Q", struct.pack("<d", value))[0])
                if dtype.is_float:
                    return int(struct.unpack("<I", struct.pack("<f", np.array(value).astype(dtype.numpy)))[0])
                return int(value) & (1 << 64) - 1
            case F32(value):
                return int(struct.unpack("<I", struct.pack("<f", value))[0])
            case F64(value):
                return int(struct.unpack("<Q", struct.pack("<d", value))[0])
            case Symbol(name):
                return library.blas.address(name)
            case TrapPtr():
                return int(trap.ctypes.data)
            case TrapSite(dimension):
                return index_key(dimension, 0)


@pytest.fixture
def bench() -> Bench:
    return Bench()
