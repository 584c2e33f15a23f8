"""A batch that passed every check, and one that has begun. Data only."""

from __future__ import annotations

from dataclasses import dataclass

from bus_schemas.batch import Batch
from jit.engine import Number, Run
from services.server.executor.programs import Ready

__all__ = ["Plan", "UnderWay"]


@dataclass(slots=True)
class Plan:
    """A batch that may be applied; not changed after its creation. ``made``: handles that its allocs and uploads make, with sizes;
    ``created``: those its program makes."""

    ready: Ready | None
    handles: list[int]
    scalars: tuple[Number, ...]
    made: dict[int, int]
    created: dict[int, int]

    @property
    def wanted_bytes(self) -> int:
        return sum(self.made.values()) + sum(self.created.values())

    @property
    def written(self) -> frozenset[int]:
        """Handles of buffers from before the program that it may write."""
        return frozenset(self.handles[at] for at in self.ready.prepared.writes) if self.ready is not None else frozenset()

    @property
    def workspace_bytes(self) -> int:
        return self.ready.prepared.workspace_bytes if self.ready is not None else 0


@dataclass(slots=True)
class UnderWay:
    """A batch that was begun. ``run`` (None: it has no program) goes on where it was stopped. ``core_ns``: what its pieces took so
    far."""

    batch: Batch
    plan: Plan
    run: Run | None
    core_ns: int = 0
