"""Kernels on an OpenCL device. May live here: putting the shared kernel device on it. May not: anything else."""

from __future__ import annotations

from jit.accel.kernels import AccelKernels
from jit.cache import ObjectCache
from jit.opencl.device import OpenclDevice

__all__ = ["OpenclKernels"]


class OpenclKernels(AccelKernels):
    """A KernelDevice. Raises ToolchainError when the machine lacks what it needs."""

    def __init__(self) -> None:
        super().__init__(OpenclDevice(ObjectCache(None)))
