"""Products of matrices that are one call on the host."""

from __future__ import annotations

from collections import Counter

import pytest

from jit.host.simt.warp import chains
from wis.kernel.model import Matrix, Op
from wis.kernel.ops import BY_NAME

_MMA = BY_NAME["mma"].code


def product(sums: int, outs: int, form: Matrix = Matrix.TF32) -> Op:
    """Adds to registers ``sums`` to ``sums`` + 3; results in ``outs`` to ``outs`` + 3."""
    return Op(_MMA, tuple(range(outs, outs + 4)), (1, 2, 3, *range(sums, sums + 4)), (int(form),))


@pytest.mark.parametrize(
    ("ops", "lengths"),
    [
        ([product(10, 20), product(20, 30)], [2]),
        ([product(10, 20), product(20, 30), product(30, 40)], [2, 1]),
        ([product(10, 20), product(10, 30)], [1, 1]),
        ([product(10, 20), product(20, 30, Matrix.BF16)], [1, 1]),
        ([product(10, 20), product(20, 30), product(20, 40)], [1, 1, 1]),
        ([product(10, 20), Op(BY_NAME["add"].code, (9,), (20, 21)), product(20, 30)], [1, 1, 1]),
        ([product(10, 20), product(20, 30), Op(BY_NAME["add"].code, (9,), (20, 21))], [1, 1, 1]),
    ],
    ids=["two", "three", "same sums", "other form", "read twice", "something between", "read later"],
)
def test_a_product_continues_another_whose_sums_only_it_reads(ops: list[Op], lengths: list[int]) -> None:
    found = list(chains(ops, Counter(r for op in ops for r in op.ins)))
    assert [len(chain) for chain in found] == lengths
    assert [op for chain in found for op in chain] == ops
