"""CuPy for a machine without a GPU: the calls that jit.cuda makes, on a device whose code runs on the host back end.

NVRTC compiles the CUDA C to PTX, the importer makes kernels of it, and the host back end executes them. What the driver would not forgive
is an error here: a launch with other arguments than the kernel declares, a pointer to no live memory, an access outside of an allocation,
memory that is freed while queued work uses it, a copy that does not wait for queued work, an event that was not waited for.
Work that is given to a stream is queued and executed when something waits for it, so a missing wait shows. New memory holds noise.
"""

from __future__ import annotations

import ctypes
import sys
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from types import ModuleType, SimpleNamespace
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from jit.kernels.launch import KernelLaunch, KernelOptions
from tests.support.kernel_devices import HostKernels, KernelDevice
from wis.dtypes import DType
from wis.frontends.ptx import import_ptx
from wis.kernel.model import BufferParam, Math
from wis.kernel.module import ArgKind, Entry
from wis.kernel.verify import verify_kernel
from wooly.kernels import nvrtc

__all__ = ["CudaError", "Driver", "cupy_on_host"]

Bytes = npt.NDArray[np.uint8]
_BASE: Final = 0x7F00_0000_0000
_GAP: Final = 1 << 21  # between allocations nothing is mapped
_ALIGN: Final = 256
_NOISE: Final = 0xA5
_FUEL: Final = 1 << 36
_GUARDED: Final = KernelOptions(check=True, meter=True, fuel=True)
_MOST_SHARED: Final = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_BYTES: Final = 48 << 10  # without that attribute
_THREADS_MAX: Final = (1024, 1024, 64)
_GRID_MAX: Final = ((1 << 31) - 1, 65_535, 65_535)


class CudaError(Exception):
    """An error that the driver returns; the sticky ones are returned by every later call."""


class NvrtcError(Exception):
    """An error that the compiler returns."""


class Driver:
    """One device. ``memory_bytes``: what one allocation may have at most. ``launches``, ``kernels``: names of kernels executed, with how
    often; ``ptx``: the text of every loaded module."""

    def __init__(self, memory_bytes: int = 1 << 40, device: KernelDevice | None = None) -> None:
        self.memory_bytes = memory_bytes
        self.device = device if device is not None else HostKernels()
        self.kernels: dict[str, int] = {}
        self.ptx: list[str] = []
        self.current: _Stream | None = None
        self._starts: list[int] = []
        self._memory: dict[int, Bytes] = {}
        self._next = _BASE
        self._queue: deque[Callable[[], None]] = deque()
        self._done = self._queued = 0
        self._fault = ""

    # --- memory
    def allocate(self, nbytes: int) -> int:
        self.check()
        if not 0 < nbytes <= self.memory_bytes:
            raise CudaError(f"cudaErrorMemoryAllocation: {nbytes} bytes")
        address = self._next
        self._next += -(-nbytes // _ALIGN) * _ALIGN + _GAP
        self._starts.append(address)
        if nbytes > 1 << 26:
            self._memory[address] = np.zeros(nbytes, np.uint8)  # pages that nothing touches cost nothing
        else:
            self._memory[address] = np.full(nbytes, _NOISE, np.uint8)
        return address

    def free(self, address: int) -> None:
        del self._memory[address]
        self._starts.remove(address)

    def at(self, address: int, nbytes: int | None = None) -> Bytes:
        """The memory from ``address`` on, to the end of its allocation or so many bytes."""
        place = bisect_right(self._starts, address) - 1
        start = self._starts[place] if place >= 0 else 0
        memory = self._memory.get(start)
        if memory is None or address - start >= memory.size:
            self.fail(f"cudaErrorIllegalAddress: {address:#x} is not in live memory")
        rest = memory[address - start :]
        if nbytes is not None and nbytes > rest.size:
            self.fail(f"cudaErrorInvalidValue: {nbytes} bytes at {address:#x}, the allocation ends after {rest.size}")
        return rest if nbytes is None else rest[:nbytes]

    # --- order
    def put(self, work: Callable[[], None]) -> None:
        self.check()
        self._queue.append(work)
        self._queued += 1

    def wait(self, until: int | None = None) -> None:
        """Execute what is queued, up to the call of this number."""
        self.check()
        while self._done < (self._queued if until is None else until):
            self._done += 1
            self._queue.popleft()()

    @property
    def queued(self) -> int:
        return self._queued

    @property
    def done(self) -> int:
        return self._done

    def check(self) -> None:
        if self._fault:
            raise CudaError(self._fault)

    def fail(self, text: str) -> Any:
        """A sticky error: the context is lost."""
        self._fault = self._fault or text
        raise CudaError(text)

    def idle(self, call: str) -> None:
        """A call of the legacy stream does not wait for a stream that does not block."""
        if self._done != self._queued:
            self.fail(f"{call}: {self._queued - self._done} calls are still queued on the stream")

    def close(self) -> None:
        self.device.close()


class _Stream:
    def __init__(self, driver: Driver, *, non_blocking: bool) -> None:
        assert non_blocking, "what is checked here is a stream that the legacy one does not wait for"
        self._driver, self.ptr = driver, 0x5000

    def synchronize(self) -> None:
        self._driver.wait()

    def __enter__(self) -> _Stream:
        self._driver.current = self
        return self

    def __exit__(self, *error: object) -> None:
        self._driver.current = None


class _Event:
    def __init__(self, driver: Driver) -> None:
        self._driver, self.place = driver, -1

    def record(self, stream: _Stream) -> None:
        self._driver.check()
        self.place = self._driver.queued

    def synchronize(self) -> None:
        self._driver.wait(self.place)

    def elapsed(self, end: _Event) -> float:
        """In calls, as if each took a millisecond."""
        if self.place < 0 or end.place < 0:
            raise CudaError("cudaErrorInvalidResourceHandle: the event was not recorded")
        if end.place > self._driver.done:
            raise CudaError("cudaErrorNotReady: the event was not reached")
        return float(end.place - self.place)


class _Memory:
    def __init__(self, driver: Driver, nbytes: int) -> None:
        self._driver, self.ptr = driver, 0
        self.ptr, self.size = driver.allocate(nbytes), nbytes

    def __del__(self) -> None:
        if self.ptr and not sys.is_finalizing():
            self._driver.free(self.ptr)


class _Runtime:
    is_hip = False
    CUDARuntimeError = CudaError
    CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F, CUDA_R_64F = 2, 14, 0, 1

    def __init__(self, driver: Driver) -> None:
        self._driver = driver

    def getDeviceCount(self) -> int:
        return 1

    def getDeviceProperties(self, number: int) -> dict[str, Any]:
        return {"name": b"no GPU", "multiProcessorCount": 8, "major": 9, "minor": 0}

    def memGetInfo(self) -> tuple[int, int]:
        return self._driver.memory_bytes, self._driver.memory_bytes

    def runtimeGetVersion(self) -> int:
        return 13000

    def memcpy(self, target: int, source: int, nbytes: int, kind: int) -> None:
        self._driver.check()
        self._driver.idle("cudaMemcpy")
        if kind == 1:
            self._driver.fail("cudaMemcpy: of pageable memory, it may return before the bytes are where kernels look for them")
        elif kind == 2:
            ctypes.memmove(target, self._driver.at(source, nbytes).ctypes.data, nbytes)
        else:
            raise CudaError("cudaErrorInvalidMemcpyDirection")

    def memcpyAsync(self, target: int, source: int, nbytes: int, kind: int, stream: int) -> None:
        assert stream == 0x5000
        if kind == 1:
            self._driver.put(lambda: ctypes.memmove(self._driver.at(target, nbytes).ctypes.data, source, nbytes))
            return
        if kind != 3:
            raise CudaError("cudaErrorInvalidMemcpyDirection")
        if source < target + nbytes and target < source + nbytes:
            self._driver.fail("cudaMemcpyAsync: the places overlap")

        def work() -> None:
            self._driver.at(target, nbytes)[:] = self._driver.at(source, nbytes)

        self._driver.put(work)

    def memsetAsync(self, target: int, value: int, nbytes: int, stream: int) -> None:
        assert stream == 0x5000

        def work() -> None:
            self._driver.at(target, nbytes)[:] = value

        self._driver.put(work)


class _Module:
    """A module: PTX, of which every kernel is imported; one that is used is verified."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._entries: dict[str, Entry] = {}

    def load(self, binary: bytes) -> None:
        self._driver.check()
        if binary[-1:] != b"\0":
            raise CudaError("CUDA_ERROR_INVALID_IMAGE: the machine code is not whole")
        text = binary[:-1].decode()
        self._driver.ptx.append(text)
        module = import_ptx(text, "wis.cu", math=Math.STRICT)
        self._variables = [np.frombuffer(v.data.ljust(v.nbytes, b"\0"), np.uint8).copy() for v in module.variables]
        self._entries = {entry.name: entry for entry in module.entries}

    def get_function(self, name: str) -> _Function:
        if name not in self._entries:
            raise CudaError(f"cudaErrorSymbolNotFound: {name}")
        return _Function(self._driver, self._entries[name], self._variables)


class _Function:
    def __init__(self, driver: Driver, entry: Entry, variables: list[Bytes]) -> None:
        self._driver, self._entry, self._variables = driver, entry, variables
        self._verified = verify_kernel(entry.kernel)
        self.ptr = self
        self.shared_max = _SHARED_BYTES

    def __call__(
        self, grid: tuple[int, ...], block: tuple[int, ...], args: tuple[int, ...], shared_mem: int = 0, stream: _Stream | None = None
    ) -> None:
        assert stream is not None, "on the legacy stream it would not be in order with the rest"
        entry, driver = self._entry, self._driver
        declared = [argument for argument in entry.arguments if argument.kind != ArgKind.VARIABLE]
        if len(args) != len(declared):
            raise CudaError(f"{entry.name}: {len(args)} arguments, the kernel declares {len(declared)}")
        _check_shape("block", block, _THREADS_MAX)
        _check_shape("grid", grid, _GRID_MAX)
        if prod(block) > entry.kernel.threads_max:
            raise CudaError(f"cudaErrorLaunchOutOfResources: {prod(block)} threads for a kernel of {entry.kernel.threads_max}")
        if shared_mem > self.shared_max:
            raise CudaError(f"cudaErrorInvalidValue: {shared_mem} bytes of shared memory, without the attribute")
        shape = (grid[0], grid[1], grid[2]), (block[0], block[1], block[2])

        def work() -> None:
            self._run(KernelLaunch(*shape, shared_mem if entry.kernel.dynamic else 0, fuel=_FUEL), args)

        driver.put(work)

    def _run(self, launch: KernelLaunch, args: Sequence[int]) -> None:
        driver, entry = self._driver, self._entry
        params: list[Any] = [None] * len(entry.kernel.params)
        addresses = [0] * len(params)
        values = iter(args)
        for argument in entry.arguments:
            if argument.kind == ArgKind.VARIABLE:
                params[argument.param] = self._variables[argument.variable]
                addresses[argument.param] = (argument.param + 1) << 50
                continue
            value = next(values)
            if argument.param < 0:
                continue  # the kernel never looks at it
            if isinstance(entry.kernel.params[argument.param], BufferParam):
                params[argument.param], addresses[argument.param] = driver.at(value), value
            else:
                params[argument.param] = value
        prepared = driver.device.prepare(self._verified, launch.block, launch.dynamic_bytes, _GUARDED)
        outcome = driver.device.run(prepared, launch, params, addresses)
        driver.kernels[entry.name] = driver.kernels.get(entry.name, 0) + 1
        if outcome.out_of_fuel:
            driver.fail(f"cudaErrorLaunchTimeout: {entry.name} does not end")
        if outcome.trap is not None:
            driver.fail(f"cudaErrorIllegalAddress: {entry.name}: {outcome.trap}")


def _check_shape(what: str, shape: tuple[int, ...], most: tuple[int, int, int]) -> None:
    if len(shape) != 3 or not all(1 <= size <= limit for size, limit in zip(shape, most, strict=True)):
        raise CudaError(f"cudaErrorInvalidConfiguration: a {what} of {shape}")


class _Program:
    def __init__(self, text: str) -> None:
        self.text, self.ptx, self.log = text, "", ""


class _Nvrtc:
    NVRTCError = NvrtcError

    def createProgram(self, text: str, name: str, headers: Sequence[str], includes: Sequence[str]) -> _Program:
        assert not headers and not includes
        return _Program(text)

    def compileProgram(self, program: _Program, options: Sequence[str]) -> None:
        """To PTX for the virtual architecture: without any of the headers and definitions that wooly.kernels adds."""
        library, made = nvrtc._library(), ctypes.c_void_p()
        nvrtc._check(library, "nvrtcCreateProgram", ctypes.byref(made), program.text.encode(), b"wis.cu", 0, None, None)
        try:
            flags = [nvrtc._renamed(option) for option in options]
            code = library.nvrtcCompileProgram(made, len(flags), nvrtc._strings(flags))
            program.log = nvrtc._text(library, "nvrtcGetProgramLog", made)
            if code:
                raise NvrtcError(f"error {code}")
            program.ptx = nvrtc._text(library, "nvrtcGetPTX", made)
        finally:
            library.nvrtcDestroyProgram(ctypes.byref(made))

    def getCUBIN(self, program: _Program) -> bytes:
        """The PTX, which stands for the machine code; without its last byte, as CuPy gives that."""
        return program.ptx.encode()

    def getProgramLog(self, program: _Program) -> str:
        return program.log

    def destroyProgram(self, program: _Program) -> None:
        program.text = ""


class BlasError(Exception):
    """An error that the library of matrix products returns."""


_TYPES: Final = {2: DType.F16, 14: DType.BF16, 0: DType.F32, 1: DType.F64}
"""By cudaDataType."""


class _Blas:
    """Products of matrices whose columns are neighbours, as cuBLAS has them."""

    CUBLASError = BlasError
    CUBLAS_OP_N, CUBLAS_OP_T = 0, 1
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_64F = 68, 70
    CUBLAS_GEMM_DEFAULT = -1

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._mode = 0

    def create(self) -> int:
        return 0x6000

    def destroy(self, handle: int) -> None:
        self._mode = 0

    def setMathMode(self, handle: int, mode: int) -> None:
        self._mode = mode

    def gemmStridedBatchedEx(
        self, handle: int, turn_a: int, turn_b: int, m: int, n: int, k: int, alpha: int, a: int, a_type: int, a_leading: int, a_stride: int,
        b: int, b_type: int, b_leading: int, b_stride: int, beta: int, c: int, c_type: int, c_leading: int, c_stride: int, count: int,
        compute: int, algorithm: int,
    ) -> None:  # fmt: skip
        assert self._driver.current is not None, "CuPy's calls are on the current stream, which is the legacy one unless it is entered"
        assert (handle, self._mode, algorithm) == (0x6000, 16, self.CUBLAS_GEMM_DEFAULT)
        dtype = _TYPES[c_type]
        wide = dtype is DType.F64
        number = ctypes.c_double if wide else ctypes.c_float
        assert a_type == b_type == c_type and compute == (self.CUBLAS_COMPUTE_64F if wide else self.CUBLAS_COMPUTE_32F)
        assert (number.from_address(alpha).value, number.from_address(beta).value) == (1, 0)
        shapes = [(m, k) if turn_a == self.CUBLAS_OP_N else (k, m), (k, n) if turn_b == self.CUBLAS_OP_N else (n, k), (m, n)]
        for (rows, _), leading in zip(shapes, (a_leading, b_leading, c_leading), strict=True):
            if not 1 <= max(1, rows) <= leading or min(m, n, k, count) < 1:
                raise BlasError(f"CUBLAS_STATUS_INVALID_VALUE: {rows} rows, {leading} from one column to the next")

        def work() -> None:
            for at in range(count):
                x, y, z = (
                    _columns(self._driver, place + at * stride * dtype.itemsize, dtype, shape, leading)
                    for place, stride, shape, leading in zip(
                        (a, b, c), (a_stride, b_stride, c_stride), shapes, (a_leading, b_leading, c_leading), strict=True
                    )
                )
                x, y = x.T if turn_a else x, y.T if turn_b else y
                sums = np.float64 if wide else np.float32
                z[:] = (x.astype(sums) @ y.astype(sums)).astype(z.dtype)

        self._driver.put(work)


def _columns(driver: Driver, address: int, dtype: DType, shape: tuple[int, int], leading: int) -> npt.NDArray[Any]:
    """A matrix of which the columns are neighbours."""
    size = dtype.itemsize
    memory = driver.at(address, size * ((shape[1] - 1) * leading + shape[0]))
    return np.ndarray(shape, dtype.numpy, memory, strides=(size, size * leading))


@contextmanager
def cupy_on_host(driver: Driver | None = None) -> Iterator[Driver]:
    """``import cupy`` gives this while the context lasts."""
    made = driver if driver is not None else Driver()
    runtime, device = _Runtime(made), SimpleNamespace(id=0, use=made.check)

    def attribute(function: _Function, which: int, value: int) -> None:
        assert which == _MOST_SHARED
        if value > 227 << 10:
            raise CudaError(f"CUDA_ERROR_INVALID_VALUE: {value} bytes of shared memory")
        function.shared_max = value

    cupy: Any = ModuleType("cupy")
    cupy.__version__ = "14.0"
    cupy.cuda = SimpleNamespace(
        runtime=runtime, driver=SimpleNamespace(CUDADriverError=CudaError, funcSetAttribute=attribute), nvrtc=_Nvrtc(),
        function=SimpleNamespace(Module=lambda: _Module(made)), Device=lambda number: device,
        Stream=lambda non_blocking: _Stream(made, non_blocking=non_blocking), Event=lambda: _Event(made),
        Memory=lambda nbytes: _Memory(made, nbytes), get_elapsed_time=_Event.elapsed, cublas=_Blas(made),
    )  # fmt: skip
    before = sys.modules.get("cupy")
    sys.modules["cupy"] = cupy
    try:
        yield made
    finally:
        if before is None:
            del sys.modules["cupy"]
        else:
            sys.modules["cupy"] = before
