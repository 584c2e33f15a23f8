"""The opencl back end: the shared engine on any OpenCL device, through pyopencl.

May live here: pyopencl and what is special to OpenCL. May not: plans, kernels' source (jit.kernels.cfamily).

Products on memory that the host reaches run on NumPy's BLAS, one thread of it on each of several pieces: BLAS's own threads wait for each
other actively, which costs many times the product where processors are shared. Pieces depend on shapes only, so the bits of a result do not
depend on how many threads there are.

Devices whose memory is the host's (processors, PoCL) use memory that NumPy allocated, in place; their matrix products are NumPy's, which is
OpenBLAS. Others copy. Kernels of one ``compile`` become one program, because most of the time goes into starting the compiler; its binary
is kept in the object cache.

The only module that touches pyopencl.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice, pairwise
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from blake3 import blake3

from jit.accel.device import BUFFER_WORDS, Bytes, Facts, Matrix, Request, form_of
from jit.cache import ObjectCache
from jit.compiling.process import CompileProcess
from jit.errors import KernelRefused, ToolchainError
from jit.host.library import blas
from jit.kernels.cfamily import Language, Source, emit, fresh_state, opencl, program
from wis.dtypes import DType

__all__ = ["OpenclDevice", "Products"]


Array = npt.NDArray[Any]
PIECE_WORK: Final = 1 << 23
"""Multiplications and additions worth a thread of their own."""
PIECES_MAX: Final = 8


class Products:
    """Runs products on ``threads`` threads."""

    def __init__(self, threads: int) -> None:
        blas.available()  # finds the library and sets it to one thread
        self._pool = ThreadPoolExecutor(threads, "product")

    def run(self, out: Array, a: Array, b: Array) -> None:
        """out = a b for [.., m, k] x [.., k, n] of any strides."""
        lead = out.shape[:-2]
        a, b = (np.broadcast_to(x, (*lead, *x.shape[-2:])) for x in (a, b))
        work = 2 * out.size * a.shape[-1]
        pieces = max(1, min(PIECES_MAX, work // PIECE_WORK))
        if pieces == 1:
            _product(out, a, b)
        elif lead and lead[0] > 1:
            parts = _cuts(lead[0], pieces)
            list(self._pool.map(lambda p: _product(out[p], a[p], b[p]), parts))
        else:
            b = _plain(b)
            rows = _cuts(out.shape[-2], pieces)
            list(self._pool.map(lambda p: _product(out[..., p, :], a[..., p, :], b), rows))

    def close(self) -> None:
        self._pool.shutdown()


def _cuts(n: int, pieces: int) -> list[slice]:
    marks = [n * i // pieces for i in range(pieces + 1)]
    return [slice(a, b) for a, b in pairwise(marks) if a < b]


def _product(out: Array, a: Array, b: Array) -> None:
    if _is_plain(out):
        np.matmul(_plain(a), _plain(b), out=out)
    else:
        out[...] = np.matmul(_plain(a), _plain(b))


def _plain(x: Array) -> Array:
    return x if _is_plain(x) else np.ascontiguousarray(x)


def _is_plain(x: Array) -> bool:
    """Whether BLAS takes the matrices of ``x`` as they lie: NumPy multiplies others element by element."""
    (m, n), (row, column), size = x.shape[-2:], x.strides[-2:], x.itemsize
    return x.size == 0 or (column == size and row >= n * size) or (row == size and column >= m * size)


_ALIGN_BYTES: Final = 128
_OPTIONS: Final = ("-cl-std=CL1.2",)
"""Nothing that trades exactness for speed. Correctly rounded division and square root are asked for where the device offers them."""


def _pyopencl() -> Any:
    try:
        import pyopencl
    except ImportError as error:
        raise ToolchainError(f"the opencl backend needs pyopencl: pip install 'pyopencl[pocl]' ({error})") from None
    return pyopencl


def _choose(cl: Any, number: int) -> Any:
    """The device that PYOPENCL_CTX names, else by ``number``, accelerators before processors, the one with most compute units first.

    Numbers beyond the last begin again: several engines share a device. A device whose compiler refuses an empty kernel is left out: a
    PoCL that is older than the processor it runs on knows no name for it.
    """
    try:
        if os.environ.get("PYOPENCL_CTX"):
            return cl.create_some_context(interactive=False).devices[0]
        found = [device for platform in cl.get_platforms() for device in platform.get_devices()]
    except cl.Error as error:
        raise ToolchainError(f"no OpenCL platform answers: {error}") from None
    if not found:
        raise ToolchainError("there is no OpenCL device: install a driver, or pip install 'pyopencl[pocl]' for the processor")
    found.sort(key=lambda d: (d.type & cl.device_type.CPU, -d.max_compute_units))
    working = list(islice((device for device in found if not _compiler_error(cl, device)), number + 1))
    if not working:
        text = f"the OpenCL compiler of {found[0].name} ({found[0].platform.version}) does not work: install another OpenCL driver"
        raise ToolchainError(f"{text} (for processors: the system's package pocl-opencl-icd): {_compiler_error(cl, found[0])}")
    return working[number % len(working)]


def _compiler_error(cl: Any, device: Any) -> str:
    """The error of building an empty kernel for ``device``; empty when its compiler works."""
    try:
        cl.Program(cl.Context([device]), "__kernel void nothing(void) {}").build()
    except cl.Error as error:
        return str(error)
    return ""


class CompiledKernel:
    """A kernel of a program, ready for the queue. ``given`` are the arguments set last: setting one costs as much as half a launch."""

    __slots__ = ("given", "kernel", "source")

    def __init__(self, source: Source, kernel: Any) -> None:
        self.source, self.kernel = source, kernel
        self.given: list[Any] = [self] * kernel.num_args  # equal to no argument

    @property
    def scratch_bytes(self) -> int:
        return self.source.scratch_bytes


class _Buffer:
    """Memory: ``host`` is the same memory as NumPy sees it, or None."""

    __slots__ = ("host", "memory", "nbytes")

    def __init__(self, memory: Any, nbytes: int, host: Bytes | None) -> None:
        self.memory, self.nbytes, self.host = memory, nbytes, host


class OpenclDevice:
    """``threads``: how many compute units of a processor to use (None: all). ``guard``: where user kernels are compiled.

    ``number``: which device, when there are several.

    ``unified`` False: treat the device's memory as its own even where it is not. ``language``: the OpenCL C
    of another kind of device, which this one takes too.
    """

    def __init__(
        self, cache: ObjectCache, threads: int | None = None, guard: CompileProcess | None = None, *, number: int = 0,
        unified: bool | None = None, language: Language | None = None,
    ) -> None:  # fmt: skip
        self._cl = cl = _pyopencl()
        self._cache = cache
        self._guard = guard
        device = _choose(cl, number)
        self._number = number
        processor = bool(device.type & cl.device_type.CPU)
        if processor and threads is not None and threads < device.max_compute_units:
            device = _part(cl, device, threads)
        try:
            self._context = cl.Context([device])
            self._queue = cl.CommandQueue(self._context, device, properties=cl.command_queue_properties.PROFILING_ENABLE)
        except cl.Error as error:
            raise ToolchainError(f"the OpenCL device {device.name} does not start: {error}") from None
        self._device = device
        if not _atomics64(device):
            raise ToolchainError(f"the OpenCL device {device.name} lacks 64-bit atomics (cl_khr_int64_base_atomics and extended ones)")
        # Kernels and host share the caches of a processor, so waiting for the queue is all it takes to see what they wrote.
        self._unified = processor and bool(device.host_unified_memory) if unified is None else unified
        products = frozenset((DType.F32, DType.F64)) if self._unified else frozenset[DType]()
        self.facts = Facts(device.name.strip(), device.max_compute_units, self._unified, products, max(64, device.mem_base_addr_align // 8))
        self._options = build_options(cl, device)
        self._language = language or language_of(device, self._options)
        self._seal = "\n".join((device.platform.version, device.name, device.driver_version, *self._options))
        self._products = Products(self.facts.units)
        self._nothing = self.allocate(_ALIGN_BYTES)
        self._programs: dict[str, Any] = {}
        self.compiled = 0

    # --- memory
    def allocate(self, nbytes: int) -> _Buffer:
        flags = self._cl.mem_flags
        size = max(nbytes, 1)
        try:
            if not self._unified:
                buffer = _Buffer(self._cl.Buffer(self._context, flags.READ_WRITE, size), size, None)
                self.zero(buffer, 0, size)
                self._queue.finish()  # where memory is given out late, that it is missing shows here
                return buffer
            store = np.zeros(size + _ALIGN_BYTES, np.uint8)
            start = -store.ctypes.data % _ALIGN_BYTES
            host = store[start : start + size]
            return _Buffer(self._cl.Buffer(self._context, flags.READ_WRITE | flags.USE_HOST_PTR, hostbuf=host), size, host)
        except self._cl.Error as error:
            raise MemoryError(str(error)) from None

    def reserve(self, nbytes: int) -> _Buffer | None:
        if nbytes > self._device.max_mem_alloc_size:
            return None
        try:
            if self._unified:
                return self.allocate(nbytes)
            return _Buffer(self._cl.Buffer(self._context, self._cl.mem_flags.READ_WRITE, nbytes), nbytes, None)
        except (self._cl.Error, MemoryError):
            return None

    def part(self, buffer: _Buffer, offset: int, nbytes: int) -> _Buffer:
        host = None if buffer.host is None else buffer.host[offset : offset + nbytes]
        return _Buffer(buffer.memory.get_sub_region(offset, nbytes), nbytes, host)

    def copy(self, source: _Buffer, source_offset: int, target: _Buffer, target_offset: int, nbytes: int) -> None:
        if nbytes == 0:
            return
        if source.host is not None and target.host is not None:
            self.finish()
            target.host[target_offset : target_offset + nbytes] = source.host[source_offset : source_offset + nbytes]
        else:
            self._cl.enqueue_copy(
                self._queue, target.memory, source.memory, src_offset=source_offset, dst_offset=target_offset, byte_count=nbytes
            )

    def write(self, buffer: _Buffer, offset: int, data: Bytes) -> None:
        if data.size == 0:
            return
        if buffer.host is not None:
            self.finish()
            buffer.host[offset : offset + data.size] = data
        else:
            self._cl.enqueue_copy(self._queue, buffer.memory, data, dst_offset=offset, is_blocking=True)

    def read(self, buffer: _Buffer, offset: int, nbytes: int) -> Bytes:
        if buffer.host is not None:
            self.finish()
            return buffer.host[offset : offset + nbytes]
        found = np.empty(nbytes, np.uint8)
        if nbytes:
            self._cl.enqueue_copy(self._queue, found, buffer.memory, src_offset=offset, is_blocking=True)
        return found

    def zero(self, buffer: _Buffer, offset: int, nbytes: int) -> None:
        if nbytes == 0:
            return
        if buffer.host is not None:
            self.finish()
            buffer.host[offset : offset + nbytes] = 0
        else:
            self._cl.enqueue_fill_buffer(self._queue, buffer.memory, np.uint8(0), offset, nbytes)

    def view(self, buffer: _Buffer) -> Bytes | None:
        return buffer.host

    # --- kernels
    def compile(self, requests: Sequence[Request]) -> list[CompiledKernel]:
        sources = [emit(r.verified, self._language, r.block, r.options, form_of(r), r.dynamic_bytes) for r in requests]
        own = [s for s, r in zip(sources, requests, strict=True) if not r.foreign]
        kernels: dict[str, Any] = {}
        if own:
            self._load(own, kernels, foreign=False)
        for source, request in zip(sources, requests, strict=True):
            if request.foreign:
                self._load([source], kernels, foreign=True)
        return [CompiledKernel(source, kernels[source.entry]) for source in sources]

    def _load(self, sources: Sequence[Source], kernels: dict[str, Any], *, foreign: bool) -> None:
        """Add the kernels of these sources, from the cache or compiled together."""
        missing: list[Source] = []
        for source in {s.entry: s for s in sources}.values():
            known = self._cached(source)
            if known is None:
                missing.append(source)
            else:
                kernels[source.entry] = self._kernel(known, source)
        if not missing:
            return
        text = program(missing)
        if foreign and self._guard is not None:
            (source,) = missing
            job = (self._number, text, source.entry, source.local_size, source.scratch_bytes)
            made = self._program(self._guard.compile("opencl", msgspec.msgpack.encode(job)))
        else:
            made = _built(self._cl, self._cl.Program(self._context, text), self._options, foreign=foreign)
        self.compiled += len(missing)
        for source in missing:
            kernels[source.entry] = self._kernel(made, source)
        self._keep(made, missing)

    def _key(self, source: Source) -> str:
        return blake3(f"{self._seal}\n{source.entry}\n{source.text}".encode()).hexdigest()

    def _cached(self, source: Source) -> Any:
        """The program with this kernel, from its binary; None when there is none that loads."""
        name = self._cache.get(self._key(source))
        if name is None:
            return None
        digest = name.decode()
        if digest not in self._programs:
            binary = self._cache.get(digest)
            if binary is None:
                return None
            try:
                self._programs[digest] = self._program(binary)
            except ToolchainError:  # made by another driver: compiled anew
                return None
        return self._programs[digest]

    def _keep(self, program: Any, sources: Sequence[Source]) -> None:
        (binary,) = program.get_info(self._cl.program_info.BINARIES)
        digest = blake3(binary).hexdigest()
        self._cache.put(digest, binary)
        self._programs[digest] = program
        for source in sources:
            self._cache.put(self._key(source), digest.encode())

    def _program(self, binary: bytes) -> Any:
        try:
            return _built(self._cl, self._cl.Program(self._context, [self._device], [binary]), self._options, foreign=False)
        except self._cl.Error as error:
            raise ToolchainError(f"a compiled program does not load: {error}") from None

    def _kernel(self, program: Any, source: Source) -> Any:
        try:
            kernel = self._cl.Kernel(program, source.entry)
        except self._cl.Error as error:
            raise ToolchainError(f"{source.entry} is not in its program: {error}") from None
        x, y, z = source.local_size
        most = kernel.get_work_group_info(self._cl.kernel_work_group_info.WORK_GROUP_SIZE, self._device)
        if x * y * z > most:
            raise KernelRefused(f"a block of {x * y * z} threads; this device runs at most {most} of this kernel")
        return kernel

    def launch(
        self,
        kernel: CompiledKernel,
        count: int,
        buffers: Sequence[_Buffer],
        table: _Buffer,
        at: int,
        state: _Buffer,
        scratch: _Buffer | None,
    ) -> Any:
        given, put = kernel.given, kernel.kernel.set_arg
        wanted = [b.memory for b in buffers]
        wanted += [table.memory, np.uint64(at), state.memory, (scratch or self._nothing).memory]
        for i, x in enumerate(wanted):
            if given[i] is not x:
                put(i, x)
                given[i] = x
        try:
            x, y, z = kernel.source.local_size
            return self._cl.enqueue_nd_range_kernel(self._queue, kernel.kernel, (count * x, y, z), (x, y, z))
        except self._cl.Error as error:
            raise ToolchainError(f"{kernel.source.entry} does not start: {error}") from None

    def elapsed_ns(self, marks: Sequence[Any]) -> list[int]:
        return [mark.profile.end - mark.profile.start for mark in marks]

    def product(self, dtype: DType, out: Matrix, a: Matrix, b: Matrix) -> None:
        self.finish()
        self._products.run(_array(dtype, out), _array(dtype, a), _array(dtype, b))

    def wait(self, mark: Any) -> None:
        mark.wait()

    def finish(self) -> None:
        self._queue.finish()

    def close(self) -> None:
        self._queue.finish()
        self._programs.clear()
        self._products.close()
        if self._guard is not None:
            self._guard.close()


def _array(dtype: DType, x: Matrix) -> Any:
    size = dtype.itemsize
    return np.ndarray(x.shape, dtype.numpy, x.buffer.host, x.offset, tuple(s * size for s in x.strides))


def _part(cl: Any, device: Any, units: int) -> Any:
    """A sub-device of a processor with so many compute units; the whole device where it cannot be partitioned."""
    try:
        return device.create_sub_devices([cl.device_partition_property.BY_COUNTS, units, 0])[0]
    except cl.Error:
        return device


def build_options(cl: Any, device: Any) -> tuple[str, ...]:
    """What programs are built with on this device."""
    exact = device.single_fp_config & cl.device_fp_config.CORRECTLY_ROUNDED_DIVIDE_SQRT
    return (*_OPTIONS, "-cl-fp32-correctly-rounded-divide-sqrt") if exact else _OPTIONS


def language_of(device: Any, options: Sequence[str]) -> Language:
    """OpenCL C as this device takes it."""
    return opencl(cpu=bool(device.type & 2), exact_division=any("correctly-rounded" in option for option in options))


def _atomics64(device: Any) -> bool:
    return {"cl_khr_int64_base_atomics", "cl_khr_int64_extended_atomics"} <= set(device.extensions.split())


def _built(cl: Any, program: Any, options: Sequence[str], *, foreign: bool) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", cl.CompilerWarning)  # of generated code
            return program.build(options=list(options), cache_dir=False)
    except cl.RuntimeError as error:
        raise (KernelRefused if foreign else ToolchainError)(f"the OpenCL compiler refused a kernel: {error}") from None


def compile_job(payload: bytes) -> bytes:
    """One kernel (a device's number, OpenCL C, entry, local size, scratch bytes) to the binary for that device.

    Runs in the compile process. A driver may leave most of the work to the first launch (PoCL does); so one is made here, of one block that
    finds its fuel spent, and the binary has what came of it.
    """
    cl = _pyopencl()
    number, text, entry, local_size, scratch_bytes = msgspec.msgpack.decode(payload, type=tuple[int, str, str, tuple[int, int, int], int])
    device = _choose(cl, number)
    context = cl.Context([device])
    program = _built(cl, cl.Program(context, text), build_options(cl, device), foreign=False)
    kernel = cl.Kernel(program, entry)
    copied = cl.mem_flags.READ_WRITE | cl.mem_flags.COPY_HOST_PTR
    state = fresh_state(0)
    state[1] = 1
    words = np.zeros(BUFFER_WORDS * kernel.num_args + 1024, np.uint64)
    nothing, table, spent = (cl.Buffer(context, copied, hostbuf=x) for x in (np.zeros(max(scratch_bytes, 64), np.uint8), words, state))
    kernel.set_args(*[nothing] * (kernel.num_args - 4), table, np.uint64(0), spent, nothing)
    with contextlib.suppress(cl.Error):  # what this device cannot launch is refused where it is launched
        cl.enqueue_nd_range_kernel(cl.CommandQueue(context), kernel, local_size, local_size).wait()
    (binary,) = program.get_info(cl.program_info.BINARIES)
    return bytes(binary)
