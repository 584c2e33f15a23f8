"""Submission and placement of tasks, dry runs, and the queue of waiting tasks: decide, append, and on a conflict decide again."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Iterator

from msgspec.structs import replace

from bus_schemas.events import ActionTaken, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.placement import Decision, TaskView, explain, queue_decisions
from scheduler.placement.feasible import beyond_every_device
from scheduler.placement.queue import QueueMemory
from services.controller.errors import TaskExists, TaskImpossible
from services.controller.log_projection import LogProjection
from services.controller.writer import Writer
from services.kit.errors import BusUnavailable, Conflict

_SLICE_S = 0.05
"""How long one pass over the queue may take before pending requests are served."""
_AT_MOST_S = 1.0
"""How long before the other periodic work has its turn."""


class Placer:
    """One decision at a time; controllers beside this one are kept apart by the log's conditions."""

    def __init__(self, projection: LogProjection, writer: Writer) -> None:
        self._projection = projection
        self._writer = writer
        self._one = asyncio.Lock()
        self._memory = QueueMemory()

    async def submit(self, task: TaskSubmitted, took: ActionTaken) -> tuple[TaskView, bool]:
        """Submit and place; the task then, and whether it is new (the same again changes nothing). ``took``: the audit record.

        Raises TaskExists, and TaskImpossible with nothing written; BusUnavailable.
        """
        known = await self._known(task)
        new = known is None
        if known is None:
            reason = beyond_every_device(self._projection.view, task)
            if reason:
                raise TaskImpossible("required_vram_mb", reason)
            try:
                await self._writer.append("task", task.task, [task, took])
            except Conflict:
                known = await self._known(task)
                if known is None:
                    raise BusUnavailable("the log has moved on, and cannot be read at the moment; try again") from None
                new = False
        async with self._one:
            await self._place(task.task)
        return self._projection.view.tasks[task.task], new

    async def dry_run(self, task: TaskSubmitted) -> TaskPlaced | TaskRefused:
        """What ``submit`` would decide now, with every candidate and every refusal. Writes nothing."""
        await self._projection.caught_up()
        return explain(self._projection.view, task, time.time_ns()).event()

    async def place_waiting(self) -> None:
        """Place what fits now, in the order of the queue, for a second at most. Costs nothing while nothing has changed."""
        until_s = time.monotonic() + _AT_MOST_S
        finished = False
        while not finished and time.monotonic() < until_s:
            async with self._one:  # and no longer than a moment: requests wait for it
                decisions = queue_decisions(self._projection.view, time.time_ns(), self._memory)
                finished = await self._append(decisions, time.monotonic() + _SLICE_S)

    def look(self) -> None:
        """For a controller that is not the leader: remember that no queued task fits, if none does, so that a submission here
        need not scan the queue."""
        for _ in queue_decisions(self._projection.view, time.time_ns(), self._memory):
            return

    async def _known(self, task: TaskSubmitted) -> TaskView | None:
        """The task if it was submitted before with the same body (but the time)."""
        await self._projection.caught_up()
        known = self._projection.view.tasks.get(task.task)
        if known is None:
            return None
        if known.submitted != replace(task, at_ns=known.submitted.at_ns):
            raise TaskExists(f"the id {task.task} is taken by a task with another body; leave it out to get a new one")
        return known

    async def _place(self, name: str) -> None:
        """Decide on a waiting task and append the decision; before it on those ahead of it that may fit by now: a new task does not take
        their room. Retried when another controller placed something meanwhile."""
        while self._projection.view.tasks[name].waiting:
            if await self._append(queue_decisions(self._projection.view, time.time_ns(), self._memory, last=name)):
                return

    async def _append(self, decisions: Iterator[Decision], until_s: float = math.inf) -> bool:
        """Append them one by one, each decided on the view with those before it; False when another controller placed something first (look
        at what is left) or time is up."""
        for decision in decisions:
            try:
                await self._writer.append_placement(decision.task, [decision.event()])
            except Conflict:
                await self._projection.caught_up()
                return False
            if time.monotonic() > until_s:
                return False
        return True
