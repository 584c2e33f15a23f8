"""Actions on tasks: submit, dry-run the placement, cancel, change the priority, run elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec.structs import replace

from billing.tiers import TierBook, priority_refusal, task_excess, task_refusal
from bus_schemas.events import (
    Event,
    TaskDisplaced,
    TaskPlaced,
    TaskPriorityChanged,
    TaskRefused,
    TaskStateChanged,
    TaskStayed,
    TaskSubmitted,
)
from scheduler.placement import TaskView
from scheduler.placement.feasible import beyond_every_device
from scheduler.placement.reconcile import moved
from scheduler.placement.state import default_priority, default_vram_bytes
from scheduler.placement.states import CANCELLED, CANCELLED_BY, COMPLETED, FAILED, OWN_REASONS, STARTED
from scheduler.placement.view import cut_off, released
from services.controller.errors import Invalid, OutOfState, TaskImpossible
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.lookup import check, find_node, find_task, task_revision
from services.controller.placer import Placer
from services.controller.writer import Writer
from services.kit.access import Action
from services.kit.errors import QuotaReached


class TaskActions:
    """Tasks go by id, title or the beginning of their id. Each method raises Denied, NotThere (also for another tenant's task), Ambiguous,
    Stale when ``revision`` is given and no longer holds, and kit.errors.BusUnavailable; it returns once the view shows what was done."""

    def __init__(self, projection: LogProjection, writer: Writer, placer: Placer) -> None:
        self._projection = projection
        self._writer = writer
        self._placer = placer
        self._arriving: dict[str, str] = {}  # tenants by the tasks whose submission is being written
        #: whether a runner executes the script of a task
        self.is_executed: Callable[[str], bool] = lambda task: False

    async def submit(self, by: Caller, task: TaskSubmitted) -> tuple[TaskView, bool]:
        """Submit and place; the task as it is then, and whether it is new. With nothing written: raises TaskExists, TaskImpossible,
        Invalid and QuotaReached beyond what the tenant's tier allows."""
        self._may_submit(by, task)
        task = replace(task, hold_percent=self._hold_percent(task))
        self._arriving[task.task] = task.tenant
        try:
            return await self._placer.submit(task, by.took("task.submit", task.task, tenant=task.tenant))
        finally:
            self._arriving.pop(task.task, None)

    def _hold_percent(self, task: TaskSubmitted) -> int:
        """Of one that was submitted before, that of then."""
        known = self._projection.view.tasks.get(task.task)
        if known is not None:
            return known.submitted.hold_percent
        tiers, now_ns = self._projection.fold(TierBook), time.time_ns()
        return tiers.hold_percent(tiers.tier_of(task.tenant, now_ns), now_ns)

    def check(self, by: Caller, task: TaskSubmitted) -> None:
        """Raises what ``submit`` would raise with nothing written, but TaskExists."""
        self._may_submit(by, task)
        reason = beyond_every_device(self._projection.view, task)
        if reason and task.task not in self._projection.view.tasks:
            raise TaskImpossible("required_vram_mb", reason)

    def _may_submit(self, by: Caller, task: TaskSubmitted) -> None:
        by.require("task.submit", task.tenant)
        self._named_vram(task)
        view = self._projection.view
        if task.task in view.tasks:  # submitted before: nothing is added
            return
        refusal = task_refusal(self._projection.fold(TierBook), task, time.time_ns())
        if refusal is not None:
            raise Invalid(*refusal)
        self._under_quotas(task)

    def _under_quotas(self, task: TaskSubmitted) -> None:
        """Raises QuotaReached where the tenant's tier allows no more tasks that are not over."""
        view, book, now_ns = self._projection.view, self._projection.fold(TierBook), time.time_ns()
        arriving = sum(tenant == task.tenant and name not in view.tasks for name, tenant in self._arriving.items())
        live, queued = view.live_of.get(task.tenant, 0) + arriving, view.queued()[task.tenant] + arriving
        excess = task_excess(book, task, live, queued, now_ns)
        if excess is not None:
            raise QuotaReached(excess, f"tenant {task.tenant}", "id")

    def defaults(self, task: str, tenant: str, latency_target: bool) -> tuple[int, int]:
        """Default priority and bytes of VRAM of a task; for one that was submitted before, the defaults of that time."""
        known = self._projection.view.tasks.get(task)
        if known is not None:
            return known.submitted.priority, known.submitted.vram_bytes
        tiers, now_ns = self._projection.fold(TierBook), time.time_ns()
        tier_mb = tiers.default_vram_mb(tiers.tier_of(tenant, now_ns), now_ns)
        return self.default_priority(tenant, latency_target=latency_target), default_vram_bytes(self._projection.view, tier_mb)

    def default_priority(self, tenant: str, *, latency_target: bool = False) -> int:
        """The middle of what the tenant's tier allows."""
        return default_priority(self._projection.fold(TierBook).ceiling_of(tenant, time.time_ns()), latency_target=latency_target)

    @staticmethod
    def _named_vram(task: TaskSubmitted) -> None:
        """Raises Invalid when the task names no VRAM and neither its tier nor the cluster has a default."""
        if not task.vram_bytes:
            raise Invalid(
                "required_vram_mb", "neither tier nor cluster has a default (default_vram_mb); set REQUIRED_VRAM to a number of MB"
            )

    async def dry_run(self, by: Caller, task: TaskSubmitted) -> TaskPlaced | TaskRefused:
        """What ``submit`` would decide now. Writes nothing."""
        by.require("task.read", task.tenant)
        self._named_vram(task)
        return await self._placer.dry_run(task)

    async def cancel(self, by: Caller, task: str, *, revision: int | None = None) -> TaskView:
        """End it: a waiting task leaves the queue, a running one is ended by its node (one that is lost: when it is back) and its runner,
        which may execute the script of a task that is over. Of a task cancelled before: nothing. Raises OutOfState when it is over in
        another way."""

        def change(view: TaskView) -> list[Event]:
            if view.state == CANCELLED:
                return []
            name, cancellable = view.submitted.task, view.live or cut_off(view)
            if not cancellable and not self.is_executed(name):
                raise OutOfState(f"task {name} is over: {view.state}")
            cancelled = TaskStateChanged(time.time_ns(), name, CANCELLED, f"{CANCELLED_BY}{by.identity.name}")
            return [cancelled] if cancellable else [TaskStateChanged(cancelled.at_ns, name, STARTED), cancelled]

        return await self._change(by, "task.cancel", task, revision, "", change)

    async def release(self, by: Caller, task: str, *, failed: bool, reason: str) -> TaskView:
        """End a reservation: its memory is free, and what still runs on it is ended. Of one that is over: nothing.
        Raises OutOfState for another kind of task."""
        if reason.startswith(OWN_REASONS):
            reason = f"released: {reason}"

        def change(view: TaskView) -> Event | None:
            if not view.submitted.reservation:
                raise OutOfState(f"task {view.submitted.task} is not a reservation: it ends with its script, or is cancelled")
            if released(view):
                return None
            return TaskStateChanged(time.time_ns(), view.submitted.task, FAILED if failed else COMPLETED, reason)

        return await self._change(by, "task.cancel", task, None, "released", change)

    async def set_priority(self, by: Caller, task: str, priority: int, *, revision: int | None = None) -> TaskView:
        """Give it another priority (0-4), waiting or running. Raises OutOfState when it is over, Invalid above the tier's ceiling."""

        def change(view: TaskView) -> Event | None:
            if not view.live:
                raise OutOfState(f"task {view.submitted.task} is over: {view.state}")
            self._under_ceiling(view.submitted.tenant, priority)
            return None if view.priority == priority else TaskPriorityChanged(time.time_ns(), view.submitted.task, priority)

        return await self._change(by, "task.prioritise", task, revision, str(priority), change)

    async def resume(self, by: Caller, task: str) -> TaskView:
        """Place a task again whose node was lost: its client repeats its work. Of one that waits already: nothing. Raises OutOfState when
        its node is not lost, when no other node is there (then its session continues when its own comes back, with nothing repeated), or it
        is over; QuotaReached where a new task would be one too many."""

        def change(view: TaskView) -> Event | None:
            if view.waiting and view.displaced:
                return None
            here = {name for name, node in self._projection.view.nodes.items() if node.lost is None}
            if not cut_off(view) or view.placed is None or view.placed.node in here:
                raise OutOfState(f"task {view.submitted.task} has not lost its node: it is {view.state}")
            if not here:
                raise OutOfState(f"task {view.submitted.task} has lost its node, and no other one is there")
            self._under_quotas(view.submitted)
            return TaskDisplaced(time.time_ns(), view.submitted.task, view.placed.node, lost=True)

        return await self._change(by, "task.submit", task, None, "placed again, for its node was lost", change)

    async def move(self, by: Caller, task: str, to: str = "", *, revision: int | None = None) -> TaskView:
        """Have a running task run on node ``to`` (empty: on any other), where memory is held for it from now on. Its client opens a session
        there, and leaves when that has caught up. Raises NotThere (of the node too), OutOfState when it does not run, runs there, is being
        moved, or fits on no such node now."""

        def change(view: TaskView) -> Event:
            name, clusters = view.submitted.task, self._projection.view
            if view.state != STARTED or view.placed is None:
                raise OutOfState(f"task {name} does not run: it is {view.state}")
            target = find_node(clusters, to) if to else ""
            if target == view.placed.node:
                raise OutOfState(f"task {name} runs on that node")
            if view.moving is not None:
                raise OutOfState(f"task {name} is being moved to node {clusters.nodes[view.moving.node].registered.name} already")
            displaced = moved(clusters, view, time.time_ns(), target)
            if displaced is None:
                raise OutOfState(f"task {name} fits on no other node now" if not target else f"task {name} does not fit on that node now")
            return displaced

        return await self._change(by, "task.move", task, revision, f"to {to}" if to else "", change, places=True)

    async def stay(self, by: Caller, task: str, reason: str) -> TaskView:
        """A task that was to run elsewhere stays where it is, as its client says. Of one that is not being moved: nothing."""

        def change(view: TaskView) -> Event | None:
            if view.moving is None or view.placed is None:
                return None
            return TaskStayed(time.time_ns(), view.submitted.task, view.placed.node, reason)

        return await self._change(by, "task.submit", task, None, f"stays: {reason}", change)

    def _under_ceiling(self, tenant: str, priority: int) -> None:
        """Raises Invalid when the tenant's tier has no such priority."""
        text = priority_refusal(self._projection.fold(TierBook), tenant, priority, time.time_ns())
        if text is not None:
            raise Invalid("priority", text)

    def seen(self, by: Caller, task: str) -> TaskView:
        """A task that the caller may read, by id, title or the beginning of its id. Raises NotThere, Ambiguous."""
        view = self._projection.view
        return view.tasks[find_task(view, task, by.sees)]

    async def _change(
        self,
        by: Caller,
        action: Action,
        task: str,
        revision: int | None,
        detail: str,
        change: Callable[[TaskView], Event | list[Event] | None],
        *,
        places: bool = False,
    ) -> TaskView:
        """Append what ``change`` makes of the task as it is. ``places``: that promises memory of a node."""
        await self._projection.caught_up()
        task = self.seen(by, task).submitted.task

        def decide() -> list[Event]:
            found = self.seen(by, task)
            tenant = found.submitted.tenant
            by.require(action, tenant)
            check(f"task {task}", task_revision(self._projection, task), revision)
            made = change(found)
            events = made if isinstance(made, list) else [made] if made is not None else []
            return [*events, by.took(action, task, tenant=tenant, detail=detail)] if events else []

        await self._writer.change("task", task, decide, places=places)
        return self._projection.view.tasks[task]
