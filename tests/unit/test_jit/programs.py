"""Random programs for comparing backends: MAP, IOTA, REDUCE and a few unfused ops over views that overlap in every legal way.

Named functions are left out, so results are exact and every difference is a defect.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import numpy.typing as npt

from tests.support.builder import Builder
from wis.dtypes import DType
from wis.program import Operand, Scalar
from wis.views import contiguous_strides, expand

__all__ = ["column_sums", "random_program"]

FLOAT_OPS = ["add", "sub", "mul", "max", "min", "neg", "abs", "floor", "where", "fma"]
WHOLE_OPS = ["add", "sub", "mul", "max", "min", "and", "xor", "floor_div", "where"]
DTYPES = [DType.F32, DType.F32, DType.F32, DType.F32, DType.F16, DType.BF16, DType.F64, DType.I32, DType.I64, DType.U8]
SIZES = [1, 1, 2, 3, 4, 5, 8, 16, 31, 32, 33, 40, 70]


class _Maker:
    def __init__(self, seed: int, grow: int) -> None:
        self.rng = random.Random(seed)
        self.b = Builder()
        self.readable: list[Operand] = []
        self.writable: list[Operand] = []
        rank = self.rng.randint(1, 4)
        while True:
            self.shape = tuple(self.rng.choice(SIZES) for _ in range(rank))
            if 1 <= int(np.prod(self.shape)) <= 6000:
                break
        self.shape = tuple(size if size == 1 else size + grow for size in self.shape)

    def make(self, length: int) -> tuple[Builder, dict[int, npt.NDArray[Any]]]:
        for _ in range(3):
            self._external()
        for _ in range(length):
            self._instr()
        return self.b, self._inputs()

    def _external(self) -> None:
        dtype = self.rng.choice(DTYPES)
        shape = tuple(1 if self.rng.random() < 0.2 else size for size in self.shape)
        room = int(np.prod(shape)) * dtype.itemsize * 2
        x = self.b.external(dtype, shape, nbytes=room)
        self.readable.append(x)
        self.writable.append(x)

    def _view(self, dtype: DType, shape: tuple[int, ...]) -> Operand | None:
        """A readable operand of this type and shape: broadcast, transposed, or offset from what exists."""
        found = []
        for x in self.readable:
            if x.dtype is not dtype:
                continue
            if len(x.shape) == len(shape) and all(have in (want, 1) for have, want in zip(x.shape, shape, strict=True)):
                steps = tuple(0 if have != want else s for have, want, s in zip(x.shape, shape, x.strides, strict=True))
                found.append(Operand(x.buffer, dtype, shape, steps, x.offset))
            if sorted(x.shape) == sorted(shape) and x.shape != shape:
                order = self._permutation(x.shape, shape)
                found.append(Operand(x.buffer, dtype, shape, tuple(x.strides[d] for d in order), x.offset))
        return self.rng.choice(found[-6:]) if found else None

    def _permutation(self, have: tuple[int, ...], want: tuple[int, ...]) -> list[int]:
        left = list(range(len(have)))
        order = []
        for size in want:
            at = next(d for d in left if have[d] == size)
            left.remove(at)
            order.append(at)
        return order

    def _operand(self, dtype: DType, shape: tuple[int, ...]) -> Operand | Scalar:
        if self.rng.random() < 0.15:
            return self.b.const(self.rng.choice([0, 1, 2, -3, 5]), dtype)
        x = self._view(dtype, shape)
        if x is not None:
            return x
        others = [y for y in self.readable if y.dtype is not dtype and y.shape == shape]
        if not others:
            return self.b.const(self.rng.choice([0, 1, 2, -3, 5]), dtype)
        out = self._fresh(dtype, shape)
        self.b.emit("cast", out, [self.rng.choice(others)])
        self.readable.append(out)
        return out

    def _fresh(self, dtype: DType, shape: tuple[int, ...]) -> Operand:
        """A new buffer, sometimes with a layout of its own."""
        make = self.b.temp if self.rng.random() < 0.6 else self.b.created
        if self.rng.random() < 0.2 and len(shape) > 1:
            order = list(range(len(shape)))
            self.rng.shuffle(order)
            steps = contiguous_strides([shape[d] for d in order])
            strides = [0] * len(shape)
            for d, step in zip(order, steps, strict=True):
                strides[d] = step
            return make(dtype, shape, strides)
        return make(dtype, shape)

    def _target(self, dtype: DType, shape: tuple[int, ...]) -> Operand:
        """Where to write: mostly something new, sometimes in place or over part of an older buffer."""
        if self.rng.random() < 0.25:
            old = [x for x in self.writable if x.dtype is dtype and x.shape == shape]
            if old:
                x = self.rng.choice(old)
                if self.rng.random() < 0.4 and x.offset == 0 and x in self.writable[:3]:
                    return Operand(x.buffer, dtype, shape, x.strides, self.rng.randint(0, x.numel))
                return x
        out = self._fresh(dtype, shape)
        self.writable.append(out)
        return out

    def _instr(self) -> None:
        roll = self.rng.random()
        dtype = self.rng.choice([x.dtype for x in self.readable])
        if roll < 0.2:
            self._reduce()
        elif roll < 0.27:
            shape = self.shape
            out = self._target(dtype, shape)
            self.b.emit("iota", out, [self.b.const(2, dtype), self.b.const(3, dtype)], (self.rng.randrange(len(shape)),))
            self.readable.append(out)
        elif roll < 0.32:
            self._sort()
        elif roll < 0.42:
            self._parts(dtype)
        else:
            self._map(dtype)

    def _map(self, dtype: DType) -> None:
        shape = self.rng.choice([x.shape for x in self.readable] + [self.shape] * 3)
        if dtype is DType.BOOL:
            dtype = DType.F32
        name = self.rng.choice(FLOAT_OPS if dtype.is_float else WHOLE_OPS)
        count = {"neg": 1, "abs": 1, "floor": 1, "where": 2, "fma": 3}.get(name, 2)
        ins: list[Operand | Scalar] = [self._operand(dtype, shape) for _ in range(count)]
        if name == "where":
            mask = self.b.temp(DType.BOOL, shape)
            self.b.emit("lt", mask, [self._operand(dtype, shape), self._operand(dtype, shape)])
            ins = [mask, *ins]
        out = self._target(dtype, shape)
        self.b.emit(name, out, ins)
        self.readable.append(out)

    def _parts(self, dtype: DType) -> None:
        """A buffer written in parts, as cat and stack write: constants, values of one element made from constants, views."""
        if dtype is DType.BOOL:
            return
        rng = self.rng
        shape = rng.choice([(2,), (3,), (2, 2), self.shape])
        whole = self._fresh(dtype, shape)
        dim = rng.randrange(len(shape))
        at = 0
        while at < shape[dim]:
            part = tuple(rng.randint(1, n - at) if d == dim else n for d, n in enumerate(shape))
            self._write_part(Operand(whole.buffer, dtype, part, whole.strides, whole.offset + at * whole.strides[dim]))
            at += part[dim]
        if rng.random() < 0.3:
            part = tuple(rng.randint(1, n) for n in shape)
            places = [rng.randint(0, n - k) for n, k in zip(shape, part, strict=True)]
            offset = whole.offset + sum(p * s for p, s in zip(places, whole.strides, strict=True))
            self._write_part(Operand(whole.buffer, dtype, part, whole.strides, offset))
        self.readable.append(whole)
        self.b.emit("neg" if dtype.is_float else "cast", out := self._fresh(dtype, shape), [whole])
        self.readable.append(out)

    def _write_part(self, part: Operand) -> None:
        value: Operand | Scalar = self._operand(part.dtype, part.shape)
        roll = self.rng.random()
        if part.numel == 1 and roll < 0.7:
            fill = self.b.temp(part.dtype, part.shape)
            self.b.emit("cast", fill, [self.b.const(self.rng.choice([1, 2, 3, 5]), part.dtype)])
            if roll < 0.3:
                self.b.emit("add", fill, [fill, self.b.const(1, part.dtype)])
            value = fill
        self.b.emit("cast", part, [value])

    def _reduce(self) -> None:
        whole = [x for x in self.readable if x.dtype is not DType.BOOL and x.numel > 0]
        x = self.rng.choice(whole)
        keep = tuple(1 if self.rng.random() < 0.5 else size for size in x.shape)
        name = self.rng.choice(["sum", "sum", "prod", "reduce_max", "reduce_min"])
        out = self._fresh(x.dtype, keep)
        self.b.emit(name, out, [x])
        self.readable.append(out)

    def _sort(self) -> None:
        x = self.rng.choice(self.readable)
        if x.dtype is DType.BOOL:
            return
        values, order = self.b.temp(x.dtype, x.shape), self.b.created(DType.I64, x.shape)
        self.b.emit("sort", [values, order], [x], (self.rng.randrange(len(x.shape)), 0))
        self.readable.append(values)

    def _inputs(self) -> dict[int, npt.NDArray[Any]]:
        """Small whole numbers, exact in every type for a while, with a few fractions and NaN."""
        draw = np.random.default_rng(self.rng.getrandbits(32))
        inputs = {}
        for x in self.readable[:3]:
            n = 2 * x.numel
            numbers = draw.integers(0 if x.dtype is DType.U8 else -8, 9, n).astype(np.float64)
            if x.dtype.is_float:
                numbers += draw.choice([0.0, 0.5, 0.25], n)
                numbers[draw.random(n) < 0.01] = np.nan
            inputs[x.buffer] = numbers.astype(x.dtype.numpy)
        return inputs


def random_program(seed: int, length: int, grow: int = 0) -> tuple[Builder, dict[int, npt.NDArray[Any]]]:
    """A program of about ``length`` instructions and the contents of its inputs; the same for the same arguments.

    ``grow`` is added to every size above 1: mostly the same structure with other dims.
    """
    return _Maker(seed, grow).make(length)


def column_sums(seed: int, rows_min: int = 1) -> tuple[Builder, dict[int, Any]]:
    """Sums down the columns of matrices of several types, and what uses them."""
    b, rng = Builder(), np.random.default_rng(seed)
    rows, columns = int(rng.integers(rows_min, 140)), int(rng.choice([8, 33, 70]))
    for dtype in (DType.F32, DType.F16, DType.F64, DType.I32):
        x = b.external(dtype, (rows, columns))
        mean = b.temp(dtype, (1, columns))
        b.emit(str(rng.choice(["sum", "prod", "reduce_max"])), mean, [x])
        b.emit("sum", b.created(dtype, (1, columns)), [x])
        b.emit("sub", b.created(dtype, (rows, columns)), [x, expand(mean, (rows, columns))])
    read = [x for instr in b.bound().code for x in instr.ins if isinstance(x, Operand)]
    return b, {x.buffer: (rng.standard_normal(x.shape) * 3).astype(x.dtype.numpy) for x in read}
