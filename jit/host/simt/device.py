"""The CPU as a device for single kernels."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from jit.cache import ObjectCache
from jit.errors import KernelRefused
from jit.host.simt.compile import HostKernel, KernelCompiler
from jit.host.simt.run import GridRunner, Region
from jit.host.toolchain import Toolchain
from jit.host.walker import Walker
from jit.kernels.device import CHECKED, Bytes, Dim3, KernelLaunch, KernelOptions, KernelOutcome, PreparedKernel
from wis.kernel.verify import VerifiedKernel

__all__ = ["HostKernels"]

_ADDRESS_SHIFT: Final = 40


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


def _region(number: int, array: Bytes, address: int) -> Region:
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise KernelRefused(f"parameter {number} must be a 1-D u8 array")
    return array.ctypes.data, array.nbytes, address
