"""The fact log across restarts: epochs grow, what was not acknowledged is published again, progress is remembered."""

from __future__ import annotations

import asyncio
from pathlib import Path

from bus_schemas.events import NodeLost
from services.kit.bus import connect
from services.kit.nats_server import NatsServer
from services.server.facts import FactLog, Progress
from services.server.meter import Account


def fact(number: int) -> NodeLost:
    return NodeLost(number, "node", 1, f"number {number}")


def test_epochs_grow_with_every_start(tmp_path: Path) -> None:
    assert [FactLog(tmp_path / "facts", "node").epoch for _ in range(3)] == [1, 2, 3]


def test_progress_is_remembered_once_synced(tmp_path: Path) -> None:
    async def body() -> None:
        log = FactLog(tmp_path / "facts", "node")
        progress = Progress(0, "boot", 123, 77, 5, (Account("s", "t", "", 1, core_ns=9),), "made", 42)
        log.note(progress, lambda: None)
        await log.close()
        assert FactLog(tmp_path / "facts", "node").progress == {0: progress}

    asyncio.run(body())


def test_what_was_not_acknowledged_is_published_by_the_next_start(tmp_path: Path) -> None:
    """The server dies with the bus away; the next one finds the bus again. Facts acknowledged before are not repeated."""
    nats = NatsServer(tmp_path / "nats")
    nats.start()

    async def body() -> None:
        bus = await connect(nats.url, name="facts")
        await bus.ensure_streams()
        first = FactLog(tmp_path / "facts", "node")
        first.start(bus)
        first.record("node", "node", [fact(1)])
        assert await first.settled(10)
        await first.close()
        unheard = FactLog(tmp_path / "facts", "node")
        unheard.record("node", "node", [fact(2), fact(3)])
        await unheard.close()
        last = FactLog(tmp_path / "facts", "node")
        last.start(bus)
        last.record("node", "node", [fact(4)])
        assert await last.settled(10)
        await last.close()
        replay = bus.replay()
        end = await replay.history_end()
        seen: list[int] = []
        async for position, events in replay:
            seen += [event.at_ns for event in events if isinstance(event, NodeLost)]
            if position >= end:
                break
        await replay.close()
        await bus.close()
        assert seen == [1, 2, 3, 4]

    try:
        asyncio.run(body())
    finally:
        nats.stop()
