"""Kernels on an OpenCL device."""

from __future__ import annotations

from jit.accel.kernels import AccelKernels
from jit.cache import ObjectCache
from jit.opencl.device import OpenclDevice

__all__ = ["OpenclKernels"]


class OpenclKernels(AccelKernels):
    """A KernelDevice. Raises ToolchainError when the machine lacks what it needs."""

    def __init__(self) -> None:
        super().__init__(OpenclDevice(ObjectCache(None)))
