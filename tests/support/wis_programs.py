"""Random valid programs over the whole op table, from any source of integers (Hypothesis or a seeded generator)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from tests.support.builder import Builder, Number, flip
from wis import views
from wis.dtypes import ACCUMULATE, COMPLEX, FLOATS, INTEGERS, DType
from wis.limits import Limits
from wis.ops import OPS, Dist, Kind, Op, ScatterMode, Types
from wis.program import BufferKind, Operand, Program, Scalar
from wis.verify import Verified
from wis.verify.types import ORDERED_ONLY

__all__ = ["LIMITS", "Pick", "buffers_for", "mutate_bytes", "mutate_dims", "random_program", "scalars_for"]

Pick = Callable[[int, int], int]  # an integer between two bounds, both included
T = TypeVar("T")

LIMITS = Limits(buffer_bytes_max=1 << 25, elements_max=1 << 19, window_max=1 << 8, instructions_max=100, buffers_max=200)
"""Small, so that whatever is accepted also runs in a moment."""

_ALL = sorted(DType)
_FAMILIES: dict[Types, Sequence[DType]] = {
    Types.SAME: [d for d in _ALL if d is not DType.BOOL],
    Types.SAME_ANY: _ALL,
    Types.FLOAT: sorted(FLOATS | COMPLEX),
    Types.REAL: sorted(FLOATS),
    Types.BITS: sorted(INTEGERS | {DType.BOOL}),
    Types.INT: sorted(INTEGERS),
}
_ORDERED = [d for d in _ALL if d not in COMPLEX]


class _Generator:
    def __init__(self, pick: Pick) -> None:
        self.pick = pick
        self.b = Builder()
        self.written: list[Operand] = []

    def choose(self, options: Sequence[T]) -> T:
        return options[self.pick(0, len(options) - 1)]

    def shape(self, least: int = 0, most: int = 4, large: bool = True) -> tuple[int, ...]:
        sizes = [self.choose((1, 2, 3, 4, 5, 2, 3, 1, 0)) for _ in range(self.pick(least, most))]
        if sizes and large and self.pick(0, 3) == 0:
            sizes[self.pick(0, len(sizes) - 1)] = self.choose((31, 32, 33, 67, 130))  # beside the widths of vectors and lanes
        return tuple(sizes)

    def layout(self, dtype: DType, shape: tuple[int, ...], make: Callable[..., Operand]) -> Operand:
        """A new buffer seen through a view without repeats: permuted, reversed, with gaps, behind an offset."""
        order = list(range(len(shape)))
        if self.pick(0, 2) == 0:
            order.reverse()
        gap, offset = self.choose((1, 1, 2)), self.choose((0, 0, 3))
        strides = [0] * len(shape)
        step = gap
        for d in order[::-1]:
            strides[d] = step
            step *= max(shape[d], 1)
        x = make(dtype, shape, strides, offset)
        for d in range(len(shape)):
            if self.pick(0, 7) == 0:
                x = flip(x, d)
        return x

    def out(self, dtype: DType, shape: tuple[int, ...]) -> Operand:
        return self.layout(dtype, shape, self.choose((self.b.external, self.b.created, self.b.temp)))

    def update(self, dtype: DType, shape: tuple[int, ...]) -> Operand:
        """An output that is read as well: never a fresh temp."""
        return self.layout(dtype, shape, self.choose((self.b.external, self.b.created)))

    def into(self, dtype: DType, shape: tuple[int, ...]) -> Operand:
        """An input: something written before, a broadcast, or a new external."""
        fitting = [x for x in self.written if x.dtype is dtype and x.shape == shape]
        if fitting and self.pick(0, 1):
            return self.choose(fitting)
        if shape and self.pick(0, 3) == 0:
            held = tuple(1 if self.pick(0, 1) else n for n in shape)
            return views.expand(self.layout(dtype, held, self.b.external), shape)
        return self.layout(dtype, shape, self.b.external)

    def value(self, dtype: DType) -> Scalar:
        return self.b.const(self.pick(-3, 9), dtype)

    def map_in(self, dtype: DType, shape: tuple[int, ...]) -> Operand | Scalar:
        if self.pick(0, 4) == 0:
            return self.value(self.choose((dtype, ACCUMULATE.get(dtype, dtype))))
        return self.into(dtype, shape)

    def emit(self, op: Op) -> None:
        outs, ins, attrs = getattr(self, "_" + op.kind.value)(op)
        self.b.emit(op.name, outs, ins, attrs)
        self.written += [outs] if isinstance(outs, Operand) else outs

    def family(self, op: Op) -> DType:
        options = _FAMILIES.get(op.types, _ORDERED)
        return self.choose([d for d in options if d not in COMPLEX] if op.name in ORDERED_ONLY else options)

    def _map(self, op: Op) -> Any:
        shape = self.shape()
        types = op.types
        if types is Types.CAST:
            source, target = self.choose(_ALL), self.choose(_ALL)
            return self.out(target, shape), [self.map_in(source, shape)], ()
        if types is Types.WHERE:
            dtype = self.choose(_ALL)
            return self.out(dtype, shape), [self.map_in(DType.BOOL, shape), *(self.map_in(dtype, shape) for _ in range(2))], ()
        if types in (Types.PARTS, Types.JOIN):
            whole, part = self.choose(((DType.C64, DType.F32), (DType.C128, DType.F64)))
            if types is Types.PARTS:
                return self.out(part, shape), [self.into(whole, shape)], ()
            return self.out(whole, shape), [self.into(part, shape), self.map_in(part, shape)], ()
        if types is Types.COMPARE:
            dtype = self.choose(_ORDERED if op.name in ORDERED_ONLY else _ALL)
            return self.out(DType.BOOL, shape), [self.into(dtype, shape), self.map_in(dtype, shape)], ()
        if types is Types.TEST:
            return self.out(DType.BOOL, shape), [self.into(self.choose(_FAMILIES[Types.FLOAT]), shape)], ()
        if op.name == "sign_bit":
            return self.out(DType.BOOL, shape), [self.into(self.choose(sorted(FLOATS | INTEGERS)), shape)], ()
        dtype = self.family(op)
        ins = [self.into(dtype, shape), *(self.map_in(dtype, shape) for _ in range(op.n_ins[0] - 1))]
        x = ins[0]
        in_place = isinstance(x, Operand) and self.pick(0, 3) == 0 and 0 not in x.strides
        return (x if in_place else self.out(dtype, shape)), ins, ()

    def _iota(self, op: Op) -> Any:
        dtype, shape = self.choose(sorted(FLOATS | INTEGERS)), self.shape(least=1)
        family = DType.F64 if dtype in FLOATS else DType.I64
        return self.out(dtype, shape), [self.value(family), self.value(family)], (self.pick(0, len(shape) - 1),)

    def _random(self, op: Op) -> Any:
        dist = self.choose(list(Dist))
        dtype = self.choose((DType.I32, DType.I64) if dist is Dist.BITS else sorted(FLOATS))
        return self.out(dtype, self.shape()), [self.value(DType.I64), self.value(DType.I64)], (dist,)

    def _reduce(self, op: Op) -> Any:
        shape = self.shape(least=1)
        if op.name not in ("sum", "prod"):
            shape = tuple(max(n, 1) for n in shape)
        if op.attrs:
            dim = self.pick(0, len(shape) - 1)
            return self.out(DType.I64, (*shape[:dim], 1, *shape[dim + 1 :])), [self.into(self.choose(_ORDERED), shape)], (dim,)
        dtype = self.family(op)
        return self.out(dtype, tuple(1 if self.pick(0, 1) else n for n in shape)), [self.into(dtype, shape)], ()

    def _scan(self, op: Op) -> Any:
        shape = self.shape(least=1)
        dim = self.pick(0, len(shape) - 1)
        if op.n_outs == 1:
            dtype = self.family(op)
            return self.out(dtype, shape), [self.into(dtype, shape)], (dim,)
        dtype = self.choose(_ORDERED)
        return [self.out(dtype, shape), self.out(DType.I64, shape)], [self.into(dtype, shape)], (dim,)

    def _matmul(self, op: Op) -> Any:
        batch, m, k, n = self.shape(most=2), *(self.choose((1, 2, 5, 0)) for _ in range(3))
        dtype = self.family(op)
        return self.out(dtype, (*batch, m, n)), [self.into(dtype, (*batch, m, k)), self.into(dtype, (*batch, k, n))], ()

    def _window(self, dims: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(self.pick(low, high) for _ in range(dims)) for low, high in ((1, 3), (1, 3), (0, 2), (1, 2)))

    def _conv(self, op: Op) -> Any:
        dims = self.pick(1, 3)
        kernel, stride, pad, dilation = self._window(dims)
        n, groups, c, o = self.choose((1, 2, 0)), self.pick(1, 2), self.pick(1, 2), self.pick(1, 2)
        size = tuple(self.choose((1, 3, 5, 6)) for _ in range(dims))
        counts = tuple(
            max((s + 2 * p - (k - 1) * d - 1) // t + 1, 0) for s, p, k, d, t in zip(size, pad, kernel, dilation, stride, strict=True)
        )
        dtype = self.family(op)
        x, w, y = (n, c * groups, *size), (o * groups, c, *kernel), (n, o * groups, *counts)
        out, first, second = {"conv": (y, x, w), "conv_dx": (x, y, w), "conv_dw": (w, y, x)}[op.name]
        return self.out(dtype, out), [self.into(dtype, first), self.into(dtype, second)], (groups, *stride, *pad, *dilation)

    def _pool(self, op: Op) -> Any:
        dims = self.pick(1, 3)
        kernel, stride, pad, dilation = self._window(dims)
        pad = tuple(min(p, k // 2) for p, k in zip(pad, kernel, strict=True))
        if op.name != "max_pool":
            dilation = (1,) * dims
        lead, size = (self.choose((1, 2, 0)), self.pick(1, 2)), tuple(self.choose((1, 3, 6)) for _ in range(dims))
        counts = tuple(
            max((s + 2 * p - (k - 1) * d - 1) // t + 1, 0) for s, p, k, d, t in zip(size, pad, kernel, dilation, stride, strict=True)
        )
        x, y = (*lead, *size), (*lead, *counts)
        if op.name == "max_pool":
            dtype = self.choose(_ORDERED)
            return [self.out(dtype, y), self.out(DType.I64, y)], [self.into(dtype, x)], (*kernel, *stride, *pad, *dilation)
        dtype = self.family(op)
        attrs = (self.pick(0, 1), self.pick(-1, 2), *kernel, *stride, *pad)
        return (
            (self.out(dtype, y), [self.into(dtype, x)], attrs)
            if op.name == "avg_pool"
            else (self.out(dtype, x), [self.into(dtype, y)], attrs)
        )

    def _index(self, op: Op) -> Any:
        data = self.shape(least=1)
        mode = self.choose(list(ScatterMode))
        dtype = self.choose(_ORDERED if mode in (ScatterMode.MAX, ScatterMode.MIN) else _ALL)
        if op.name in ("gather", "scatter"):
            dim = self.pick(0, len(data) - 1)
            shape = tuple(self.pick(0, 4) if d == dim else self.pick(0, n) for d, n in enumerate(data))
            index = self.into(self.choose((DType.I64, DType.I64, DType.U64)), shape)
            if op.name == "gather":
                return self.out(dtype, shape), [self.into(dtype, data), index], (dim,)
            src = self.value(dtype) if self.pick(0, 1) else self.into(dtype, shape)
            return self.update(dtype, data), [src, index], (dim, mode)
        k, shape = self.pick(1, len(data)), self.shape(most=2, large=False)
        indices = [self.into(self.choose((DType.I64, DType.I64, DType.U64)), shape) for _ in range(k)]
        if op.name == "index":
            return self.out(dtype, (*shape, *data[k:])), [self.into(dtype, data), *indices], ()
        return self.update(dtype, data), [self.into(dtype, (*shape, *data[k:])), *indices], (mode,)

    def _sort(self, op: Op) -> Any:
        shape, dtype = self.shape(least=1), self.choose(_ORDERED)
        dim = self.pick(0, len(shape) - 1)
        if op.name == "search_sorted":
            values = (*shape[:-1], self.pick(0, 4))
            return self.out(DType.I64, values), [self.into(dtype, shape), self.into(dtype, values)], (self.pick(0, 1),)
        if op.name == "nonzero":
            dtype = self.choose(_ALL)
            numel = int(np.prod(shape))
            return [self.out(DType.I64, (numel, len(shape))), self.out(DType.I64, (1,))], [self.into(dtype, shape)], ()
        kept = (*shape[:dim], self.pick(0, shape[dim]), *shape[dim + 1 :]) if op.name == "topk" else shape
        return [self.out(dtype, kept), self.out(DType.I64, kept)], [self.into(dtype, shape)], (dim, self.pick(0, 1))

    def _coarse(self, op: Op) -> Any:
        dtype = self.choose(sorted(FLOATS))
        wide = ACCUMULATE.get(dtype, dtype)
        if op.name.startswith("layer_norm"):
            return self._layer_norm(op, dtype, wide)
        if op.name.startswith("sdpa"):
            return self._sdpa(op, dtype, wide)
        if op.name == "adamw":
            shape = self.shape()
            numbers = [self.b.const(x, DType.F64) for x in (0.01, 0.9, 0.99, 0.1, 1e-8, 0.1, 0.3)]
            return [self.update(dtype, shape) for _ in range(3)], [self.into(dtype, shape), *numbers], (self.pick(0, 1), self.pick(0, 1))
        shape = self.shape(least=1)
        return self.out(dtype, shape), [self.into(dtype, shape) for _ in range(op.n_ins[0])], tuple(self.pick(0, 1) for _ in op.attrs)

    def _layer_norm(self, op: Op, dtype: DType, wide: DType) -> Any:
        r, c = self.choose((1, 3, 0)), self.choose((1, 4, 0))
        weight = self.choose((dtype, wide))

        def row() -> Operand | Scalar:
            return self.value(weight) if self.pick(0, 1) else views.expand(self.layout(weight, (1, c), self.b.external), (r, c))

        x = self.into(dtype, (r, c))
        if op.name == "layer_norm":
            return [self.out(dtype, (r, c)), self.out(wide, (r, 1)), self.out(wide, (r, 1))], [x, row(), row(), self.value(DType.F64)], ()
        stats = [self.into(wide, (r, 1)), self.into(wide, (r, 1))]
        if op.name == "layer_norm_dx":
            return self.out(dtype, (r, c)), [x, self.into(dtype, (r, c)), *stats, row()], ()
        return [self.out(dtype, (1, c)), self.out(wide, (1, c))], [x, self.into(dtype, (r, c)), *stats], ()

    def _sdpa(self, op: Op, dtype: DType, wide: DType) -> Any:
        b, h, m, n, d, e = (self.choose((1, 2, 3)), self.pick(1, 2), *(self.choose((1, 2, 3, 0)) for _ in range(2)), 2, 3)
        q, k, v = (self.into(dtype, shape) for shape in ((b, h, m, d), (b, h, n, d), (b, h, n, e)))
        mask = [self.into(dtype, (b, h, m, n))] if self.pick(0, 1) else []
        causal = (self.pick(0, 1),)
        if op.name == "sdpa":
            return [self.out(dtype, (b, h, m, e)), self.out(wide, (b, h, m))], [q, k, v, self.value(DType.F64), *mask], causal
        rows = [self.into(dtype, (b, h, m, e)), q, k, v, self.into(dtype, (b, h, m, e)), self.into(wide, (b, h, m))]
        return [self.out(dtype, x.shape) for x in (q, k, v)], [*rows, self.value(DType.F64), *mask], causal


TENSOR_OPS = [op for op in OPS if op.kind is not Kind.LAUNCH]
"""Launches need kernels, which tests/support/wis_kernels.py makes."""


def random_program(pick: Pick, ops: Sequence[Op] = TENSOR_OPS) -> tuple[Program, bytes, list[Number]]:
    """A program of one to five of ``ops`` that keeps every rule."""
    generator = _Generator(pick)
    for _ in range(pick(1, 5)):
        generator.emit(generator.choose(ops))
    return generator.b.finish()


def buffers_for(verified: Verified, seed: int) -> list[npt.NDArray[np.uint8] | None]:
    """Buffers for a run: bytes of every value, or small ones so that indices are often inside; None for temps, zeros for created ones."""
    rng = np.random.default_rng(seed)
    result: list[npt.NDArray[np.uint8] | None] = []
    for kind, nbytes in zip(verified.bound.program.buffers, verified.bound.nbytes, strict=True):
        if kind == BufferKind.TEMP:
            result.append(None)
        elif kind == BufferKind.CREATED:
            result.append(np.zeros(nbytes, np.uint8))
        elif rng.integers(2):
            result.append(rng.integers(0, 256, nbytes, np.uint8))
        else:
            result.append(np.where(np.arange(nbytes) % 8 == 0, rng.integers(0, 4, nbytes), 0).astype(np.uint8))
    return result


_NUMBERS: Sequence[Number] = (0, 1, -1, 2, 0.5, float("nan"), float("inf"), -(2**63), 2**64 - 1, 1e300, 1 + 2j, 10**400)


def scalars_for(n: int, seed: int) -> list[Number]:
    """``n`` numbers that provoke."""
    rng = np.random.default_rng(seed)
    return [_NUMBERS[i] for i in rng.integers(0, len(_NUMBERS), n)]


def mutate_bytes(pick: Pick, data: bytes) -> bytes:
    """A few bytes changed, removed or inserted."""
    result = bytearray(data)
    for _ in range(pick(1, 4)):
        at = pick(0, max(len(result) - 1, 0))
        what = pick(0, 2)
        if what == 0 and result:
            result[at] = pick(0, 255)
        elif what == 1:
            del result[at : at + pick(1, 3)]
        else:
            result[at:at] = bytes([pick(0, 255)])
    return bytes(result)


_PROVOKING = (0, 1, -1, 2, 7, 1 << 16, 1 << 31, (1 << 63) - 1, -(1 << 63), 1 << 40, -(1 << 40))


def mutate_dims(pick: Pick, dims: bytes) -> bytes:
    """A few numbers of the dims changed."""
    values: list[int] = np.frombuffer(dims, "<i8").tolist()
    for _ in range(pick(1, 3) if len(values) else 0):
        at = pick(0, len(values) - 1)
        values[at] = (
            _PROVOKING[pick(0, len(_PROVOKING) - 1)] if pick(0, 1) else min(max(values[at] + pick(-2, 2), -(1 << 63)), (1 << 63) - 1)
        )
    return np.array(values, "<i8").tobytes()


assert {op.kind for op in TENSOR_OPS} == {kind for kind in Kind if hasattr(_Generator, "_" + kind.value)}
