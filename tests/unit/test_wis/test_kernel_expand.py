"""Ops that are not core: their expansion agrees with their definition bit by bit, and the definition with exact numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from itertools import product
from typing import Any

import msgspec
import numpy as np
import pytest

from tests.support.kernel_ops import edge_values, one_op, run_op
from wis.errors import VerifyError
from wis.kernel.expand import expand, expanded_ops
from wis.kernel.limits import KernelLimits
from wis.kernel.model import Kernel, Rounding
from wis.kernel.model import RegType as T
from wis.kernel.ops import BY_CODE, KERNEL_OPS
from wis.kernel.verify import verify_kernel

Array = np.ndarray[Any, Any]
N = 4000
INTS, FLOATS, ANY_FLOATS = (T.I16, T.I32, T.I64), (T.F32, T.F64), (T.F16, T.BF16, T.F32, T.F64)

Case = tuple[str, T, tuple[T, ...], tuple[int, ...]]
INTEGER_CASES: list[Case] = [
    *((name, t, (t, T.I32, T.I32), ()) for name in ("bfe_s", "bfe_u") for t in (T.I32, T.I64)),
    *(("bfi", t, (t, t, T.I32, T.I32), ()) for t in (T.I32, T.I64)),
    *(("lop3", T.I32, (T.I32,) * 3, (table,)) for table in (0, 1, 0x2A, 0x96, 0xCA, 0xE8, 0xF0, 0xCC, 0xAA, 0x80, 0xFE, 0xFF, 0x1B, 0x6D)),
    *(("prmt", T.I32, (T.I32,) * 3, (mode,)) for mode in range(7)),
    *((name, T.I32, (T.I32,) * 3, (wrap,)) for name in ("shf_l", "shf_r") for wrap in (0, 1)),
    *((name, T.I32, (t,), ()) for name in ("bfind_s", "bfind_u") for t in INTS),
]
ROUNDED_CASES: list[Case] = [
    *((name, t, (t,) * n, (mode,)) for name, n in (("add_r", 2), ("mul_r", 2), ("fma_r", 3), ("div_r", 2), ("sqrt_r", 1))
      for t in FLOATS for mode in Rounding),
    *(("cvt_r", b, (a,), (mode,)) for a in ANY_FLOATS for b in ANY_FLOATS if a is not b for mode in Rounding),
    *((name, b, (a,), (mode,)) for name in ("s2f_r", "u2f_r") for a in INTS for b in FLOATS for mode in Rounding),
]  # fmt: skip


def same(a: Array, b: Array) -> Array:
    """Bit by bit; any NaN is like any other."""
    if a.dtype.kind in "iub":
        return np.asarray(a == b)
    with np.errstate(invalid="ignore"):
        nan = np.isnan(a.astype(np.float64)) & np.isnan(b.astype(np.float64))
    raw = f"i{a.dtype.itemsize}"
    return np.asarray(nan | (a.view(raw) == b.view(raw)))


def operands(name: str, ins: tuple[T, ...], seed: int, n: int = N) -> list[Array]:
    values = [edge_values(t, n, seed + 100 * i) for i, t in enumerate(ins)]
    if name in ("add_r", "fma_r"):  # let many sums cancel, wholly or nearly
        with np.errstate(all="ignore"):
            nearly = -(values[0] * values[1]) if name == "fma_r" else -values[0]
        step = np.random.default_rng(seed).integers(-2, 3, n).astype(f"i{nearly.dtype.itemsize}")
        close = (nearly.view(step.dtype) + step).view(nearly.dtype)
        values[-1][::3] = close[::3]
    return values


@pytest.mark.parametrize(("name", "out", "ins", "attrs"), INTEGER_CASES + ROUNDED_CASES, ids=str)
def test_expansion_is_the_op(name: str, out: T, ins: tuple[T, ...], attrs: tuple[int, ...]) -> None:
    kernel = one_op(name, [out], ins, attrs)
    expanded = expand(kernel)
    assert all(BY_CODE[op.op].core for block in expanded.blocks for op in block.code)
    n = N if T.F64 not in ins or name == "cvt_r" else N // 4  # the definition takes f64 one by one
    values = operands(name, ins, len(name), n)
    (want,), (got,) = run_op(kernel, [out], values), run_op(expanded, [out], values)
    wrong = np.flatnonzero(~same(want, got))
    assert not len(wrong), [(v[wrong[0]], want[wrong[0]], got[wrong[0]]) for v in values]


def test_every_op_that_is_not_core_was_tried() -> None:
    assert {op.name for op in KERNEL_OPS if not op.core} == {case[0] for case in INTEGER_CASES + ROUNDED_CASES}


def neighbour(exact: Fraction, kind: Any, mode: Rounding) -> float:
    """``exact`` (not 0) rounded to a NumPy float type, by trying numbers around it."""
    info = np.finfo(kind)
    largest = Fraction(float(info.max))
    guess = kind(float(min(max(exact, -largest), largest)))
    with np.errstate(over="ignore"):
        near = [np.nextafter(guess, kind(-np.inf)), guess, np.nextafter(guess, kind(np.inf))]
    beyond = largest + Fraction(2) ** (info.maxexp - info.nmant - 2)  # half a unit further everything is infinite

    def number(x: Any) -> Fraction:
        return Fraction(float(x)) if np.isfinite(x) else (1 if x > 0 else -1) * Fraction(10) ** 1000

    low = max(x for x in near if number(x) <= exact)
    high = min(x for x in near if number(x) >= exact)
    if mode is Rounding.DOWN or (mode is Rounding.ZERO and exact > 0):
        return float(low)
    if mode is Rounding.UP or mode is Rounding.ZERO:
        return float(high)
    if not np.isfinite(high) or not np.isfinite(low):
        return (1 if exact > 0 else -1) * (math.inf if abs(exact) >= beyond else float(info.max))
    below, above = exact - number(low), number(high) - exact
    even = low if int(np.array([low], kind).view(f"i{np.dtype(kind).itemsize}")[0]) % 2 == 0 else high
    return float(low if below < above else high if above < below else even)


EXACT: dict[str, Callable[..., Fraction | None]] = {
    "add_r": lambda a, b: a + b,
    "mul_r": lambda a, b: a * b,
    "fma_r": lambda a, b, c: a * b + c,
    "div_r": lambda a, b: a / b if b else None,
}


@pytest.mark.parametrize(("name", "kind", "mode"), list(product(EXACT, [np.float32, np.float64], Rounding)), ids=str)
def test_rounding_against_exact_numbers(name: str, kind: Any, mode: Rounding) -> None:
    type_ = T.F32 if kind is np.float32 else T.F64
    ins = (type_,) * (3 if name == "fma_r" else 2)
    values = operands(name, ins, 7, 500)
    (got,) = run_op(one_op(name, [type_], ins, (mode,)), [type_], values)
    for *xs, y in zip(*values, got, strict=True):
        if all(np.isfinite(xs)):
            exact = EXACT[name](*(Fraction(float(x)) for x in xs))
            if exact:
                assert y == neighbour(exact, kind, mode), (xs, y)
            elif exact == 0:
                assert y == 0


@pytest.mark.parametrize(("mode", "want"), [(Rounding.NEAREST, 0), (Rounding.ZERO, 0), (Rounding.DOWN, 1), (Rounding.UP, 0)])
@pytest.mark.parametrize("type_", FLOATS)
def test_sign_of_a_sum_that_is_nothing(mode: Rounding, want: int, type_: T) -> None:
    kind = np.float32 if type_ is T.F32 else np.float64
    a, b = np.array([1.5, 0.0, 0.0, -0.0], kind), np.array([-1.5, -0.0, 0.0, -0.0], kind)
    (got,) = run_op(one_op("add_r", [type_], [type_] * 2, (mode,)), [type_], [a, b])
    assert got.tolist() == [0.0] * 4
    assert np.signbit(got).tolist() == [want, want, 0, 1]


@pytest.mark.parametrize("mode", list(Rounding))
def test_integers_become_their_neighbours(mode: Rounding) -> None:
    x = edge_values(T.I64, 500, 3)
    for name, out, kind in product(("s2f_r", "u2f_r"), FLOATS, (0,)):
        (got,) = run_op(one_op(name, [out], [T.I64], (mode,)), [out], [x])
        for value, y in zip(x.tolist(), got, strict=True):
            exact = Fraction(value if name == "s2f_r" else value % 2**64)
            assert y == (neighbour(exact, got.dtype.type, mode) if exact else 0) and kind == 0


def test_one_rounding_from_f64_to_f16() -> None:
    """Through f32 this would be a tie, and round up."""
    x = np.array([1.0 + 2.0**-11 - 2.0**-40, 1.0 + 2.0**-11 + 2.0**-40])
    (once,) = run_op(one_op("cvt_r", [T.F16], [T.F64], (Rounding.NEAREST,)), [T.F16], [x])
    (twice,) = run_op(one_op("cvt", [T.F16], [T.F64]), [T.F16], [x])
    assert once.tolist() == [1.0, 1.0 + 2.0**-10] and twice.tolist() == [1.0, 1.0]


def test_lines_follow_their_ops() -> None:
    kernel = one_op("lop3", [T.I32], [T.I32] * 3, (0x96,))
    numbered = msgspec.structs.replace(kernel, file="k.cu", lines=tuple(range(1, 1 + len(kernel.blocks[0].code))))
    expanded = expand(numbered)
    at = next(i for i, op in enumerate(kernel.blocks[0].code) if BY_CODE[op.op].name == "lop3")
    grown = len(expanded.blocks[0].code) - len(kernel.blocks[0].code)
    assert grown > 0
    assert expanded.lines == (*range(1, at + 1), *[at + 1] * (grown + 1), *range(at + 2, 1 + len(kernel.blocks[0].code)))


def test_a_kernel_of_core_ops_stays() -> None:
    kernel: Kernel = one_op("add", [T.I32], [T.I32] * 2)
    assert expand(kernel) is kernel


def test_how_large_it_becomes_is_known_before() -> None:
    kernel = one_op("fma_r", [T.F64], [T.F64] * 3, (Rounding.DOWN,))
    assert expanded_ops(kernel) == len(expand(kernel).blocks[0].code)
    with pytest.raises(VerifyError, match="ops once all are core"):
        verify_kernel(kernel, KernelLimits(expanded_ops_max=50))
