"""Defragmentation: one task that runs is moved, so that a task which waits then fits. Pure; off unless ``defragment_after_ms`` is set.

Room is found for a task that has waited so long and fits nowhere: the smallest task that can be moved and leaves enough of its node
behind. It goes to a device of the same kind, where it computes the same bits. One task moves at a time in the whole cluster.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass
from typing import Final

import numpy as np

from bus_schemas.events import TaskDisplaced
from scheduler.placement import columns as col
from scheduler.placement.columns import Hold, Ints
from scheduler.placement.decide import candidates
from scheduler.placement.order import MS, in_order, kept_from
from scheduler.placement.queue import demands
from scheduler.placement.reconcile import Devices, anew, moved
from scheduler.placement.state import Shape, TaskView
from scheduler.placement.states import DEFRAGMENT_AFTER_MS, Phase
from scheduler.placement.survey import clamped_need, survey
from scheduler.placement.view import ClusterView

_WAITING_MAX: Final = 8
"""Shapes of waiting tasks that are looked at, the first in the queue first."""
_TRIED_MAX: Final = 16
"""Tasks that are tried for each, the smallest first."""
_STAYED_NS: Final = 600 * 10**9
"""A task that could not move is left alone for as long."""
_UNDER_WAY_NS: Final = 300 * 10**9
"""A move that takes longer does not keep others from theirs."""


@dataclass(frozen=True, slots=True)
class MakesRoom:
    """A move, and the task that has a place afterwards."""

    displaced: TaskDisplaced
    waiting: str


def making_room(view: ClusterView, at_ns: int) -> MakesRoom | None:
    """The next move that lets a waiting task in, if there is one."""
    after_ns = view.setting(DEFRAGMENT_AFTER_MS) * MS
    if not after_ns:
        return None
    long = [name for name in view.queue if at_ns - view.tasks[name].wait_from_ns >= after_ns]
    if not long or any(_moves(view.tasks[name], at_ns) for name in view.live):
        return None
    movable, fits = _Movable(view, at_ns), dict[tuple[Shape, int, str], Devices]()
    seen: set[tuple[Shape, str]] = set()
    for waiting in in_order(view, long, at_ns):
        shape = demands(view, waiting)
        if shape in seen or waiting.submitted.gang:
            continue
        seen.add(shape)
        if len(survey(view, waiting.submitted, kept_from(view, waiting.submitted, at_ns)).fits):
            return None  # it is placed next, and others see what is left then
        for task in movable.leaving_room_for(waiting.submitted.vram_bytes):
            key = (task.shape, task.priority, task.submitted.tenant)
            if key not in fits:
                fits[key] = candidates(view, anew(task), at_ns)
            displaced = moved(view, task, at_ns, alike=True, fits=fits[key]) if fits[key] else None
            if displaced is not None and _fits_after(view, waiting, displaced, at_ns):
                return MakesRoom(displaced, waiting.submitted.task)
        if len(seen) == _WAITING_MAX:
            return None
    return None


def _moves(task: TaskView, at_ns: int) -> bool:
    return task.moving is not None and at_ns - task.moving.at_ns < _UNDER_WAY_NS


class _Movable:
    """The tasks that may be moved, the smallest first. Those of priority 0 are left where they are: even a short pause is too long for
    them."""

    def __init__(self, view: ClusterView, at_ns: int) -> None:
        tasks = [view.tasks[name] for name in view.live if _may_move(view.tasks[name], at_ns)]
        tasks.sort(key=lambda task: (task.submitted.vram_bytes * max(1, task.submitted.gpu_count), task.submitted.task))
        holds = [(at, view.columns.row(hold.node, hold.gpu), hold.nbytes) for at, task in enumerate(tasks) for hold in _held(view, task)]
        places = np.array([hold for hold in holds if hold[1] >= 0], np.int64).reshape(-1, 3)
        self._tasks, self._of = tasks, places[:, 0]
        device = view.columns.devices
        self._left: Ints = device[col.SCHEDULABLE].take(places[:, 1]) - device[col.PROMISED].take(places[:, 1]) + places[:, 2]

    def leaving_room_for(self, need_bytes: int) -> list[TaskView]:
        """Those that leave as much free on one of their devices, when they leave it."""
        return [self._tasks[at] for at in np.unique(self._of[self._left >= clamped_need(need_bytes)])[:_TRIED_MAX].tolist()]


def _may_move(task: TaskView, at_ns: int) -> bool:
    runs = task.phase is Phase.STARTED and task.placed is not None and bool(task.sessions)
    settled = task.leaving is None and task.moving is None and (not task.stayed or at_ns - task.stayed_ns > _STAYED_NS)
    return runs and settled and task.priority > 0


def _held(view: ClusterView, task: TaskView) -> tuple[Hold, ...]:
    return view.holdings.held.get(("task", task.submitted.task), ())


def _fits_after(view: ClusterView, waiting: TaskView, displaced: TaskDisplaced, at_ns: int) -> bool:
    """Whether the waiting task fits once the move is over."""
    then = copy(view)
    then.columns = copy(view.columns)
    then.columns.devices = view.columns.devices.copy()
    task = view.tasks[displaced.task]
    holds = _held(view, task)
    wish = task.submitted
    there = Hold.of(displaced.to, 0, wish.vram_bytes, noswap=wish.noswap, exclusive=wish.exclusive, priority=task.priority)
    rows = [(view.columns.row(hold.node, hold.gpu), -1, hold) for hold in holds]
    rows += [(view.columns.row(displaced.to, gpu), 1, there) for gpu in displaced.gpus]
    for row, sign, hold in rows:
        if row >= 0:
            then.columns.hold(row, sign, hold.nbytes, hold.noswap_bytes, hold.exclusive, hold.priority)
    return len(survey(then, waiting.submitted, kept_from(view, waiting.submitted, at_ns)).fits) > 0
