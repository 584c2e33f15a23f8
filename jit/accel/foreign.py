"""Launches of kernels that a program brings: their regions, their fuel, and running a grid in slices.

A grid whose kernel has a slice certificate is cut so that a slice takes some milliseconds (one where the run may have to stop), by the
measured time of those before; between slices the run can be stopped, and goes on at the next block with what was counted and trapped so
far. Other grids run whole: their blocks may wait for each other, so all of them have to be there. They are cut only where there are more
blocks than run at the same time anywhere, or the memory that blocks need beside their buffers would be too large.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt

from jit.accel.device import BUFFER_WORDS, GRID_WORDS, Device, Request
from jit.accel.memory import SCRATCH_BYTES_MAX, Scratch
from jit.accel.tables import Plan
from jit.kernels.cfamily import Region, fresh_state, launch_words
from jit.plan.calls import UserLaunch
from jit.runs import LaunchTotals
from wis.kernel.model import Access, BufferParam
from wis.kernel.traps import trap_of
from wis.kernel.verify import VerifiedKernel
from wis.launches import KernelCall, kernel_call, launch_params
from wis.program import BoundInstr, Operand
from wis.reference.access import Number
from wis.verify import Verified

__all__ = ["UserKernels", "Runs", "UnderWay"]

_Key = tuple[tuple[int, ...], bool]
"""Of a compiled launch: its attributes, and whether its regions overlap."""
SLICE_NS: Final = 4_000_000
"""What a slice should take: each costs some tens of microseconds to start."""
PREEMPTIBLE_NS: Final = 1_000_000
"""The same in a run that may have to stop before its end."""

BLOCKS_MAX: Final = 1 << 16
"""Blocks of a launch, so that a grid of very many ends soon after its fuel; more than run at the same time anywhere."""


class Runs(Protocol):
    """The state of a run that its launches depend on; ``jit.accel.engine`` describes the properties."""

    @property
    def stop_requested(self) -> bool: ...

    @property
    def past_deadline(self) -> bool: ...

    @property
    def preemptible(self) -> bool: ...

    @property
    def addresses(self) -> Sequence[int]: ...

    def region(self, buffer: int) -> tuple[Any, int, int]: ...

    def mark(self, mark: Any, blocks: int) -> None: ...


@dataclass(slots=True)
class _Kernel:
    """A compiled kernel; ``block_ns``: what a block took when measured last, 0 when it never was."""

    compiled: Any
    block_ns: float = 0.0


@dataclass(slots=True)
class UnderWay:
    """A launch under way: blocks from ``first`` on are left; ``state``: what those before left in the launch's state."""

    call: KernelCall
    kernel: _Kernel
    state: npt.NDArray[np.uint64]
    first: int = 0

    @property
    def spent(self) -> int:
        """Thread-instructions so far."""
        return int(self.state[1])


class UserKernels:
    """The launches of one program. ``fuel``: thread-instructions that each may execute."""

    def __init__(self, device: Device, verified: Verified, plan: Plan, scratch: Scratch, fuel: int) -> None:
        self._device = device
        self._scratch, self._fuel = scratch, fuel
        self._verified = verified
        self._kernels: dict[_Key, _Kernel] = {}
        launches = (step.instr for step in plan.steps if isinstance(step, UserLaunch))
        self._wanted = list(dict.fromkeys(self._key(step) for step in launches))
        self._table: Any = None
        self._state: Any = None

    def compile(self) -> None:
        """Raises KernelRefused, Unfinished."""
        requests = [
            Request(self._verified.kernels[k], (x, y, z), dynamic, foreign=True, aliased=aliased)
            for (k, x, y, z, dynamic), aliased in self._wanted
        ]
        for key, compiled in zip(self._wanted, self._device.compile(requests), strict=True):
            self._kernels[key] = _Kernel(compiled)

    def allocate(self) -> None:
        """Memory for the arguments and the state of a launch."""
        if self._wanted:
            words = max(BUFFER_WORDS * len(self._verified.kernels[k].kernel.params) + GRID_WORDS for (k, *_), _ in self._wanted)
            self._table, self._state = self._device.allocate(8 * words), self._device.allocate(fresh_state(None).nbytes)

    def _key(self, instr: BoundInstr) -> _Key:
        kernel = self._verified.kernels[instr.attrs[0]]
        return instr.attrs, _overlapping(kernel, launch_params(instr, kernel))

    def open(self, instr: BoundInstr, values: Sequence[Number]) -> UnderWay:
        """A launch of which no block ran. Raises LaunchError for a grid beyond the limits."""
        call = kernel_call(instr, self._verified.kernels, values)
        return UnderWay(call, self._kernels[self._key(instr)], fresh_state(self._fuel))

    def go(self, launch: UnderWay, totals: LaunchTotals, run: Runs) -> bool:
        """Run what is left of it; whether it came to its end. A piece of a run that begins with it runs one slice at least."""
        call, kernel, device = launch.call, launch.kernel, self._device
        buffers, params = self._params(call, run)
        device.finish()  # what is in the table and the state now was used
        device.write(self._state, 0, launch.state.view(np.uint8))
        total = prod(call.grid)
        fresh = True
        while launch.first < total:
            if run.stop_requested or (run.past_deadline and not fresh):
                return False
            fresh = False
            first, count = launch.first, min(total - launch.first, self._slice(call, kernel, preemptible=run.preemptible))
            words = launch_words(call.kernel.kernel, params, call.grid, first, count)
            device.write(self._table, 0, words.view(np.uint8))
            mark = device.launch(kernel.compiled, count, buffers, self._table, 0, self._state, self._scratch(kernel.compiled, count))
            device.finish()
            kernel.block_ns = device.elapsed_ns([mark])[0] / count
            run.mark(mark, count)
            launch.first += count
            launch.state = device.read(self._state, 0, launch.state.nbytes).view(np.uint64).copy()
            if launch.spent > self._fuel:
                break
        totals.add(call, launch.spent, trap_of(int(launch.state[0])), out_of_fuel=launch.spent > self._fuel)
        return True

    def _params(self, call: KernelCall, run: Runs) -> tuple[list[Any], list[Region | int | float]]:
        """Memory of the buffer parameters, and what stands in the table for every parameter."""
        buffers: list[Any] = []
        params: list[Region | int | float] = []
        for x in call.params:
            if isinstance(x, Operand):
                store, offset, _ = run.region(x.buffer)
                buffers.append(store)
                whole = Region(offset + x.offset, x.shape[0], run.addresses[x.buffer] + x.offset)
                params.append(whole if x.shape[0] else Region(0, 0, 0))  # an empty region is a null pointer
            else:
                params.append(x)
        return buffers, params

    def _slice(self, call: KernelCall, kernel: _Kernel, *, preemptible: bool) -> int:
        """How many blocks to run next."""
        most = min(prod(call.grid), BLOCKS_MAX)
        if kernel.compiled.scratch_bytes:
            most = min(most, max(1, SCRATCH_BYTES_MAX // kernel.compiled.scratch_bytes))
        if not call.kernel.certificate.allows(call.grid, call.block) or _overlapping(call.kernel, call.params):
            return most
        units = self._device.facts.units
        slice_ns = min(SLICE_NS, PREEMPTIBLE_NS) if preemptible else SLICE_NS
        wanted = slice_ns / kernel.block_ns if kernel.block_ns else 8 * units
        return max(1, min(most, int(wanted)))


def _overlapping(kernel: VerifiedKernel, params: Sequence[object]) -> bool:
    """Whether a region that the kernel may write shares bytes with another: a certificate and proofs do not speak of that."""
    regions = [(x, p.access & Access.WRITE) for p, x in zip(kernel.kernel.params, params, strict=True)
               if isinstance(p, BufferParam) and isinstance(x, Operand)]  # fmt: skip
    return any(
        (written or other_written) and x.buffer == y.buffer and x.offset < y.offset + y.shape[0] and y.offset < x.offset + x.shape[0]
        for at, (x, written) in enumerate(regions)
        for y, other_written in regions[:at]
    )
