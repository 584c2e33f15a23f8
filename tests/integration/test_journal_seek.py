"""Where a time begins in the journal stream, on a real bus: never behind a segment that holds it, and not at the beginning of the week."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from bus_schemas import subjects
from bus_schemas.journal import DISPATCH, VRAM, JournalPart, encode_part
from services.kit.bus import Bus, connect
from services.kit.nats_server import NatsServer
from services.replay.source import start_of

MS = 1_000_000
LANES = (("n1", 0, DISPATCH), ("n1", 0, VRAM), ("n1", 1, DISPATCH), ("n2", 0, DISPATCH))


async def publish(bus: Bus) -> list[tuple[tuple[str, int, str], int, int]]:
    """Twelve segments of each lane, three parts each, one lane's part after another's: (lane, segment, position)."""
    out = []
    for number in range(12):
        for first in range(3):
            for at, lane in enumerate(LANES):
                segment = 1_000 + 100 * number + 7 * at
                part = JournalPart(lane[0], 1, lane[1], lane[2], segment, first, 1, b"", b"", 0)
                position = await bus.publish_acked(subjects.journal_subject(*lane), encode_part(part))
                out.append((lane, segment, position))
    return out


@pytest.mark.parametrize("subject", ["wooly.journal.n1.>", "wooly.journal.n1.0.>", subjects.JOURNAL_ALL])
def test_the_start_is_the_earliest_segment_that_holds_the_time(tmp_path: Path, subject: str) -> None:
    nats = NatsServer(tmp_path, sync_always=False)

    async def body() -> None:
        bus = await connect(nats.url, name="seek")
        assert await start_of(bus, subject, MS) == 1, "there is no stream"
        await bus.ensure_streams()
        assert await start_of(bus, subject, MS) == 1, "it is empty"
        parts = await publish(bus)
        wanted = [part for part in parts if subjects.journal_subject(*part[0]).startswith(subject.removesuffix(">"))]
        for at_ms in (0, 999, 1_000, 1_006, 1_350, 1_714, 2_100, 2_121, 9_999):
            expected = []
            for lane in {part[0] for part in wanted}:
                own = [part for part in wanted if part[0] == lane]
                held = max((segment for _, segment, _ in own if segment <= at_ms), default=0)
                expected.append(min(position for _, segment, position in own if segment >= held))
            assert await start_of(bus, subject, at_ms * MS) == min(expected), at_ms
        await bus.close()

    nats.start()
    try:
        asyncio.run(body())
    finally:
        nats.stop()
