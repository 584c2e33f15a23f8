"""Generated C: pinned word by word, since an innocent change may change results elsewhere; and run, in both forms.

The C99 form runs where there is a compiler; OpenCL runs on PoCL, also in the form for graphics processors.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jit.cache import ObjectCache
from jit.errors import Unspelled
from jit.kernels.cfamily import C99, CUDA, OPENCL, Form, emit, opencl, program
from jit.kernels.launch import KernelLaunch
from jit.kernels.lower import Lowered, lower
from jit.opencl import OpenclDevice
from tests.support.compiled_c import COMPILER, CompiledC
from tests.support.kernel_devices import AccelKernels, KernelDevice, ReferenceKernels
from tests.support.kernel_runs import differences, run_case
from tests.support.wis_kernels import seeded_case
from tests.unit.test_jit.conftest import ulps
from tests.unit.test_jit.lowered import Runner, formed_loops
from tests.unit.test_jit.lowered_programs import FOLDER, PROGRAMS, pinned
from tests.unit.test_jit.lowered_programs import program as named_program
from tests.unit.test_jit.programs import random_program
from tests.unit.test_jit.test_lower import agree
from wis.kernel.ops import BY_NAME, NAMED
from wis.kernel.text import parse_kernel
from wis.kernel.verify import VerifiedKernel, verify_kernel
from wooly.kernels.nvrtc import compile_to_ptx

_REFERENCE = ReferenceKernels()


def _lowered(name: str) -> VerifiedKernel:
    (loop,) = formed_loops(PROGRAMS[name]())
    return verify_kernel(lower(loop.kernel, name).kernel)


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(("suffix", "language"), [("c", C99), ("cl", opencl(cpu=False)), ("cu", CUDA)])
def test_golden_source(name: str, suffix: str, language: Any) -> None:
    """To accept a change on purpose: delete the file, run the test once (it fails and writes the new one), read the difference."""
    verified = _lowered(name)
    pinned(FOLDER / f"{name}.{suffix}", emit(verified, language, (verified.kernel.threads_max, 1, 1)).function + "\n")


def test_emission_is_a_function_of_its_arguments() -> None:
    verified = _lowered("softmax_row")
    assert emit(verified, OPENCL, (32, 1, 1)) == emit(verified, OPENCL, (32, 1, 1))
    assert emit(verified, OPENCL, (32, 1, 1)).entry != emit(verified, OPENCL, (16, 1, 1)).entry


def test_a_program_of_many_kernels_holds_every_helper_once() -> None:
    sources = [emit(_lowered("column_sum"), OPENCL, (threads, 1, 1)) for threads in (16, 32)]
    text = program(sources)
    assert text.count("u16 wis_to_f16(") == 1 and all(f"void {s.entry}(" in text for s in sources)


def device_runner(device: KernelDevice) -> Runner:
    """Runs lowered kernels, and compares counts and traps with the definition's."""

    def run(lowered: Lowered, grid: tuple[int, int], params: list[Any]) -> None:
        verified = verify_kernel(lowered.kernel)
        block, launch = (grid[1], 1, 1), KernelLaunch((grid[0], 1, 1), (grid[1], 1, 1))
        same = [p.copy() if isinstance(p, np.ndarray) else p for p in params]
        want = _REFERENCE.run(_REFERENCE.prepare(verified, block), launch, same)
        assert device.run(device.prepare(verified, block), launch, params) == want

    return run


def _pocl(language: Any = None) -> KernelDevice:
    return AccelKernels(OpenclDevice(ObjectCache(None), language=language))


@pytest.fixture(scope="module")
def pocl() -> Iterator[KernelDevice]:
    device = _pocl()
    yield device
    device.close()


@pytest.fixture(scope="module")
def pocl_as_gpu() -> Iterator[KernelDevice]:
    """PoCL, given what a graphics processor is given: a work-item a thread wherever threads arrive at barriers together."""
    device = _pocl(opencl(cpu=False))
    yield device
    device.close()


def same_as_defined(device: KernelDevice, seed: int, size: int = 12) -> None:
    """A random kernel, whole, in pieces where that is allowed, and with half of the fuel that it needs."""
    case = seeded_case(seed, size)
    verified = verify_kernel(case.kernel)
    want = run_case(_REFERENCE, verified, case)
    assert differences(want, run_case(device, verified, case)) == []
    blocks = case.grid[0] * case.grid[1] * case.grid[2]
    if blocks > 1 and verified.certificate.allows(case.grid, case.block):
        assert differences(want, run_case(device, verified, case, cuts=[0, 1, blocks])) == []
    short = run_case(device, verified, case, fuel=want.outcome.instructions // 2)
    assert short.outcome.out_of_fuel and short.outcome.instructions > want.outcome.instructions // 2


@pytest.mark.skipif(COMPILER is None, reason="there is no C compiler (cc) on the path to run the source with")
class TestC99:
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_named_functions_and_half_sums(self, name: str, tmp_path: Path) -> None:
        b, inputs = named_program(name)
        assert agree(b, inputs, device_runner(CompiledC(tmp_path)), 4.0 if name != "column_sum" else 0.0) == 1

    @pytest.mark.parametrize("seed", range(3))
    def test_random_programs_agree_bit_by_bit(self, seed: int, tmp_path: Path) -> None:
        b, inputs = random_program(seed, 12)
        agree(b, inputs, device_runner(CompiledC(tmp_path)))

    @pytest.mark.parametrize("seed", range(100, 112))
    def test_random_kernels_are_as_defined(self, seed: int, tmp_path: Path) -> None:
        same_as_defined(CompiledC(tmp_path), seed)

    def test_what_does_not_fit_on_a_stack_is_in_scratch_memory(self, tmp_path: Path) -> None:
        case = seeded_case(9083, 31)
        assert emit(verify_kernel(case.kernel), C99, case.block, dynamic_bytes=case.dynamic_bytes).scratch_bytes > 0
        same_as_defined(CompiledC(tmp_path), 9083, 31)


class TestPocl:
    @pytest.mark.parametrize("name", PROGRAMS)
    def test_named_functions_and_half_sums(self, name: str, pocl: KernelDevice) -> None:
        b, inputs = named_program(name)
        assert agree(b, inputs, device_runner(pocl), 4.0 if name != "column_sum" else 0.0) == 1

    @pytest.mark.parametrize("name", PROGRAMS)
    def test_lowered_kernels_in_the_form_for_graphics_processors(self, name: str, pocl_as_gpu: KernelDevice) -> None:
        b, inputs = named_program(name)
        assert emit(_lowered("softmax_row"), opencl(cpu=False), (32, 1, 1)).form is Form.THREAD
        assert agree(b, inputs, device_runner(pocl_as_gpu), 4.0 if name != "column_sum" else 0.0) == 1

    @pytest.mark.parametrize("seed", range(200, 206))
    def test_random_kernels_are_as_defined(self, seed: int, pocl: KernelDevice) -> None:
        same_as_defined(pocl, seed)


_ENDLESS = """kernel 2 endless
math strict
threads 64
param i32
regs i32 i32 pred i32
block 0
  r0 = param(p0)
  r3 = special(tid.x)
  br 1
block 1
  r1 = const(0)
  r2 = eq r0, r1
  {first}
block 2
  {second}
block 3
  bar 4
block 4
  r1 = const(7)
  r2 = eq r0, r1
  cbr r2, 5, 1
block 5
  ret
"""
_TOGETHER = _ENDLESS.format(first="br 2", second="br 3")
_APART = _ENDLESS.format(first="r2 = eq r3, r0\n  cbr r2, 3, 2", second="br 1")  # all threads but one go round alone


class TestFuel:
    """Kernels that do not end, with barriers, stop soon; all threads of a block leave, however far they are apart."""

    @pytest.mark.parametrize("text", [_TOGETHER, _APART], ids=["together", "apart"])
    @pytest.mark.parametrize("fuel", [0, 1_000, 3_000_000])
    def test_work_items_that_run_one_thread(self, text: str, fuel: int, pocl_as_gpu: KernelDevice) -> None:
        verified = verify_kernel(parse_kernel(text))
        assert emit(verified, opencl(cpu=False), (64, 1, 1)).form is Form.THREAD
        self._stops(pocl_as_gpu, verified, fuel)

    @pytest.mark.parametrize("text", [_TOGETHER, _APART], ids=["together", "apart"])
    @pytest.mark.parametrize("fuel", [0, 1_000, 3_000_000])
    def test_work_items_that_run_a_block(self, text: str, fuel: int, pocl: KernelDevice) -> None:
        self._stops(pocl, verify_kernel(parse_kernel(text)), fuel)

    @staticmethod
    def _stops(device: KernelDevice, verified: VerifiedKernel, fuel: int) -> None:
        launch = KernelLaunch((5, 1, 1), (64, 1, 1), fuel=fuel)
        outcome = device.run(device.prepare(verified, (64, 1, 1)), launch, [3])
        assert outcome.out_of_fuel and fuel < outcome.instructions < fuel + 80_000_000


def test_threads_that_wait_apart_are_not_work_items() -> None:
    text = _ENDLESS.format(first="r2 = eq r3, r0\n  cbr r2, 3, 2", second="ret")
    verified = verify_kernel(parse_kernel(text))
    assert emit(verified, opencl(cpu=False), (64, 1, 1)).form is Form.BLOCK
    with pytest.raises(Unspelled, match="work-items of their own"):
        emit(verified, opencl(cpu=False), (64, 1, 1), form=Form.THREAD)


@pytest.mark.parametrize("target", ["sm_75", "sm_120"])
@pytest.mark.parametrize("seed", range(300, 303))
def test_cuda_compiles(seed: int, target: str) -> None:
    """No graphics processor is needed for that; running is for machines that have one."""
    case = seeded_case(seed, 8)
    verified = verify_kernel(case.kernel)
    for form in (None, Form.BLOCK):
        source = emit(verified, CUDA, case.block, form=form, dynamic_bytes=case.dynamic_bytes)
        assert compile_to_ptx(source.text, ("--fmad=false", f"-arch={target}"), symbolic_math=False).text


@pytest.mark.parametrize("threads", [64, 40])
def test_lanes_of_a_warp_may_do_no_more_than_wait_for_each_other(threads: int) -> None:
    text = f"kernel 2 waits\nmath strict\nthreads {threads}\nregs i32\nblock 0\n  r0 = activemask\n  warpsync r0\n  ret\n"
    waiting = text.replace("r0 = activemask", "r0 = const(-1)")
    for one in (text, waiting):
        source = emit(verify_kernel(parse_kernel(one)), CUDA, (threads, 1, 1))
        assert compile_to_ptx(source.text, ("--fmad=false", "-arch=sm_75"), symbolic_math=False).text.count("bar.warp.sync") == 1


def test_native_functions_are_within_four_units_in_the_last_place(pocl: KernelDevice) -> None:
    """Every named function of the first input (and the second), one row of the output each."""
    n, names = 1024, sorted(NAMED)
    calls = "".join(
        f"  r6 = {name} r3{', r4' if BY_NAME[name].n_ins == 2 else ''}\n  r5 = const({row * n})\n  r5 = add r5, r2\n  st(p2 f32) r5, r6\n"
        for row, name in enumerate(names)
    )
    head = "kernel 2 rows\nmath native\nthreads 1024\nparam buf f32 r\nparam buf f32 r\nparam buf f32 w\nregs i32 i32 i64 f32 f32 i64 f32\n"
    code = "block 0\n  r0 = special(tid.x)\n  r2 = zext r0\n  r3 = ld(p0 f32) r2\n  r4 = ld(p1 f32) r2\n"
    verified = verify_kernel(parse_kernel(head + code + calls + "  ret\n"))
    rng = np.random.default_rng(1)
    a = np.concatenate([[0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 2], rng.standard_normal(504), rng.standard_normal(512) * 10])
    a, b = a.astype(np.float32), np.abs(rng.standard_normal(n)).astype(np.float32)
    found = []
    for device in (_REFERENCE, pocl):
        out = np.zeros(n * len(names), np.float32)
        launch = KernelLaunch((1, 1, 1), (n, 1, 1))
        device.run(device.prepare(verified, launch.block), launch, [a.view(np.uint8), b.view(np.uint8), out.view(np.uint8)])
        found.append(out.reshape(len(names), n))
    worst = {name: float(ulps(got, want).max()) for name, want, got in zip(names, *found, strict=True)}
    assert {name: most for name, most in worst.items() if most > 4} == {}


@pytest.mark.parametrize("name", ["rint", "floor", "ceil", "trunc"])
def test_a_nan_that_the_compiler_sees_stays_one(name: str, pocl: KernelDevice) -> None:
    code = f"  r0 = const(0)\n  r1 = const(bits:0x7ff8000000000000)\n  r2 = {name} r1\n  r3 = ne r2, r2\n  st(p0 bool) r0, r3\n  ret\n"
    verified = verify_kernel(parse_kernel("kernel 2 k\nmath strict\nthreads 1\nparam buf bool w\nregs i64 f64 f64 pred\nblock 0\n" + code))
    out = np.zeros(1, np.uint8)
    pocl.run(pocl.prepare(verified, (1, 1, 1)), KernelLaunch((1, 1, 1), (1, 1, 1)), [out])
    assert out[0] == 1


def test_a_launch_reports_the_least_trap_key_in_every_language() -> None:
    """Traps of a launch meet in one word, which begins as all ones and keeps the least key: each language spells that as a minimum."""
    for language, spelled in ((OPENCL, "atom_min(p, v)"), (CUDA, "atomicMin((u64 *)(p), v)")):
        assert f"#define ATOM_MIN64(p, v) {spelled}\n" in language.prelude
    assert "for (u64 o = *p; v < o;)" in C99.prelude
