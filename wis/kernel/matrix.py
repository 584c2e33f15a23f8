"""Matrix products of a warp: which lane holds which elements.

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

from typing import Final

from wis.kernel.model import WARP, Matrix

COST: Final = 64
"""What an op of matrices counts among others, in ops: about its time."""
ELEMENTS: Final = {
    Matrix.F16: 2, Matrix.BF16: 2, Matrix.TF32: 1, Matrix.S8: 4, Matrix.U8: 4, Matrix.S8_U8: 4, Matrix.U8_S8: 4,
}  # fmt: skip
"""Elements in a register."""
INTEGERS: Final = frozenset({Matrix.S8, Matrix.U8, Matrix.S8_U8, Matrix.U8_S8})
SIGNED: Final = {Matrix.S8: (True, True), Matrix.U8: (False, False), Matrix.S8_U8: (True, False), Matrix.U8_S8: (False, True)}
"""Whether elements of A and of B are signed."""

_QUAD: Final = 4


def a_lanes(t: int) -> list[int]:
    """For every lane, the lane that holds its row's elements E t and following."""
    return [lane & -_QUAD | t for lane in range(WARP)]


def b_lanes(t: int, column: int) -> list[int]:
    """For every lane, the lane that holds these elements of the column that its result ``column`` (0 or 1) is in."""
    return [(2 * (lane % _QUAD) + column) * _QUAD + t for lane in range(WARP)]
