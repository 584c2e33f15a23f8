"""From a question to its document: segments in, one JSON object out.

May live here: what goes into a document. May not: reading the bus (source), rules.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator
from typing import Any

from services.kit.bus import Bus
from services.replay.check import check
from services.replay.errors import NothingFound
from services.replay.question import CHECK, Question
from services.replay.segments import Segment
from services.replay.source import node_names, segments_of_bus, segments_of_files

__all__ = ["answer"]


async def answer(bus: Bus | None, question: Question) -> dict[str, Any]:
    """The document. Raises ReplayError, KitError."""
    names = {} if bus is None else await node_names(bus)
    segments = segments_of_files(question) if bus is None else segments_of_bus(bus, question)
    if question.verb == CHECK:
        return await _checked(segments, question, names)
    raise NothingFound(f"{question.verb}: not answered yet")


async def _checked(segments: AsyncIterator[Segment], question: Question, names: dict[str, str]) -> dict[str, Any]:
    """A line a segment, and whether all are equal."""
    lines = []
    async for segment in segments:
        start = time.perf_counter()
        verdict = check(segment, question.from_ns, question.to_ns)
        if verdict is not None:
            name = names.get(verdict.node, verdict.node)
            spent = round((time.perf_counter() - start) * 1000, 1)
            lines.append({**dataclasses.asdict(verdict), "name": name, "equal": verdict.equal, "replay_ms": spent})
    if not lines:
        raise NothingFound("no journal of that node and time is on record")
    lines.sort(key=lambda line: (line["name"], line["gpu"], line["lane"], line["segment"]))
    return {"equal": all(line["equal"] for line in lines), "segments": lines}
