"""Blocked matrix product of f32 and f64: c = a b, or c += a b, for a in any layout and b in *panels*.

Every element of c is one chain of fused multiply-adds in ascending order of the summed index, starting from 0 (or from c). So its bits do
not depend on block sizes, on how work is cut, or on the machine's vectors.

A panel holds ``width`` columns of b, one row after the other; ``b_step`` is the distance of its rows, and what lies to the right of b's
last column may be anything that is readable. ``a`` is read in place: element (i, k) lies at i * a_row + k * a_col. Rows of c are
neighbours; its row stride is ``c_row``. All strides count elements.

Sizes are chosen for caches: a panel of ``DEPTH`` rows stays in L1 while ``BLOCK`` rows of a pass over it from L2.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Final

import llvmlite.binding as llvm

from jit.host.library.emit import BOOL, F32, F64, I32, I64, PTR, Fn, Helper, Type, Value

__all__ = ["OVERRUN_BYTES", "Matrix", "Tiles", "product_scratch", "tiles"]

DEPTH: Final = 256
BLOCK: Final = 480
OVERRUN_BYTES: Final = 128
"""How far reading a panel may run past the last column of b."""

_SLAB_ROW: Final = DEPTH + 16  # rows of a power of two bytes would all fall into the same few sets of L1


def product_scratch(m: int, n: int, k: int, itemsize: int) -> int:
    """Bytes of scratch that ``Tiles.product`` needs at most."""
    panels = -(-n // 64) * 64 * min(k, DEPTH)
    return (min(m, BLOCK) * _SLAB_ROW + panels) * itemsize + OVERRUN_BYTES


@dataclass(frozen=True, slots=True)
class Matrix:
    """A matrix of any layout: address, and strides in elements."""

    at: Value
    row: Value
    col: Value

    def down(self, rows: Value, type: Type) -> Matrix:
        return Matrix(self.at.at(rows * self.row, type), self.row, self.col)

    def right(self, columns: Value, type: Type) -> Matrix:
        return Matrix(self.at.at(columns * self.col, type), self.row, self.col)


class Tiles:
    """What kernels see: calls into the shared module ``lib.tiles.<type>``."""

    def __init__(self, f: Fn, type: Type) -> None:
        self.f, self.name = f, f"lib.tiles.{type.suffix}"
        self.width = _width(type)

    def product(self, m: Value, n: Value, k: Value, a: Matrix, b: Matrix, c: Matrix, pack_a: Value, scratch: Value) -> None:
        """c = a b for matrices of any layout (c: neighbours along rows); b, and a if asked, are packed slab by slab into ``scratch``."""
        self._call("product", m, n, k, a.at, a.row, a.col, b.at, b.row, b.col, c.at, c.row, pack_a, scratch)

    def multiply(
        self, m: Value, n: Value, k: Value, a: Matrix, *, b: Value, panel_step: Value, b_step: Value, c: Value, c_row: Value, add: Value
    ) -> None:
        """c [m, n] (+)= a [m, k] b [k, n]; panels of b lie ``panel_step`` apart."""
        self._call("multiply", m, n, k, a.at, a.row, a.col, b, panel_step, b_step, c, c_row, add)

    def pack(self, k: Value, n: Value, b: Matrix, out: Value, panel_step: Value) -> None:
        """Panels of b [k, n] in any layout: b_step is ``width``, the panels lie ``panel_step`` (at least k * width) apart."""
        self._call("pack", k, n, b.at, b.row, b.col, out, panel_step)

    def _call(self, name: str, *args: Value) -> None:
        self.f.invoke_shared(self.name, f"{self.name}.{name}", *args)


def tiles(f: Fn, dtype: str) -> None:
    """The module of shared helpers; the function itself does nothing."""
    code = _Code({"f32": F32, "f64": F64}[dtype])
    prefix = f"lib.tiles.{dtype}"
    matrix = [PTR, I64, I64]
    sizes = [I64, I64, I64]
    f.helper(f"{prefix}.multiply", [*sizes, *matrix, PTR, I64, I64, PTR, I64, BOOL], code.blocks, shared=True)
    f.helper(f"{prefix}.pack", [I64, I64, *matrix, PTR, I64], code.pack, shared=True)
    f.helper(f"{prefix}.product", [*sizes, *matrix, *matrix, PTR, I64, BOOL, PTR], lambda g, x: code.product(g, prefix, x), shared=True)


def _width(type: Type) -> int:
    """Columns of a panel: two vectors."""
    return 2 * _vector_bytes() // type.nbytes


class _Code:
    """Emits the helpers for one element type."""

    def __init__(self, type: Type) -> None:
        self.type = type
        self.lanes = _vector_bytes() // type.nbytes
        # accumulators, two vectors of b and one element of a have to fit into the registers
        self.heights = (12, 8, 4, 2, 1) if _vector_registers() == 32 else (6, 4, 2, 1)
        self.width = _width(type)

    # --- the product
    def product(self, g: Fn, prefix: str, x: list[Value]) -> None:
        m, n, k, a_at, a_row, a_col, b_at, b_row, b_col, c, c_row, pack_a, scratch = x
        a, b = Matrix(a_at, a_row, a_col), Matrix(b_at, b_row, b_col)
        multiply = g.known(f"{prefix}.multiply")
        panels = scratch.at(m.min(BLOCK) * _SLAB_ROW, self.type)
        with g.loop(0, k, DEPTH) as k0:
            depth = (k - k0).min(DEPTH)
            slab_b = b.down(k0, self.type)
            g.invoke(g.known(f"{prefix}.pack"), depth, n, slab_b.at, slab_b.row, slab_b.col, panels, depth * self.width)
            with g.loop(0, m, BLOCK) as i0:
                rows = (m - i0).min(BLOCK)
                slab = a.down(i0, self.type).right(k0, self.type)
                target, joined = c.at(i0 * c_row, self.type), k0 > 0
                width, step = g.const(I64, self.width), depth * self.width
                with g.when(pack_a):
                    self._pack_slab(g, rows, depth, slab, scratch)
                    packed = Matrix(scratch, g.const(I64, _SLAB_ROW), g.const(I64, 1))
                    g.invoke(multiply, rows, n, depth, packed.at, packed.row, packed.col, panels, step, width, target, c_row, joined)
                with g.otherwise():
                    g.invoke(multiply, rows, n, depth, slab.at, slab.row, slab.col, panels, step, width, target, c_row, joined)

    def _pack_slab(self, g: Fn, m: Value, k: Value, a: Matrix, out: Value) -> None:
        """Rows of a, neighbours in memory, ``_SLAB_ROW`` apart."""
        helper = g.helper(f"slab.{self.type.suffix}", [I64, I64, PTR, I64, I64, PTR], self._slab)
        g.invoke(helper, m, k, a.at, a.row, a.col, out)

    def _slab(self, g: Fn, x: list[Value]) -> None:
        m, k, a, a_row, a_col, out = x
        with g.when(a_col.eq(1)), g.loop(0, m) as i:
            g.copy(out.at(i * _SLAB_ROW, self.type), a.at(i * a_row, self.type), k * self.type.nbytes)
        with g.otherwise():
            lanes = self.lanes
            vector = self.type.vec(lanes)
            whole_m, whole_k = g.var(g.const(I64, 0)), g.var(g.const(I64, 0))
            with g.when(a_row.eq(1)):
                whole_m.set(m // lanes * lanes)
                whole_k.set(k // lanes * lanes)
            with g.loop(0, whole_m.get(), lanes) as i, g.loop(0, whole_k.get(), lanes) as j:
                square = [a.at(i + (j + lane) * a_col, self.type).load(vector) for lane in range(lanes)]
                for number, row in enumerate(_transposed(square)):
                    out.at((i + number) * _SLAB_ROW + j, self.type).store(row)
            with g.loop(0, m) as i, g.loop((i < whole_m.get()).select(whole_k.get(), 0), k) as j:
                out.at(i * _SLAB_ROW + j, self.type).store(a.at(i * a_row + j * a_col, self.type).load(self.type))

    def blocks(self, g: Fn, x: list[Value]) -> None:
        m, n, k, a, a_row, a_col, b, panel_step, b_step, c, c_row, add = x
        with g.loop(0, k.max(1), DEPTH) as k0, g.loop(0, m, BLOCK) as i0, g.loop(0, n, self.width) as j:
            depth, rows = (k - k0).min(DEPTH), (i0 + BLOCK).min(m)
            panel = b.at((j // self.width) * panel_step + k0 * b_step, self.type)
            columns = n - j
            joined = add | (k0 > 0)
            row, odd = g.var(i0), [a_row * number for number in range(1, self.heights[0], 2)]
            for vectors, wide in ((2, columns > self.lanes), (1, columns <= self.lanes)):
                with g.when(wide):
                    for height in self.heights:
                        tile = self._tile(g, height, vectors)
                        with g.loop_while(lambda height=height: row.get() + height <= rows):  # type: ignore[misc]
                            i = row.get()
                            at_a = a.at(i * a_row + k0 * a_col, self.type)
                            at_c = c.at(i * c_row + j, self.type)
                            g.invoke(tile, depth, at_a, a_col, panel, b_step, at_c, c_row, columns, joined, *odd[: _odds(height)])
                            row.set(i + height)

    def _tile(self, g: Fn, height: int, vectors: int) -> Helper:
        types = [I64, PTR, I64, PTR, I64, PTR, I64, I64, BOOL, *[I64] * _odds(height)]
        name = f"tile.{height}.{vectors}.{self.type.suffix}"
        return g.helper(name, types, lambda t, x: self._tile_body(t, height, vectors, x))

    def _tile_body(self, t: Fn, height: int, vectors: int, x: list[Value]) -> None:
        """height x vectors accumulators; one step multiplies a column of a with a row of b.

        Row i of a is reached as an odd multiple of its stride (an argument of its own) times 1, 2, 4 or 8: what one address can hold.
        Written as i * a_row, the addresses become a chain of additions as long as the multiplications take.
        """
        k, a, a_col, b, b_step, c, c_row, columns, add, *odd = x
        vector = self.type.vec(self.lanes)
        lane = t.iota(I32, self.lanes)
        masks = [lane < (columns - v * self.lanes).min(self.lanes).to(I32).splat(self.lanes) for v in range(vectors)]
        places = [[c.at(c_row * i + v * self.lanes, self.type) for v in range(vectors)] for i in range(height)]
        sums = [[t.var(t.const(vector, 0.0)) for _ in range(vectors)] for _ in range(height)]
        with t.when(add):
            for i in range(height):
                for v in range(vectors):
                    sums[i][v].set(t.masked_load(places[i][v], masks[v], vector))
        at_a, at_b = t.var(a), t.var(b)
        with t.loop(0, k):
            column, row = at_a.get(), at_b.get()
            bs = [row.at(v * self.lanes, self.type).load(vector) for v in range(vectors)]
            for i in range(height):
                at = column if i == 0 else column.at(odd[_odd_part(i) // 2] * (i // _odd_part(i)), self.type)
                factor = at.load(self.type).splat(self.lanes)
                for v in range(vectors):
                    sums[i][v].set(t.fma(factor, bs[v], sums[i][v].get()))
            at_a.set(column.at(a_col, self.type))
            at_b.set(row.at(b_step, self.type))
        for i in range(height):
            for v in range(vectors):
                t.masked_store(places[i][v], masks[v], sums[i][v].get())

    # --- panels
    def pack(self, g: Fn, x: list[Value]) -> None:
        k, n, b, b_row, b_col, out, panel_step = x
        with g.loop(0, n, self.width) as j:
            columns = (n - j).min(self.width)
            source, panel = b.at(j * b_col, self.type), out.at((j // self.width) * panel_step, self.type)
            with g.when(b_col.eq(1)):
                self._pack_rows(g, k, columns, source, b_row, panel)
            with g.otherwise():
                whole = g.var(g.const(I64, 0))
                with g.when(b_row.eq(1)):
                    whole.set(k // self.lanes * self.lanes)
                    self._pack_transposed(g, whole.get(), columns, source, b_col, panel)
                self._pack_elements(g, whole.get(), k, columns, source, b_row, b_col, panel)

    def _pack_rows(self, g: Fn, k: Value, columns: Value, b: Value, b_row: Value, panel: Value) -> None:
        vector, lane = self.type.vec(self.lanes), g.iota(I32, self.lanes)
        masks = [lane < (columns - v * self.lanes).to(I32).splat(self.lanes) for v in range(2)]
        with g.loop(0, k) as i:
            for v in range(2):
                value = g.masked_load(b.at(i * b_row + v * self.lanes, self.type), masks[v], vector)
                panel.at(i * self.width + v * self.lanes, self.type).store(value)

    def _pack_transposed(self, g: Fn, k: Value, columns: Value, b: Value, b_col: Value, panel: Value) -> None:
        """Columns of b are neighbours in memory: squares are turned in registers."""
        vector, lanes = self.type.vec(self.lanes), self.lanes
        with g.loop(0, k, lanes) as i:
            for v in range(2):
                rows = []
                for lane in range(lanes):
                    column = (columns - 1).min(v * lanes + lane)  # past the end the last column is repeated
                    rows.append(b.at(column * b_col + i, self.type).load(vector))
                for number, row in enumerate(_transposed(rows)):
                    panel.at((i + number) * self.width + v * lanes, self.type).store(row)

    def _pack_elements(self, g: Fn, start: Value, k: Value, columns: Value, b: Value, b_row: Value, b_col: Value, panel: Value) -> None:
        zero = g.const(self.type, 0.0)
        with g.loop(start, k) as i:
            with g.loop(0, columns) as j:
                panel.at(i * self.width + j, self.type).store(b.at(i * b_row + j * b_col, self.type).load(self.type))
            with g.loop(columns, self.width) as j:
                panel.at(i * self.width + j, self.type).store(zero)


def _odds(height: int) -> int:
    """How many odd numbers there are below ``height``."""
    return height // 2


def _odd_part(number: int) -> int:
    """``number`` without its factors of two."""
    return number // (number & -number)


def _transposed(rows: list[Value]) -> list[Value]:
    """The columns of a square of vectors: interleaving the two halves of the list, as often as it can be halved."""
    n = len(rows)
    low = [lane // 2 + n * (lane % 2) for lane in range(n)]
    high = [lane + n // 2 for lane in low]
    for _ in range(n.bit_length() - 1):
        pairs = [(rows[i], rows[i + n // 2]) for i in range(n // 2)]
        rows = [half for a, b in pairs for half in (a.shuffle(low, b), a.shuffle(high, b))]
    return rows


# --- vectors of this machine's CPU
@cache
def _features() -> frozenset[str]:
    return frozenset(name for name, on in llvm.get_host_cpu_features().items() if on)


def _vector_bytes() -> int:
    """Size of the widest vector register that is as fast as its width promises."""
    if "avx512f" in _features():
        return 64
    return 32 if "avx2" in _features() else 16


def _vector_registers() -> int:
    """How many of them there are."""
    return 32 if "avx512f" in _features() or "neon" in _features() else 16
