"""Interface of a back end to single kernels: compile one for a block shape, run some blocks of a grid, account for it.

The engines' ``launch`` instruction, the tests of the kernel corpus and the benchmarks use this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from wis.kernel.traps import Trap
from wis.kernel.verify import VerifiedKernel

__all__ = ["Dim3", "CHECKED", "KernelOptions", "KernelLaunch", "KernelOutcome", "PreparedKernel", "KernelDevice", "KERNEL_DEVICES"]

Dim3 = tuple[int, int, int]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class KernelOptions:
    """What is woven into the code. All are on in production; benchmarks turn single ones off to see what they cost."""

    check: bool = True  # accesses outside of their memory load 0, store nothing, trap
    meter: bool = True  # count thread-instructions
    fuel: bool = True  # stop when they exceed the launch's fuel (needs meter)


CHECKED: Final = KernelOptions()
"""Everything on."""


@dataclass(frozen=True, slots=True)
class KernelLaunch:
    """A grid of blocks, or the slice ``first .. first + count - 1`` of it (row-major, x fastest).

    ``fuel``: thread-instructions; None: no limit.
    """

    grid: Dim3
    block: Dim3
    dynamic_bytes: int = 0
    first: int = 0
    count: int | None = None
    fuel: int | None = None


@dataclass(frozen=True, slots=True)
class KernelOutcome:
    """``instructions``: exact thread-instructions (0 when not metered); ``trap``: the first one, by the order of wis.kernel.traps.

    Out of fuel: the launch stopped early, its memory is undefined, and ``instructions`` exceeds the fuel.
    """

    instructions: int
    out_of_fuel: bool
    trap: Trap | None


class PreparedKernel(Protocol):
    """A compiled kernel for one block shape and one amount of dynamic shared memory."""

    @property
    def verified(self) -> VerifiedKernel: ...


class KernelDevice(Protocol):
    """One device that runs kernels. Raises jit.errors.KernelRefused for what the device cannot do (block shape, shared memory, compile)."""

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


def _reference() -> KernelDevice:
    from jit.kernels.reference import ReferenceKernels

    return ReferenceKernels()


def _host() -> KernelDevice:
    from jit.host.simt.device import HostKernels

    return HostKernels()


def _opencl() -> KernelDevice:
    from jit.opencl.kernels import OpenclKernels

    return OpenclKernels()


def _cuda() -> KernelDevice:
    from jit.cuda.kernels import CudaKernels

    return CudaKernels()


KERNEL_DEVICES: Final[dict[str, Callable[[], KernelDevice]]] = {"reference": _reference, "host": _host, "opencl": _opencl, "cuda": _cuda}
"""Makers of kernel devices by back end; raise jit.errors.ToolchainError when the machine lacks what they need."""
