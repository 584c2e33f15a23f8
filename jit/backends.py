"""Table of back ends, and creation of an engine by the name of one.

A back end is imported when its first engine is created: `host` needs LLVM, `opencl` and `cuda` the libraries of their devices.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

from jit.cache import ObjectCache
from jit.compiling.process import CompileLimits, CompileProcess
from jit.engine import Engine, EngineConfig
from jit.errors import UnknownBackend

FUEL: Final[dict[str, int]] = {"reference": 1 << 33, "host": 1 << 38, "opencl": 1 << 40, "cuda": 1 << 46}
"""Thread-instructions that one launch may execute unless the operator says otherwise: about a minute of each kind of device."""


def _reference(config: EngineConfig) -> Engine:
    from jit.reference import ReferenceEngine

    return ReferenceEngine(config)


def _host(config: EngineConfig) -> Engine:
    from jit.host.engine import HostEngine

    return HostEngine(config)


def _opencl(config: EngineConfig) -> Engine:
    from jit.accel.engine import AccelEngine
    from jit.opencl import OpenclDevice

    if config.cache_dir is not None:  # PoCL keeps machine code by block shape beside its programs, wherever this says when it starts
        os.environ.setdefault("POCL_CACHE_DIR", str(config.cache_dir / "pocl"))
    device = OpenclDevice(ObjectCache(_folder(config, "opencl")), config.threads, _compiler(config), number=config.device)
    return AccelEngine(device, "opencl", config)


def _cuda(config: EngineConfig) -> Engine:
    from jit.accel.engine import AccelEngine
    from jit.cuda import CudaDevice

    device = CudaDevice(ObjectCache(_folder(config, "cuda")), config.device, _compiler(config))
    return AccelEngine(device, "cuda", replace(config, vram_bytes=config.vram_bytes or device.offered_bytes))


def _compiler(config: EngineConfig) -> CompileProcess:
    return CompileProcess(CompileLimits.within(config.compile_ms))


def _folder(config: EngineConfig, name: str) -> Path | None:
    return None if config.cache_dir is None else config.cache_dir / name


BACKENDS: Final[dict[str, Callable[[EngineConfig], Engine]]] = {
    "reference": _reference, "host": _host, "opencl": _opencl, "cuda": _cuda,
}  # fmt: skip
"""Every backend there is. To add one: write its engine, add a line here and to the conformance matrix."""


def create_engine(
    backend: str = "host",
    *,
    cache_dir: Path | None,
    threads: int,
    vram_bytes: int,
    fuel: int | None = None,
    device: int = 0,
    compile_ms: int | None = None,
) -> Engine:
    """An engine of this backend.

    ``fuel`` None: as ``FUEL`` says; ``vram_bytes`` 0: for `cuda`, what the device has; ``compile_ms``: processor time that one compilation
    may take, None: as ``CompileLimits`` says.

    Raises UnknownBackend, or ToolchainError when the machine lacks what it needs.
    """
    if backend not in BACKENDS:
        raise UnknownBackend(f"there is no backend {backend!r}; choose one of {', '.join(sorted(BACKENDS))}")
    if threads < 1 or vram_bytes < 0:
        raise ValueError(f"threads ({threads}) must be at least 1 and vram_bytes ({vram_bytes}) not negative")
    return BACKENDS[backend](EngineConfig(cache_dir, threads, vram_bytes, FUEL[backend] if fuel is None else fuel, device, compile_ms))
