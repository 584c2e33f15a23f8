"""From a question to its document: segments in, one JSON object out.

May live here: which segments and names a question needs, and what goes around an answer. May not: reading the bus (source), rules.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Mapping
from typing import Any

from bus_schemas.journal import DISPATCH, VRAM
from scheduler.model.waits import Waits
from services.kit.bus import Bus
from services.replay.check import check
from services.replay.errors import NothingFound
from services.replay.memory import MemoryStory
from services.replay.question import CHECK, WHY, Question
from services.replay.rules import rule_of
from services.replay.runs import begins_life, replayed, steps
from services.replay.segments import Segment
from services.replay.source import node_names, segments_of_bus, segments_of_files, session_names
from services.replay.whatif import whatif
from services.replay.why import Named, story

__all__ = ["answer"]


async def answer(bus: Bus | None, question: Question) -> dict[str, Any]:
    """The document. Raises ReplayError, KitError."""
    if question.verb == WHY:
        return await _why(bus, question)
    names = {} if bus is None else await node_names(bus)
    if question.verb == CHECK:
        return await _checked(_segments(bus, question), question, names)
    return await whatif(_segments(bus, question), question, names, {} if bus is None else await session_names(bus))


def _segments(bus: Bus | None, question: Question) -> AsyncIterator[Segment]:
    return segments_of_files(question) if bus is None else segments_of_bus(bus, question)


async def _checked(segments: AsyncIterator[Segment], question: Question, names: Mapping[str, str]) -> dict[str, Any]:
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


async def _why(bus: Bus | None, question: Question) -> dict[str, Any]:
    """The story of a task or session, over every device that had it."""
    names = {} if bus is None else await session_names(bus)
    asked = {name for name, named in names.items() if question.task in (name, named.task)} or {question.task}
    nodes = {names[session].node for session in asked if session in names}
    if len(nodes) == 1 and not question.node:
        question = dataclasses.replace(question, node=nodes.pop())
    waits: dict[tuple[str, int], Waits] = {}
    finished: list[Waits] = []
    before: dict[tuple[str, int], Segment] = {}
    memory = MemoryStory(asked)
    offset_ns, known = 0, False
    async for segment in _segments(bus, question):
        if not _mentions(segment, asked):
            continue
        if segment.lane == VRAM:
            for seen in replayed(segment):
                memory.take(seen.stimulus, seen.recorded)
            continue
        if segment.lane != DISPATCH:
            continue
        known, offset_ns, device = True, segment.unix_offset_ns, (segment.node, segment.gpu)
        fresh = begins_life(segment, before.get(device))
        if fresh:
            waits[device] = Waits(asked, rule_of)
            finished.append(waits[device])
        before[device] = segment
        for core, step in steps(segment):
            if step is not None:
                waits[device].take(*step)
            elif fresh:
                waits[device].resume(core.state)
    if not known:
        raise NothingFound(f"no task or session {question.task!r} is in the journals; wooly tasks lists tasks")
    stories = [batch for wait in finished for batch in wait.stories if _within(batch.begin_ns + offset_ns, question)]
    about = [dataclasses.asdict(names.get(session, Named(session))) for session in sorted(asked)]
    document = story(stories, names, memory, question.top)
    return {"asked": question.task, "sessions": about, "unix_offset_ns": offset_ns, **document}


def _mentions(segment: Segment, sessions: set[str]) -> bool:
    """Does the segment know one of them? Names stand in the bytes as they are."""
    return any(name.encode() in part.frames or name.encode() in part.snapshot for part in segment.parts for name in sessions)


def _within(unix_ns: int, question: Question) -> bool:
    return question.from_ns <= unix_ns and (question.to_ns is None or unix_ns < question.to_ns)
