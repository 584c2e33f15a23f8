"""Programs whose kernels are pinned as text and run: bias and gelu, a softmax along rows, sums of columns."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support.builder import Builder
from tests.unit.test_jit.lowered import Buffers
from wis.dtypes import DType
from wis.program import BufferKind, Operand
from wis.views import expand

__all__ = ["FOLDER", "PROGRAMS", "pinned", "program"]

FOLDER = Path(__file__).parents[2] / "golden" / "jit"

F = DType.F32


def bias_gelu() -> Builder:
    """gelu(x + bias) = h * 0.5 * (1 + erf(h / sqrt 2))"""
    b = Builder()
    x, bias, y = b.external(F, (6, 70)), b.external(F, (70,)), b.created(F, (6, 70))
    h, t = b.temp(F, (6, 70)), b.temp(F, (6, 70))
    b.emit("add", h, [x, expand(bias, (6, 70))])
    b.emit("mul", t, [h, b.const(0.5**0.5, F)])
    b.emit("erf", t, [t])
    b.emit("add", t, [t, b.const(1.0, F)])
    b.emit("mul", t, [t, b.const(0.5, F)])
    b.emit("mul", y, [h, t])
    return b


def softmax_row() -> Builder:
    b = Builder()
    x, y, t, e = b.external(F, (5, 70)), b.created(F, (5, 70)), b.temp(F, (5, 70)), b.temp(F, (5, 70))
    most, total = b.temp(F, (5, 1)), b.temp(F, (5, 1))
    b.emit("reduce_max", most, [x])
    b.emit("sub", t, [x, expand(most, (5, 70))])
    b.emit("exp", e, [t])
    b.emit("sum", total, [e])
    b.emit("div", y, [e, expand(total, (5, 70))])
    return b


def column_sum() -> Builder:
    """Half precision: sums are f32 and rounded once."""
    b = Builder()
    b.emit("sum", b.created(DType.F16, (1, 40)), [b.external(DType.F16, (70, 40))])
    return b


PROGRAMS = {"bias_gelu": bias_gelu, "softmax_row": softmax_row, "column_sum": column_sum}


def program(name: str) -> tuple[Builder, Buffers]:
    """The program and what its inputs hold."""
    b = PROGRAMS[name]()
    draw = np.random.default_rng(7)
    inputs: Buffers = {}
    for instr in b.bound().code:
        for x in instr.ins:
            if isinstance(x, Operand) and b.bound().program.buffers[x.buffer] == BufferKind.EXTERNAL:
                inputs[x.buffer] = draw.standard_normal(b.bound().nbytes[x.buffer] // x.dtype.itemsize).astype(x.dtype.numpy)
    return b, inputs


def pinned(path: Path, text: str) -> None:
    """Compare with the golden file; write it and fail when there is none."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        pytest.fail(f"{path.name} did not exist; it holds the current text now")
    assert text == path.read_text()
