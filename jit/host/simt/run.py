"""Kernels compiled for a block shape, found in the cache or made, and run: a grid in slices of about a millisecond, each shared by the
machine's threads.

A launch stops when the walker does, between two claims of a slice, and goes on at the block where it stopped; what was counted and trapped
so far goes with it. Blocks that began are never cut. A launch may stop whether its kernel has a certificate or not: blocks begin in order
here anyway, and between two of them no other code reads the session's memory. ``interrupt`` also ends blocks: the limit in the launch's
state ends them at the next way back of a loop, and the launch cannot go on.
"""

from __future__ import annotations

import ctypes
import math
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np
from blake3 import blake3

from jit.errors import Interrupted, KernelRefused
from jit.host.simt.function import ARGS_FIXED, ARGS_PARAM, kernel_text
from jit.host.simt.runtime import LIMIT, NAMES, RUNTIME_TEXT, SPENT, STATE_WORDS, TRAP
from jit.host.toolchain import Toolchain, c_function
from jit.host.walker import Walker
from jit.kernels.launch import Dim3, KernelLaunch, KernelOptions, KernelOutcome
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import BufferParam, RegType, ScalarParam, shared_bytes
from wis.kernel.traps import NO_TRAP, trap_of
from wis.kernel.verify import VerifiedKernel

__all__ = ["Grid", "GridRunner", "HostKernel", "KernelCompiler", "Region", "scalar_bits"]

_VERSION: Final = 7
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


Region = tuple[int, int, int]
"""Of a buffer: address in this process, bytes, address in the space ARENA."""

_NO_LIMIT: Final = (1 << 63) - 1
_SLICE_NS: Final = 1_000_000
_CHUNKS: Final = 16  # a thread's share of a slice, so that uneven blocks even out
_GROWTH: Final = 8
ARGS_KEPT: Final = 256  # words of arguments that need no array of their own


@dataclass(slots=True)
class Grid:
    """A launch under way: blocks from ``first`` to ``end`` are left; what those before left in the launch's state."""

    kernel: HostKernel
    launch: KernelLaunch
    first: int
    end: int
    trap: int = NO_TRAP
    spent: int = 0


class GridRunner:
    """Runs kernels with the threads of one walker, one launch at a time. ``slice_ns`` 0: every launch is one slice."""

    def __init__(self, walker: Walker, slice_ns: int = _SLICE_NS) -> None:
        self._walker = walker
        self.slice_ns = slice_ns
        self._state = np.zeros(STATE_WORDS, np.int64)
        self._spoiled = False
        self._pieces = walker.threads * _CHUNKS
        self._chunks = np.zeros((self._pieces, 4), np.int64)  # function, arguments, first and end of a range of blocks
        self._claims = np.arange(self._pieces + 1, dtype=np.int64)
        self._phases = np.zeros(2, np.int64)
        self._args = np.zeros(ARGS_KEPT, np.int64)
        # Asking an array where it is takes as long as a small kernel.
        self._state_at, self._phases_at = self._state.ctypes.data, self._phases.ctypes.data
        self._args_at = self._args.ctypes.data
        self._claims_at, self._chunks_at = self._claims.ctypes.data, self._chunks.ctypes.data
        self._block_ns: dict[int, float] = {}  # by function: what a block took lately

    def begin(self) -> None:
        """Forget an ``interrupt`` of earlier launches; before the first one of a run."""
        self._spoiled = False
        self._walker.clear_stop()

    def run(self, kernel: HostKernel, launch: KernelLaunch, params: Sequence[Region | int | float]) -> KernelOutcome:
        """A launch from its begin to its end. Raises KernelRefused when it does not fit the kernel, Interrupted after ``interrupt``."""
        outcome = self.go(self.open(kernel, launch), params)
        if outcome is None:
            raise Interrupted("the launch was stopped between two blocks")
        return outcome

    def open(self, kernel: HostKernel, launch: KernelLaunch) -> Grid:
        """A launch of which no block ran. Raises KernelRefused when it does not fit the kernel."""
        first, end = _blocks(kernel, launch)
        return Grid(kernel, launch, first, end)

    def go(self, grid: Grid, params: Sequence[Region | int | float]) -> KernelOutcome | None:
        """Run the blocks that are left; None when the walker stopped before the end.

        Raises KernelRefused when the parameters do not fit the kernel, Interrupted after ``interrupt``.
        """
        kernel, launch = grid.kernel, grid.launch
        words = _arguments(kernel, launch, params, self._state_at)
        args = self._args if len(words) <= ARGS_KEPT else np.zeros(len(words), np.int64)
        args[: len(words)] = words
        state, walker = self._state, self._walker
        state[TRAP], state[SPENT] = grid.trap, grid.spent
        state[LIMIT] = _NO_LIMIT if launch.fuel is None else min(launch.fuel, _NO_LIMIT)
        walker.reserve(kernel.scratch_bytes)
        self._chunks[:, 0], self._chunks[:, 1] = kernel.address, self._args_at if args is self._args else args.ctypes.data
        walker.tables(self._claims_at, self._chunks_at)
        size = self._slice_blocks(kernel.address, grid.end - grid.first) if self.slice_ns else grid.end - grid.first
        while grid.first < grid.end and state[LIMIT] >= 0 and not self._spoiled:
            start = time.monotonic_ns()
            wanted = min(size, grid.end - grid.first)
            count = self._slice(grid.first, wanted)
            grid.first += count
            if count:
                self._block_ns[kernel.address] = max(1, time.monotonic_ns() - start) / count
            if count < wanted and state[LIMIT] >= 0 and not self._spoiled:
                grid.trap, grid.spent = int(state[TRAP]), int(state[SPENT])
                return None
            if self.slice_ns and grid.first < grid.end:
                size = min(size * _GROWTH, self._slice_blocks(kernel.address, grid.end - grid.first))
        if self._spoiled:
            raise Interrupted("the launch was stopped")
        spent = int(state[SPENT])
        out_of_fuel = kernel.options.meter and kernel.options.fuel and launch.fuel is not None and spent > launch.fuel
        return KernelOutcome(spent, out_of_fuel, trap_of(int(state[TRAP])))

    def _slice_blocks(self, address: int, left: int) -> int:
        """How many of the blocks that are left fill a slice, by what one took last; a few of a kernel that never ran.

        Slices are even, and none is shorter than it need be: each has an end at which threads wait for each other.
        """
        block_ns = self._block_ns.get(address)
        if block_ns is None:
            return self._pieces
        slices = max(1, int(left * block_ns / self.slice_ns))
        return max(1, -(-left // slices))

    def _slice(self, first: int, count: int) -> int:
        """``count`` blocks in one phase; returns how many ran."""
        n = min(count, self._pieces)
        marks = first + count * self._claims[: n + 1] // n
        self._chunks[:n, 2], self._chunks[:n, 3] = marks[:-1], marks[1:]
        self._phases[1] = n
        phase, claim = self._walker.walk(self._phases_at, 1)
        return count if phase else int(marks[claim]) - first

    def interrupt(self) -> None:
        """End the launch in progress soon, within a block; it cannot go on."""
        self._spoiled = True
        self._state[LIMIT] = -1
        self._walker.stop()


def _blocks(kernel: HostKernel, launch: KernelLaunch) -> tuple[int, int]:
    total = math.prod(launch.grid)
    if min(launch.grid) < 1 or total > KERNEL_LIMITS.grid_blocks_max:
        raise KernelRefused(f"a grid of {total} blocks, accepted are 1 to {KERNEL_LIMITS.grid_blocks_max}")
    if launch.block != kernel.block or launch.dynamic_bytes != kernel.dynamic_bytes:
        raise KernelRefused("the launch's shape of block or dynamic shared memory is not what the kernel was prepared for")
    count = total - launch.first if launch.count is None else launch.count
    if launch.first < 0 or count < 0 or launch.first + count > total:
        raise KernelRefused(f"blocks {launch.first} to {launch.first + count} of {total}")
    return launch.first, launch.first + count


def _arguments(kernel: HostKernel, launch: KernelLaunch, params: Sequence[Region | int | float], state: int) -> list[int]:
    """The words of a launch's argument block; ``state``: the address of its state."""
    given = kernel.verified.kernel.params
    if len(params) != len(given):
        raise KernelRefused(f"the kernel has {len(given)} parameters, {len(params)} were given")
    words = [state, *launch.grid, *_PADDING]
    for number, (param, value) in enumerate(zip(given, params, strict=True)):
        if isinstance(param, BufferParam):
            if not isinstance(value, tuple):
                raise KernelRefused(f"parameter {number} must be a buffer")
            words += value
            words.append(param.access)
        else:
            if isinstance(value, tuple):
                raise KernelRefused(f"parameter {number} must be a number")
            words += (scalar_bits(param, value), 0, 0, 0)
    return words


_PADDING: Final = (0,) * (ARGS_FIXED - 4)
assert ARGS_PARAM == 4
_F32, _F64 = struct.Struct("<f"), struct.Struct("<d")
_KINDS: Final = {
    RegType.PRED: np.bool_, RegType.I16: np.int16, RegType.I32: np.int32, RegType.I64: np.int64, RegType.F16: np.float16,
    RegType.F32: np.float32, RegType.F64: np.float64,
}  # fmt: skip


def scalar_bits(param: ScalarParam, value: int | float) -> int:
    """The parameter's bits as its register holds them, as an i64."""
    kind = RegType(param.reg_type)
    if kind is RegType.PRED:
        return int(bool(value))
    if kind in (RegType.I16, RegType.I32, RegType.I64):
        bits = int(value) & (1 << kind.bits) - 1
        return bits - (bits >> 63 << 64)
    if kind is RegType.F32:
        try:
            return int.from_bytes(_F32.pack(value), "little")
        except OverflowError:  # rounds to an infinity
            return int.from_bytes(_F32.pack(math.copysign(math.inf, value)), "little")
    if kind is RegType.F64:
        return int.from_bytes(_F64.pack(value), "little", signed=True)
    if kind is RegType.BF16:
        import ml_dtypes

        return int(np.asarray(value, ml_dtypes.bfloat16).view(np.uint16))
    return int(np.asarray(value, _KINDS[kind]).view(f"i{kind.bits // 8}"))
