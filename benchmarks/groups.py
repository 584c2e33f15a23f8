"""Fused groups on the host beside their instructions one by one: ``python -m benchmarks.groups [--sizes N ..] [--rounds N]``.

CPU time of whole runs, both sides in one process in turn, the order reversed every round. Printed is the median of the rounds' ratios
(below 1: fusion is faster) and the time of the fused program. Sizes are elements.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

import numpy as np

from jit.backends import FUEL
from jit.engine import EngineConfig, Space
from jit.host.engine import HostEngine
from jit.plan.planner import PlanOptions
from tests.support.builder import Builder
from wis.dtypes import DType
from wis.program import BufferKind, Operand
from wis.verify import verify

ROW: Final = 512
WORK_NS: Final = 2_000_000
"""What a side does between two readings of the clock."""

Case = Callable[[Builder, int], None]


def spread(x: Operand, shape: tuple[int, ...]) -> Operand:
    """``x``, of as many dimensions, repeated to ``shape``."""
    strides = tuple(0 if size == 1 and wanted != 1 else stride for size, wanted, stride in zip(x.shape, shape, x.strides, strict=True))
    return replace(x, shape=shape, strides=strides)


def value(b: Builder, name: str, shape: tuple[int, ...], *ins: Operand, dtype: DType | None = None) -> Operand:
    """A temporary with the result of an operation."""
    out = b.temp(dtype or ins[0].dtype, shape)
    b.emit(name, out, list(ins))
    return out


def elementwise(*names: str, dtype: DType = DType.F32) -> Case:
    """One function after the other on the sum of two operands."""

    def case(b: Builder, n: int) -> None:
        x = value(b, "add", (n,), b.external(dtype, (n,)), b.external(dtype, (n,)))
        for name in names:
            x = value(b, name, (n,), x)
        b.emit("neg", b.created(dtype, (n,)), [x])

    return case


def bias_gelu(b: Builder, n: int) -> None:
    shape = (n // ROW, ROW)
    x = value(b, "add", shape, b.external(DType.F32, shape), spread(b.external(DType.F32, (1, ROW)), shape))
    b.emit("mul", b.created(DType.F32, shape), [x, value(b, "erf", shape, x)])


def softmax(b: Builder, n: int) -> None:
    shape, ends = (n // ROW, ROW), (n // ROW, 1)
    x = b.external(DType.F32, shape)
    e = value(b, "exp", shape, value(b, "sub", shape, x, spread(value(b, "reduce_max", ends, x), shape)))
    b.emit("div", b.created(DType.F32, shape), [e, spread(value(b, "sum", ends, e), shape)])


def normed(row: int) -> Case:
    """Rows less their mean, over the root of their squares' mean."""

    def case(b: Builder, n: int) -> None:
        shape, ends = (n // row, row), (n // row, 1)
        x = b.external(DType.F32, shape)
        share = b.const(1 / row, DType.F32)
        mean = b.temp(DType.F32, ends)
        b.emit("mul", mean, [value(b, "sum", ends, x), share])
        d = value(b, "sub", shape, x, spread(mean, shape))
        v = b.temp(DType.F32, ends)
        b.emit("mul", v, [value(b, "sum", ends, value(b, "mul", shape, d, d)), share])
        b.emit("mul", b.created(DType.F32, shape), [d, spread(value(b, "rsqrt", ends, v), shape)])

    return case


def reduced(name: str, shape: Callable[[int], tuple[int, ...]], *dims: int) -> Case:
    def case(b: Builder, n: int) -> None:
        full = shape(n)
        ends = tuple(1 if d in dims else size for d, size in enumerate(full))
        b.emit(name, b.created(DType.F32, ends), [b.external(DType.F32, full)])

    return case


def repeated(shape: Callable[[int], tuple[int, int]], dim: int) -> Case:
    """A product with a row (``dim`` 0) or a column that is repeated."""

    def case(b: Builder, n: int) -> None:
        full = shape(n)
        other = b.external(DType.F32, tuple(1 if d == dim else size for d, size in enumerate(full)))
        b.emit("mul", b.created(DType.F32, full), [b.external(DType.F32, full), spread(other, full)])

    return case


def strided(b: Builder, n: int) -> None:
    b.emit("neg", b.created(DType.F32, (n,)), [replace(b.external(DType.F32, (2 * n,)), shape=(n,), strides=(2,))])


def transposed(b: Builder, n: int) -> None:
    side = int(n**0.5) // 32 * 32
    x, y = b.external(DType.F32, (side, side)), b.external(DType.F32, (side, side))
    b.emit("add", b.created(DType.F32, (side, side)), [x, replace(y, strides=(1, side))])


def permuted(b: Builder, n: int) -> None:
    shape = (n // 4096, 16, 16, 16)
    x = b.external(DType.F32, shape)
    b.emit("neg", b.created(DType.F32, shape), [replace(x, strides=(4096, 1, 256, 16))])


def deep(n: int) -> tuple[int, int, int]:
    return n // 8192, 64, 128


def wide(n: int) -> tuple[int, int]:
    return n // ROW, ROW


CASES: Final[dict[str, Case]] = {
    "sum of two": elementwise(), "exp, tanh": elementwise("exp", "tanh"), "sin, log": elementwise("sin", "log"),
    "bf16": elementwise("abs", dtype=DType.BF16), "f16": elementwise("abs", dtype=DType.F16), "i32": elementwise("abs", dtype=DType.I32),
    "bias, gelu": bias_gelu, "softmax": softmax, "normed rows": normed(ROW), "normed rows of 16": normed(16),
    "sum of rows": reduced("sum", wide, 1), "max of rows": reduced("reduce_max", wide, 1), "sum of columns": reduced("sum", wide, 0),
    "sum of the middle": reduced("sum", deep, 1), "sum of both ends": reduced("sum", deep, 0, 2),
    "sum of rows of 16": reduced("sum", lambda n: (n // 16, 16), 1), "sum of columns of 16": reduced("sum", lambda n: (n // 16, 16), 0),
    "repeated row": repeated(wide, 0), "repeated column": repeated(wide, 1), "repeated row of 16": repeated(lambda n: (n // 16, 16), 0),
    "strided": strided, "transposed": transposed, "permuted": permuted,
}  # fmt: skip


class Side:
    """One program on one engine."""

    def __init__(self, engine: HostEngine, case: Case, n: int) -> None:
        b = Builder()
        case(b, n)
        program, dims, self._scalars = b.finish()
        self.space: Space = engine.open_space()
        self._prepared = engine.prepare(verify(program, dims))
        self._keys = [number for number, kind in enumerate(program.buffers) if kind != BufferKind.TEMP]
        self._made = [number for number in self._keys if program.buffers[number] == BufferKind.CREATED]
        draw = np.random.default_rng(n)
        for number in self._keys:
            if number not in self._made:
                nbytes = b.bound().nbytes[number]
                self.space.alloc(number, nbytes)
                self.space.write(number, 0, draw.standard_normal(nbytes // 4).astype(np.float32).tobytes())
        self.run()
        self.run_ns = 0.0

    def run(self) -> int:
        """CPU time of one run, in ns."""
        run = self.space.begin(self._prepared, self._scalars, self._keys)
        start = time.thread_time_ns()
        run.go()
        spent = time.thread_time_ns() - start
        for number in self._made:
            self.space.free(number)
        return spent

    def measure(self, times: int) -> float:
        self.run_ns = sum(self.run() for _ in range(times)) / times
        return self.run_ns


@contextmanager
def sides(engines: tuple[HostEngine, HostEngine], case: Case, n: int) -> Iterator[tuple[Side, Side]]:
    made = Side(engines[0], case, n), Side(engines[1], case, n)
    yield made
    for side in made:
        side.space.close()


def ratio(engines: tuple[HostEngine, HostEngine], case: Case, n: int, rounds: int) -> tuple[float, float]:
    """Median of fused / not fused, and the time of the fused program in us."""
    with sides(engines, case, n) as (fused, apart):
        times = max(1, int(WORK_NS / max(1.0, fused.measure(2))))
        found, ours = [], []
        for number in range(rounds):
            for side in (fused, apart) if number % 2 else (apart, fused):
                side.measure(times)
            found.append(fused.run_ns / apart.run_ns)
            ours.append(fused.run_ns / 1000)
        return statistics.median(found), statistics.median(ours)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--sizes", type=int, nargs="+", default=[100_000, 1_000_000])
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    options = arguments.parse_args()
    config = EngineConfig(cache_dir=None, threads=1, vram_bytes=1 << 30, fuel=FUEL["host"])
    engines = HostEngine(config), HostEngine(config)
    engines[1].options = PlanOptions(fusion=False)
    every: dict[int, list[float]] = {n: [] for n in options.sizes}
    for name in options.cases:
        cells = []
        for n in options.sizes:
            found, time_us = ratio(engines, CASES[name], n, options.rounds)
            every[n].append(found)
            cells.append(f"{found:.2f} ({time_us:.0f} us)")
        print(f"{name:22} {'  '.join(cells)}", flush=True)
    print(f"{'geometric mean':22} {'  '.join(f'{statistics.geometric_mean(found):.2f}' for found in every.values())}")
    for engine in engines:
        engine.close()


if __name__ == "__main__":
    main()
