"""The reference backend: ``wis.reference`` over real buffers. Slow, single-threaded, and the definition of every result.

May live here: gluing the interpreter to a space. May not: any meaning of an instruction.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import cast

import numpy as np

from jit.engine import EngineConfig, EngineInfo, Launch, MemoryUse, Number, Prepared
from jit.memory import Capacity
from jit.space import ByteSpace, KeySpec
from wis import cost, reference
from wis.launches import addresses
from wis.program import BoundProgram, BufferKind
from wis.verify import Verified

__all__ = ["ReferenceEngine", "fuel_text", "key_specs", "trap_text"]


def key_specs(bound: BoundProgram) -> list[KeySpec]:
    """One entry per EXTERNAL and CREATED buffer, in program order; every CREATED one starts zeroed."""
    return [
        KeySpec(nbytes, kind == BufferKind.CREATED, True)
        for kind, nbytes in zip(bound.program.buffers, bound.nbytes, strict=True)
        if kind != BufferKind.TEMP
    ]


def trap_text(traps: reference.Traps) -> str | None:
    """What a run's traps are told as."""
    return "; ".join(traps.texts) or "an index was out of range" if traps else None


def fuel_text(traps: reference.Traps) -> str | None:
    """What a run that ran out of fuel is told as."""
    return f"kernel {traps.out_of_fuel}: the launch executed more thread-instructions than it may" if traps.out_of_fuel else None


class ReferencePrepared:
    """A verified program and its cost."""

    def __init__(self, verified: Verified) -> None:
        self.verified = verified
        self.specs = key_specs(verified.bound)
        self.instructions = cost.count(verified.bound)
        kinds = zip(verified.bound.program.buffers, verified.bound.nbytes, strict=True)
        self.workspace_bytes = sum(nbytes for kind, nbytes in kinds if kind == BufferKind.TEMP)

    @property
    def n_keys(self) -> int:
        return len(self.specs)


class ReferenceSpace(ByteSpace):
    """A space whose runs go through the interpreter. Temporaries live for one run only."""

    def __init__(self, capacity: Capacity, fuel: int) -> None:
        super().__init__(capacity)
        self._capacity = capacity
        self._fuel = fuel
        self.workspace_bytes = 0

    def trim(self) -> None:
        """Nothing is held between runs."""

    def run(self, prepared: Prepared, scalars: Sequence[Number], keys: Sequence[int]) -> Launch:
        plan = cast(ReferencePrepared, prepared)
        self._capacity.take(plan.workspace_bytes)
        try:
            blocks = iter(self._blocks(plan.specs, keys))
            bound = plan.verified.bound
            buffers = [
                np.zeros(nbytes, np.uint8) if kind == BufferKind.TEMP else next(blocks).data
                for kind, nbytes in zip(bound.program.buffers, bound.nbytes, strict=True)
            ]
            start_ns = time.monotonic_ns()
            traps = reference.run(plan.verified, scalars, buffers, self._fuel, addresses(bound, keys))
            end_ns = time.monotonic_ns()
        finally:
            self._capacity.give(plan.workspace_bytes)
        return Launch(start_ns, end_ns, end_ns - start_ns, 1, plan.instructions + traps.instructions, trap_text(traps), fuel_text(traps))


class ReferenceEngine:
    """The engine of the ``reference`` backend."""

    def __init__(self, config: EngineConfig) -> None:
        self.info = EngineInfo("NumPy reference", "reference", 1, config.vram_bytes)
        self._capacity = Capacity(config.vram_bytes)
        self._fuel = config.fuel

    @property
    def memory(self) -> MemoryUse:
        return self._capacity.memory

    def open_space(self) -> ReferenceSpace:
        return ReferenceSpace(self._capacity, self._fuel)

    def prepare(self, verified: Verified) -> ReferencePrepared:
        return ReferencePrepared(verified)

    def interrupt(self) -> None:
        """The interpreter runs to its end; there is nothing to stop."""

    def close(self) -> None:
        """Nothing is held."""
