"""Leader-elected background reconciler: it declares silent nodes lost, fails tasks that never start or have waited long enough, places
queued tasks, appends measurements to the log, and sends nodes the changes of their tasks.

One controller at a time does them, the one that holds the duty key under a lease; the log's conditions make a moment with two harmless.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from typing import Final

from bus_schemas.events import Event, NodeRegistered
from scheduler.placement import Clock, Heard, Liveness, LivenessConfig, expired_waiting, overdue_tasks
from services.controller.errors import LogUnreadable
from services.controller.gauges import Gauges
from services.controller.load import LoadReporter
from services.controller.mirror import Mirror
from services.controller.placer import Placer
from services.controller.reconcile import Reconciler
from services.controller.runs import Runs
from services.controller.store import ConfigStore, Lease, LeaseLost, StoreConflict, StoreUnavailable
from services.controller.writer import Writer
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable, Conflict
from services.kit.log import get_logger

__all__ = ["Sentinel"]

_DUTY: Final = "duty/sentinel"
_LEASE_S: Final = 5
_KEEPALIVE_S: Final = 1.5
_TICK_S: Final = 0.25
_LOOK_S: Final = 1.0


class Sentinel:
    """``run()`` never returns; ``heard`` is called for every sign of life of a node."""

    def __init__(
        self,
        bus: Bus,
        store: ConfigStore,
        mirror: Mirror,
        gauges: Gauges,
        writer: Writer,
        placer: Placer,
        runs: Runs,
        *,
        node_lease_ms: int,
        start_lease_ms: int,
    ) -> None:
        self._bus = bus
        self._store = store
        self._mirror = mirror
        self._gauges = gauges
        self._writer = writer
        self._placer = placer
        self._runs = runs
        self._start_lease_ms = start_lease_ms
        self._liveness = Liveness(LivenessConfig(node_lease_ms))
        self._reconciler = Reconciler(bus)
        self._load = LoadReporter()
        self._look_again = 0.0
        self._instance = uuid.uuid4().hex
        self._lease: Lease | None = None
        self._renew_at = 0.0
        mirror.on_live_event(self._on_event)
        gauges.on_heard(self.heard)

    @property
    def on_duty(self) -> bool:
        return self._lease is not None

    def heard(self, node: str, epoch: int) -> None:
        self._liveness.on(Heard(time.monotonic_ns(), node, epoch), self._mirror.view)

    async def run(self) -> None:
        try:
            while True:
                try:
                    await self._tick()
                except (BusUnavailable, BusRefused, StoreUnavailable, LogUnreadable) as error:
                    get_logger().warning("sentinel cannot work", error=str(error))
                await asyncio.sleep(_TICK_S)
        finally:
            await self._reconciler.close()
            await self._hand_over()

    def _on_event(self, position: int, event: Event) -> None:
        if isinstance(event, NodeRegistered):
            self.heard(event.node, event.epoch)

    async def _tick(self) -> None:
        if not self._bus.connected or self._mirror.failure is not None:
            return  # disconnected: silence then says nothing about the nodes
        hearing = self._gauges.hearing  # if not, silence says nothing about the nodes either, and all else goes on
        facts = self._liveness.on(Clock(time.monotonic_ns(), time.time_ns()), self._mirror.view) if hearing else []
        if not await self._hold_duty():
            self._placer.look()
            return
        with contextlib.suppress(Conflict):  # another controller or the node itself appended first: look again at the next tick
            for fact in facts:
                await self._writer.append("node", fact.node, [fact])
                get_logger().warning(type(fact).__name__, node=fact.node, epoch=fact.epoch)
            await self._look_around()
        self._reconciler.step(self._mirror.view)
        await self._placer.place_waiting()

    async def _look_around(self) -> None:
        """Every second, as it looks at every task that is not over and at every device: end what is overdue, append measurements."""
        if time.monotonic() < self._look_again:
            return
        self._look_again = time.monotonic() + _LOOK_S
        now_ns = time.time_ns()
        overdue = overdue_tasks(self._mirror.view, now_ns, self._start_lease_ms)
        unstarted = [
            change for change in overdue if not self._runs.book.going(change.task) or self._mirror.view.tasks[change.task].sessions
        ]
        for change in [*unstarted, *expired_waiting(self._mirror.view, now_ns)]:
            if self._mirror.view.tasks[change.task].live:
                await self._writer.append("task", change.task, [change])
        await self._runs.look_after()
        load = self._load.due(self._mirror.view, self._gauges.measured(), time.time_ns())
        if load is not None:
            await self._writer.append("load", self._instance, [load])

    async def _hold_duty(self) -> bool:
        """Take the duty or keep it; whether it is ours."""
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
