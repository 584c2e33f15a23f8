"""The known state of runs and runners, and pure decisions on it: which run a runner gets, what it must stop, which runs ended without a
report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from billing.budgets import STOPPED, WARNING
from bus_schemas.events import BudgetCrossed, Event
from bus_schemas.runs import ENDED, PENDING, TAKEN, RunnerSync, RunState
from scheduler.placement import ClusterView
from scheduler.placement.states import CANCELLED

__all__ = ["BudgetCrossings", "Heard", "RunBook"]

SILENT_S: Final = 30.0
"""A runner that asks nothing for so long has lost its runs."""
_UNKNOWN_S: Final = 10.0
"""A runner may not list a run for this long after it was handed over."""
_KEPT_NS: Final = 7 * 86_400 * 10**9
_RENEW_NS: Final = 86_400 * 10**9
"""The retention of the stream."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The last request of a runner."""

    sync: RunnerSync
    at_s: float  #: when it was received, monotonic


class BudgetCrossings:
    """A fold over the log: the last warning or stop of every budget, with its position, by tenant and period."""

    def __init__(self) -> None:
        self.last: dict[str, dict[str, tuple[int, BudgetCrossed]]] = {}

    def apply(self, position: int, event: Event) -> None:
        if isinstance(event, BudgetCrossed) and event.threshold in (WARNING, STOPPED):
            self.last.setdefault(event.tenant, {})[event.period] = position, event


@dataclass(slots=True)
class RunBook:
    """The states of runs by task, and the runners by name."""

    since_s: float  #: since when it hears runners without a break: `listen`
    states: dict[str, tuple[int, RunState]] = field(default_factory=dict)  #: (position in the stream, state) by task
    runners: dict[str, Heard] = field(default_factory=dict)
    renewed: dict[str, int] = field(default_factory=dict)  #: when a run that is not over was written again, by task
    _going: set[str] = field(default_factory=set)

    def listen(self, now_s: float) -> None:
        """Runners can be heard again: before, the bus was away, and their silence says nothing."""
        self.since_s = now_s

    def note(self, position: int, state: RunState) -> None:
        """Take a state, unless a later one is known."""
        if position < self.states.get(state.task, (0, state))[0]:
            return
        self.states[state.task] = position, state
        (self._going.discard if state.state == ENDED else self._going.add)(state.task)

    def heard(self, sync: RunnerSync, now_s: float) -> None:
        self.runners[sync.runner] = Heard(sync, now_s)

    def get(self, task: str) -> RunState | None:
        found = self.states.get(task)
        return found[1] if found is not None else None

    def is_taken(self, task: str) -> bool:
        """Whether a runner executes the task's script."""
        state = self.get(task)
        return state is not None and state.state == TAKEN

    def awaited(self, task: str, now_s: float, lease_s: float) -> bool:
        """Whether a runner has the task's script, or one was heard within ``lease_s`` (SILENT_S at least) that would take it: then the task
        need not open a session within a time."""
        state = self.get(task)
        if state is None or state.state != PENDING:
            return self.is_taken(task)
        silent_s = max(SILENT_S, lease_s)
        return now_s - self.since_s < silent_s or bool(self.takers(state.tenant, state.wanted, now_s, silent_s))

    def unfinished(self) -> list[RunState]:
        return [self.states[task][1] for task in sorted(self._going)]

    def pending(self) -> Counter[str]:
        """By tenant, how many runs are not over."""
        return Counter(self.states[task][1].tenant for task in self._going)

    def takers(self, tenant: str, wanted: str, now_s: float, silent_s: float = SILENT_S) -> list[str]:
        """Runners heard within ``silent_s`` that would take a script of ``tenant`` (``wanted``: only the one of this name)."""
        return sorted(
            name
            for name, heard in self.runners.items()
            if wanted in ("", name) and tenant in (heard.sync.tenants or (tenant,)) and now_s - heard.at_s < silent_s
        )

    def to_stop(self, view: ClusterView, sync: RunnerSync) -> tuple[str, ...]:
        """Scripts that a runner must kill: of cancelled tasks, and of runs that are not its own (any more)."""
        return tuple(task for task in sync.running if self._stops(view, sync, task))

    def _stops(self, view: ClusterView, sync: RunnerSync, task: str) -> bool:
        known, state = view.tasks.get(task), self.get(task)
        if state is None:
            return False  # the local copy may be behind
        cancelled = known is not None and known.state == CANCELLED
        return cancelled or state.state == ENDED or (state.state == TAKEN and state.instance != sync.instance)

    def handed_over(self, sync: RunnerSync) -> RunState | None:
        """A run that this runner took and does not know of: the answer that handed it over was lost."""
        mine = (state for state in self.unfinished() if state.state == TAKEN and state.instance == sync.instance)
        return next((state for state in mine if state.task not in sync.running), None)

    def to_take(self, view: ClusterView, sync: RunnerSync) -> list[RunState]:
        """Runs that this runner may take, the most urgent first. Their tasks have a place."""
        found = []
        for state in self.unfinished():
            task = view.tasks.get(state.task)
            if state.state != PENDING or task is None or not task.live or task.waiting:
                continue
            if state.wanted in ("", sync.runner) and state.tenant in (sync.tenants or (state.tenant,)):
                found.append((task.priority, task.position, state))
        return [state for _, _, state in sorted(found, key=lambda one: one[:2])]

    def over(self, view: ClusterView, now_s: float, now_ns: int) -> Iterator[tuple[RunState, str]]:
        """Runs that are over without a report of their runner, with the reason."""
        for state in self.unfinished():
            if state.state == PENDING:
                task = view.tasks.get(state.task)
                if task is not None and not task.live:
                    yield state, task.reason or task.state
                continue
            heard = self.runners.get(state.runner)
            if now_s - max(heard.at_s if heard is not None else 0.0, self.since_s) > SILENT_S:
                yield state, f"runner {state.runner} stopped answering"
            elif heard is None or heard.at_s < self.since_s:
                continue  # what it said while the bus was away is not known
            elif heard.sync.instance != state.instance:
                yield state, f"runner {state.runner} was restarted"
            elif state.task not in heard.sync.running and now_ns - state.taken_ns > _UNKNOWN_S * 1e9:
                if heard.sync.free:
                    continue  # it will be handed over again
                yield state, f"runner {state.runner} did not start it"

    def to_renew(self, now_ns: int) -> list[RunState]:
        """Runs that are not over, and that are to be written again before their stream drops them: it keeps messages for a week."""
        return [state for state in self.unfinished() if now_ns - max(self.renewed.get(state.task, 0), state.submitted_ns) > _RENEW_NS]

    def to_notify(self) -> list[RunState]:
        return [state for _, state in self.states.values() if state.state == ENDED and state.webhook and not state.notified]

    def to_warn(self, crossings: BudgetCrossings) -> list[tuple[RunState, int, BudgetCrossed]]:
        """Runs whose webhook is to be notified of a budget of their tenant, and of which: the earliest that was crossed during the run."""
        found = []
        for _, state in self.states.values():
            if not state.webhook:
                continue
            during = [
                (position, crossed)
                for position, crossed in crossings.last.get(state.tenant, {}).values()
                if position > state.budget_position and state.submitted_ns <= crossed.at_ns <= (state.ended_ns or crossed.at_ns)
            ]
            found += [(state, *min(during, key=lambda one: one[0]))] if during else []
        return found

    def forget(self, now_ns: int) -> None:
        """Drop the states that the stream has dropped."""
        for task in [task for task, (_, state) in self.states.items() if state.state == ENDED and now_ns - state.ended_ns > _KEPT_NS]:
            del self.states[task]
        for task in self.renewed.keys() - self._going:
            del self.renewed[task]
