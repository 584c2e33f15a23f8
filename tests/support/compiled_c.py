"""A kernel device that compiles the C99 form of kernels with the machine's compiler: the block form without any OpenCL."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from jit.kernels.cfamily import C99, Region, Source, emit, fresh_state, launch_words
from jit.kernels.launch import CHECKED, Dim3, KernelLaunch, KernelOptions, KernelOutcome
from tests.support.kernel_devices import Bytes, PreparedKernel
from wis.kernel.traps import trap_of
from wis.kernel.verify import VerifiedKernel

__all__ = ["COMPILER", "CompiledC"]

COMPILER = shutil.which("cc")
"""None: there is none."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    verified: VerifiedKernel
    source: Source
    function: Any


class CompiledC:
    """A KernelDevice. ``flags``: more options for the compiler."""

    def __init__(self, folder: Path, flags: Sequence[str] = ("-O1",)) -> None:
        self._folder, self._flags = folder, flags

    def prepare(self, verified: VerifiedKernel, block: Dim3, dynamic_bytes: int = 0, options: KernelOptions = CHECKED) -> PreparedKernel:
        source = emit(verified, C99, block, options, dynamic_bytes=dynamic_bytes)
        text, library = self._folder / f"{source.entry}.c", self._folder / f"{source.entry}.so"
        text.write_text(source.text)
        assert COMPILER is not None
        command = [COMPILER, "-std=gnu99", "-ffp-contract=off", "-shared", "-fPIC", *self._flags, "-o", str(library), str(text), "-lm"]
        subprocess.run(command, check=True)
        return _Prepared(verified, source, getattr(ctypes.CDLL(str(library)), source.entry))

    def run(
        self, prepared: PreparedKernel, launch: KernelLaunch, params: Sequence[Bytes | int | float], addresses: Sequence[int] | None = None
    ) -> KernelOutcome:
        assert isinstance(prepared, _Prepared)
        given: list[Region | int | float] = []
        pointers: list[Any] = []
        for i, x in enumerate(params):
            if isinstance(x, np.ndarray):
                pointers.append(ctypes.c_void_p(x.ctypes.data))
                given.append(Region(0, x.nbytes, addresses[i] if addresses is not None else (i + 1) << 40))
            else:
                given.append(x)
        count = prod(launch.grid) - launch.first if launch.count is None else launch.count
        words = launch_words(prepared.verified.kernel, given, launch.grid, launch.first, count)
        state, scratch = fresh_state(launch.fuel), np.zeros(max(1, prepared.source.scratch_bytes * count), np.uint8)
        rest = [ctypes.c_void_p(words.ctypes.data), ctypes.c_uint64(0), ctypes.c_void_p(state.ctypes.data)]
        prepared.function(*pointers, *rest, ctypes.c_void_p(scratch.ctypes.data))
        key, instructions, fuel = (int(word) for word in state[:3])
        return KernelOutcome(instructions, instructions > fuel, trap_of(key))

    def close(self) -> None:
        pass
