"""matmul: the device's own product where it has one for the type, else a tiled kernel.

Half precision is widened, multiplied in f32 and rounded once. ``Build`` is the context of lowerings with such products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod

import numpy as np

from jit.accel.device import Facts, blas_layout
from jit.accel.tables import Call, ProductCall
from jit.errors import Inexpressible
from jit.kernels.scalar_ops import held
from jit.library import build
from jit.library.build import Launch, copy, merged, operand, places
from jit.library.writer import Made, Val, Writer
from jit.plan.access import access, overlaps
from jit.plan.calls import ArgBlock
from wis.dtypes import ACCUMULATE, DType
from wis.kernel.model import Access, Special
from wis.program import BoundInstr, Operand
from wis.views import is_contiguous

__all__ = ["matmul", "product", "Build"]


class Build(build.Build[Call]):
    """``facts``: of the device."""

    def __init__(self, new_temp: Callable[[int], int], make: Callable[[Launch], Call], facts: Facts) -> None:
        super().__init__(new_temp, make, gangs=False)
        self.facts = facts

    def product(self, out: Operand, a: Operand, b: Operand) -> None:
        """Add a matrix product [.., m, k] x [.., k, n] for the device's own library."""
        x = (out, a, b)
        pointers = np.array([(at, v.buffer, 0) for at, v in enumerate(x)], np.int64)
        block = ArgBlock(np.zeros(0, np.int64), pointers, (), ())
        self.calls.append(
            ProductCall(
                block, (access(a), access(b)), (access(out),), out.dtype, tuple(v.shape for v in x), tuple(v.strides for v in x),
                tuple(v.offset for v in x),
            )
        )  # fmt: skip


TILE = 64  # rows and columns of the result that a block makes
DEPTH = 8  # how much of the inner dimension it holds at a time
EACH = 4  # rows and columns that a thread makes
_SIDE = TILE // EACH
_THREADS = _SIDE * _SIDE


@cache
def _tiled(dtype: DType, rank: int) -> Made:
    """out[batch, m, n] = a[batch, m, k] b[batch, k, n]; a block makes 64 x 64 elements, a thread 4 x 4 of them."""
    w = Writer(threads=_THREADS)
    w.buffer("out", dtype, Access.WRITE)
    w.buffer("a", dtype)
    w.buffer("b", dtype)
    n = w.numbers("n", rank)
    batch = {name: w.numbers(f"{name}_s", rank) for name in ("out", "a", "b")}
    start = {name: w.number(f"{name}_at") for name in ("out", "a", "b")}
    rows, columns, inner = w.number("rows"), w.number("columns"), w.number("inner")
    step = {name: (w.number(f"{name}_row"), w.number(f"{name}_column")) for name in ("out", "a", "b")}
    tiles_down, tiles_across = w.number("tiles_down"), w.number("tiles_across")
    tid, cta = w.special(Special.TID_X), w.special(Special.CTAID_X)
    left, top = (cta % tiles_across) * TILE, ((cta // tiles_across) % tiles_down) * TILE
    at = w.coordinates(cta // (tiles_across * tiles_down), n)
    place = {name: w.place(start[name], at, batch[name]) for name in start}
    tile_a, tile_b = w.shared(dtype, TILE * DEPTH), w.shared(dtype, TILE * DEPTH)
    x, y = tid % _SIDE, tid // _SIDE
    total = [[w.variable(dtype, 0) for _ in range(EACH)] for _ in range(EACH)]
    with w.loop(inner, step=DEPTH) as k0:
        for part in range(TILE * DEPTH // _THREADS):
            e = tid + part * _THREADS
            line, k = e % TILE, e // TILE
            for name, tile, first, most in (("a", tile_a, top, rows), ("b", tile_b, left, columns)):
                inside = (first + line < most) & (k0 + k < inner)
                along, across = (step["a"][1], step["a"][0]) if name == "a" else step["b"]
                index = place[name] + (k0 + k) * along + (first + line) * across
                value = w.variable(dtype, 0)
                with w.when(inside):
                    value.set(w.load(name, index))
                w.put(tile, dtype, e, value)
        w.barrier()
        with w.loop(DEPTH) as k:
            a = [w.get(tile_a, dtype, k * TILE + y * EACH + i) for i in range(EACH)]
            b = [w.get(tile_b, dtype, k * TILE + x + j * _SIDE) for j in range(EACH)]
            for i in range(EACH):
                for j in range(EACH):
                    total[i][j].set(_added(total[i][j], a[i], b[j], dtype))
        w.barrier()
    for i in range(EACH):
        for j in range(EACH):
            row, column = top + y * EACH + i, left + x + j * _SIDE
            with w.when((row < rows) & (column < columns)):
                w.store("out", place["out"] + row * step["out"][0] + column * step["out"][1], w.rounded(dtype, total[i][j]))
    return w.made(f"matmul_{dtype.text}_{rank}")


def _added(total: Val, a: Val, b: Val, dtype: DType) -> Val:
    return a.op("fma", b, total) if dtype.is_float else total + a * b


_LOOPS_MAX = 64
"""A product of a batch that is not one run of matrices is that of so many runs at most."""


def _own(build: Build, out: Operand, a: Operand, b: Operand) -> bool:
    """Leave the product to the device, with copies of operands that it cannot read or write in place. False: it has none."""
    operands = {"out": out, "a": a, "b": b}
    if out.dtype not in build.facts.products or a.shape[-1] == 0 or max(*out.shape[-2:], a.shape[-1]) >= 1 << 31:
        return False
    over = merged(out.shape[:-2], {name: x.strides[:-2] for name, x in operands.items()})
    scattered = prod(over.sizes) > _LOOPS_MAX * max(over.sizes)
    copied = [name for name, x in operands.items() if blas_layout(x.shape, x.strides) is None or (scattered and not is_contiguous(x))]
    given = {name: build.temp(x.dtype, x.shape) if name in copied else x for name, x in operands.items()}
    for name in copied:
        if name != "out":
            copy(build, operands[name], given[name])
    if copied:
        over = merged(out.shape[:-2], {name: x.strides[:-2] for name, x in given.items()})
    build.product(
        *(replace(x, shape=(*over.sizes, *x.shape[-2:]), strides=(*over.strides[name], *x.strides[-2:])) for name, x in given.items())
    )
    if "out" in copied:
        copy(build, given["out"], out)
    return True


def product(build: Build, out: Operand, a: Operand, b: Operand) -> None:
    """out = a b, all of one element type, for [.., m, k] x [.., k, n]; ``out`` overlaps neither."""
    if out.numel == 0:
        return
    if _own(build, out, a, b):
        return
    if out.dtype is DType.BOOL or out.dtype in ACCUMULATE:
        raise Inexpressible(f"a product of {out.dtype.text}")
    held(out.dtype)
    m, n = out.shape[-2:]
    operands = {"out": out, "a": a, "b": b}
    over = merged(out.shape[:-2], {name: x.strides[:-2] for name, x in operands.items()})
    down, across = -(-m // TILE), -(-n // TILE)
    args = {**over.args(), **places(operands), "rows": m, "columns": n, "inner": a.shape[-1], "tiles_down": down, "tiles_across": across}
    for name, x in operands.items():
        args |= {f"{name}_row": x.strides[-2], f"{name}_column": x.strides[-1]}
    made = _tiled(out.dtype, over.rank)
    build.call(made, prod(out.shape[:-2]) * down * across, reads=(a, b), writes=(out,), args=args)


def matmul(build: Build, instr: BoundInstr) -> None:
    """[.., m, k] x [.., k, n]."""
    out, a, b = instr.outs[0], operand(instr.ins[0]), operand(instr.ins[1])
    if overlaps(instr):
        raise Inexpressible
    wide = ACCUMULATE.get(out.dtype)
    if wide is None:
        product(build, out, a, b)
        return
    if out.numel == 0 or _own(build, out, a, b):
        return
    widened = [build.temp(wide, x.shape) for x in (out, a, b)]
    for x, y in zip((a, b), widened[1:], strict=True):
        copy(build, x, y)
    product(build, *widened)
    copy(build, widened[0], out)
