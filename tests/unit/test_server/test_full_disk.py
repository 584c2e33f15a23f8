"""Files on a disk without room (/dev/full refuses every write): what must be on record stops the node, what serves people only ends."""

from __future__ import annotations

import asyncio
from io import BufferedWriter
from pathlib import Path

from bus_schemas.events import NodeLost
from bus_schemas.journal import DISPATCH
from scheduler.dispatch import SessionOpened, Tick, decode_journal
from services.server.dispatch_log import DispatchLog
from services.server.facts import FactLog
from services.server.journal_stream import Lane


def full() -> BufferedWriter:
    return open("/dev/full", "ab")


def test_facts_that_cannot_be_written_are_a_failure_and_not_an_exception(tmp_path: Path) -> None:
    async def body() -> None:
        log = FactLog(tmp_path / "facts", "node")
        log._file._file.close()
        log._file._file = full()
        for number in range(500):
            log.record("node", "node", [NodeLost(number, "node", 1, "x" * 100)])
        assert log.failed.is_set()
        assert not await log.settled(10)
        await log.close()

    asyncio.run(asyncio.wait_for(body(), 60))


def test_the_dispatch_core_decides_without_its_file_and_the_bus_has_the_record(tmp_path: Path) -> None:
    lane = Lane("node", 1, 0, DISPATCH, lambda: None)
    log = DispatchLog(tmp_path, 0, 1, lane)
    assert log._file is not None
    log._file.close()
    log._file = full()
    for at_ns in range(1000):
        log.on(Tick(at_ns))
    log.flush()
    log.on(SessionOpened(2000, "s", 1, 0, 1))
    assert "s" in log.state.sessions
    log.close()
    records, _ = decode_journal(b"".join(part.frames for part in lane.parts))
    assert len(records) == 1001
