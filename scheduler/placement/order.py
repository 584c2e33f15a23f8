"""The order of waiting tasks, and the protection of those that wait long. Functions of the view and the time asked about. Pure.

    level = max(0, priority - whole periods waited)      one period: the global key queue_age_ms, 0: no task rises
    rank  = (level, turn, log position of the submission, task id), smallest first

Tenants take turns: a task's turn is one more than that of its tenant's waiting task before it (of the same priority), or than the greatest
that was placed (``ClusterState.next_turn``). For one tenant and priority that is the order of submission. No task is overtaken for ever:
after ``priority`` periods it is at level 0, where every other tenant has at most as many tasks before it as there are turns between the
last one placed and its own.

A task that has waited for ``queue_protect_ms`` reserves as many devices of one node as it needs: those where the fewest bytes must be
given back first. No task behind it in the queue gets room on them (``kept_from``), so the bytes missing there only become fewer; it
has room at the latest when everything that ran there has ended. A reservation stays where it is; only after another ``queue_protect_ms``
does it move, and only to where strictly less is missing. At most ``queue_reservations_max`` tasks have one at a time; the first in order
get it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from bus_schemas.events import TaskSubmitted
from scheduler.placement import columns as col
from scheduler.placement.columns import Ints
from scheduler.placement.reasons import OTHER_DOMAIN
from scheduler.placement.state import Reservation, TaskView
from scheduler.placement.states import QUEUE_AGE_MS, QUEUE_PROTECT_MS, QUEUE_RESERVATIONS
from scheduler.placement.survey import CODES, FITS, Survey
from scheduler.placement.view import ClusterView

__all__ = [
    "Rank", "effective_priority", "rank", "rank_of_wish", "priority_of", "queue_order", "in_order", "rises_ns", "next_rise_ns", "kept_from",
    "known_task", "NEVER", "Place", "shortfalls", "nearest", "next_reservation", "protected_from_ns",
    "missing_members",
]  # fmt: skip

Rank = tuple[int, int, int, str]

MS: Final = 1_000_000
_BEHIND_ALL: Final = 1 << 62


def effective_priority(view: ClusterView, task: TaskView, at_ns: int) -> int:
    """The level at which a task waits at Unix time ``at_ns``: its priority, less one for each period since its submission."""
    period_ns = view.setting(QUEUE_AGE_MS) * MS
    return _level(task, at_ns, period_ns)


def rank(view: ClusterView, task: TaskView, at_ns: int) -> Rank:
    return (effective_priority(view, task, at_ns), task.turn, task.position, task.submitted.task)


def queue_order(view: ClusterView, at_ns: int) -> list[TaskView]:
    """The tasks that wait for room at Unix time ``at_ns``, first to be served first."""
    return in_order(view, view.queue, at_ns)


def in_order(view: ClusterView, names: Iterable[str], at_ns: int) -> list[TaskView]:
    """These tasks of the log, first to be served first."""
    period_ns = view.setting(QUEUE_AGE_MS) * MS
    waiting = [view.tasks[name] for name in names]
    waiting.sort(key=lambda task: (_level(task, at_ns, period_ns), task.turn, task.position, task.submitted.task))
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
    """Of a task of the log, or of one that is only asked about: as if it were submitted now."""
    known = known_task(view, wish)
    if known is not None:
        return rank(view, known, at_ns)
    return (wish.priority, view.next_turn(wish.tenant, wish.priority), _BEHIND_ALL, wish.task)


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


NEVER: Final = 1 << 52
"""The shortfall of a device that could not serve the task even when empty; more than any sum of others."""


@dataclass(frozen=True, slots=True)
class Place:
    """Devices of a node, and how many bytes must be given back there before the task fits."""

    node: str
    gpus: tuple[int, ...]
    missing_bytes: int


def shortfalls(task: TaskSubmitted, found: Survey) -> Ints:
    """Of every device: the bytes that must be given back before the task fits, NEVER where no end of a task helps.

    A device held exclusively, or wanted so, or that serves another trust domain, must become empty.
    """
    columns = found.columns
    device = columns.devices
    left: Ints = device[col.SCHEDULABLE] - device[col.PROMISED]  # below 0: more is promised than there is, since the overcommit was lowered
    if task.noswap:
        left = np.minimum(left, device[col.PHYSICAL] - np.maximum(device[col.NOSWAP], device[col.USED]))
    missing: Ints = np.maximum(found.need - left, 0)
    held = device[col.HOLDERS :].any(axis=0)
    empty_first = held if task.exclusive else (device[col.EXCLUSIVE] > 0) | (found.code == CODES.index(OTHER_DOMAIN))
    missing = np.where(empty_first, np.maximum(device[col.PROMISED], 1), missing)
    most = device[col.PHYSICAL] if task.noswap else device[col.SCHEDULABLE]
    missing[(most < found.need) | (found.node_code != FITS)[columns.node_of]] = NEVER
    return missing


def nearest(missing: Ints, gpu_count: int, found: Survey, count: int) -> list[Place]:
    """The ``count`` nodes where the fewest bytes are missing, the best first; ties by node id, inside a node by gpu."""
    columns = found.columns
    if not columns.rows:
        return []
    gpu_count = max(1, gpu_count)
    width = int(columns.place_of.max()) + 1
    if gpu_count > width:
        return []
    table = np.full((len(columns.names), width), NEVER, np.int64)
    table[columns.node_of, columns.place_of] = missing
    totals = np.partition(table, gpu_count - 1, axis=1)[:, :gpu_count].sum(axis=1) if gpu_count > 1 else table.min(axis=1)
    if count == 1:
        best = [int(totals.argmin())]
    else:
        best = np.argsort(totals, kind="stable")[:count].tolist()
    out = []
    for node in best:
        if totals[node] < NEVER:
            rows = slice(int(columns.offsets[node]), int(columns.offsets[node + 1]))
            chosen = np.argsort(missing[rows], kind="stable")[:gpu_count]
            gpus = sorted(columns.devices[col.GPU, rows][chosen].tolist())
            out.append(Place(columns.names[node], tuple(gpus), int(totals[node])))
    return out


def protected_from_ns(view: ClusterView, task: TaskView) -> int | None:
    """From when on a waiting task may reserve, None: never (nor while its gang is not whole, which it might never be)."""
    protect_ms = view.setting(QUEUE_PROTECT_MS)
    return task.wait_from_ns + protect_ms * MS if protect_ms and task.queues and missing_members(view, task) <= 0 else None


def missing_members(view: ClusterView, task: TaskView) -> int:
    """How many tasks of its gang must be submitted before a waiting task may be placed; 0 or less: none."""
    said = task.submitted
    return 0 if task.hosts or not said.gang else said.gang_size - len(view.gangs.get((said.tenant, said.gang), ()))


def next_reservation(view: ClusterView, task: TaskView, at_ns: int, found: Survey) -> Reservation | None:
    """What is kept for a task that waits and fits nowhere: the same as before, other devices, or nothing."""
    from_ns = protected_from_ns(view, task)
    if from_ns is None or at_ns < from_ns:
        return None
    held = task.reserved
    if held is None and len(set(view.reservations.values())) >= view.setting(QUEUE_RESERVATIONS):
        return None
    missing = shortfalls(task.submitted, found)
    name = task.submitted.task
    for (node, gpu), holder in view.reservations.items():
        row = view.columns.row(node, gpu)
        if holder != name and row >= 0:
            missing[row] = NEVER
    held_missing = NEVER
    if held is not None:
        rows = [view.columns.row(held.node, gpu) for gpu in held.gpus]
        held_missing = sum(int(missing[row]) if row >= 0 else NEVER for row in rows)
        if held_missing < NEVER and at_ns - held.since_ns < view.setting(QUEUE_PROTECT_MS) * MS:
            return held
    places = nearest(missing, task.submitted.gpu_count, found, 1)
    if places and places[0].missing_bytes < held_missing:
        return Reservation(places[0].node, places[0].gpus, at_ns)
    return held if held_missing < NEVER else None
