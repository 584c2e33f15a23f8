"""Every element type at its edges, through kernels of the kernel tier: wrapping, division by 0, shifts past the width, saturating casts."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from tests.support.builder import Builder
from tests.unit.test_jit.lowered import interpreted
from tests.unit.test_jit.test_lower import agree
from wis.dtypes import DType

WHOLE = [DType.U8, DType.I8, DType.U16, DType.I16, DType.U32, DType.I32, DType.U64, DType.I64]
REAL = [DType.F16, DType.BF16, DType.F32, DType.F64]
WHOLE_OPS = ["add", "mul", "floor_div", "mod", "trunc_div", "fmod", "shl", "shr", "min", "max", "sub", "xor"]
REAL_OPS = ["add", "div", "min", "max", "fmin", "fmax", "trunc_div", "copysign"]
EDGES = [0, -0.0, 1, -1.5, np.inf, -np.inf, np.nan, 300, -300, 70000, 3e9, -3e9, 1e19, -1e19, 0.3, -129, 255.9]
N = 400


def values(dtype: DType, seed: int) -> npt.NDArray[Any]:
    draw = np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        return draw.choice(EDGES, N).astype(dtype.numpy) if dtype.is_float else np.frombuffer(draw.bytes(N * dtype.itemsize), dtype.numpy)


@pytest.mark.parametrize("dtype", [*WHOLE, *REAL], ids=lambda dtype: dtype.text)
def test_edges(dtype: DType) -> None:
    b = Builder()
    x, y = b.external(dtype, (N,)), b.external(dtype, (N,))
    for name in WHOLE_OPS if dtype.is_integer else REAL_OPS:
        b.emit(name, b.created(dtype, (N,)), [x, y])
    for name in ("neg", "abs", "sign"):
        b.emit(name, b.created(dtype, (N,)), [x])
    for name in ("lt", "ge", "eq"):
        b.emit(name, b.created(DType.BOOL, (N,)), [x, y])
    b.emit("sign_bit", b.created(DType.BOOL, (N,)), [x])
    for other in (*WHOLE, *REAL, DType.BOOL):
        if other is not dtype:
            b.emit("cast", b.created(other, (N,)), [x])
    for name in ("sum", "prod", "reduce_max", "reduce_min"):
        b.emit(name, b.created(dtype, (1,)), [x])
    second = values(dtype, 2).copy()
    if dtype.is_integer:
        second[:40] = 0
        second[40:200] = second[40:200] % second.dtype.type(20)
        second[200:240] = np.asarray(-1).astype(dtype.numpy)
    assert agree(b, {x.buffer: values(dtype, 1), y.buffer: second}, interpreted) >= 1
