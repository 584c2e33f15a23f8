"""Small clusters for tests of the queue: their facts, and a view with a controller that goes through the queue after every fact."""

from __future__ import annotations

from typing import Any

from bus_schemas.events import (
    DeviceFact,
    Event,
    NodeRegistered,
    SessionOpenedFact,
    TaskPlaced,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.placement import ClusterView, queue_decisions, queue_order

__all__ = ["GIB", "MINUTE", "Cluster", "node", "session", "task"]

GIB = 1 << 30
MINUTE = 60 * 10**9


def node(name: str, *gib: int, groups: tuple[str, ...] = ()) -> NodeRegistered:
    devices = tuple(DeviceFact(index, "gpu", "host", 8, size * GIB) for index, size in enumerate(gib))
    return NodeRegistered(1, name, name, "", 1, devices, groups)


def task(name: str, gib: int = 1, *, minute: int = 0, gpus: int = 1, **more: Any) -> TaskSubmitted:
    """One that waits for room. ``more``: priority, exclusive, noswap, groups, queue_timeout_ms."""
    return TaskSubmitted(minute * MINUTE, name, "acme", more.pop("priority", 0), gib * GIB, gpus, queue=more.pop("queue", True), **more)


def session(name: str, of: str, on: str, priority: int = 0) -> SessionOpenedFact:
    return SessionOpenedFact(1, name, "acme", of, on, 0, priority, GIB)


class Cluster:
    """A view with a controller that goes through the queue after every fact, at the given minute."""

    def __init__(self, *facts: Event) -> None:
        self.view = ClusterView()
        for fact in facts:
            self.add(fact)

    def add(self, fact: Event, minute: int = 0) -> None:
        self.view.apply(self.view.position + 1, fact)
        self.go(minute)

    def go(self, minute: int) -> list[TaskPlaced | TaskRefused]:
        events = []
        for decision in queue_decisions(self.view, minute * MINUTE):
            events.append(decision.event())
            self.view.apply(self.view.position + 1, events[-1])
        return events

    def end(self, name: str, minute: int) -> None:
        self.add(TaskStateChanged(minute * MINUTE, name, "completed"), minute)

    def waiting(self, minute: int = 0) -> list[str]:
        return [seen.submitted.task for seen in queue_order(self.view, minute * MINUTE)]

    def where(self, name: str) -> str:
        placed = self.view.tasks[name].placed
        return placed.node if placed is not None else ""
