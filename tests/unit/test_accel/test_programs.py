"""Whole programs on the shared engine, by the definition of kernels: equal to the reference bit by bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from jit.accel import lowering
from jit.accel.device import Request
from jit.accel.engine import AccelEngine
from jit.backends import FUEL
from jit.engine import Engine, EngineConfig
from tests.support.interpreted_device import InterpretedDevice
from tests.unit.test_jit.conftest import Check, checker
from tests.unit.test_jit.programs import random_program
from wis.builder import Builder
from wis.dtypes import DType
from wis.program import Operand
from wis.verify import Verified, verify
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


def test_launches_go_on_while_another_program_is_compiled(interpreted: AccelEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the launching thread, which has prepared programs."""
    began, go_on = threading.Event(), threading.Event()
    x = np.ones(7)
    verified, other = _sum_of(7), _sum_of(8)
    prepared, space = interpreted.prepare(verified), interpreted.open_space()
    space.alloc(0, x.nbytes)
    compile_ = interpreted.device.compile

    def slow(requests: Sequence[Request]) -> list[Any]:
        began.set()
        assert go_on.wait(60)
        return compile_(requests)

    def launch() -> bytes:
        space.write(0, 0, x.tobytes())
        assert space.run(prepared, (), (0, 1)).trap is None
        return bytes(space.read(1, 0, x.nbytes))

    with ThreadPoolExecutor(2) as threads, monkeypatch.context() as patch:
        patch.setattr(interpreted.device, "compile", slow)
        compiling = threads.submit(interpreted.prepare, other)
        try:
            assert began.wait(60)
            result = threads.submit(launch).result(60)
            assert not compiling.done() and result == (x + x).tobytes()
        finally:
            go_on.set()
        compiling.result(60)
    space.close()


def _sum_of(size: int) -> Verified:
    b = Builder()
    x = b.external(DType.F64, (size,))
    b.emit("add", b.created(DType.F64, (size,)), [x, x])
    return verify(*b.finish()[:2])
