"""The queue as a whole: the next decisions about waiting tasks, which have waited too long, and when time alone changes something. Pure.

The order is ``order``'s, protection against being overtaken for ever is ``reserve``'s, one decision is ``decide``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from bus_schemas.events import TaskPlaced, TaskStateChanged
from scheduler.placement.decide import Decision, decide
from scheduler.placement.order import MS, in_order, missing_members, next_rise_ns, protected_from_ns
from scheduler.placement.reasons import GANG
from scheduler.placement.state import Shape, TaskView
from scheduler.placement.states import DISPLACED_WAIT_MS, FAILED, QUEUE_AGE_MS, QUEUE_PROTECT_MS, QUEUE_RESERVATIONS, REASON_QUEUE_TIMEOUT
from scheduler.placement.survey import Freed
from scheduler.placement.view import ClusterView

__all__ = ["QueueMemory", "queue_decisions", "worth_telling", "expired_waiting", "queue_due_ns", "expiry_ns"]


@dataclass(slots=True)
class QueueMemory:
    """Memo of the last full pass over the queue of ``view``, at these values of ``view.changes`` and ``holdings.frees``. Before ``due_ns``
    only tasks submitted since, tasks with a reservation or that may have one, and tasks that could fit on a node where memory was released
    can have a new decision. It makes a submission beside a long queue cheap; dropping it changes no decision."""

    view: ClusterView | None = None
    changes: int = -1
    frees: int = 0
    due_ns: int | None = None

    def to_look_at(self, view: ClusterView, at_ns: int) -> set[str] | None:
        """The waiting tasks that may have a new decision; None: all may."""
        if self.view is not view or self.changes != view.changes or (self.due_ns is not None and at_ns >= self.due_ns):
            return None
        if self.frees == view.holdings.frees:
            return _with_gangs(view, view.untold | view.begun)
        holders = set(view.reservations.values())
        names = view.untold | view.begun | holders
        if len(holders) < view.setting(QUEUE_RESERVATIONS):  # it may be less now that is missing there for the first time
            names |= {name for name in view.queue if may_reserve(view, view.tasks[name], at_ns)}
        freed = Freed(view, view.holdings.freed_since(self.frees))
        return _with_gangs(view, names.union(*(alike for shape, alike in view.shapes.items() if freed.may_fit(shape))))


def _with_gangs(view: ClusterView, names: set[str]) -> set[str]:
    """These waiting tasks, and those that wait for one of them."""
    out = set(names)
    if view.gangs:
        for task in (view.tasks[name].submitted for name in names):
            out.update(member.submitted.task for member in view.gang_waiting(task) if task.gang)
    return out


def may_reserve(view: ClusterView, task: TaskView, at_ns: int) -> bool:
    """Whether a waiting task has waited for so long that devices may be kept for it."""
    from_ns = protected_from_ns(view, task)
    return from_ns is not None and at_ns >= from_ns


def queue_decisions(view: ClusterView, at_ns: int, memory: QueueMemory | None = None, last: str = "") -> Iterator[Decision]:
    """Go through those that wait, in their order, and again when what was decided may let others in, and give each decision that the log
    should have: a placement, a first refusal, a changed reservation. Append each (or drop the iterator) before asking for the next: it is
    decided on the view as it is then. ``last``: go no further than this task, so that it gets its decision, and those ahead of it theirs
    before.

    A task with the same demands as one ahead that fits nowhere fits nowhere either, so a long queue of few shapes costs few decisions.
    """
    memory = memory if memory is not None else QueueMemory()
    some = memory.to_look_at(view, at_ns)
    while True:
        order = in_order(view, view.queue if some is None else some, at_ns)
        changes, frees = view.changes, view.holdings.frees
        hopeless = _Hopeless((changes, frees), view.setting(QUEUE_PROTECT_MS) * MS)
        for task in _gangs_whole(view, order, at_ns, last):
            if task.waiting:
                hopeless.keep_while((view.changes, view.holdings.frees))
                decision = _decide_unless_hopeless(view, task, at_ns, hopeless)
                if decision is not None and worth_telling(task, decision):
                    yield decision
        if last:
            return
        if view.changes == changes:
            break
        some = None
    due = _next_due_ns(view, order, at_ns)
    if some is not None:
        due = min((at for at in (memory.due_ns, due) if at is not None), default=None)
    memory.view, memory.changes, memory.frees, memory.due_ns = view, changes, frees, due


def _gangs_whole(view: ClusterView, order: list[TaskView], at_ns: int, last: str) -> Iterator[TaskView]:
    """``order`` up to task ``last`` (empty: to its end); when a member of a gang is placed, the other ones come before the rest."""
    seen: set[str] = set()

    def rest() -> Iterator[TaskView]:
        new = view.begun - seen
        seen.update(new)
        yield from in_order(view, new, at_ns) if new else ()

    yield from rest()
    for task in order:
        yield task
        yield from rest()
        if task.submitted.task == last:
            return


@dataclass(slots=True)
class _Hopeless:
    """What tasks demand that was found to fit nowhere, and for which nothing can be reserved: in one pass, while ``changes`` stays."""

    changes: tuple[int, int]
    protect_ns: int
    unfitting: set[tuple[Shape, str]] = field(default_factory=set)
    unreservable: set[tuple[Shape, str]] = field(default_factory=set)
    #: gangs of which a member was refused although it fits
    gangs: set[tuple[str, str]] = field(default_factory=set)
    reserved: int = -1
    slots: bool = False
    """Whether one more may reserve, while ``reserved`` devices are."""

    def keep_while(self, changes: tuple[int, int]) -> None:
        if changes != self.changes:
            self.changes = changes
            self.unfitting.clear()
            self.unreservable.clear()
            self.gangs.clear()

    def may_reserve(self, view: ClusterView, task: TaskView, at_ns: int) -> bool:
        """Whether a decision now could give a task other devices than it has reserved."""
        if task.reserved is not None:
            return True
        if not self.protect_ns or at_ns - task.wait_from_ns < self.protect_ns or not task.queues or missing_members(view, task) > 0:
            return False
        if demands(view, task) in self.unreservable:
            return False
        if self.reserved != len(view.reservations):
            self.reserved = len(view.reservations)
            self.slots = len(set(view.reservations.values())) < view.setting(QUEUE_RESERVATIONS)
        return self.slots


def demands(view: ClusterView, task: TaskView) -> tuple[Shape, str]:
    """What decides where a waiting task fits, and whose it is where that decides it too."""
    return task.shape, task.submitted.tenant if view.divisions else ""


def _decide_unless_hopeless(view: ClusterView, task: TaskView, at_ns: int, hopeless: _Hopeless) -> Decision | None:
    shape, wants = demands(view, task), hopeless.may_reserve(view, task, at_ns)
    gang = (task.submitted.tenant, task.submitted.gang)
    if (shape in hopeless.unfitting or gang in hopeless.gangs) and task.submitted.task not in view.untold and not wants:
        return None
    decision = decide(view, task.submitted, at_ns)
    if any(reason in GANG for reason, _ in decision.refused):
        hopeless.gangs.add(gang)
    elif not decision.gpus:
        hopeless.unfitting.add(shape)
        if wants and not decision.reserved_gpus and not task.submitted.gang:
            hopeless.unreservable.add(shape)
    return decision


def worth_telling(task: TaskView, decision: Decision) -> bool:
    """Whether the log should have this decision on a waiting task: a placement always, a refusal once, and when what is kept changes."""
    if decision.gpus or task.decision is None or isinstance(task.decision, TaskPlaced):
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
    """The next Unix time after ``unix_ns`` at which a queued task runs out of time, may reserve, or rises a level, though nothing
    happens; None when there is none."""
    return _next_due_ns(view, (view.tasks[name] for name in view.queue), unix_ns)


def _next_due_ns(view: ClusterView, tasks: Iterable[TaskView], unix_ns: int) -> int | None:
    period_ns, protect_ns = view.setting(QUEUE_AGE_MS) * MS, view.setting(QUEUE_PROTECT_MS) * MS
    first: int | None = None
    for task in tasks:
        due = [expiry_ns(task), next_rise_ns(task, unix_ns, period_ns)]
        if protect_ns and task.queues:
            due.append((task.wait_from_ns if task.reserved is None else task.reserved.since_ns) + protect_ns)
        for at_ns in due:
            if at_ns is not None and at_ns > unix_ns and (first is None or at_ns < first):
                first = at_ns
    return first


def expiry_ns(task: TaskView) -> int | None:
    """When a waiting task gives up, None: never."""
    timeout_ms = task.submitted.queue_timeout_ms or (DISPLACED_WAIT_MS if task.displaced else 0)
    return task.wait_from_ns + timeout_ms * MS if timeout_ms > 0 else None
