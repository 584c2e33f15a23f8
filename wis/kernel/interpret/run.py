"""Runs a launch: checks its arguments, cuts the grid into batches that fit in memory, and combines their results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Final

import numpy as np

from wis.kernel.interpret.batch import Batch, Dim3, Launch
from wis.kernel.interpret.memory import BatchMemory
from wis.kernel.interpret.prepare import PreparedKernel, prepare
from wis.kernel.interpret.scalar import WIS, Array
from wis.kernel.layout import shared_bytes
from wis.kernel.limits import KERNEL_LIMITS
from wis.kernel.model import BufferParam, Kernel, RegType
from wis.kernel.traps import NO_TRAP, Trap, trap_of
from wis.kernel.verify import VerifiedKernel
from wis.reference.access import immediate

__all__ = ["Dim3", "Launch", "Outcome", "launch"]

_BATCH_THREADS: Final = 1 << 16
_BATCH_BYTES: Final = 1 << 27  # of registers, shared and local memory; a batch has at least one block


@dataclass(frozen=True, slots=True)
class Outcome:
    """Result of a launch."""

    #: the one with the least key
    trap: Trap | None
    #: the run was cut short because ``instructions`` exceeded the fuel
    out_of_fuel: bool
    #: thread-instructions
    instructions: int
    #: by block of ``VerifiedKernel.flat``: threads that executed it, all times together
    executions: tuple[int, ...]

    @property
    def trapped(self) -> bool:
        return self.trap is not None


def launch(
    verified: VerifiedKernel,
    where: Launch,
    params: Sequence[Array | int | float],
    fuel: int | None = None,
    addresses: Sequence[int] | None = None,
) -> Outcome:
    """Run. ``params``: a 1-D u8 array a buffer (written in place), a number a scalar. ``fuel``: thread-instructions; more end the run.

    ``addresses``: of each parameter in the space ARENA (those of scalars mean nothing); None: ``(i + 1) << 40`` for parameter i.
    Raises ValueError when the launch or the parameters do not fit the kernel.
    """
    kernel = verified.flat
    count = _checked(kernel, where)
    buffers, scalars = _arguments(kernel, params)
    if addresses is None:
        addresses = [(i + 1) << 40 for i in range(len(params))]
    plan = prepare(verified)
    step = _blocks_at_once(kernel, plan, where)
    key, spent = NO_TRAP, 0
    executions = np.zeros(len(kernel.blocks), np.int64)
    for first in range(where.first, where.first + count, step):
        blocks = np.arange(first, min(first + step, where.first + count))
        memory = BatchMemory(kernel, buffers, addresses, len(blocks), prod(where.block), where.dynamic_bytes)
        batch = Batch(plan, where, blocks, memory, scalars, None if fuel is None else fuel - spent)
        finished = batch.run()
        key = min(key, batch.trap_key)
        spent += batch.instructions
        executions += batch.executions
        if not finished:
            return Outcome(trap_of(key), True, spent, tuple(executions.tolist()))
    return Outcome(trap_of(key), False, spent, tuple(executions.tolist()))


def _checked(kernel: Kernel, where: Launch) -> int:
    """The number of blocks to run."""
    threads, total = prod(where.block), prod(where.grid)
    if min(*where.grid, *where.block) < 1 or threads > kernel.threads_max:
        raise ValueError(f"{threads} threads a block, accepted is 1 to {kernel.threads_max}; grids and blocks have at least one of each")
    if total > KERNEL_LIMITS.grid_blocks_max:
        raise ValueError(f"{total} blocks, at most {KERNEL_LIMITS.grid_blocks_max} are accepted")
    count = total - where.first if where.count is None else where.count
    if where.first < 0 or count < 0 or where.first + count > total:
        raise ValueError(f"blocks {where.first} to {where.first + count} of {total}")
    if where.dynamic_bytes and not kernel.dynamic:
        raise ValueError(f"{where.dynamic_bytes} dynamic bytes of shared memory for a kernel that takes none")
    shared = shared_bytes(kernel, where.dynamic_bytes)
    if where.dynamic_bytes < 0 or shared > max(KERNEL_LIMITS.dynamic_shared_bytes_max, KERNEL_LIMITS.shared_bytes_max):
        raise ValueError(f"{shared} bytes of shared memory a block, at most {KERNEL_LIMITS.dynamic_shared_bytes_max} are accepted")
    return count


def _arguments(kernel: Kernel, params: Sequence[Array | int | float]) -> tuple[dict[int, Array], dict[int, Array]]:
    if len(params) != len(kernel.params):
        raise ValueError(f"the kernel has {len(kernel.params)} parameters, {len(params)} were given")
    buffers, scalars = {}, {}
    for number, (param, given) in enumerate(zip(kernel.params, params, strict=True)):
        if isinstance(param, BufferParam):
            if not isinstance(given, np.ndarray) or given.dtype != np.uint8 or given.ndim != 1 or not given.flags.c_contiguous:
                raise ValueError(f"parameter {number} must be a 1-D u8 array without gaps")
            buffers[number] = given
        else:
            if isinstance(given, np.ndarray):
                raise ValueError(f"parameter {number} must be a number")
            scalars[number] = immediate(given, WIS[RegType(param.reg_type)]).reshape(1)
    return buffers, scalars


def _blocks_at_once(kernel: Kernel, plan: PreparedKernel, where: Launch) -> int:
    threads = prod(where.block)
    nbytes = shared_bytes(kernel, where.dynamic_bytes) + threads * (kernel.local_bytes + 8 * plan.lasting + 64)
    return max(1, min(_BATCH_THREADS // threads, _BATCH_BYTES // nbytes))
