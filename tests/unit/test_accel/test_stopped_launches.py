"""Launches of kernels that programs bring, stopped on the way: where they may be, and what goes with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import jit.accel.engine as accel_run
import jit.accel.foreign as foreign
from jit.accel.engine import AccelEngine
from jit.backends import FUEL, create_engine
from jit.engine import Engine, EngineConfig
from tests.support.builder import Builder
from tests.support.cutting import CutEngine
from tests.support.interpreted_device import InterpretedDevice
from tests.unit.test_accel.test_launches import between_tensor_steps, counting, run, scaled, whole
from wis.dtypes import DType
from wis.kernel.verify import verify_kernel

F = DType.F32
Make = Callable[[int], Any]


@pytest.fixture(params=["interpreted", "host"])
def make(request: pytest.FixtureRequest) -> Iterator[Make]:
    """Makes an engine with so much fuel, of which a grid can be stopped after every few blocks."""
    made: list[Any] = []

    def one(fuel: int) -> Any:
        if request.param == "host":
            made.append(create_engine("host", cache_dir=None, threads=1, vram_bytes=1 << 24, fuel=fuel))
        else:
            made.append(AccelEngine(InterpretedDevice(), "interpreted", EngineConfig(None, 1, 1 << 24, fuel)))
        return made[-1]

    yield one
    for engine in made:
        engine.close()


def test_a_grid_goes_on_at_the_next_block_with_its_count(make: Make, defining: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "SLICE_NS", 2_000)  # the interpreted device says a block takes a microsecond
    cutting = CutEngine(make(FUEL["reference"]), 3)
    b, kernels, inputs = between_tensor_steps(blocks=30, elements=960)
    got, launch = run(cutting, b, kernels, inputs)
    want, expected = run(defining, b, kernels, inputs)
    assert got == want and launch.trap is None and launch.instructions == expected.instructions
    assert cutting.cuts > 3


def test_a_trap_of_the_first_piece_is_reported_by_the_last(make: Make, defining: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreign, "SLICE_NS", 2_000)
    b, kernel = Builder(), verify_kernel(scaled().kernel)
    x, y = b.external(F, (960,)), b.external(F, (960,))
    # The first blocks find no element of x, the later ones nothing at all: the trap names the least thread, wherever the cuts are.
    b.launch(kernel.digest, (30, 1, 1), (32, 1, 1), [whole(b, y)], [whole(b, x, 0, 40), b.const(2.0, F)])
    for seed in range(4):
        cutting = CutEngine(make(FUEL["reference"]), seed)
        got, launch = run(cutting, b, [kernel], {})
        want, expected = run(defining, b, [kernel], {})
        assert got == want and launch.trap == expected.trap is not None
        assert launch.instructions == expected.instructions and cutting.cuts > 1


def test_fuel_counts_over_all_pieces(make: Make, monkeypatch: pytest.MonkeyPatch, defining: Engine) -> None:
    monkeypatch.setattr(foreign, "SLICE_NS", 2_000)
    b, kernels = counting(40, blocks=30)
    needed = run(defining, b, kernels, {})[1].instructions
    enough, short = CutEngine(make(needed), 5), CutEngine(make(needed // 2), 5)
    assert run(enough, b, kernels, {})[1].out_of_fuel is None and enough.cuts > 3
    _, launch = run(short, b, kernels, {})
    assert launch.out_of_fuel == "kernel counting: the launch executed more thread-instructions than it may"
    assert launch.instructions > needed // 2


def test_an_uncertified_grid_of_a_device_is_not_cut() -> None:
    b, kernel = Builder(), verify_kernel(scaled().kernel)
    x = b.external(F, (960,))
    # The kernel's certificate does not hold where what it writes is what it reads.
    b.launch(kernel.digest, (30, 1, 1), (32, 1, 1), [whole(b, x)], [whole(b, x), b.const(2.0, F)])
    device = InterpretedDevice()
    cutting = CutEngine(AccelEngine(device, "interpreted", EngineConfig(None, 1, 1 << 20, FUEL["reference"])), 1)
    run(cutting, b, [kernel], {})
    assert (device.launches, cutting.cuts) == (1, 0)


def test_what_is_queued_is_bounded_by_what_it_took_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreted device says that a block takes a microsecond: with two microseconds allowed, launches wait for each other."""
    monkeypatch.setattr(accel_run, "QUEUED_NS", 2_000)
    device = _Waited()
    engine = AccelEngine(device, "interpreted", EngineConfig(None, 1, 1 << 24, FUEL["reference"]))
    b = Builder()
    x, y = b.external(F, (64,)), b.external(F, (64,))
    for _ in range(20):
        b.emit("cumsum", y, [x], (0,))
        b.emit("cumsum", x, [y], (0,))
    run(engine, b, [], {})
    first, device.waits = device.waits, 0
    run(engine, b, [], {})
    assert first < device.waits and device.waits >= device.launches // 2 - 2


class _Waited(InterpretedDevice):
    """Counts the waits for a single launch."""

    waits = 0

    def wait(self, mark: Any) -> None:
        self.waits += 1
        super().wait(mark)
