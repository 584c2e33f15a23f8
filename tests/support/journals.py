"""Reading a node's journals back: from the bus, put together segment by segment."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from bus_schemas import subjects
from bus_schemas.journal import JournalPart, decode_part
from services.kit.bus import Bus
from tests.support.node import DEADLINE_S, Node

__all__ = ["Segment", "segments", "segments_on"]


@dataclass(slots=True)
class Segment:
    """One lane's segment as it stands in the stream."""

    number: int
    snapshot: bytes
    parts: list[JournalPart] = field(default_factory=list)

    @property
    def frames(self) -> bytes:
        return b"".join(part.frames for part in self.parts)

    @property
    def digest(self) -> bytes:
        return self.parts[-1].digest


async def segments_on(bus: Bus, lane: str, gpu: int = 0) -> list[Segment]:
    """All segments of a lane that are in the stream now, in order."""
    end = await bus.last_position(subjects.JOURNAL_STREAM)
    found: dict[int, Segment] = {}
    over = asyncio.Event()
    if end == 0:
        return []

    def on_part(position: int, subject: str, data: bytes) -> None:
        part = decode_part(data)
        if (part.lane, part.gpu) == (lane, gpu):
            found.setdefault(part.segment, Segment(part.segment, part.snapshot)).parts.append(part)
        if position >= end:
            over.set()

    follower = bus.follow(subjects.JOURNAL_STREAM, 1, on_part)
    await follower.start()
    await asyncio.wait_for(over.wait(), DEADLINE_S)
    await follower.stop()
    return [found[number] for number in sorted(found)]


def segments(node: Node, lane: str, gpu: int = 0) -> list[Segment]:
    """The same for a running node's bus."""

    async def read(bus: Bus) -> list[Segment]:
        return await segments_on(bus, lane, gpu)

    return node.run(read)
