"""Explanation of a task's waiting: its place in the queue, what blocks it, remedies, and what happens by time alone. Pure, for people."""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.placement.decide import decide
from scheduler.placement.feasible import Refusal
from scheduler.placement.order import effective_priority, kept_from, protected_from_ns, rank, rises_ns
from scheduler.placement.queue import expiry_ns
from scheduler.placement.remedies import Remedy, remedies
from scheduler.placement.view import ClusterView

__all__ = ["Waiting", "why_waiting"]


@dataclass(frozen=True, slots=True)
class Waiting:
    """Why one task waits, at one time. Times in ns; None: never."""

    task: str
    #: 1 for the first in the queue.
    place: int
    queue_length: int
    priority: int
    #: Where it waits: ``priority`` raised by waiting.
    level: int
    waited_ns: int
    #: Reasons with counts, the commonest first.
    refused: tuple[tuple[str, int], ...]
    #: Of these refusals.
    examples: tuple[Refusal, ...]
    #: What would let it in.
    remedies: tuple[Remedy, ...]
    #: When its level rises next.
    rises_ns: int | None
    #: From when on it may reserve devices.
    protected_ns: int | None
    reserved_node: str
    #: Devices it has reserved.
    reserved_gpus: tuple[int, ...]
    #: When it gives up.
    expires_ns: int | None
    sentence: str


def why_waiting(view: ClusterView, name: str, at_ns: int) -> Waiting | None:
    """Of a task that waits for room at Unix time ``at_ns``; None when it does not. Milliseconds of work: for questions about one task."""
    task = view.tasks.get(name)
    if task is None or not task.waiting:
        return None
    decision = decide(view, task.submitted, at_ns)
    mine = rank(view, task, at_ns)
    place = 1 + sum(1 for other in view.queue if rank(view, view.tasks[other], at_ns) < mine)
    found = remedies(view, task.submitted, kept_from(view, task.submitted, at_ns)) if not decision.gpus else ()
    return Waiting(
        task=name,
        place=place,
        queue_length=len(view.queue),
        priority=task.priority,
        level=effective_priority(view, task, at_ns),
        waited_ns=max(0, at_ns - task.wait_from_ns),
        refused=decision.refused,
        examples=decision.refusals,
        remedies=found,
        rises_ns=rises_ns(view, task, at_ns),
        protected_ns=protected_from_ns(view, task),
        reserved_node=task.reserved.node if task.reserved is not None else "",
        reserved_gpus=task.reserved.gpus if task.reserved is not None else (),
        expires_ns=expiry_ns(task),
        sentence=_sentence(place, decision.refused, found),
    )


def _sentence(place: int, refused: tuple[tuple[str, int], ...], found: tuple[Remedy, ...]) -> str:
    if not found:
        return f"there is room; it is number {place} in the queue and is placed when its turn comes"
    reasons = ", ".join(f"{reason} ({count}x)" for reason, count in refused)
    return f"number {place} in the queue; nothing fits: {reasons}; what would let it in: {'; or '.join(remedy.text for remedy in found)}"
