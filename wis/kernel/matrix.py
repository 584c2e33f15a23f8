"""Matrix products of a warp: which lane holds which elements, and the product in ops on single lanes.

``mma`` multiplies A (16 rows) by B (8 columns) and adds C; the products are over K = 4 elements times how many one register holds. With
g = lane / 4 and t = lane % 4 and E elements a register, from the lowest bits:

- a0 has row g of A, a1 row g + 8, b column g of B: each the elements k = E t to E t + E - 1;
- c0, c1 have row g, columns 2 t and 2 t + 1 of C; c2, c3 the same of row g + 8; results d0 to d3 as well.

``mma_f64`` multiplies 8 rows by 8 columns with one double a register: a has row g, k = t; b has column g, k = t; c0, c1 as above.

These are the fragments of PTX's ``mma.sync`` of the smallest K (m16n8k8 of 16-bit elements, m16n8k4 of tf32, m16n8k16 of bytes, m8n8k4 of
f64; PTX ISA, "Matrix multiply-accumulate operation using mma instruction"); larger K are several in a row. PTX leaves the order of the
sums open; here it is: each result starts with its c, and adds its products by ``fma`` (f32 or f64) with ascending k. Integers wrap.
A lane that is not there counts as zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from wis.kernel.model import WARP, Matrix, Op, RegType, Shuffle, Special
from wis.kernel.ops import BY_NAME

__all__ = ["COST", "ELEMENTS", "INTEGERS", "SIGNED", "a_lanes", "b_lanes", "lane_ops"]

COST: Final = 64
"""What an op of matrices counts among others, in ops: about its time."""
ELEMENTS: Final = {
    Matrix.F16: 2, Matrix.BF16: 2, Matrix.TF32: 1, Matrix.S8: 4, Matrix.U8: 4, Matrix.S8_U8: 4, Matrix.U8_S8: 4,
}  # fmt: skip
"""Elements in a register."""
INTEGERS: Final = frozenset({Matrix.S8, Matrix.U8, Matrix.S8_U8, Matrix.U8_S8})
SIGNED: Final = {Matrix.S8: (True, True), Matrix.U8: (False, False), Matrix.S8_U8: (True, False), Matrix.U8_S8: (False, True)}
"""Whether elements of A and of B are signed."""

_I32, _I64, _F32, _F64, _PRED = RegType.I32, RegType.I64, RegType.F32, RegType.F64, RegType.PRED
_QUAD: Final = 4


def a_lanes(t: int) -> list[int]:
    """For every lane, the lane that holds its row's elements E t and following."""
    return [lane & -_QUAD | t for lane in range(WARP)]


def b_lanes(t: int, column: int) -> list[int]:
    """For every lane, the lane that holds these elements of the column that its result ``column`` (0 or 1) is in."""
    return [(2 * (lane % _QUAD) + column) * _QUAD + t for lane in range(WARP)]


class _Writer:
    """Ops with registers of their own."""

    def __init__(self, temporary: Callable[[RegType], int]) -> None:
        self.ops: list[Op] = []
        self.temporary = temporary
        self._constants: dict[int, int] = {}

    def put(self, name: str, type_: RegType, *ins: int, attrs: tuple[int, ...] = (), to: int | None = None) -> int:
        """A register with the result; ``to``: this one."""
        out = self.temporary(type_) if to is None else to
        self.ops.append(Op(BY_NAME[name].code, (out,), ins, attrs))
        return out

    def i32(self, value: int) -> int:
        if value not in self._constants:
            self._constants[value] = self.put("const", _I32, attrs=(value,))
        return self._constants[value]

    def word_of(self, value: int, lane: int) -> int:
        """An i32 of another lane; 0 of one that is not there."""
        got, there = self.temporary(_I32), self.temporary(_PRED)
        ins = (value, lane, self.i32(WARP - 1), self.i32(-1))
        self.ops.append(Op(BY_NAME["shfl"].code, (got, there), ins, (int(Shuffle.IDX),)))
        return self.put("sel", _I32, there, got, self.i32(0))

    def double_of(self, value: int, lane: int) -> int:
        """An f64 of another lane, in two words."""
        whole = self.put("reinterpret", _I64, value)
        low = self.word_of(self.put("narrow", _I32, whole), lane)
        shift = self.put("const", _I64, attrs=(32,))
        high = self.word_of(self.put("narrow", _I32, self.put("shr_u", _I64, whole, shift)), lane)
        upper = self.put("shl", _I64, self.put("zext", _I64, high), shift)
        return self.put("reinterpret", _F64, self.put("or", _I64, self.put("zext", _I64, low), upper))

    def element(self, word: int, form: Matrix, at: int, signed: bool) -> int:
        """Element ``at`` of a register, as an f32 or i32."""
        if form in INTEGERS:
            if signed:
                return self.put("shr_s", _I32, self.put("shl", _I32, word, self.i32(24 - 8 * at)), self.i32(24))
            return self.put("and", _I32, self.put("shr_u", _I32, word, self.i32(8 * at)), self.i32(255))
        if form is Matrix.TF32:
            return self.put("reinterpret", _F32, self.put("and", _I32, word, self.i32(-0x2000)))
        if form is Matrix.BF16:
            bits = self.put("and", _I32, word, self.i32(-0x10000)) if at else self.put("shl", _I32, word, self.i32(16))
            return self.put("reinterpret", _F32, bits)
        half = self.put("narrow", RegType.I16, self.put("shr_u", _I32, word, self.i32(16)) if at else word)
        return self.put("cvt", _F32, self.put("reinterpret", RegType.F16, half))


def lane_ops(op: Op, temporary: Callable[[RegType], int]) -> Iterator[Op]:
    """The same by shuffles and arithmetic. ``temporary`` gives registers; results are written last, so they may be operands."""
    w = _Writer(temporary)
    lane = w.put("special", _I32, attrs=(int(Special.LANE),))
    row, within = w.put("and", _I32, lane, w.i32(-_QUAD)), w.put("and", _I32, lane, w.i32(_QUAD - 1))
    columns = [w.put("add", _I32, w.put("shl", _I32, within, w.i32(3)), w.i32(_QUAD * column)) for column in range(2)]
    if op.op == BY_NAME["mma_f64"].code:
        a_in, b_in, sums = op.ins[:1], op.ins[1], list(op.ins[2:])
        for t in range(_QUAD):
            left = w.double_of(a_in[0], w.put("or", _I32, row, w.i32(t)))
            for column in range(2):
                right = w.double_of(b_in, w.put("or", _I32, columns[column], w.i32(t)))
                sums[column] = w.put("fma", _F64, left, right, sums[column])
    else:
        form = Matrix(op.attrs[0])
        a_signed, b_signed = SIGNED.get(form, (False, False))
        a_in, b_in, sums = op.ins[:2], op.ins[2], list(op.ins[3:])
        for t in range(_QUAD):
            from_a = w.put("or", _I32, row, w.i32(t))
            lefts = [w.word_of(a, from_a) for a in a_in]
            rights = [w.word_of(b_in, w.put("or", _I32, columns[column], w.i32(t))) for column in range(2)]
            for at in range(ELEMENTS[form]):
                xs = [w.element(word, form, at, a_signed) for word in lefts]
                ys = [w.element(word, form, at, b_signed) for word in rights]
                for place, (x, y) in enumerate((x, y) for x in xs for y in ys):
                    if form in INTEGERS:
                        sums[place] = w.put("add", _I32, sums[place], w.put("mul", _I32, x, y))
                    else:
                        sums[place] = w.put("fma", _F32, x, y, sums[place])
    for out, value in zip(op.outs, sums, strict=True):
        w.put("mov", _I32, value, to=out)
    yield from w.ops
