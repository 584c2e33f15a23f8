"""Leader-elected background reconciler: it declares silent nodes lost, fails overdue tasks, places queued tasks, appends measurements to
the log, and sends nodes the changes of their tasks.

The leader is the controller with the leader's key under a lease. All writes are conditional appends, so a short overlap of two leaders is
harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import nsmallest
from typing import Final

import msgspec

from bus_schemas.events import ActionTaken, Event, LoadObserved, NodeRegistered
from bus_schemas.limits import ENDED_MAX
from bus_schemas.session import EndTask, SetPriority
from bus_schemas.subjects import node_request
from scheduler.placement import (
    Clock,
    ClusterView,
    Heard,
    Liveness,
    LivenessConfig,
    Measured,
    expired_waiting,
    load_observed,
    overdue_tasks,
    sessions_to_end,
    sessions_to_reprioritise,
)
from scheduler.placement.defragment import making_room
from scheduler.placement.reconcile import cancelled_by, leaving_tasks
from scheduler.placement.states import CANCELLED
from scheduler.placement.view import released
from services.controller.errors import LogUnreadable
from services.controller.log_projection import LogProjection
from services.controller.metrics import Gauges
from services.controller.placer import Placer
from services.controller.runs import Runs
from services.controller.store import ConfigStore, Lease, LeaseLost, StoreConflict, StoreUnavailable
from services.controller.writer import Writer
from services.kit.bus import Bus
from services.kit.bus_permissions import CONTROLLER
from services.kit.errors import BusRefused, BusUnavailable, Conflict
from services.kit.log import get_logger

__all__ = ["LoadReporter", "Reconciler"]

_DUTY: Final = "duty/sentinel"  # stored: controllers of all versions contend for this key
_LEASE_S: Final = 5
_KEEPALIVE_S: Final = 1.5
_ACTOR: Final = "controller"
_TICK_S: Final = 0.25
_LOOK_S: Final = 1.0
_ROOM_S: Final = 5.0
"""After it was found that no move makes room. On 8,000 devices with 16,000 tasks that takes 0.2 s."""

_REQUESTS_MAX: Final = 32
"""Requests to nodes under way at a time."""
_ANSWER_S: Final = 2.0
_RETRY_S: Final = 0.5
_RETRY_MAX_S: Final = 15.0
"""The pause between two requests for the same change doubles from _RETRY_S up to this."""

_DEVICES_MAX: Final = 4_000
"""Devices of one load fact, so that a message stays below half a megabyte."""
_LOAD_PAUSE_NS: Final = 2 * 10**9


class Reconciler:
    """``run()`` never returns; ``heard`` records a heartbeat of a node."""

    def __init__(
        self,
        *,
        bus: Bus,
        store: ConfigStore,
        projection: LogProjection,
        gauges: Gauges,
        writer: Writer,
        placer: Placer,
        runs: Runs,
        node_lease_ms: int,
        start_lease_ms: int,
    ) -> None:
        self._bus = bus
        self._store = store
        self._projection = projection
        self._gauges = gauges
        self._writer = writer
        self._placer = placer
        self._runs = runs
        self._start_lease_ms = start_lease_ms
        self._liveness = Liveness(LivenessConfig(node_lease_ms))
        self._node_requests = NodeRequests(bus)
        self._load = LoadReporter()
        self._look_again = 0.0
        self._room_again = 0.0
        self._instance = uuid.uuid4().hex
        self._lease: Lease | None = None
        self._renew_at = 0.0
        projection.on_live_event(self._on_event)
        gauges.on_heard(self.heard)

    @property
    def on_duty(self) -> bool:
        return self._lease is not None

    def heard(self, node: str, epoch: int) -> None:
        self._liveness.on(Heard(time.monotonic_ns(), node, epoch), self._projection.view)

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._tick()
                except (BusUnavailable, BusRefused, StoreUnavailable, LogUnreadable) as error:
                    get_logger().warning("sentinel cannot work", error=str(error))
                await asyncio.sleep(_TICK_S)
        finally:
            await self._node_requests.close()
            await self._hand_over()

    def _on_event(self, position: int, event: Event) -> None:
        if isinstance(event, NodeRegistered):
            self.heard(event.node, event.epoch)

    async def _tick(self) -> None:
        if not self._bus.connected or self._projection.failure is not None:
            return  # disconnected: silence is then no sign of a lost node
        hearing = self._gauges.hearing  # without telemetry from the bus, a silent node is not taken for lost
        facts = self._liveness.on(Clock(time.monotonic_ns(), time.time_ns()), self._projection.view) if hearing else []
        if not await self._hold_duty():
            self._placer.look()
            return
        with contextlib.suppress(Conflict):  # another controller or the node itself appended first: look again at the next tick
            for fact in facts:
                await self._writer.append("node", fact.node, [fact])
                get_logger().warning(type(fact).__name__, node=fact.node, epoch=fact.epoch)
            await self._look_around()
        self._node_requests.step(self._projection.view)
        await self._placer.place_waiting()

    async def _look_around(self) -> None:
        """End overdue tasks, append measurements. Every second, as it reads every live task and every device."""
        if time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + _LOOK_S
        now_ns = time.time_ns()
        view, book, lease_ms = self._projection.view, self._runs.book, self._start_lease_ms
        unstarted = [
            change
            for change in overdue_tasks(view, now_ns, lease_ms)
            if view.tasks[change.task].sessions or not book.awaited(change.task, time.monotonic(), lease_ms / 1000)
        ]
        for change in (*unstarted, *expired_waiting(self._projection.view, now_ns)):
            if self._projection.view.tasks[change.task].live:
                await self._writer.append("task", change.task, [change])
        while leaving := leaving_tasks(self._projection.view, now_ns):
            await self._writer.append_placement(leaving[0].task, leaving)
        await self._make_room(now_ns)
        await self._runs.look_after()
        load = self._load.due(self._projection.view, self._gauges.measured(), time.time_ns())
        if load is not None:
            await self._writer.append("load", self._instance, [load])

    async def _make_room(self, now_ns: int) -> None:
        """Move a running task for one that waits, where the configuration wants that."""
        if time.monotonic() < self._room_again:
            return
        found = making_room(self._projection.view, now_ns)
        if found is None:
            self._room_again = time.monotonic() + _ROOM_S
            return
        move = found.displaced
        tenant = self._projection.view.tasks[move.task].submitted.tenant
        detail = f"to {move.to}, to make room for task {found.waiting}"
        await self._writer.append_placement(move.task, [move, ActionTaken(now_ns, _ACTOR, tenant, "task.move", move.task, detail)])
        get_logger().info("a task is moved to make room", task=move.task, to=move.to, waiting=found.waiting)

    async def _hold_duty(self) -> bool:
        """Take or keep the lease; whether this controller is the leader."""
        if time.monotonic() < self._renew_at:
            return self.on_duty
        self._renew_at = time.monotonic() + _KEEPALIVE_S
        if self._lease is not None:
            try:
                await self._lease.keepalive()
                return True
            except LeaseLost:
                self._lease = None
        lease = await self._store.lease(_LEASE_S)
        try:
            await self._store.create(_DUTY, self._instance.encode(), lease=lease)
        except StoreConflict:
            await lease.revoke()
            return False
        self._lease = lease
        return True

    async def _hand_over(self) -> None:
        if self._lease is not None:
            with contextlib.suppress(StoreUnavailable, BusUnavailable):  # it runs out by itself
                await self._lease.revoke()


@dataclass(frozen=True, slots=True)
class NodeRequest:
    """A change of a task that its node has yet to apply."""

    node: str
    task: str
    #: The priority that the task's sessions get; None: sessions end.
    priority: int | None = None
    #: Who cancelled the task.
    by: str = ""
    #: Its sessions that end because it is to run elsewhere; empty: all end, for it was cancelled.
    displaced: tuple[str, ...] = ()
    #: Their clients are asked to leave: they end by themselves.
    asks: bool = False


def node_requests(view: ClusterView) -> list[NodeRequest]:
    """The changes that connected nodes have not applied yet, in a fixed order."""
    found: set[NodeRequest] = set()
    displaced: dict[tuple[str, str, bool], list[str]] = {}
    for session in sessions_to_end(view):
        fact = session.fact
        ended = view.tasks[fact.task]
        if ended.state == CANCELLED or released(ended):
            found.add(NodeRequest(fact.node, fact.task, by=cancelled_by(view, fact.task)))
        else:
            asks = ended.moving is not None and not session.given_up  # else there is no place where its client could go on meanwhile
            displaced.setdefault((fact.node, fact.task, asks), []).append(fact.session)
    for (node, task, asks), names in displaced.items():
        found.add(NodeRequest(node, task, displaced=tuple(names[:ENDED_MAX]), asks=asks))
    found |= {NodeRequest(session.fact.node, session.fact.task, priority) for session, priority in sessions_to_reprioritise(view)}
    return sorted(found, key=lambda request: (request.node, request.task, request.priority is not None, request.displaced))


class NodeRequests:
    """Level-triggered requests to nodes: as long as the view shows a session that is behind, its node is asked again, with growing pauses;
    the node's facts end it. The state is not essential: the next leader asks again. ``step`` sends what is due and does not wait for
    answers; ``close`` cancels requests under way."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._due: dict[NodeRequest, tuple[float, float]] = {}
        """(when to ask again, after which pause) for each request that has no effect yet."""
        self._asking: dict[NodeRequest, asyncio.Task[None]] = {}

    def step(self, view: ClusterView) -> None:
        now_s = time.monotonic()
        wanted = node_requests(view)
        for settled in self._due.keys() - set(wanted):
            del self._due[settled]
        for request in wanted:
            if len(self._asking) >= _REQUESTS_MAX:
                return
            due_s, pause_s = self._due.get(request, (now_s, _RETRY_S))
            if request in self._asking or due_s > now_s:
                continue
            self._due[request] = (now_s + pause_s, min(2 * pause_s, _RETRY_MAX_S))
            task = self._asking[request] = asyncio.create_task(self._ask(request), name=f"ask {request.node}")
            task.add_done_callback(lambda _, request=request: self._asking.pop(request, None))  # type: ignore[misc]  # bound now

    async def close(self) -> None:
        for task in list(self._asking.values()):
            task.cancel()
        await asyncio.gather(*self._asking.values(), return_exceptions=True)

    async def _ask(self, request: NodeRequest) -> None:
        if request.priority is None:
            order = EndTask(request.task, request.by, bool(request.displaced), request.asks, request.displaced)
            verb, question = "end_task", msgspec.msgpack.encode(order)
        else:
            verb, question = "set_priority", msgspec.msgpack.encode(SetPriority(request.task, request.priority))
        try:
            await self._bus.request(node_request(request.node, verb, CONTROLLER), question, _ANSWER_S)
        except BusUnavailable as error:
            get_logger().warning("a node does not answer", node=request.node, task=request.task, verb=verb, problem=str(error))


class LoadReporter:
    """Rate limit of load facts: one in 2 s for each device, except that transitions to idle bypass the limit."""

    def __init__(self) -> None:
        self._reported_ns: dict[tuple[str, int], int] = {}

    def due(self, view: ClusterView, heard: Mapping[tuple[str, int], Measured], at_ns: int) -> LoadObserved | None:
        """The fact that is due at Unix time ``at_ns``, None when there is none."""
        candidates = {key: seen for key, seen in heard.items() if seen != view.load.get(key) and self._may(key, seen, at_ns)}
        fact = load_observed(view, candidates, at_ns)
        if fact is None:
            return None
        # Only changes that matter take a place, and the devices reported longest ago come first: no device starves.
        devices = nsmallest(_DEVICES_MAX, fact.devices, key=lambda seen: self._reported_ns.get(seen[:2], 0))
        self._reported_ns.update({(node, gpu): at_ns for node, gpu, *_ in devices})
        return LoadObserved(at_ns, tuple(sorted(devices)))

    def _may(self, key: tuple[str, int], seen: Measured, at_ns: int) -> bool:
        return seen == Measured() or abs(at_ns - self._reported_ns.get(key, 0)) >= _LOAD_PAUSE_NS  # the clock may have been set back
