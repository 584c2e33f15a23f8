"""The order of waiting tasks: priority, raised by waiting, then age. Total, and a function of the view and the time asked about.

    level = max(0, priority - whole periods waited)      one period: the global key queue_age_ms, 0: no task rises
    rank  = (level, log position of the submission, task id), smallest first

So no task is overtaken for ever: after ``priority`` periods it is at level 0, where only those submitted before it go first.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from bus_schemas.events import TaskSubmitted
from scheduler.placement.records import TaskView
from scheduler.placement.states import QUEUE_AGE_MS
from scheduler.placement.view import ClusterView

__all__ = [
    "Rank", "effective_priority", "rank", "rank_of_wish", "priority_of", "queue_order", "in_order", "rises_ns", "next_rise_ns",
    "kept_from", "known_task",
]  # fmt: skip

Rank = tuple[int, int, str]

MS: Final = 1_000_000
_BEHIND_ALL: Final = 1 << 62


def effective_priority(view: ClusterView, task: TaskView, at_ns: int) -> int:
    """The level at which a task waits at Unix time ``at_ns``: its priority, less one for each period since its submission."""
    period_ns = view.setting(QUEUE_AGE_MS) * MS
    return _level(task, at_ns, period_ns)


def rank(view: ClusterView, task: TaskView, at_ns: int) -> Rank:
    return (effective_priority(view, task, at_ns), task.position, task.submitted.task)


def queue_order(view: ClusterView, at_ns: int) -> list[TaskView]:
    """The tasks that wait for room at Unix time ``at_ns``, first to be served first."""
    return in_order(view, view.queue, at_ns)


def in_order(view: ClusterView, names: Iterable[str], at_ns: int) -> list[TaskView]:
    """These tasks of the log, first to be served first."""
    period_ns = view.setting(QUEUE_AGE_MS) * MS
    waiting = [view.tasks[name] for name in names]
    waiting.sort(key=lambda task: (_level(task, at_ns, period_ns), task.position, task.submitted.task))
    return waiting


def rises_ns(view: ClusterView, task: TaskView, at_ns: int) -> int | None:
    """When a waiting task rises by its next level, None: never."""
    return next_rise_ns(task, at_ns, view.setting(QUEUE_AGE_MS) * MS)


def next_rise_ns(task: TaskView, at_ns: int, period_ns: int) -> int | None:
    """The same with the period given (0: no task rises)."""
    if not period_ns or not _level(task, at_ns, period_ns):
        return None
    return task.submitted.at_ns + (max(0, at_ns - task.submitted.at_ns) // period_ns + 1) * period_ns


def priority_of(view: ClusterView, wish: TaskSubmitted) -> int:
    """The priority that holds for it: as changed since, when it is a task of the log."""
    known = known_task(view, wish)
    return known.priority if known is not None else wish.priority


def rank_of_wish(view: ClusterView, wish: TaskSubmitted, at_ns: int) -> Rank:
    """Of a task of the log, or of one that is only asked about: behind all of its priority."""
    known = known_task(view, wish)
    return rank(view, known, at_ns) if known is not None else (wish.priority, _BEHIND_ALL, wish.task)


def kept_from(view: ClusterView, wish: TaskSubmitted, at_ns: int) -> dict[tuple[str, int], str]:
    """The devices ``wish`` may not have, because they are kept for a task that goes first; with that task."""
    if not view.reservations:
        return {}
    mine = rank_of_wish(view, wish, at_ns)
    ahead = {name: name != wish.task and rank(view, view.tasks[name], at_ns) < mine for name in set(view.reservations.values())}
    return {device: holder for device, holder in view.reservations.items() if ahead[holder]}


def _level(task: TaskView, at_ns: int, period_ns: int) -> int:
    if not period_ns:
        return task.priority
    return max(0, task.priority - max(0, at_ns - task.submitted.at_ns) // period_ns)


def known_task(view: ClusterView, wish: TaskSubmitted) -> TaskView | None:
    """The task of the log that this is; None for one that is only asked about, though the log may know its id."""
    known = view.tasks.get(wish.task)
    return known if known is not None and known.submitted == wish else None
