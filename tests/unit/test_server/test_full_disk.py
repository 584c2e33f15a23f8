"""Files on a disk without room (/dev/full refuses every write): what must be on record stops the node, what serves people only ends."""

from __future__ import annotations

import asyncio
from io import BufferedWriter
from pathlib import Path

import pytest

from bus_schemas.events import NodeLost
from scheduler.dispatch import SessionOpened, Tick, decode_journal
from services.server import dispatch_log
from services.server.dispatch_log import DispatchLog
from services.server.facts import FactLog


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

    asyncio.run(asyncio.wait_for(body(), 5))


def test_the_dispatch_core_decides_without_its_journal(tmp_path: Path) -> None:
    log = DispatchLog(tmp_path, 0, 1)
    log._file.close()
    log._file = full()
    for at_ns in range(1000):
        log.on(Tick(at_ns))
    log.flush()
    log.on(SessionOpened(2000, "s", 1, 0, 1))
    assert "s" in log.state.sessions
    log.close()


def test_the_dispatch_journal_has_an_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch_log, "_SEGMENT_BYTES_MAX", 1000)
    log = DispatchLog(tmp_path, 0, 1)
    for at_ns in range(1000):
        log.on(Tick(at_ns))
    log.close()
    assert 900 < log.path.stat().st_size <= 1000
    records, good_bytes = decode_journal(log.path.read_bytes())
    assert len(records) > 10
    assert good_bytes == log.path.stat().st_size
