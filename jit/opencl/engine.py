"""The engine of the opencl backend."""

from __future__ import annotations

import os

from jit.accel.engine import AccelEngine
from jit.cache import ObjectCache
from jit.compiling.process import CompileProcess
from jit.engine import EngineConfig
from jit.opencl.device import OpenclDevice

__all__ = ["opencl_engine"]


def opencl_engine(config: EngineConfig) -> AccelEngine:
    """Raises ToolchainError when the machine lacks what it needs."""
    if config.cache_dir is not None:  # PoCL keeps machine code by block shape beside its programs, wherever this says when it starts
        os.environ.setdefault("POCL_CACHE_DIR", str(config.cache_dir / "pocl"))
    folder = None if config.cache_dir is None else config.cache_dir / "opencl"
    return AccelEngine(OpenclDevice(ObjectCache(folder), config.threads, CompileProcess(), number=config.device), "opencl", config)
