"""Kernels that programs bring, between tensor instructions: regions, numbers, traps, fuel, slices, interruption."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import jit.accel.engine
import jit.accel.foreign as foreign
from jit.accel.device import Request, form_of
from jit.accel.engine import AccelEngine
from jit.backends import FUEL
from jit.engine import Engine, EngineConfig, Launch
from jit.errors import Interrupted
from jit.kernels.cfamily import Form
from jit.library.writer import Made, Writer
from tests.support.builder import Builder
from tests.support.interpreted_device import InterpretedDevice
from tests.unit.test_jit.conftest import interrupted
from wis.dtypes import DType
from wis.kernel.model import Access, RegType
from wis.kernel.text import parse_kernel
from wis.kernel.verify import Barriers, VerifiedKernel, verify_kernel
from wis.program import BufferKind, Operand
from wis.verify import verify

F = DType.F32


def scaled(threads: int = 32) -> Made:
    """y[i] = a * x[i] for every thread of the grid, whether there is an element or not."""
    w = Writer(threads=threads)
    w.buffer("x", F)
    w.buffer("y", F, Access.WRITE)
    a = w.value("a", F)
    i = w.index()
    w.store("y", i, w.load("x", i) * a)
    return w.made("scaled")


def endless() -> Made:
    """Counts up to a number that may never be reached."""
    w = Writer(threads=32)
    w.buffer("y", DType.I64, Access.WRITE)
    most = w.number("most")
    i = w.index()
    total = w.var(w.const(0))
    with w.loop(most) as j:
        total.set(total + j)
    w.store("y", i, total)
    return w.made("counting")


def run(engine: Engine, b: Builder, kernels: Sequence[VerifiedKernel], inputs: dict[int, Any]) -> tuple[dict[int, bytes], Launch]:
    program, dims, scalars = b.finish()
    verified = verify(program, dims, kernels={k.digest: k for k in kernels})
    space = engine.open_space()
    keys = [n for n, kind in enumerate(program.buffers) if kind != BufferKind.TEMP]
    for n in keys:
        if program.buffers[n] == BufferKind.EXTERNAL:
            space.alloc(n + 1, verified.bound.nbytes[n])
            if n in inputs:
                space.write(n + 1, 0, np.ascontiguousarray(inputs[n]).tobytes())
    launch = space.run(engine.prepare(verified), scalars, [n + 1 for n in keys])
    found = {n: bytes(space.read(n + 1, 0, verified.bound.nbytes[n])) for n in keys}
    space.close()
    return found, launch


def whole(b: Builder, x: Operand, offset: int = 0, nbytes: int | None = None) -> Operand:
    """A region: the bytes of an operand's buffer from ``offset`` on."""
    return b.operand(x, DType.U8, (x.numel * x.dtype.itemsize - offset if nbytes is None else nbytes,), offset=offset)


def between_tensor_steps(blocks: int = 3, elements: int = 96) -> tuple[Builder, list[VerifiedKernel], dict[int, Any]]:
    """A kernel that reads what a tensor instruction made in a temporary and whose result a tensor instruction reads."""
    b, kernel = Builder(), verify_kernel(scaled().kernel)
    x, doubled, y, z = b.external(F, (elements,)), b.temp(F, (elements,)), b.created(F, (elements,)), b.created(F, (elements,))
    b.emit("add", doubled, [x, x])
    b.launch(kernel.digest, (blocks, 1, 1), (32, 1, 1), [whole(b, y)], [whole(b, doubled), b.const(1.5, F)])
    b.emit("neg", z, [y])
    return b, [kernel], {x.buffer: np.arange(elements, dtype=np.float32)}


@pytest.fixture(params=["unified", "apart", "opencl"])
def engine(request: pytest.FixtureRequest) -> Any:
    if request.param == "opencl":
        return request.getfixturevalue("opencl")
    return AccelEngine(InterpretedDevice(unified=request.param == "unified"), "interpreted", EngineConfig(None, 1, 1 << 24, 1 << 33))


def test_a_kernel_stands_between_tensor_instructions(engine: Engine, defining: Engine) -> None:
    b, kernels, inputs = between_tensor_steps()
    got, launch = run(engine, b, kernels, inputs)
    want, expected = run(defining, b, kernels, inputs)
    assert got == want and launch.instructions == expected.instructions and launch.trap is None
    assert np.array_equal(np.frombuffer(got[3], np.float32), -3.0 * np.arange(96))


def test_a_trap_is_reported_as_by_the_definition(engine: Engine, defining: Engine) -> None:
    b, kernels, inputs = between_tensor_steps(blocks=4)
    got, launch = run(engine, b, kernels, inputs)
    want, expected = run(defining, b, kernels, inputs)
    assert got == want
    assert launch.trap == expected.trap and "thread (0, 0, 0)" in (launch.trap or "")


def test_regions_begin_inside_of_buffers_and_may_be_empty(engine: Engine, defining: Engine) -> None:
    b, kernel = Builder(), verify_kernel(scaled().kernel)
    x, y = b.external(F, (96,)), b.external(F, (96,))
    b.launch(kernel.digest, (1, 1, 1), (32, 1, 1), [whole(b, y, 64, 128)], [whole(b, x, 128, 128), b.const(2.0, F)])
    b.launch(kernel.digest, (1, 1, 1), (32, 1, 1), [whole(b, y, 192)], [whole(b, x, 0, 0), b.const(2.0, F)])
    inputs = {x.buffer: np.arange(96, dtype=np.float32), y.buffer: np.ones(96, np.float32)}
    got, launch = run(engine, b, [kernel], inputs)
    want, expected = run(defining, b, [kernel], inputs)
    assert got == want and launch.trap == expected.trap is not None


def counting(most: int, blocks: int = 2) -> tuple[Builder, list[VerifiedKernel]]:
    b, kernel = Builder(), verify_kernel(endless().kernel)
    y, z = b.external(DType.I64, (32 * blocks,)), b.external(F, (4,))
    b.launch(kernel.digest, (blocks, 1, 1), (32, 1, 1), [whole(b, y)], [b.const(most, DType.I64)])
    b.emit("cast", z, [b.const(1.0, F)])
    return b, [kernel]


def test_fuel_ends_a_launch_and_nothing_runs_after_it(defining: Engine) -> None:
    engine = AccelEngine(InterpretedDevice(), "interpreted", EngineConfig(None, 1, 1 << 20, 10_000))
    b, kernels = counting(1 << 40)
    got, launch = run(engine, b, kernels, {})
    assert launch.out_of_fuel == "kernel counting: the launch executed more thread-instructions than it may"
    assert not any(got[1])
    b, kernels = counting(10)
    _, launch = run(engine, b, kernels, {})
    assert launch.out_of_fuel is None and launch.instructions == run(defining, b, kernels, {})[1].instructions


def test_fuel_on_the_real_device() -> None:
    from jit.backends import create_engine

    engine = create_engine("opencl", cache_dir=None, threads=1, vram_bytes=1 << 20, fuel=1 << 20)
    b, kernels = counting(1 << 60)
    got, launch = run(engine, b, kernels, {})
    engine.close()
    assert launch.out_of_fuel is not None and not any(got[1])


def test_a_certified_grid_runs_in_slices_with_one_result(monkeypatch: pytest.MonkeyPatch, defining: Engine) -> None:
    monkeypatch.setattr(foreign, "SLICE_NS", 2_000)  # the interpreted device says a block takes a microsecond
    device = InterpretedDevice()
    engine = AccelEngine(device, "interpreted", EngineConfig(None, 1, 1 << 20, FUEL["reference"]))
    b, kernels, inputs = between_tensor_steps(blocks=30, elements=930)
    got, launch = run(engine, b, kernels, inputs)
    assert device.launches == 2 + 1 + (30 - 8) // 2
    want, expected = run(defining, b, kernels, inputs)
    assert got == want and launch.instructions == expected.instructions and launch.trap == expected.trap


def test_an_uncertified_grid_runs_whole() -> None:
    b, kernel = Builder(), verify_kernel(scaled().kernel)
    x = b.external(F, (960,))
    # The kernel's certificate does not hold where what it writes is what it reads.
    b.launch(kernel.digest, (30, 1, 1), (32, 1, 1), [whole(b, x)], [whole(b, x), b.const(2.0, F)])
    device = InterpretedDevice()
    run(AccelEngine(device, "interpreted", EngineConfig(None, 1, 1 << 20, FUEL["reference"])), b, [kernel], {})
    assert device.launches == 1


def test_blocks_that_need_much_memory_run_some_at_a_time(monkeypatch: pytest.MonkeyPatch, defining: Engine) -> None:
    monkeypatch.setattr(foreign, "SCRATCH_BYTES_MAX", 3_000)
    monkeypatch.setattr(jit.accel.engine, "SCRATCH_BYTES_MAX", 3_000)
    device = InterpretedDevice(scratch_bytes=1_000)
    engine = AccelEngine(device, "interpreted", EngineConfig(None, 1, 1 << 20, FUEL["reference"]))
    b, kernels, inputs = between_tensor_steps(blocks=32, elements=1024)
    got, launch = run(engine, b, kernels, inputs)
    assert device.launches == 2 * 2 + 11  # 4 blocks of 256 elements, 4 again, 32 of the kernel
    want, expected = run(defining, b, kernels, inputs)
    assert got == want and launch.instructions == expected.instructions


def test_a_run_can_be_stopped_between_slices(opencl: Engine) -> None:
    b, kernels = counting(20_000, blocks=4_000)
    assert isinstance(interrupted(opencl, lambda: run(opencl, b, kernels, {})), Interrupted)
    b, kernels, inputs = between_tensor_steps()
    assert run(opencl, b, kernels, inputs)[1].trap is None


def test_numbers_of_every_type_reach_the_kernel(engine: Engine, defining: Engine) -> None:
    w = Writer(threads=32)
    w.buffer("y", DType.F64, Access.WRITE)
    values = [w.value(f"v{n}", dtype) for n, dtype in enumerate((DType.F16, DType.BF16, F, DType.F64, DType.I16, DType.I32, DType.I64))]
    for n, value in enumerate(values):
        wide = value if value.kind is RegType.F64 else value.to("s2f" if value.kind.name.startswith("I") else "cvt", RegType.F64)
        w.store("y", w.const(n), wide)
    kernel = verify_kernel(w.made("numbers").kernel)
    b = Builder()
    y = b.external(DType.F64, (7,))
    given = [b.const(1.25, DType.F16), b.const(-2.5, DType.BF16), b.const(0.1, F), b.const(0.2, DType.F64)]
    given += [b.const(-7, DType.I16), b.const(-70_000, DType.I32), b.const(-(1 << 40), DType.I64)]
    b.launch(kernel.digest, (1, 1, 1), (32, 1, 1), [whole(b, y)], given)
    assert run(engine, b, [kernel], {})[0] == run(defining, b, [kernel], {})[0]


WAITING = """kernel 2 waiting
math strict
threads 32
param buf i32 r
param buf i32 rw
regs i64 i32 pred i32
block 0
  r0 = const(0)
  r1 = ld(p0 i32) r0
  r3 = const(0)
  r2 = ne r1, r3
  cbr r2, 1, 2
block 1
  st(p1 i32) r0, r3
  bar 2
block 2
  ret
"""


@pytest.mark.parametrize(("offset", "aliased"), [(0, True), (64, False)])
def test_what_is_proved_from_loads_does_not_hold_when_regions_overlap(offset: int, aliased: bool) -> None:
    """A barrier between threads that read the same word is uniform only if no thread writes that word."""
    kernel = verify_kernel(parse_kernel(WAITING))
    assert kernel.barriers is Barriers.UNIFORM
    device = Noting(unified=True)
    engine = AccelEngine(device, "interpreted", EngineConfig(None, 1, 1 << 24, FUEL["reference"]))
    b = Builder()
    x = b.external(DType.I32, (32,))
    written = Operand(x.buffer, DType.U8, (64,), (1,), offset)
    b.launch(kernel.digest, (1, 1, 1), (32, 1, 1), (written,), (Operand(x.buffer, DType.U8, (64,), (1,), 0),))
    run(engine, b, [kernel], {})
    (request,) = device.requests
    assert request.aliased is aliased and form_of(request) is (Form.BLOCK if aliased else None)


class Noting(InterpretedDevice):
    """Keeps what it was asked to compile."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.requests: list[Request] = []

    def compile(self, requests: Sequence[Request]) -> list[Any]:
        self.requests += [request for request in requests if request.foreign]
        return super().compile(requests)
