"""Actions on tasks: submit, dry-run the placement, cancel, change the priority."""

from __future__ import annotations

import time
from collections.abc import Callable

from billing.tiers import TierBook, priority_refusal
from bus_schemas.events import Event, TaskPlaced, TaskPriorityChanged, TaskRefused, TaskStateChanged, TaskSubmitted
from scheduler.placement import TaskView
from scheduler.placement.states import CANCELLED
from services.controller.errors import Invalid, NotThere, OutOfState
from services.controller.identity import Caller
from services.controller.mirror import Mirror
from services.controller.placer import Placer
from services.controller.revisions import check, task_revision
from services.controller.writer import Writer
from services.kit.access import Action
from services.kit.errors import Conflict

__all__ = ["TaskActions"]


class TaskActions:
    """Each method raises Denied, NotThere (also for another tenant's task), Stale when ``revision`` is given and no longer holds, and
    kit.errors.BusUnavailable; it returns once the view shows what was done."""

    def __init__(self, mirror: Mirror, writer: Writer, placer: Placer) -> None:
        self._mirror = mirror
        self._writer = writer
        self._placer = placer

    async def submit(self, by: Caller, task: TaskSubmitted) -> tuple[TaskView, bool]:
        """Submit and place; the task as it is then, and whether it is new. With nothing written: raises TaskExists, TaskImpossible,
        Invalid above the ceiling of the tenant's tier."""
        by.require("task.submit", task.tenant)
        self._under_ceiling(task.tenant, task.priority)
        return await self._placer.submit(task, by.took("task.submit", task.task, tenant=task.tenant))

    async def dry_run(self, by: Caller, task: TaskSubmitted) -> TaskPlaced | TaskRefused:
        """What ``submit`` would decide now. Writes nothing."""
        by.require("task.read", task.tenant)
        return await self._placer.dry_run(task)

    async def cancel(self, by: Caller, task: str, *, revision: int | None = None) -> TaskView:
        """End it, wherever it is: what waits leaves the queue, what runs is ended by its node. Of a task cancelled before: nothing.
        Raises OutOfState when it is over in another way."""

        def change(view: TaskView) -> Event | None:
            if view.state == CANCELLED:
                return None
            if not view.live:
                raise OutOfState(f"task {task} is over: {view.state}")
            return TaskStateChanged(time.time_ns(), task, CANCELLED, f"cancelled by {by.identity.name}")

        return await self._change(by, "task.cancel", task, revision, "", change)

    async def set_priority(self, by: Caller, task: str, priority: int, *, revision: int | None = None) -> TaskView:
        """Give it another priority (0-4), waiting or running. Raises OutOfState when it is over, Invalid above the tier's ceiling."""

        def change(view: TaskView) -> Event | None:
            if not view.live:
                raise OutOfState(f"task {task} is over: {view.state}")
            self._under_ceiling(view.submitted.tenant, priority)
            return None if view.priority == priority else TaskPriorityChanged(time.time_ns(), task, priority)

        return await self._change(by, "task.prioritise", task, revision, str(priority), change)

    def _under_ceiling(self, tenant: str, priority: int) -> None:
        """Raises Invalid when the tenant's tier has no such priority."""
        text = priority_refusal(self._mirror.fold(TierBook), tenant, priority, time.time_ns())
        if text is not None:
            raise Invalid("priority", text)

    def seen(self, by: Caller, task: str) -> TaskView:
        """A task that they may know of. Raises NotThere."""
        found = self._mirror.view.tasks.get(task)
        if found is None or not by.may("task.read", found.submitted.tenant):
            raise NotThere(f"there is no task {task}")
        return found

    async def _change(
        self, by: Caller, action: Action, task: str, revision: int | None, detail: str, change: Callable[[TaskView], Event | None]
    ) -> TaskView:
        """Append what ``change`` makes of the task as it is, and again while others write about it at the same time."""
        while True:
            await self._mirror.caught_up()
            found = self.seen(by, task)
            tenant = found.submitted.tenant
            by.require(action, tenant)
            check(f"task {task}", task_revision(self._mirror, task), revision)
            event = change(found)
            if event is None:
                return found
            try:
                await self._writer.append("task", task, [event, by.took(action, task, tenant=tenant, detail=detail)])
            except Conflict:
                continue
            return self._mirror.view.tasks[task]
