"""Shared parts of the runs of all back ends."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Final

from jit.engine import Run, Stop
from jit.errors import BadBuffer
from jit.memory import Block, SpaceMemory
from wis.program import BoundProgram, BufferKind
from wis.traps import describe, trap_of

__all__ = ["OVER", "check_begin", "check_there", "reached", "trap_of_run", "written_keys"]

OVER: Final = "the run is over: there is nothing to go on with"


def written_keys(bound: BoundProgram) -> frozenset[int]:
    """Which of a run's keys (EXTERNAL and CREATED buffers, in program order) name EXTERNAL buffers that it may write."""
    outs = {out.buffer for instr in bound.code for out in instr.outs}
    kinds = bound.program.buffers
    keyed = [number for number, kind in enumerate(kinds) if kind != BufferKind.TEMP]
    return frozenset(at for at, number in enumerate(keyed) if kinds[number] == BufferKind.EXTERNAL and number in outs)


def trap_of_run(bound: BoundProgram, texts: Sequence[str], key: int) -> tuple[str | None, int]:
    """What a run says of its traps (``Launch.trap`` and ``trap_at``): what happened in its kernels, and the first index out of bounds."""
    trap = trap_of(key)
    said = [*texts, *([describe(bound, trap)] if trap is not None else [])]
    return "; ".join(said) or None, trap.instruction if trap is not None else -1


def reached(stop: Stop | None) -> bool:
    """Whether a run that was given ``stop`` has to stop now."""
    return stop is not None and ctypes.c_uint64.from_address(stop.address).value >= stop.value


def check_begin(before: Run | None, given: int, wanted: int) -> None:
    """Whether a run may begin after ``before``, with so many scalars. Raises ValueError."""
    if before is not None and not before.over:
        raise ValueError("a run of this space is under way: go on with it to its end, or drop it")
    if given != wanted:
        raise ValueError(f"the program has {wanted} scalars, {given} were given")


def check_there(memory: SpaceMemory, keys: Sequence[int], blocks: Sequence[Block]) -> None:
    """Check that the buffers of a run are all on the device and still the ones it began with. Raises BadBuffer."""
    for key, block in zip(keys, blocks, strict=True):
        if memory[key] is not block:
            raise BadBuffer(f"buffer {key} was replaced while a run that uses it was under way")
