"""Kernels on a CUDA (or ROCm) device."""

from __future__ import annotations

from jit.accel.kernels import AccelKernels
from jit.cache import ObjectCache
from jit.cuda.device import CudaDevice

__all__ = ["CudaKernels"]


class CudaKernels(AccelKernels):
    """A KernelDevice. Raises ToolchainError when the machine lacks what it needs."""

    def __init__(self) -> None:
        super().__init__(CudaDevice(ObjectCache(None)))
