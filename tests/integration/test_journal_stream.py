"""Journals on a real bus: sent in order, also over a broker that restarts; a lost stream costs a gap and no more."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path

import pytest

from bus_schemas import subjects
from bus_schemas.journal import DISPATCH
from scheduler.dispatch import BatchArrived, Dispatch, Journal, LaunchFinished, SessionOpened, decode_journal, restore, snapshot
from services.kit.bus import Bus, connect
from services.kit.nats_server import NatsServer
from services.server import journal_stream
from services.server.dispatch_log import DispatchLog
from services.server.journal_stream import JournalStream
from tests.support.journals import Segment, segments_on
from tests.support.node import until_async


def on_bus(nats: NatsServer, work: Callable[[Bus], Coroutine[None, None, None]]) -> None:
    async def body() -> None:
        bus = await connect(nats.url, name="test")
        try:
            await bus.ensure_streams()
            await work(bus)
        finally:
            await bus.close()

    asyncio.run(asyncio.wait_for(body(), 60))


def play(log: DispatchLog, first: int, batches: int) -> None:
    for seq in range(first, first + batches):
        log.on(BatchArrived(1000 * seq, "s", 1, seq, 100, bytes(32)))
        log.on(LaunchFinished(1000 * seq + 500, "s", seq, 400))


def again(segment: Segment) -> bytes:
    """The state after a segment, run again."""
    records, taken = decode_journal(segment.frames)
    assert taken == len(segment.frames)
    core = Dispatch(restore(segment.snapshot)) if segment.snapshot else Dispatch()
    journal = Journal()
    for record in records:
        assert tuple(core.on(record.stimulus)) == record.decisions
        journal.add(record.stimulus, record.decisions)
    assert journal.digest == segment.digest
    return snapshot(core.state)


def test_a_broker_that_restarts_costs_nothing(nats: NatsServer, tmp_path: Path) -> None:
    async def work(bus: Bus) -> None:
        stream = JournalStream("node", 1)
        log = DispatchLog(tmp_path, 0, 1, stream.lane(0, DISPATCH))
        stream.start(bus)
        log.on(SessionOpened(0, "s", 1, 0, 1))
        play(log, 1, 10)
        stream.tick()
        await asyncio.to_thread(nats.stop)  # (a crash may cost what was acknowledged just before: ``persist_mode: async``)
        play(log, 11, 10)
        stream.tick()
        await asyncio.to_thread(nats.start)
        play(log, 21, 10)
        log.close()
        assert await stream.close(30)
        (segment,) = await segments_on(bus, DISPATCH)
        assert segment.frames == log.path.read_bytes()
        assert again(segment) == snapshot(log.state)

    on_bus(nats, work)


def test_a_stream_that_was_deleted_is_made_again(nats: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_stream, "_MISSING_S", 0.01)
    monkeypatch.setattr(journal_stream, "_ACK_S", 0.5)

    async def work(bus: Bus) -> None:
        stream = JournalStream("node", 1)
        lane = stream.lane(0, DISPATCH)
        log = DispatchLog(tmp_path, 0, 1, lane)
        stream.start(bus)
        log.on(SessionOpened(0, "s", 1, 0, 1))
        play(log, 1, 10)
        await bus.js_api(f"STREAM.DELETE.{subjects.JOURNAL_STREAM}")
        first = lane.segment
        stream.tick()

        async def anew() -> bool:
            return lane.segment > first

        await until_async(anew, "a new segment")
        play(log, 11, 10)
        log.close()
        assert await stream.close(30)
        (segment,) = await segments_on(bus, DISPATCH)
        assert segment.snapshot
        assert again(segment) == snapshot(log.state)

    on_bus(nats, work)
