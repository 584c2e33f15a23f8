"""The queue as a whole: what is decided next about those that wait, who has waited too long, and when time alone changes something. Pure.

The order is ``order``'s, protection against being overtaken for ever is ``reserve``'s, one decision is ``decide``'s.
"""

from __future__ import annotations

from collections.abc import Iterator

from bus_schemas.events import TaskPlaced, TaskStateChanged, TaskSubmitted
from scheduler.placement.decide import Decision, decide
from scheduler.placement.order import MS, queue_order
from scheduler.placement.records import Reservation, TaskView
from scheduler.placement.reserve import protected_from_ns
from scheduler.placement.states import FAILED, QUEUE_AGE_MS, QUEUE_PROTECT_MS, QUEUE_RESERVATIONS, REASON_QUEUE_TIMEOUT
from scheduler.placement.view import ClusterView

__all__ = ["queue_decisions", "worth_telling", "expired_waiting", "queue_due_ns", "expiry_ns"]

_Shape = tuple[int, int, bool, bool, tuple[str, ...]]


def queue_decisions(view: ClusterView, at_ns: int, last: str = "") -> Iterator[Decision]:
    """Go once through those that wait, in their order, and give each decision that the log should have: a placement, a first refusal, a
    changed reservation. Append each (or drop the iterator) before asking for the next: it is decided on the view as it is then. ``last``:
    go no further than this task, so that it gets its decision, and those ahead of it theirs before.

    Who asks for the same as one ahead who fits nowhere fits nowhere either, so a long queue of few shapes costs few decisions.
    """
    hopeless: set[_Shape] = set()
    unreservable: set[_Shape] = set()
    changes = view.changes
    for task in queue_order(view, at_ns):
        if not task.waiting:
            continue  # something came in while the caller wrote
        if view.changes != changes:
            hopeless, unreservable, changes = set(), set(), view.changes
        shape = _shape(task.submitted)
        wants = _may_change_reservation(view, task, at_ns) and (task.reserved is not None or shape not in unreservable)
        if shape in hopeless and _told(task) and not wants:
            if task.submitted.task == last:
                return
            continue
        decision = decide(view, task.submitted, at_ns)
        if not decision.gpus:
            hopeless.add(shape)
            if wants and not decision.reserved_gpus:
                unreservable.add(shape)
        if worth_telling(task, decision):
            yield decision
        if task.submitted.task == last:
            return


def worth_telling(task: TaskView, decision: Decision) -> bool:
    """Whether the log should have this decision on a waiting task: a placement always, a refusal once, and when what is kept changes."""
    if decision.gpus or not _told(task):
        return True
    held = (task.reserved.node, task.reserved.gpus) if task.reserved is not None else ("", ())
    return held != (decision.reserved_node, decision.reserved_gpus)


def expired_waiting(view: ClusterView, unix_ns: int) -> list[TaskStateChanged]:
    """Tasks that have waited for room as long as they wanted to: they fail. By task id."""
    out = []
    for name in sorted(view.queue):
        due_ns = expiry_ns(view.tasks[name])
        if due_ns is not None and unix_ns >= due_ns:
            waited_s = (unix_ns - view.tasks[name].wait_from_ns) // (1000 * MS)
            out.append(TaskStateChanged(unix_ns, name, FAILED, f"{REASON_QUEUE_TIMEOUT} ({waited_s} s)"))
    return out


def queue_due_ns(view: ClusterView, unix_ns: int) -> int | None:
    """The next Unix time after ``unix_ns`` at which somebody in the queue runs out of time, may reserve, or rises a level, though nothing
    happens; None when there is none."""
    due: list[int] = []
    period_ns = view.setting(QUEUE_AGE_MS) * MS
    again_ns = view.setting(QUEUE_PROTECT_MS) * MS
    for name in view.queue:
        task = view.tasks[name]
        gives_up_ns = expiry_ns(task)
        if gives_up_ns is not None:
            due.append(gives_up_ns)
        protected_ns = protected_from_ns(view, task)
        if protected_ns is not None:
            due.append(task.reserved.since_ns + again_ns if task.reserved is not None else protected_ns)
        if period_ns and task.priority:
            risen = max(0, unix_ns - task.submitted.at_ns) // period_ns
            if risen < task.priority:
                due.append(task.submitted.at_ns + (risen + 1) * period_ns)
    return min((at_ns for at_ns in due if at_ns > unix_ns), default=None)


def expiry_ns(task: TaskView) -> int | None:
    """When a waiting task gives up, None: never."""
    timeout_ms = task.submitted.queue_timeout_ms
    return task.wait_from_ns + timeout_ms * MS if timeout_ms > 0 else None


def _told(task: TaskView) -> bool:
    """Whether the log says why it waits; after it lost its place it says something else."""
    return task.decision is not None and not isinstance(task.decision, TaskPlaced)


def _may_change_reservation(view: ClusterView, task: TaskView, at_ns: int) -> bool:
    """Whether a decision now could give a task other devices than it has reserved."""
    from_ns = protected_from_ns(view, task)
    if from_ns is None or at_ns < from_ns:
        return task.reserved is not None
    held: Reservation | None = task.reserved
    if held is None:
        return len(set(view.reservations.values())) < view.setting(QUEUE_RESERVATIONS)
    return True


def _shape(task: TaskSubmitted) -> _Shape:
    return (task.vram_bytes, task.gpu_count, task.exclusive, task.noswap, task.groups)
