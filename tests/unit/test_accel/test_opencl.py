"""The opencl back end on the device at hand (PoCL where there is no other): a few programs, so that few kernels are compiled (about 25)."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jit.accel.device import Request
from jit.accel.engine import AccelEngine
from jit.backends import FUEL, create_engine
from jit.cache import ObjectCache
from jit.compiling.process import CompileLimits, CompileProcess
from jit.engine import Engine, EngineConfig
from jit.errors import KernelRefused, ToolchainError
from jit.library.writer import Writer
from jit.opencl import OpenclDevice, Products, _choose
from tests.support.builder import Builder
from tests.unit.test_jit.conftest import VRAM, checker, run
from tests.unit.test_jit.programs import random_program
from wis.dtypes import DType
from wis.kernel.model import Access, RegType
from wis.kernel.verify import verify_kernel
from wis.ops import Dist, ScatterMode

F = DType.F32


@pytest.mark.parametrize("seed", range(4))
def test_random_programs_agree_with_the_reference(opencl: Engine, defining: Engine, seed: int) -> None:
    b, inputs = random_program(seed, 12)
    checker(opencl, defining)(b, inputs)


def library_program() -> tuple[Builder, dict[int, Any]]:
    """One instruction of each family that has library kernels; everything exact but the convolution."""
    b, rng = Builder(), np.random.default_rng(3)
    x, i = b.external(F, (6, 40)), b.external(DType.I64, (6, 40))
    b.emit("gather", b.created(F, (6, 40)), [x, i], (1,))
    y = b.external(F, (6, 40))
    b.emit("scatter", y, [x, i], (1, ScatterMode.ADD))
    b.emit("cumsum", b.created(F, (6, 40)), [x], (1,))
    b.emit("sort", [b.created(F, (6, 40)), b.created(DType.I64, (6, 40))], [x], (1, 1))
    b.emit("argmax", b.created(DType.I64, (6, 1)), [x], (1,))
    b.emit("random", b.created(F, (100,)), [b.const(7, DType.I64), b.const(3, DType.I64)], (Dist.UNIFORM,))
    image, weights = b.external(F, (2, 3, 9, 9)), b.external(F, (4, 3, 3, 3))
    b.emit("conv", b.created(F, (2, 4, 9, 9)), [image, weights], (1, 1, 1, 1, 1, 1, 1))
    b.emit("max_pool", [b.created(F, (2, 3, 4, 4)), b.created(DType.I64, (2, 3, 4, 4))], [image], (2, 2, 2, 2, 0, 0, 1, 1))
    inputs = {v.buffer: rng.standard_normal(v.shape).astype(np.float32) for v in (x, y, image, weights)}
    return b, inputs | {i.buffer: rng.integers(-40, 40, (6, 40))}


def test_every_family_of_library_kernels(opencl: Engine, defining: Engine) -> None:
    b, inputs = library_program()
    result = next(instr.outs[0] for instr in b.bound().code if instr.op.name == "conv")
    checker(opencl, defining)(b, inputs, [(result, 4096.0)])


def test_a_device_with_memory_of_its_own_is_copied_to_and_from(folder: Path, defining: Engine) -> None:
    engine = AccelEngine(
        OpenclDevice(ObjectCache(folder / "apart"), 2, unified=False), "opencl", EngineConfig(None, 2, VRAM, FUEL["opencl"])
    )
    b, inputs = random_program(3, 12)
    checker(engine, defining)(b, inputs)
    engine.close()


def test_programs_are_found_on_disk_and_damaged_ones_are_made_again(tmp_path: Path) -> None:
    b = Builder()
    x, y = b.external(F, (64,)), b.created(F, (64,))
    b.emit("add", y, [x, x])

    def compiled() -> int:
        engine = create_engine("opencl", cache_dir=tmp_path, threads=1, vram_bytes=1 << 20)
        assert isinstance(engine, AccelEngine)
        result, _ = run(engine, b, {x.buffer: np.ones(64, np.float32)})
        assert np.array_equal(np.frombuffer(result[y.buffer], np.float32), np.full(64, 2.0))
        count = engine.device.compiled
        engine.close()
        return count

    assert compiled() == 1 and compiled() == 0
    for path in (tmp_path / "opencl").iterdir():
        path.write_bytes(path.read_bytes()[:-1])
    assert compiled() == 1 and compiled() == 0


def test_a_kernel_that_takes_the_compiler_too_long_is_refused_and_the_next_one_is_not() -> None:
    """A thousand barriers with memory between them cost PoCL minutes, most of them when the kernel would first run."""
    device = OpenclDevice(ObjectCache(None), 2, CompileProcess(CompileLimits(cpu_ms=6_000)))
    w = Writer(threads=32)
    w.buffer("y", F, Access.WRITE)
    place, words = w.index(), w.shared(DType.I64, 64)
    for _ in range(1000):
        w.put(words, DType.I64, place, w.get(words, DType.I64, place) + place)
        w.barrier()
    w.store("y", w.index(), w.const(1.0, RegType.F32))
    bomb = verify_kernel(w.made("barriers").kernel)
    with pytest.raises(KernelRefused, match="more than 6000 ms"):
        device.compile([Request(bomb, (32, 1, 1), foreign=True)])
    w = Writer(threads=32)
    w.buffer("y", F, Access.WRITE)
    w.store("y", w.index(), w.const(1.0, RegType.F32))
    assert device.compile([Request(verify_kernel(w.made("plain").kernel), (32, 1, 1), foreign=True)])
    device.close()


def test_a_launch_is_billed_for_the_units_that_its_blocks_can_occupy(opencl: Engine) -> None:
    b = Builder()
    x, y = b.external(F, (1 << 16,)), b.created(F, (1 << 16,))
    b.emit("add", y, [x, x])
    _, launch = run(opencl, b, {})
    assert launch.cores == min(2, opencl.info.cores)
    assert 0 < launch.core_ns <= (launch.end_ns - launch.start_ns) * launch.cores


@pytest.mark.parametrize("shapes", [((3, 5), (5, 4)), ((4, 70, 300), (4, 300, 90)), ((900, 300), (300, 200)), ((2, 0, 3), (2, 3, 4))])
@pytest.mark.parametrize("layout", ["plain", "turned", "gaps", "repeated"])
def test_products_of_any_layout(layout: str, shapes: tuple[tuple[int, ...], ...]) -> None:
    rng, products = np.random.default_rng(0), Products(2)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    want = a @ b
    out = np.zeros(want.shape, np.float32)
    if layout == "turned":
        a, b = (np.ascontiguousarray(x.swapaxes(-1, -2)).swapaxes(-1, -2) for x in (a, b))
        out = np.zeros((*want.shape[:-2], want.shape[-1], want.shape[-2]), np.float32).swapaxes(-1, -2)
    elif layout == "gaps":
        a, b = (np.repeat(x, 2, axis=-1)[..., ::2] for x in (a, b))
        out = np.zeros((*want.shape[:-1], 2 * want.shape[-1]), np.float32)[..., ::2]
    elif layout == "repeated" and len(shapes[1]) == 3:
        b = np.broadcast_to(b[:1], b.shape)
        want = a @ b
    products.run(out, a, b)
    products.close()
    assert np.allclose(out, want, rtol=1e-4, atol=1e-4)


class _Drivers:
    """What ``_choose`` asks of pyopencl, with devices whose compilers work or do not: a driver that does not work cannot be installed."""

    class Error(Exception):
        pass

    class device_type:  # as pyopencl names it
        CPU = 2

    def __init__(self, working: dict[str, bool]) -> None:
        platform = SimpleNamespace(version="OpenCL 3.0", get_devices=lambda: devices)
        devices = [SimpleNamespace(name=name, type=2, max_compute_units=9 - i, platform=platform) for i, name in enumerate(working)]
        self._working, self._platform = working, platform

    def get_platforms(self) -> list[Any]:
        return [self._platform]

    def Context(self, devices: list[Any]) -> str:
        return str(devices[0].name)

    def Program(self, context: str, text: str) -> Any:
        def build() -> None:
            if not self._working[context]:
                raise self.Error("unknown target CPU 'generic'")

        return SimpleNamespace(build=build)


def test_a_device_whose_compiler_does_not_work_is_left_out() -> None:
    drivers = _Drivers({"outdated": False, "first": True, "second": True})
    assert [_choose(drivers, number).name for number in range(3)] == ["first", "second", "first"]
    with pytest.raises(ToolchainError, match=r"compiler of outdated .* install another OpenCL driver .* unknown target CPU"):
        _choose(_Drivers({"outdated": False}), 0)
