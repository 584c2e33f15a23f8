"""Takes tasks in and places them: submit, dry run, and the queue of those that wait for room.

May live here: the loop decide, append, on conflict decide again. May not: the decision itself (scheduler.placement).
"""

from __future__ import annotations

import asyncio
import time

from bus_schemas.events import ActionTaken, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.placement import TaskView, decide
from scheduler.placement.feasible import beyond_every_device
from services.controller.errors import TaskExists, TaskImpossible
from services.controller.gauges import Gauges
from services.controller.mirror import Mirror
from services.controller.writer import Writer
from services.kit.errors import Conflict

__all__ = ["Placer"]


class Placer:
    """One decision at a time; controllers beside this one are kept apart by the log's conditions."""

    def __init__(self, mirror: Mirror, gauges: Gauges, writer: Writer) -> None:
        self._mirror = mirror
        self._gauges = gauges
        self._writer = writer
        self._one = asyncio.Lock()
        self._seen_changes = -1

    async def submit(self, task: TaskSubmitted, took: ActionTaken) -> tuple[TaskView, bool]:
        """Submit and place; the task as it is then, and whether it is new (the same again changes nothing). ``took``: who did it.

        Raises TaskExists, and TaskImpossible with nothing written.
        """
        async with self._one:
            known = await self._known(task)
            if known is None:
                reason = beyond_every_device(self._mirror.view, task)
                if reason:
                    raise TaskImpossible("required_vram_mb", reason)
                try:
                    await self._writer.append("task", task.task, [task, took])
                except Conflict:
                    known = await self._known(task)
            await self._place(task.task)
            return self._mirror.view.tasks[task.task], known is None

    async def dry_run(self, task: TaskSubmitted) -> TaskPlaced | TaskRefused:
        """What ``submit`` would decide now. Writes nothing."""
        await self._mirror.caught_up()
        return decide(self._mirror.view, task, self._gauges.measured()).event(time.time_ns())

    async def place_waiting(self) -> None:
        """Place what waits and fits now: by priority, then by age. Does nothing while nothing has changed."""
        if self._seen_changes == self._mirror.changes:
            return
        self._seen_changes = self._mirror.changes
        waiting = [task for task in self._mirror.view.live_tasks() if task.waiting]
        for task in sorted(waiting, key=lambda task: (task.submitted.priority, task.position)):
            async with self._one:
                await self._place(task.submitted.task)
            await asyncio.sleep(0)  # requests come in between: a long queue must not hold them up

    async def _known(self, task: TaskSubmitted) -> TaskView | None:
        """The task if it was submitted before with the same body (but the time)."""
        await self._mirror.caught_up()
        known = self._mirror.view.tasks.get(task.task)
        if known is None:
            return None
        if _body(known.submitted) != _body(task):
            raise TaskExists(f"task {task.task} exists with another body; leave out the id to get a new one")
        return known

    async def _place(self, name: str) -> None:
        """Decide on a waiting task and append the decision. A task in the queue that still does not fit is told so only once."""
        while True:
            task = self._mirror.view.tasks[name]
            if not task.waiting:
                return
            after = self._mirror.placement_position
            decision = decide(self._mirror.view, task.submitted, self._gauges.measured())
            if not decision.gpus and task.decision is not None:
                return
            try:
                await self._writer.append_placement(name, decision.event(time.time_ns()), after)
                return
            except Conflict:
                await self._mirror.caught_up()  # another controller placed something: decide on what is left


def _body(task: TaskSubmitted) -> tuple[object, ...]:
    return (
        task.tenant,
        task.priority,
        task.vram_bytes,
        task.gpu_count,
        task.exclusive,
        task.groups,
        task.noswap,
        task.title,
        task.queue,
        task.weight,
        task.sla_ms_p99,
        task.pace_percent,
        task.queue_timeout_ms,
    )
