"""Whole programs on the shared engine, by the definition of kernels: equal to the reference bit by bit."""

from __future__ import annotations

import numpy as np
import pytest

from jit.accel import lowering
from jit.accel.engine import AccelEngine
from jit.backends import FUEL
from jit.engine import Engine, EngineConfig
from tests.support.interpreted_device import InterpretedDevice
from tests.unit.test_jit.conftest import Check, checker
from tests.unit.test_jit.programs import random_program
from wis.builder import Builder
from wis.dtypes import DType
from wis.program import Operand
from wis.views import expand


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_agree_with_the_reference(check: Check, seed: int) -> None:
    b, inputs = random_program(seed, 12)
    check(b, inputs)


@pytest.mark.parametrize("seed", range(8))
def test_further_dims_of_a_known_program_agree_with_the_reference(check: Check, seed: int) -> None:
    for grow in (0, 1, 7, 0):
        b, inputs = random_program(1000 + seed, 10, grow)
        check(b, inputs)


@pytest.mark.parametrize("seed", range(12))
def test_reductions_by_columns_have_the_same_bits(defining: Engine, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """One thread walks the lanes of a sum in another order than they are folded in: no bit may show it."""
    monkeypatch.setattr(lowering, "COLUMNS_MIN", 1)
    engine = AccelEngine(InterpretedDevice(), "interpreted", EngineConfig(None, 1, 1 << 26, FUEL["reference"]))
    b, rng = Builder(), np.random.default_rng(seed)
    rows, columns = int(rng.integers(1, 140)), int(rng.choice([8, 33, 70]))
    for dtype in (DType.F32, DType.F16, DType.F64, DType.I32):
        x = b.external(dtype, (rows, columns))
        mean = b.temp(dtype, (1, columns))
        b.emit(str(rng.choice(["sum", "prod", "reduce_max"])), mean, [x])
        b.emit("sum", b.created(dtype, (1, columns)), [x])
        b.emit("sub", b.created(dtype, (rows, columns)), [x, expand(mean, (rows, columns))])
    read = [x for instr in b.bound().code for x in instr.ins if isinstance(x, Operand)]
    inputs = {x.buffer: (rng.standard_normal(x.shape) * 3).astype(x.dtype.numpy) for x in read}
    checker(engine, defining)(b, inputs)
    assert any(by_column for _, _, by_column in engine._lowering._fused)
