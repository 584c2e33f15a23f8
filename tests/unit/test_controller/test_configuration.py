"""The configuration of the store in the log, beside another controller that changes it at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from bus_schemas.events import ActionTaken, Event
from bus_schemas.subjects import event_subject
from scheduler.placement import ClusterView
from services.controller.configuration import Configuration
from services.controller.store import Entry
from services.kit.errors import Conflict

KEY = "config/nodes/n"


def took(value: int) -> ActionTaken:
    return ActionTaken(value, "ann", "", "node.configure", "n")


class Log:
    """Projection and writer of one controller; ``now``: what the log has, which the projection shows once it has caught up."""

    def __init__(self, now: list[list[Event]]) -> None:
        self.now = now
        self.view = ClusterView()
        self.subject_positions: dict[str, int] = {}
        self.read = 0

    async def caught_up(self) -> bool:
        for position, events in enumerate(self.now[self.read :], self.read + 1):
            for event in events:
                self.view.apply(position, event)
            self.subject_positions[event_subject("config", "n")] = position
        self.read = len(self.now)
        return True

    async def append(self, area: str, entity: str, events: Sequence[Event]) -> int:
        await asyncio.sleep(0)
        if self.read != len(self.now):
            raise Conflict("another one was first")
        self.now.append(list(events))
        await self.caught_up()
        return self.read

    async def change(self, area: str, entity: str, decide: Callable[[], Sequence[Event]]) -> None:
        while events := decide():
            try:
                await self.append(area, entity, events)
                return
            except Conflict:
                await self.caught_up()


class Store:
    """``on_write`` is awaited behind each write."""

    def __init__(self) -> None:
        self.entry: Entry | None = None
        self.on_write: Callable[[], Any] | None = None

    async def get(self, key: str) -> Entry | None:
        return self.entry

    async def create(self, key: str, value: bytes) -> int:
        return await self.cas(key, value, 0)

    async def cas(self, key: str, value: bytes, revision: int) -> int:
        self.entry = Entry(key, value, revision + 1)
        if self.on_write is not None:
            then, self.on_write = self.on_write, None
            await then()
        return revision + 1


def test_a_slow_controller_does_not_undo_in_the_log_what_another_one_changed_after_it() -> None:
    """Both write the store, and the second one is in the log before the first one continues."""
    store, now = Store(), list[list[Event]]()
    logs = [Log(now), Log(now)]
    slow, quick = (Configuration(store, log, log) for log in logs)  # type: ignore[arg-type]  # what they use of them

    async def meanwhile() -> None:
        await quick.set_node("n", {"overcommit_vram_percent": 30}, took(2))

    async def run() -> None:
        store.on_write = meanwhile
        await slow.set_node("n", {"overcommit_vram_percent": 20}, took(1))
        await logs[1].caught_up()

    asyncio.run(run())
    assert store.entry is not None and b"30" in store.entry.value
    assert [log.view.config for log in logs] == [{("n", "overcommit_vram_percent"): 30}] * 2
