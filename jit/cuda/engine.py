"""The engine of the cuda backend."""

from __future__ import annotations

from jit.accel.engine import AccelEngine
from jit.cache import ObjectCache
from jit.compiling.process import CompileProcess
from jit.cuda.device import CudaDevice
from jit.engine import EngineConfig

__all__ = ["cuda_engine"]


def cuda_engine(config: EngineConfig) -> AccelEngine:
    """Raises ToolchainError when the machine lacks what it needs."""
    folder = None if config.cache_dir is None else config.cache_dir / "cuda"
    return AccelEngine(CudaDevice(ObjectCache(folder), config.device, CompileProcess()), "cuda", config)
