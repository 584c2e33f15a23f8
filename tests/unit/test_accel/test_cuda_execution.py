"""The cuda back end executed without a GPU: its CUDA C through NVRTC and the PTX importer on the host, beside the definition.

``make cuda-roundtrip`` does this for the whole corpus and many more programs; this is a sample.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jit.accel.device import Request
from jit.accel.engine import AccelEngine
from jit.accel.library import LOWER
from jit.accel.lowering import TILED_LENGTH_MIN
from jit.accel.tables import KernelStep, ProductStep
from jit.backends import FUEL, create_engine
from jit.cache import ObjectCache
from jit.cuda import CudaDevice
from jit.engine import Engine, EngineConfig
from jit.kernels.lower import Sharing
from tests.conformance.kernels.binding import build
from tests.conformance.kernels.runner import differences as case_differences
from tests.conformance.kernels.runner import run_case as run_corpus_case
from tests.golden.cuda.cases import CASES
from tests.property.fuzz_backends import one_round
from tests.support.builder import Builder
from tests.support.compared_device import Compared
from tests.support.cuda_driver import CudaError, Driver, cupy_on_host
from tests.support.emitter_probes import PROBES
from tests.support.kernel_devices import ReferenceKernels, cuda_kernels
from tests.support.kernel_runs import differences, run_case
from tests.support.wis_kernels import seeded_case
from tests.unit.test_jit.conftest import checker, run
from tests.unit.test_jit.lowered_programs import PROGRAMS
from tests.unit.test_jit.lowered_programs import program as named_program
from tests.unit.test_jit.programs import column_sums, random_program
from wis.dtypes import DType
from wis.kernel.verify import verify_kernel
from wis.ops import OPS

pytestmark = pytest.mark.skipif(importlib.util.find_spec("nvidia") is None, reason="the CUDA compiler's wheel is not installed")

CORPUS = [
    "streaming/vadd",
    "streaming/transpose_tiled",
    "reductions/tree_sum",
    "reductions/minmax_atomic",
    "atomics/integer_64",
    "bits/counts",
]
REFERENCE = ReferenceKernels()


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    """Allocations of at most 32 MiB, so that every block of the engine is one of its own and accesses beyond it are seen."""
    with cupy_on_host(Driver(memory_bytes=1 << 25)) as made:
        yield made
        made.close()


@pytest.fixture(scope="module")
def compared(driver: Driver) -> Compared:
    return Compared(CudaDevice(ObjectCache(None)))


@pytest.fixture(scope="module")
def engine(compared: Compared) -> Iterator[AccelEngine]:
    made = AccelEngine(compared, "cuda", EngineConfig(None, 1, 1 << 30, FUEL["cuda"]))
    yield made
    made.close()


@pytest.fixture
def kernels(driver: Driver) -> Iterator[cuda_kernels]:
    made = cuda_kernels()
    yield made
    made.close()


@pytest.fixture
def quick() -> Iterator[cuda_kernels]:
    """The definition executes what was imported, not the host: for large code and few threads that takes a tenth of the time."""
    with cupy_on_host(Driver(device=ReferenceKernels())):
        made = cuda_kernels()
        yield made
        made.close()


@pytest.mark.parametrize("name", PROBES)
def test_an_emitter_does_what_is_defined_at_every_edge(quick: cuda_kernels, name: str) -> None:
    case = PROBES[name]()
    verified = verify_kernel(case.kernel)
    assert differences(run_case(REFERENCE, verified, case), run_case(quick, verified, case)) == []


@pytest.mark.parametrize("name", CORPUS)
def test_kernels_of_the_corpus_leave_what_the_definition_does(kernels: cuda_kernels, name: str) -> None:
    case = CASES[name]
    want, got = run_corpus_case(case, "reference", REFERENCE), run_corpus_case(case, "cuda", kernels)
    assert got.faults == []
    assert list(case_differences(want, got, counts=not case.racy)) == []


def test_loops_over_threads_stay_loops_in_machine_code(driver: Driver, kernels: cuda_kernels) -> None:
    """Unrolled, this kernel has 37,000 lines of PTX, which take NVRTC 11 seconds and are more than the kernel tier accepts."""
    case = CASES["language/named_barriers"]
    kernels.prepare(build(case).verified, case.block, case.shared)
    assert 1_000 < driver.ptx[-1].count("\n") < 4_000


@pytest.mark.parametrize("seed", range(302, 304))
def test_random_kernels_leave_the_bytes_counts_and_traps_that_the_definition_does(kernels: cuda_kernels, seed: int) -> None:
    case = seeded_case(seed, 12)
    verified = verify_kernel(case.kernel)
    assert differences(run_case(REFERENCE, verified, case), run_case(kernels, verified, case)) == []


@pytest.mark.parametrize("name", sorted(LOWER))
def test_every_library_kernel_leaves_the_same_bits(engine: AccelEngine, compared: Compared, name: str) -> None:
    ops = [op for op in OPS if op.name == name]
    assert one_round(engine, ops, 1)[1] == ""
    assert compared.tally.wrong == []


@pytest.mark.parametrize("dtype", [DType.F32, DType.BF16])
@pytest.mark.parametrize(("batch", "copies"), [((3, 5), 0), ((66, 67), 3)], ids=["in turn", "too many in turn"])
def test_products_of_matrices_in_another_order(driver: Driver, defining: Engine, batch: tuple[int, int], copies: int, dtype: DType) -> None:
    """Heads of attention lie between the elements of a sequence: the products of one dimension run together, those of the other in turn,
    or all operands are copied first, the result last."""
    b, (n, m), (rows, inner, columns) = Builder(), batch, (2, 3, 4)
    a = b.operand(b.external(dtype, (m, rows, n, inner)), dtype, (n, m, rows, inner), (inner, rows * n * inner, n * inner, 1))
    x = b.operand(
        b.external(dtype, (m, n, columns, inner)), dtype, (n, m, inner, columns), (columns * inner, n * columns * inner, 1, inner)
    )
    out = b.operand(b.created(dtype, (m, n, rows, columns)), dtype, (n, m, rows, columns), (rows * columns, n * rows * columns, columns, 1))
    b.emit("matmul", out, [a, x])
    rng = np.random.default_rng(0)
    inputs = {o.buffer: rng.integers(-4, 5, o.numel).astype(dtype.numpy) for o in (a, x)}  # sums are exact in any order
    engine = AccelEngine(CudaDevice(ObjectCache(None)), "cuda", EngineConfig(None, 1, 1 << 28, FUEL["cuda"]))
    checker(engine, defining)(b, inputs)
    (plan,) = engine.plans()
    assert sum(isinstance(step, KernelStep) for step in plan.steps) == copies
    assert sum(isinstance(step, ProductStep) for step in plan.steps) == 1
    engine.close()


def test_products_over_no_elements_touch_no_memory(engine: AccelEngine) -> None:
    """Gradients of attention of no queries, whose operands have negative strides."""
    assert one_round(engine, [op for op in OPS if op.name == "sdpa_dx"], 4)[1] == ""


@pytest.mark.parametrize("seed", range(6))
def test_fused_groups_leave_the_same_bits(engine: AccelEngine, compared: Compared, defining: Engine, seed: int) -> None:
    checker(engine, defining)(*random_program(seed, 12))
    assert compared.tally.wrong == []


@pytest.mark.parametrize("seed", range(2))
def test_sums_of_columns_by_tiles_leave_the_same_bits(engine: AccelEngine, compared: Compared, defining: Engine, seed: int) -> None:
    checker(engine, defining)(*column_sums(seed, TILED_LENGTH_MIN))
    assert any(sharing is Sharing.TILE for _, _, sharing in engine._lowering._fused)
    assert compared.tally.wrong == []


@pytest.mark.parametrize("name", PROGRAMS)
def test_named_functions_leave_the_same_bits(engine: AccelEngine, compared: Compared, name: str) -> None:
    """As their kernels are defined; the tensor tier's own functions are nearly those."""
    launches = compared.tally.launches
    run(engine, *named_program(name))
    assert compared.tally.launches > launches
    assert compared.tally.wrong == []


def test_a_device_offers_what_is_free_but_for_what_it_needs_itself() -> None:
    with cupy_on_host(Driver(memory_bytes=8 << 30)):
        engine = create_engine("cuda", cache_dir=None, threads=1, vram_bytes=0)
        assert 6.6 * (1 << 30) < engine.info.vram_bytes < 7 << 30
        engine.close()
        engine = create_engine("cuda", cache_dir=None, threads=1, vram_bytes=1 << 20)
        assert engine.info.vram_bytes == 1 << 20, "what the operator says"
        engine.close()


def test_a_launch_took_as_long_whenever_it_is_asked_for(driver: Driver) -> None:
    """A slice of a user's kernel is asked for when it is done, and again for the account of its run: later launches change nothing."""
    device = CudaDevice(ObjectCache(None))
    case = CASES["streaming/vadd"]
    (kernel,) = device.compile([Request(build(case).verified, case.block)])
    memory, state = device.allocate(1 << 16), device.allocate(64)
    table = device.allocate(1 << 12)

    def launched() -> Any:
        mark = device.launch(kernel, 0x1, [memory] * 3, table, 0, state, None)
        device.finish()
        return mark

    first = launched()
    took = device.elapsed_ns([first])
    second = launched()
    device.wait(first)
    assert device.elapsed_ns([first, second]) == took * 2 and took[0] > 0
    device.close()


class TestDriver:
    """The double of the driver returns the errors that a driver does, and some where a driver would go on with wrong memory."""

    WRITES = 'extern "C" __global__ void k(unsigned *p, unsigned long long at) { p[at] = 7; }'

    @pytest.fixture
    def cuda(self) -> Iterator[Any]:
        with cupy_on_host() as driver:
            yield sys.modules["cupy"].cuda
            driver.close()

    def function(self, cuda: Any) -> Any:
        program, module = cuda.nvrtc.createProgram(self.WRITES, "k.cu", (), ()), cuda.function.Module()
        cuda.nvrtc.compileProgram(program, ("-arch=sm_90", "-default-device"))
        module.load(cuda.nvrtc.getCUBIN(program) + b"\0")
        return module.get_function("k")

    def read(self, cuda: Any, memory: Any, nbytes: int) -> list[int]:
        found = np.zeros(nbytes // 4, np.uint32)
        cuda.runtime.memcpy(found.ctypes.data, memory.ptr, nbytes, 2)
        return found.tolist()

    def test_a_launch_is_executed_when_something_waits_for_it(self, cuda: Any) -> None:
        stream, memory = cuda.Stream(non_blocking=True), cuda.Memory(8)
        cuda.runtime.memsetAsync(memory.ptr, 0, 8, stream.ptr)
        self.function(cuda)((1, 1, 1), (1, 1, 1), (memory.ptr, 1), 0, stream)
        with pytest.raises(CudaError, match="2 calls are still queued"):
            self.read(cuda, memory, 8)

    def test_what_was_waited_for_is_there(self, cuda: Any) -> None:
        stream, memory = cuda.Stream(non_blocking=True), cuda.Memory(8)
        cuda.runtime.memsetAsync(memory.ptr, 0, 8, stream.ptr)
        self.function(cuda)((1, 1, 1), (1, 1, 1), (memory.ptr, 1), 0, stream)
        stream.synchronize()
        assert self.read(cuda, memory, 8) == [0, 7]

    def test_new_memory_holds_noise(self, cuda: Any) -> None:
        assert self.read(cuda, cuda.Memory(4), 4) == [0xA5A5A5A5]

    def test_other_arguments_than_the_kernel_declares(self, cuda: Any) -> None:
        stream, memory = cuda.Stream(non_blocking=True), cuda.Memory(8)
        with pytest.raises(CudaError, match="1 arguments, the kernel declares 2"):
            self.function(cuda)((1, 1, 1), (1, 1, 1), (memory.ptr,), 0, stream)

    @pytest.mark.parametrize(("grid", "block"), [((0, 1, 1), (1, 1, 1)), ((1, 65_536, 1), (1, 1, 1)), ((1, 1, 1), (1025, 1, 1))])
    def test_shapes_beyond_the_limits(self, cuda: Any, grid: tuple[int, ...], block: tuple[int, ...]) -> None:
        with pytest.raises(CudaError, match="cudaErrorInvalidConfiguration"):
            self.function(cuda)(grid, block, (cuda.Memory(8).ptr, 0), 0, cuda.Stream(non_blocking=True))

    def test_a_write_outside_of_an_allocation_is_sticky(self, cuda: Any) -> None:
        stream, memory = cuda.Stream(non_blocking=True), cuda.Memory(8)
        self.function(cuda)((1, 1, 1), (1, 1, 1), (memory.ptr, 2), 0, stream)
        for _ in range(2):
            with pytest.raises(CudaError, match="cudaErrorIllegalAddress"):
                stream.synchronize()

    def test_memory_that_is_freed_while_queued_work_uses_it(self, cuda: Any) -> None:
        stream, memory = cuda.Stream(non_blocking=True), cuda.Memory(8)
        self.function(cuda)((1, 1, 1), (1, 1, 1), (memory.ptr, 0), 0, stream)
        del memory
        with pytest.raises(CudaError, match="is not in live memory"):
            stream.synchronize()

    def test_times_of_events_that_were_not_reached(self, cuda: Any) -> None:
        stream, memory = cuda.Stream(non_blocking=True), cuda.Memory(8)
        start, end = cuda.Event(), cuda.Event()
        start.record(stream)
        cuda.runtime.memsetAsync(memory.ptr, 0, 8, stream.ptr)
        end.record(stream)
        with pytest.raises(CudaError, match="cudaErrorNotReady"):
            cuda.get_elapsed_time(start, end)
        end.synchronize()
        assert cuda.get_elapsed_time(start, end) > 0
