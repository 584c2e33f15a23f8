"""Projections on a real nats-server: they follow the log, wait for positions, start over after a lost tail, and fail loudly."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from bus_schemas.events import ActionTaken, Event, TenantChanged, decode_events
from bus_schemas.subjects import EVENTS_STREAM, event_subject
from services.kit.bus import Bus, connect
from services.kit.errors import Conflict, LogUnreadable
from services.kit.nats_server import NatsServer
from services.kit.projection import FactWriter, Projection
from tests.support.node import DEADLINE_S

ACCESS = event_subject("access", "acme")
ACME = TenantChanged(1, "acme", "", False)


class Log(Projection):
    """The events so far."""

    def __init__(self, bus: Bus, subject: str = "") -> None:
        super().__init__(bus, subject)
        self.events: list[Event] = []

    def apply(self, position: int, subject: str, data: bytes) -> None:
        self.events += decode_events(data)

    def start_over(self) -> None:
        self.events = []


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE_S))


async def ready(nats: NatsServer) -> Bus:
    bus = await connect(nats.url, name="projection")
    await bus.ensure_streams()
    return bus


def test_a_writer_returns_once_the_projection_shows_the_fact(nats: NatsServer) -> None:
    async def work() -> None:
        bus = await ready(nats)
        log = Log(bus)
        await log.follow()
        writer = FactWriter(bus, log)
        assert await writer.write(ACCESS, [ACME], after=0) == 1 and log.events == [ACME] and log.position == 1
        with pytest.raises(Conflict):
            await writer.write(ACCESS, [ACME], after=0)
        with pytest.raises(Conflict):
            await writer.write(event_subject("access", "other"), [ACME], after=0, among="wooly.evt.access.*")
        assert await writer.write(event_subject("access", "other"), [ACME], after=1, among="wooly.evt.access.*") == 2
        assert await log.caught_up() and not await log.reached(3, 0.05)
        await log.stop()
        await bus.close()

    run(work())


def test_only_messages_on_the_subject_are_waited_for(nats: NatsServer) -> None:
    async def work() -> None:
        bus = await ready(nats)
        await bus.publish_events("access", "acme", [ACME])
        await bus.publish_events("task", "t", [ActionTaken(2, "anna", "acme", "task.submit", "t")])
        log = Log(bus, "wooly.evt.access.*")
        await log.follow()
        assert await log.log_end() == 1 and await log.caught_up() and log.events == [ACME]
        change = asyncio.create_task(log.changed())
        await bus.publish_events("access", "acme", [ACME])
        await change
        assert log.events == [ACME, ACME]
        await log.stop()
        await bus.close()

    run(work())


def test_an_unreadable_event_ends_every_wait_with_its_position(nats: NatsServer) -> None:
    async def work() -> None:
        bus = await ready(nats)
        log = Log(bus)
        await log.follow()
        waiting = [asyncio.create_task(log.wait_for(position)) for position in (1, 7)]
        await asyncio.sleep(0)
        await bus.publish_acked(ACCESS, b"\x00no events")
        await bus.publish_events("access", "acme", [ACME])
        for task in (*waiting, asyncio.create_task(log.wait_for(2))):
            with pytest.raises(LogUnreadable, match="event log position 1 "):
                await task
        with pytest.raises(LogUnreadable):
            await log.caught_up()
        assert not await log.reached(1, 1.0) and log.position == 0 and log.events == []
        await log.stop()
        await bus.close()

    run(work())


def test_positions_that_are_assigned_again_start_it_over(nats: NatsServer) -> None:
    async def work() -> None:
        bus = await ready(nats)
        for _ in range(3):
            await bus.publish_events("access", "acme", [ACME])
        log = Log(bus)
        await log.follow()
        await log.wait_for(3)
        await bus.js_api(f"STREAM.DELETE.{EVENTS_STREAM}")
        await bus.ensure_streams()
        await bus.publish_events("access", "acme", [ACME])
        while len(log.events) != 1:
            await log.changed()
        assert log.position == 1
        await log.stop()
        await bus.close()

    run(work())
