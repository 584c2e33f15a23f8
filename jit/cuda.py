"""The cuda back end: the shared engine on NVIDIA devices (and AMD's through its ROCm build), through CuPy.

May live here: CuPy, NVRTC and what is special to CUDA. May not: plans, kernels' source (jit.kernels.cfamily).

Kernels of one ``compile`` become one module, compiled by NVRTC for exactly this device's architecture, and kept in the object cache. CuPy's
memory pools are not used: blocks are parts of one allocation, and memory is set to zero before a session can read it.

The only module that touches CuPy.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import product
from typing import Any, Final, NamedTuple

import numpy as np
from blake3 import blake3

from jit.accel.device import Bytes, Facts, Matrix, Request, blas_layout, form_of
from jit.cache import ObjectCache
from jit.compiling.process import CompileProcess
from jit.errors import KernelRefused, ToolchainError
from jit.kernels.cfamily import CUDA, Source, emit, program
from jit.memory import capacity_bytes
from wis.dtypes import DType

__all__ = ["OPTIONS", "CudaDevice"]


OPTIONS: Final = ("--fmad=false", "--prec-div=true", "--prec-sqrt=true", "--ftz=false", "-default-device")
"""Nothing that trades exactness for speed."""
HIP_OPTIONS: Final = ("-ffp-contract=off",)
"""The same for AMD's compiler, which divides and takes roots exactly by default."""
_ALIGN_BYTES: Final = 256  # as the driver's own allocations
_KEPT_BYTES: Final = 1 << 30  # of the device, for machine code, scratch memory, and the library of products
_TO_DEVICE: Final = 1
_TO_HOST: Final = 2
_ON_DEVICE: Final = 3
_MOST_SHARED: Final = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_SHARED_BYTES: Final = 48 << 10  # what a launch may ask for without that attribute
_EVENTS_MAX: Final = 1 << 12  # that are kept for later launches
_WIDE_SUMS: Final = 16  # CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION: parts of a sum are not rounded to half either
_NUMBERS: Final[dict[bool, np.ndarray[Any, Any]]] = {False: np.array([1, 0], np.float32), True: np.array([1, 0], np.float64)}
"""One and zero, as products take them: by whether the type is f64."""


def _cupy() -> Any:
    try:
        import cupy
    except ImportError as error:
        raise ToolchainError(f"the cuda backend needs CuPy: pip install cupy-cuda13x (or cupy-cuda12x, cupy-rocm) ({error})") from None
    return cupy


class CompiledKernel:
    """A kernel of a module."""

    __slots__ = ("function", "module", "source")

    def __init__(self, source: Source, module: Any, function: Any) -> None:
        self.source, self.module, self.function = source, module, function

    @property
    def scratch_bytes(self) -> int:
        return self.source.scratch_bytes


class _Buffer:
    """Memory of the device from ``offset`` in ``memory`` on, which is freed with the last reference to it."""

    __slots__ = ("address", "memory", "nbytes", "offset")

    def __init__(self, memory: Any, nbytes: int, offset: int = 0) -> None:
        self.memory, self.nbytes, self.offset = memory, nbytes, offset
        self.address = int(memory.ptr) + offset


class _Mark:
    """Events before and after a launch, until it is known how long that took: ``ns`` from then on, -1 before."""

    __slots__ = ("end", "ns", "start")

    def __init__(self, start: Any, end: Any) -> None:
        self.start, self.end, self.ns = start, end, -1


class CudaDevice:
    """Device ``number`` of those that the driver lists. ``guard``: where user kernels are compiled."""

    def __init__(self, cache: ObjectCache, number: int = 0, guard: CompileProcess | None = None) -> None:
        self._cupy = cupy = _cupy()
        self._runtime = cupy.cuda.runtime
        self._errors = (cupy.cuda.runtime.CUDARuntimeError, cupy.cuda.driver.CUDADriverError, cupy.cuda.cublas.CUBLASError)
        self._cache = cache
        self._guard = guard
        with self._told("the device does not start"):
            count = self._runtime.getDeviceCount()
            if not count:
                raise ToolchainError("the driver lists no device")
            self._device = cupy.cuda.Device(number % count)
            self._device.use()
            about = self._runtime.getDeviceProperties(self._device.id)
            self._stream = cupy.cuda.Stream(non_blocking=True)
        self._hip = bool(self._runtime.is_hip)
        self._blas = cupy.cuda.cublas
        self._handle = 0
        self._types = {DType.F16: self._runtime.CUDA_R_16F, DType.BF16: self._runtime.CUDA_R_16BF, DType.F32: self._runtime.CUDA_R_32F}
        self._types[DType.F64] = self._runtime.CUDA_R_64F
        self.facts = Facts(about["name"].decode(), int(about["multiProcessorCount"]), False, frozenset(self._types), _ALIGN_BYTES)
        self._arch = about["gcnArchName"].decode() if self._hip else f"sm_{about['major']}{about['minor']}"
        self._seal = "\n".join(
            (cupy.__version__, str(self._runtime.runtimeGetVersion()), self._arch, *(HIP_OPTIONS if self._hip else OPTIONS))
        )
        self._events: list[Any] = []
        self._modules: dict[str, Any] = {}
        self._nothing = self.allocate(16)
        self.compiled = 0

    @contextmanager
    def _told(self, what: str) -> Iterator[None]:
        """Errors of the driver are the machine's."""
        try:
            yield
        except self._errors as error:
            raise ToolchainError(f"{what}: {error}") from None

    # --- memory
    @property
    def offered_bytes(self) -> int:
        """What sessions can have of the memory that is free now."""
        self._device.use()
        with self._told("its memory is not known"):
            free = int(self._runtime.memGetInfo()[0])
        return max(0, capacity_bytes(free - min(_KEPT_BYTES, free // 2)))

    def allocate(self, nbytes: int) -> _Buffer:
        size = max(nbytes, 1)
        self._device.use()  # which device a call means is a matter of the thread that makes it
        try:
            memory = self._cupy.cuda.Memory(size)
        except self._cupy.cuda.runtime.CUDARuntimeError as error:
            raise MemoryError(str(error)) from None
        buffer = _Buffer(memory, size)
        self.zero(buffer, 0, size)
        return buffer

    def reserve(self, nbytes: int) -> _Buffer | None:
        self._device.use()
        try:
            return _Buffer(self._cupy.cuda.Memory(nbytes), nbytes)
        except self._cupy.cuda.runtime.CUDARuntimeError:
            return None

    def part(self, buffer: _Buffer, offset: int, nbytes: int) -> _Buffer:
        return _Buffer(buffer.memory, nbytes, buffer.offset + offset)

    def copy(self, source: _Buffer, source_offset: int, target: _Buffer, target_offset: int, nbytes: int) -> None:
        if nbytes:
            with self._told("a copy on the device failed"):
                self._runtime.memcpyAsync(
                    target.address + target_offset, source.address + source_offset, nbytes, _ON_DEVICE, self._stream.ptr
                )

    def write(self, buffer: _Buffer, offset: int, data: Bytes) -> None:
        if data.size:
            source = np.ascontiguousarray(data)
            with self._told("a copy to the device failed"):  # on the stream: cudaMemcpy may return before the bytes are where kernels look
                self._runtime.memcpyAsync(buffer.address + offset, source.ctypes.data, source.size, _TO_DEVICE, self._stream.ptr)
            self.finish()

    def read(self, buffer: _Buffer, offset: int, nbytes: int) -> Bytes:
        found = np.empty(nbytes, np.uint8)
        if nbytes:
            self.finish()
            with self._told("a copy from the device failed"):
                self._runtime.memcpy(found.ctypes.data, buffer.address + offset, nbytes, _TO_HOST)
        return found

    def zero(self, buffer: _Buffer, offset: int, nbytes: int) -> None:
        if nbytes:
            with self._told("memory could not be set to zero"):
                self._runtime.memsetAsync(buffer.address + offset, 0, nbytes, self._stream.ptr)

    def view(self, buffer: _Buffer) -> Bytes | None:
        return None

    # --- kernels
    def compile(self, requests: Sequence[Request]) -> list[CompiledKernel]:
        self._device.use()
        sources = [emit(r.verified, CUDA, r.block, r.options, form_of(r), r.dynamic_bytes) for r in requests]
        kernels: dict[str, CompiledKernel] = {}
        self._load([s for s, r in zip(sources, requests, strict=True) if not r.foreign], kernels, foreign=False)
        for source, request in zip(sources, requests, strict=True):
            if request.foreign:
                self._load([source], kernels, foreign=True)
        return [kernels[source.entry] for source in sources]

    def _load(self, sources: Sequence[Source], kernels: dict[str, CompiledKernel], *, foreign: bool) -> None:
        """Add the kernels of these sources, from the cache or compiled together."""
        missing: list[Source] = []
        for source in {s.entry: s for s in sources}.values():
            found = self._cache.get(self._key(source))
            binary = self._cache.get(found.decode()) if found is not None else None
            if binary is None:
                missing.append(source)
            else:
                kernels[source.entry] = self._kernel(binary, source)
        if not missing:
            return
        payload = "\n".join((self._arch, program(missing))).encode()
        binary = self._guard.compile("nvrtc", payload) if foreign and self._guard is not None else compile_job(payload)
        self.compiled += len(missing)
        digest = blake3(binary).hexdigest()
        self._cache.put(digest, binary)
        for source in missing:
            self._cache.put(self._key(source), digest.encode())
            kernels[source.entry] = self._kernel(binary, source)

    def _key(self, source: Source) -> str:
        return blake3(f"{self._seal}\n{source.entry}\n{source.text}".encode()).hexdigest()

    def _kernel(self, binary: bytes, source: Source) -> CompiledKernel:
        digest = blake3(binary).hexdigest()
        with self._told(f"{source.entry} does not load"):
            if digest not in self._modules:
                module = self._cupy.cuda.function.Module()
                module.load(binary)
                self._modules[digest] = module
            function = self._modules[digest].get_function(source.entry)
        if source.shared_bytes > _SHARED_BYTES:
            try:
                self._cupy.cuda.driver.funcSetAttribute(function.ptr, _MOST_SHARED, source.shared_bytes)
            except self._cupy.cuda.driver.CUDADriverError:
                raise KernelRefused(f"{source.shared_bytes} bytes of shared memory are more than this device has") from None
        return CompiledKernel(source, self._modules[digest], function)

    def launch(
        self, kernel: CompiledKernel, count: int, buffers: Sequence[_Buffer], table: _Buffer, at: int, state: _Buffer,
        scratch: _Buffer | None,
    ) -> Any:  # fmt: skip
        self._device.use()
        arguments = (*[b.address for b in buffers], table.address, at, state.address, (scratch or self._nothing).address)
        start, end, stream, source = self._event(), self._event(), self._stream, kernel.source
        try:
            start.record(stream)
            kernel.function((count, 1, 1), source.local_size, arguments, source.shared_bytes, stream)
            end.record(stream)
        except self._errors as error:
            raise ToolchainError(f"{source.entry} does not start: {error}") from None
        return _Mark(start, end)

    def _event(self) -> Any:
        return self._events.pop() if self._events else self._cupy.cuda.Event()

    def elapsed_ns(self, marks: Sequence[Any]) -> list[int]:
        for mark in marks:
            if mark.ns < 0:
                mark.ns = int(self._cupy.cuda.get_elapsed_time(mark.start, mark.end) * 1e6)
                if len(self._events) < _EVENTS_MAX:
                    self._events += (mark.start, mark.end)
                mark.start = mark.end = None
        return [mark.ns for mark in marks]

    def product(self, dtype: DType, out: Matrix, a: Matrix, b: Matrix) -> Any:
        """Halves are multiplied and added in f32, and rounded once. The library's matrices are columns of neighbours: ours are transposed
        to it, so that out = a b is out^T = b^T a^T."""
        self._device.use()
        blas, calls = self._blas, _calls(*((x.shape, x.strides) for x in (out, a, b)))
        first, second = (a, b) if calls.turned else (b, a)
        operations = [blas.CUBLAS_OP_T if transposed else blas.CUBLAS_OP_N for transposed in calls.transposed]
        kind, wide = self._types[dtype], dtype is DType.F64
        computed = blas.CUBLAS_COMPUTE_64F if wide else blas.CUBLAS_COMPUTE_32F
        one, zero = (_NUMBERS[wide][x:].ctypes.data for x in (0, 1))
        (first_leading, second_leading, leading), (first_step, second_step, step) = calls.leading, calls.steps
        starts = [int(x.buffer.address) + x.offset for x in (first, second, out)]
        start, end = self._event(), self._event()
        with self._told("a matrix product failed"), self._stream:  # CuPy's calls of the library are on the thread's current stream
            start.record(self._stream)
            for offsets in calls.offsets:
                places = [at + offset * dtype.itemsize for at, offset in zip(starts, offsets, strict=True)]
                blas.gemmStridedBatchedEx(
                    self._products(), *operations, *calls.sizes, one, places[0], kind, first_leading, first_step,
                    places[1], kind, second_leading, second_step, zero, places[2], kind, leading, step,
                    calls.n_matrices, computed, blas.CUBLAS_GEMM_DEFAULT,
                )  # fmt: skip
            end.record(self._stream)
        return _Mark(start, end)

    def _products(self) -> int:
        """The library's handle, made for the first product."""
        if not self._handle:
            self._handle = self._blas.create()
            self._blas.setMathMode(self._handle, _WIDE_SUMS)
        return self._handle

    def wait(self, mark: _Mark) -> None:
        if mark.end is not None:
            with self._told("the device stopped"):
                mark.end.synchronize()

    def finish(self) -> None:
        with self._told("the device stopped"):
            self._stream.synchronize()

    def close(self) -> None:
        self.finish()
        if self._handle:
            self._blas.destroy(self._handle)
            self._handle = 0
        self._modules.clear()
        if self._guard is not None:
            self._guard.close()


_Form = tuple[tuple[int, ...], tuple[int, ...]]
"""Shape and strides of an operand of a product."""


class _Calls(NamedTuple):
    """A product as calls of the library, each of ``n_matrices``. ``turned``: out is what the library calls a matrix, else its transpose
    is, and ``b`` is the first operand. ``transposed``: of first and second operand; ``leading``, ``steps``: of first, second and out,
    from a column to the next and from a matrix to the next, in elements; ``offsets``: of these, for each call."""

    turned: bool
    transposed: tuple[bool, bool]
    sizes: tuple[int, int, int]
    leading: tuple[int, ...]
    steps: tuple[int, ...]
    offsets: tuple[tuple[int, ...], ...]
    n_matrices: int


@lru_cache(maxsize=4096)
def _calls(out: _Form, a: _Form, b: _Form) -> _Calls:
    """The largest dimension of the batch is that of one call."""
    turned, _ = blas_layout(*out) or (False, 0)
    operands = (a, b, out) if turned else (b, a, out)
    layouts = [blas_layout(*x) or (False, 0) for x in operands]
    rows, columns = out[0][-2:]
    batch = out[0][:-2]
    together = max(range(len(batch)), key=lambda d: batch[d])
    indices = list(product(*(range(1 if d == together else size) for d, size in enumerate(batch))))
    return _Calls(
        turned,
        (layouts[0][0] is not turned, layouts[1][0] is not turned),
        (*((rows, columns) if turned else (columns, rows)), a[0][-1]),
        tuple(leading for _, leading in layouts),
        tuple(strides[together] for _, strides in operands),
        tuple(tuple(sum(i * s for i, s in zip(index, strides, strict=False)) for _, strides in operands) for index in indices),
        batch[together],
    )


def compile_job(payload: bytes) -> bytes:
    """An architecture, a line feed, CUDA C: to machine code for it. Needs no driver, so it can run in the compile process.

    Raises ToolchainError.
    """
    arch, _, text = payload.decode().partition("\n")
    nvrtc = _cupy().cuda.nvrtc
    made = nvrtc.createProgram(text, "wis.cu", (), ())
    try:
        options = (f"-arch={arch}", *OPTIONS) if arch.startswith("sm_") else (f"--offload-arch={arch}", *HIP_OPTIONS)
        nvrtc.compileProgram(made, options)
        # CuPy takes the last byte of machine code for the end of a text, and leaves it out.
        return bytes(nvrtc.getCUBIN(made)) + b"\0" if arch.startswith("sm_") else bytes(nvrtc.getPTX(made))
    except nvrtc.NVRTCError as error:
        raise ToolchainError(f"the compiler refused a kernel: {error}: {nvrtc.getProgramLog(made)}") from None
    finally:
        nvrtc.destroyProgram(made)
