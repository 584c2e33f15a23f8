"""The controller of the simulation: folds the log, goes through the queue, appends what is decided. As thin as the real one, and timed."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable

from bus_schemas.events import Event, TaskPlaced
from scheduler.placement import ClusterView, Decision, Measured, QueueMemory, expired_waiting, load_observed, overdue_tasks, queue_decisions
from scheduler.placement import queue as queue_module
from scheduler.placement.decide import decide

__all__ = ["Controller"]

START_LEASE_MS = 120_000
_FOLDS_TIMED = 16
"""Of so many folds one is timed: looking at the clock costs more than a fold."""


class Controller:
    """``log``: every event so far, one a position. ``decision_ns``: CPU time of each decision including its event. ``on_append`` is called
    with every event after it is folded."""

    def __init__(self, on_append: Callable[[int, Event], None]) -> None:
        self.view = ClusterView()
        self.log: list[Event] = []
        self.decision_ns: list[int] = []
        self.fold_ns: list[int] = []
        self._memory = QueueMemory()
        self._on_append = on_append

    def append(self, event: Event) -> None:
        self.log.append(event)
        if len(self.log) % _FOLDS_TIMED:
            self.view.apply(len(self.log), event)
        else:
            start_ns = time.thread_time_ns()
            self.view.apply(len(self.log), event)
            self.fold_ns.append(time.thread_time_ns() - start_ns)
        self._on_append(len(self.log), event)

    def go_through(self, at_ns: int, last: str = "") -> list[TaskPlaced]:
        """One pass through the queue; the placements."""
        placed = []
        for decision in queue_decisions(self.view, at_ns, self._memory, last):
            event = decision.event()
            self.append(event)
            if isinstance(event, TaskPlaced):
                placed.append(event)
        return placed

    def tick(self, at_ns: int, heard: dict[tuple[str, int], Measured]) -> list[TaskPlaced]:
        """The leader's periodic work: measurements, time-outs, tasks that never started, the queue."""
        observed = load_observed(self.view, heard, at_ns)
        for event in (*((observed,) if observed is not None else ()), *expired_waiting(self.view, at_ns)):
            self.append(event)
        for overdue in overdue_tasks(self.view, at_ns, START_LEASE_MS):
            self.append(overdue)
        return self.go_through(at_ns)

    def timed(self) -> _Timed:
        """While it is entered, decisions inside passes are timed; the garbage collector does not run inside one."""
        return _Timed(self)


class _Timed:
    """Puts a stop-watch around every decision that a pass makes."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._decide = decide

    def __enter__(self) -> None:
        times, wrapped = self._controller.decision_ns, self._decide

        def timed(view: ClusterView, task: object, at_ns: int) -> Decision:
            start_ns = time.thread_time_ns()
            decision = wrapped(view, task, at_ns)  # type: ignore[arg-type]  # as it was given
            decision.event()
            times.append(time.thread_time_ns() - start_ns)
            return decision

        gc.freeze()
        queue_module.decide = timed

    def __exit__(self, *_: object) -> None:
        queue_module.decide = self._decide
        gc.unfreeze()
