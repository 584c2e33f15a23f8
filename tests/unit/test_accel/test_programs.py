"""Whole programs on the shared engine, by the definition of kernels: equal to the reference bit by bit."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from jit.accel.device import Request
from jit.accel.engine import AccelEngine
from jit.accel.lowering import Lowering
from jit.backends import FUEL
from jit.engine import Engine, EngineConfig
from jit.kernels.loop import Form
from jit.kernels.lower import Sharing
from tests.support.builder import Builder
from tests.support.interpreted_device import InterpretedDevice
from tests.unit.test_jit.conftest import Check, checker
from tests.unit.test_jit.programs import column_sums, random_program
from wis.dtypes import DType
from wis.verify import Verified, verify


@pytest.mark.parametrize("seed", range(30))
def test_random_programs_agree_with_the_reference(check: Check, seed: int) -> None:
    b, inputs = random_program(seed, 12)
    check(b, inputs)


@pytest.mark.parametrize("seed", range(8))
def test_further_dims_of_a_known_program_agree_with_the_reference(check: Check, seed: int) -> None:
    for grow in (0, 1, 7, 0):
        b, inputs = random_program(1000 + seed, 10, grow)
        check(b, inputs)


@pytest.mark.parametrize("sharing", [Sharing.THREAD, Sharing.TILE])
@pytest.mark.parametrize("seed", range(12))
def test_reductions_by_columns_and_tiles_have_the_same_bits(
    defining: Engine, monkeypatch: pytest.MonkeyPatch, seed: int, sharing: Sharing
) -> None:
    """One thread walks the lanes of a sum in another order than they are folded in, or the lanes of several sums share a block: no bit may
    show it, and no element beyond the last one be touched."""
    monkeypatch.setattr(Lowering, "_sharing", lambda self, formed: sharing if formed.kernel.form is Form.COLS else Sharing.BLOCK)
    engine = AccelEngine(InterpretedDevice(), "interpreted", EngineConfig(None, 1, 1 << 26, FUEL["reference"]))
    b, inputs = column_sums(seed)
    checker(engine, defining)(b, inputs)
    assert any(shared is sharing for _, _, shared in engine._lowering._fused)


@pytest.mark.parametrize(
    ("unified", "rows", "columns", "sharing"),
    [
        (False, 64, 8, Sharing.TILE), (False, 63, 128, Sharing.THREAD), (False, 63, 127, Sharing.BLOCK),
        (False, 64, (1 << 17) - 1, Sharing.TILE), (False, 64, 1 << 17, Sharing.THREAD),
        (True, 64, 127, Sharing.BLOCK), (True, 64, 128, Sharing.THREAD),
    ],
)  # fmt: skip
def test_long_sums_of_columns_are_shared_by_tiles_on_a_gpu(unified: bool, rows: int, columns: int, sharing: Sharing) -> None:
    b = Builder()
    b.emit("sum", b.created(DType.F32, (1, columns)), [b.external(DType.F32, (rows, columns))])
    engine = AccelEngine(InterpretedDevice(unified=unified), "interpreted", EngineConfig(None, 1, 1 << 26, FUEL["reference"]))
    written, dims, _ = b.finish()
    engine.prepare(verify(written, dims))
    assert [shared for _, _, shared in engine._lowering._fused] == [sharing]


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
