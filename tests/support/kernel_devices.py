"""Devices that run single kernels of the kernel tier, one class a back end, behind one protocol."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from jit.accel.device import Device, Request
from jit.accel.foreign import BLOCKS_MAX
from jit.accel.memory import SCRATCH_BYTES_MAX
from jit.cache import ObjectCache
from jit.errors import KernelRefused
from jit.host.simt.run import GridRunner, HostKernel, KernelCompiler
from jit.host.simt.run import Region as HostRegion
from jit.host.toolchain import Toolchain
from jit.host.walker import Walker
from jit.kernels.cfamily import Region, fresh_state, launch_words
from jit.kernels.launch import CHECKED, Dim3, KernelLaunch, KernelOptions, KernelOutcome
from wis.kernel import interpret
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import Access, BufferParam, shared_bytes
from wis.kernel.traps import trap_of
from wis.kernel.verify import VerifiedKernel

__all__ = [
    "AccelKernels",
    "Bytes",
    "HostKernels",
    "KERNEL_DEVICES",
    "KernelDevice",
    "PreparedKernel",
    "ReferenceKernels",
    "cuda_kernels",
    "gpu_name",
    "opencl_kernels",
]

Bytes = npt.NDArray[np.uint8]
_ADDRESS_SHIFT: Final = 40


class PreparedKernel(Protocol):
    """A compiled kernel for one block shape and one amount of dynamic shared memory."""

    @property
    def verified(self) -> VerifiedKernel: ...


class KernelDevice(Protocol):
    """One device that runs kernels. Raises KernelRefused for what the device cannot do (block shape, shared memory, compile)."""

    def prepare(self, verified: VerifiedKernel, block: Dim3, dynamic_bytes: int = 0, options: KernelOptions = ...) -> PreparedKernel:
        """Compile, or find the result of doing so earlier."""
        ...

    def run(
        self, prepared: PreparedKernel, launch: KernelLaunch, params: Sequence[Bytes | int | float], addresses: Sequence[int] | None = None
    ) -> KernelOutcome:
        """Run on host arrays, which hold the results afterwards.

        ``params``: a 1-D u8 array a buffer, a number a scalar. ``addresses``: one a parameter (scalars: anything), for the space ARENA;
        None: (i + 1) << 40 for parameter i.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class _ReferencePrepared:
    verified: VerifiedKernel


class ReferenceKernels:
    """A KernelDevice that compiles nothing: every run checks, counts and takes fuel, whatever the options say."""

    def prepare(self, verified: VerifiedKernel, block: Dim3, dynamic_bytes: int = 0, options: KernelOptions = CHECKED) -> PreparedKernel:
        if min(block) < 1 or prod(block) > verified.kernel.threads_max:
            raise KernelRefused(f"blocks of {block[0]} x {block[1]} x {block[2]} threads, accepted are 1 to {verified.kernel.threads_max}")
        if dynamic_bytes and not verified.kernel.dynamic:
            raise KernelRefused(f"{dynamic_bytes} dynamic bytes of shared memory for a kernel that takes none")
        return _ReferencePrepared(verified)

    def run(
        self, prepared: PreparedKernel, launch: KernelLaunch, params: Sequence[Bytes | int | float], addresses: Sequence[int] | None = None
    ) -> KernelOutcome:
        where = interpret.Launch(launch.grid, launch.block, launch.first, launch.count, launch.dynamic_bytes)
        try:
            outcome = interpret.launch(prepared.verified, where, params, launch.fuel, addresses)
        except ValueError as error:
            raise KernelRefused(str(error)) from None
        return KernelOutcome(outcome.instructions, outcome.out_of_fuel, outcome.trap)

    def close(self) -> None:
        pass


class HostKernels:
    """A KernelDevice. ``cache``: folder of compiled objects, None: nothing is kept."""

    def __init__(self, cache: Path | None = None, threads: int | None = None) -> None:
        toolchain = Toolchain(ObjectCache(cache))
        self._compiler = KernelCompiler(toolchain)
        self._walker = Walker(toolchain, threads or os.cpu_count() or 1)
        self.runner = GridRunner(self._walker)
        self._lock = threading.Lock()

    def prepare(self, verified: VerifiedKernel, block: Dim3, dynamic_bytes: int = 0, options: KernelOptions = CHECKED) -> HostKernel:
        return self._compiler.prepare(verified, block, dynamic_bytes, options, foreign=False)

    def run(
        self, prepared: PreparedKernel, launch: KernelLaunch, params: Sequence[Bytes | int | float], addresses: Sequence[int] | None = None
    ) -> KernelOutcome:
        assert isinstance(prepared, HostKernel)
        given = [
            _region(number, value, (number + 1) << _ADDRESS_SHIFT if addresses is None else addresses[number])
            if isinstance(value, np.ndarray)
            else value
            for number, value in enumerate(params)
        ]
        with self._lock:
            self.runner.begin()
            return self.runner.run(prepared, launch, given)

    def close(self) -> None:
        self._walker.close()

    def __del__(self) -> None:
        """The helper threads watch memory of the walker's: they end before it goes (at the end of the process nothing goes)."""
        if not sys.is_finalizing() and hasattr(self, "_walker"):
            self.close()


def _region(number: int, array: Bytes, address: int) -> HostRegion:
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise KernelRefused(f"parameter {number} must be a 1-D u8 array")
    return array.ctypes.data, array.nbytes, address


@dataclass(frozen=True, slots=True)
class _Prepared:
    verified: VerifiedKernel
    block: Dim3
    dynamic_bytes: int
    compiled: Any


class AccelKernels:
    """A KernelDevice on ``device``, which it closes."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._prepared: dict[tuple[bytes, Dim3, int, KernelOptions], _Prepared] = {}

    def prepare(self, verified: VerifiedKernel, block: Dim3, dynamic_bytes: int = 0, options: KernelOptions = CHECKED) -> PreparedKernel:
        key = verified.digest, block, dynamic_bytes, options
        if key not in self._prepared:
            _check(verified, block, dynamic_bytes)
            (compiled,) = self._device.compile([Request(verified, block, dynamic_bytes, options, foreign=True)])
            self._prepared[key] = _Prepared(verified, block, dynamic_bytes, compiled)
        return self._prepared[key]

    def run(
        self, prepared: PreparedKernel, launch: KernelLaunch, params: Sequence[Bytes | int | float], addresses: Sequence[int] | None = None
    ) -> KernelOutcome:
        assert isinstance(prepared, _Prepared)
        _check_launch(prepared, launch, params)
        device, kernel = self._device, prepared.verified.kernel
        buffers: list[Any] = []
        given: list[Region | int | float] = []
        for i, x in enumerate(params):
            if isinstance(x, np.ndarray):
                buffers.append(device.allocate(x.nbytes))
                device.write(buffers[-1], 0, x)
                given.append(Region(0, x.nbytes, addresses[i] if addresses is not None else (i + 1) << _ADDRESS_SHIFT))
            else:
                given.append(x)
        begin = fresh_state(launch.fuel).view(np.uint8)
        state = device.allocate(begin.nbytes)
        device.write(state, 0, begin)
        self._blocks(prepared, launch, given, buffers, state)
        arrays = ((p, x) for p, x in zip(kernel.params, params, strict=True) if isinstance(x, np.ndarray))
        for (param, x), buffer in zip(arrays, buffers, strict=True):
            if isinstance(param, BufferParam) and param.access & Access.WRITE:
                x[:] = device.read(buffer, 0, x.nbytes)
        key, instructions, fuel = (int(word) for word in device.read(state, 0, 24).view(np.uint64))
        return KernelOutcome(instructions, instructions > fuel, trap_of(key))

    def _blocks(
        self, prepared: _Prepared, launch: KernelLaunch, given: Sequence[Region | int | float], buffers: list[Any], state: Any
    ) -> None:
        """Launch them, as many at a time as have room in scratch memory, until the fuel is spent."""
        device, scratch_bytes = self._device, prepared.compiled.scratch_bytes
        end = launch.first + (prod(launch.grid) - launch.first if launch.count is None else launch.count)
        most = max(1, min(BLOCKS_MAX, SCRATCH_BYTES_MAX // max(1, scratch_bytes)))
        scratch = device.allocate(scratch_bytes * min(most, end - launch.first)) if scratch_bytes else None
        first = launch.first
        while first < end:
            count = min(most, end - first)
            words = launch_words(prepared.verified.kernel, given, launch.grid, first, count)
            table = device.allocate(words.nbytes)
            device.write(table, 0, words.view(np.uint8))
            device.launch(prepared.compiled, count, buffers, table, 0, state, scratch)
            device.finish()
            _, spent, fuel = (int(word) for word in device.read(state, 0, 24).view(np.uint64))
            first = end if spent > fuel else first + count

    def close(self) -> None:
        self._prepared.clear()
        self._device.close()


def _check(verified: VerifiedKernel, block: Dim3, dynamic_bytes: int) -> None:
    kernel = verified.kernel
    if min(block) < 1 or prod(block) > kernel.threads_max:
        raise KernelRefused(f"blocks of {block[0]} x {block[1]} x {block[2]} threads, accepted are 1 to {kernel.threads_max}")
    if dynamic_bytes and not kernel.dynamic:
        raise KernelRefused(f"{dynamic_bytes} dynamic bytes of shared memory for a kernel that takes none")
    total, most = shared_bytes(kernel, dynamic_bytes), KERNEL_LIMITS.dynamic_shared_bytes_max
    if dynamic_bytes < 0 or (dynamic_bytes and total > most):
        raise KernelRefused(f"{dynamic_bytes} dynamic bytes, {total} bytes of shared memory together; accepted are 0 to {most}")


def _check_launch(prepared: _Prepared, launch: KernelLaunch, params: Sequence[Bytes | int | float]) -> None:
    kernel, total = prepared.verified.kernel, prod(launch.grid)
    if (launch.block, launch.dynamic_bytes) != (prepared.block, prepared.dynamic_bytes):
        raise KernelRefused(f"prepared for blocks of {prepared.block} and {prepared.dynamic_bytes} dynamic bytes")
    if min(launch.grid) < 1 or total > KERNEL_LIMITS.grid_blocks_max:
        raise KernelRefused(f"a grid of {total} blocks, accepted are 1 to {KERNEL_LIMITS.grid_blocks_max}")
    if launch.first < 0 or launch.first + (launch.count or 0) > total or (launch.count is not None and launch.count < 0):
        raise KernelRefused(f"blocks {launch.first} and {launch.count} more of {total}")
    if len(params) != len(kernel.params):
        raise KernelRefused(f"the kernel has {len(kernel.params)} parameters, {len(params)} were given")
    for i, (param, x) in enumerate(zip(kernel.params, params, strict=True)):
        if isinstance(param, BufferParam) != isinstance(x, np.ndarray):
            raise KernelRefused(f"parameter {i} is {'a buffer' if isinstance(param, BufferParam) else 'a number'}")


def opencl_kernels() -> AccelKernels:
    """Raises ToolchainError when the machine lacks what OpenCL needs."""
    from jit.opencl import OpenclDevice

    return AccelKernels(OpenclDevice(ObjectCache(None)))


def cuda_kernels() -> AccelKernels:
    """Raises ToolchainError when the machine lacks what CUDA needs."""
    from jit.cuda import CudaDevice

    return AccelKernels(CudaDevice(ObjectCache(None)))


def gpu_name() -> str:
    """The GPU of this machine, as its driver calls it."""
    from jit.cuda import CudaDevice

    return CudaDevice(ObjectCache(None)).facts.name


KERNEL_DEVICES: Final[dict[str, Callable[[], KernelDevice]]] = {
    "reference": ReferenceKernels, "host": HostKernels, "opencl": opencl_kernels, "cuda": cuda_kernels,
}  # fmt: skip
"""Makers of kernel devices by back end; raise ToolchainError when the machine lacks what they need."""
