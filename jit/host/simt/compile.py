"""Kernels compiled for a block shape: found in the cache or made."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod
from typing import Final

from blake3 import blake3

from jit.errors import KernelRefused
from jit.host.simt.function import kernel_text
from jit.host.simt.runtime import NAMES, RUNTIME_TEXT
from jit.host.toolchain import Toolchain, c_function
from jit.kernels.launch import Dim3, KernelOptions
from wis.kernel.layout import shared_bytes
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.verify import VerifiedKernel

__all__ = ["HostKernel", "KernelCompiler"]

_VERSION: Final = 4
"""Of the code generator: objects of another one are not used."""


@dataclass(frozen=True, slots=True)
class HostKernel:
    """``address``: its function (see function); ``scratch_bytes``: what a thread that runs it needs."""

    verified: VerifiedKernel
    block: Dim3
    dynamic_bytes: int
    options: KernelOptions
    address: int
    scratch_bytes: int


class KernelCompiler:
    """Compiles kernels with one toolchain, each once."""

    def __init__(self, toolchain: Toolchain) -> None:
        self._toolchain = toolchain
        self._known: dict[str, HostKernel] = {}
        toolchain.functions(RUNTIME_TEXT, NAMES, lambda: RUNTIME_TEXT, optimise=True)

    def prepare(self, verified: VerifiedKernel, block: Dim3, dynamic_bytes: int, options: KernelOptions, *, foreign: bool) -> HostKernel:
        """Raises KernelRefused when a block cannot have this shape or this much memory, or compiling takes too much."""
        kernel = verified.kernel
        if min(block) < 1 or prod(block) > kernel.threads_max:
            raise KernelRefused(f"blocks of {block[0]} x {block[1]} x {block[2]} threads, accepted are 1 to {kernel.threads_max}")
        if dynamic_bytes < 0 or (dynamic_bytes and not kernel.dynamic):
            raise KernelRefused(f"{dynamic_bytes} dynamic bytes of shared memory for a kernel that takes none")
        if shared_bytes(kernel, dynamic_bytes) > KERNEL_LIMITS.dynamic_shared_bytes_max:
            most = KERNEL_LIMITS.dynamic_shared_bytes_max
            raise KernelRefused(f"{shared_bytes(kernel, dynamic_bytes)} bytes of shared memory, at most {most} are accepted")
        key = f"simt {_VERSION}\n{verified.digest.hex()}\n{block}\n{dynamic_bytes}\n{options}"
        name = "kernel_" + blake3(key.encode()).hexdigest(16)
        if name not in self._known:
            found = self._toolchain.functions(
                key,
                (name, f"{name}_scratch"),
                lambda: kernel_text(verified, name, block, dynamic_bytes, options),
                optimise=True,
                foreign=foreign,
            )
            need = c_function(found[f"{name}_scratch"], ctypes.c_int64)()
            self._known[name] = HostKernel(verified, block, dynamic_bytes, options, found[name], need)
        return self._known[name]
