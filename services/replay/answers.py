"""From a question to its document: segments in, one JSON object out."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final

import msgspec

from bus_schemas.journal import DISPATCH, PROGRAMS, VRAM, decode_uses
from scheduler.model.waits import BatchStory, Waits
from services.kit.bus import Bus
from services.replay.lanes import Segment, begins_life, check, memory_steps, steps
from services.replay.question import CHECK, WHY, NothingFound, Question, ReplayError
from services.replay.source import node_names, segments_of_bus, segments_of_files, session_names
from services.replay.whatif import whatif
from services.replay.why import Grid, MemoryStory, MemoryUse, Named, Programs, rule_of, story, timeline

__all__ = ["answer"]

_PREFIX_LEAST: Final = 4
_LISTED_MAX: Final = 5
_LOOK: Final = 512
"""Records between two looks at the clock."""


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
    """The waits of a task or session on every device that had it, and with ``slots`` its timeline. ``complete``: the whole journal of that
    time was read."""
    deadline = time.monotonic() + question.limit_s if question.limit_s else float("inf")
    known = {session: Named(session) for session in question.sessions}
    names = known if known or bus is None else await session_names(bus)
    asked = set(known) or _sessions_of(question.task, names) or {question.task}
    nodes = {names[session].node for session in asked if session in names}
    if len(nodes) == 1 and not question.node:
        question = dataclasses.replace(question, node=nodes.pop())
    fold = _Fold(asked, Grid(question.from_ns, question.to_ns or time.time_ns(), question.slots or 1))
    complete = True
    async for segment in _segments(bus, question):
        complete = complete and fold.take(segment, deadline)
        if not complete:
            break
    if not fold.found:
        raise NothingFound(f"no task or session {question.task!r} is in the journals; wooly tasks lists tasks")
    stories = [(node, gpu, batch) for node, gpu, batch in fold.stories() if known or _within(batch.begin_ns, question)]
    about = [dataclasses.asdict(names.get(session, Named(session))) for session in sorted(asked)]
    document = story([batch for _, _, batch in stories], names, fold.memory, question.top)
    drawn = {"timeline": timeline(fold.use.grid, stories, fold.use)} if question.slots else {}
    programs = fold.programs.document(batch for _, _, batch in stories)
    return {"asked": question.task, "sessions": about, "complete": complete, **document, "programs": programs, **drawn}


def _sessions_of(asked: str, names: Mapping[str, Named]) -> set[str]:
    """The sessions of a task given by id, title or the beginning of its id, or the session of that id. Raises ReplayError where several
    tasks are meant."""
    found = {name for name, named in names.items() if asked in (name, named.task)}
    if found:
        return found
    titled = {named.task or named.session for named in names.values() if named.title == asked}
    begun = {named.task for named in names.values() if len(asked) >= _PREFIX_LEAST and named.task.startswith(asked)}
    tasks = titled or begun
    if len(tasks) > 1:
        raise ReplayError(f"{asked} may mean {len(tasks)} tasks, give an id: {', '.join(sorted(tasks)[:_LISTED_MAX])}")
    return {name for name, named in names.items() if (named.task or named.session) in tasks}


class _Fold:
    """The journals of the devices that sessions ran on, segment by segment. ``found``: one of the sessions was in them."""

    def __init__(self, sessions: set[str], grid: Grid) -> None:
        self.memory = MemoryStory(sessions)
        self.use = MemoryUse(grid, sessions)
        self.programs = Programs(sessions)
        self.found = False
        self._sessions = sessions
        self._lives: list[tuple[str, int, int, Waits]] = []
        self._current: dict[tuple[str, int], Waits] = {}
        self._before: dict[tuple[str, int], Segment] = {}

    def take(self, segment: Segment, deadline: float) -> bool:
        """Whether it was taken to its end: not when ``deadline`` (of time.monotonic) came before."""
        if segment.lane == PROGRAMS:
            self._programs(segment)
        if not _mentions(segment, self._sessions):
            return True
        take = {VRAM: self._memory, DISPATCH: self._dispatch}.get(segment.lane)
        return take is None or take(segment, deadline)

    def stories(self) -> Iterator[tuple[str, int, BatchStory]]:
        """Every batch with its node and GPU, in Unix time. Once."""
        for node, gpu, offset_ns, waits in self._lives:
            for batch in waits.stories:
                batch.shift(offset_ns)
                yield node, gpu, batch

    def _programs(self, segment: Segment) -> None:
        try:
            for part in segment.parts:
                for use in decode_uses(part.frames):
                    self.programs.take(use)
        except msgspec.DecodeError as error:
            raise ReplayError(f"the programs of segment {segment.number} of {segment.node} cannot be read ({error})") from None

    def _memory(self, segment: Segment, deadline: float) -> bool:
        for number, (seen, state) in enumerate(memory_steps(segment)):
            at_ns = seen.at_ns + segment.unix_offset_ns
            self.memory.take(at_ns, seen.stimulus, seen.recorded)
            self.use.take(at_ns, state)
            if number % _LOOK == 0 and time.monotonic() > deadline:
                return False
        return True

    def _dispatch(self, segment: Segment, deadline: float) -> bool:
        self.found, device = True, (segment.node, segment.gpu)
        fresh = begins_life(segment, self._before.get(device))
        if fresh:
            waits = self._current[device] = Waits(self._sessions, rule_of)
            self._lives.append((*device, segment.unix_offset_ns, waits))
        self._before[device] = segment
        for number, (core, step) in enumerate(steps(segment)):
            if step is not None:
                self._current[device].take(*step)
            elif fresh:
                self._current[device].resume(core.state)
            if number % _LOOK == 0 and time.monotonic() > deadline:
                return False
        return True


def _mentions(segment: Segment, sessions: set[str]) -> bool:
    """Does the segment know one of them? Names stand in the bytes as they are."""
    return any(name.encode() in part.frames or name.encode() in part.snapshot for part in segment.parts for name in sessions)


def _within(unix_ns: int, question: Question) -> bool:
    return question.from_ns <= unix_ns and (question.to_ns is None or unix_ns < question.to_ns)
