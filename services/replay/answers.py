"""From a question to its document: segments in, one JSON object out. For another policy the recorded arrivals and costs are run through the
model (scheduler.model), and shown beside what was recorded.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from bus_schemas.journal import DISPATCH, PROGRAMS, VRAM, decode_uses
from scheduler.dispatch import DispatchConfig, percent
from scheduler.errors import SchedulerError
from scheduler.model import Outcome, SessionOutcome, simulate
from scheduler.model.recorded import Recording
from scheduler.model.waits import BatchStory, Waits
from services.kit.bus import Bus
from services.replay.lanes import Segment, begins_life, check, memory_steps, steps
from services.replay.question import CHECK, WHY, NothingFound, Question, ReplayError
from services.replay.source import node_names, segments_of_bus, segments_of_files, session_names
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


@dataclass(slots=True)
class _Life:
    """One run of a device's dispatcher, read. ``busy_ns`` and ``fed_ns``: of the records taken."""

    node: str
    gpu: int
    recording: Recording = field(default_factory=Recording)
    config: DispatchConfig = field(default_factory=DispatchConfig)
    records: int = 0
    busy_ns: int = 0
    fed_ns: int = 0

    def read(self, segment: Segment, question: Question) -> None:
        """The segment's records that are in the window asked for."""
        before = (0, 0)
        for core, step in steps(segment):
            occupancy = core.state.occupancy
            totals = (occupancy.busy_ns, occupancy.fed_ns)
            if step is not None:
                unix_ns = step[0].at_ns + segment.unix_offset_ns
                if _within(unix_ns, question):
                    if not self.records:
                        self.recording.resume(core.state)
                    self.recording.take(step[0], step[1])
                    self.records += 1
                    self.busy_ns += totals[0] - before[0]
                    self.fed_ns += totals[1] - before[1]
                    self.config = core.state.config
            before = totals


async def whatif(
    segments: AsyncIterator[Segment], question: Question, nodes: Mapping[str, str], names: Mapping[str, Named]
) -> dict[str, Any]:
    """The document: a part for every run that launched something. Raises ReplayError, NothingFound."""
    lives: dict[tuple[str, int], _Life] = {}
    before: dict[tuple[str, int], Segment] = {}
    done: list[_Life] = []
    async for segment in segments:
        if segment.lane != DISPATCH:
            continue
        device = (segment.node, segment.gpu)
        if begins_life(segment, before.get(device)):
            lives[device] = _Life(segment.node, segment.gpu)
            done.append(lives[device])
        before[device] = segment
        lives[device].read(segment, question)
    parts = [part for life in done if life.records and (part := _part(life, question, nodes, names)) is not None]
    if not parts:
        raise NothingFound("nothing that ran is in the journals of that node and time")
    return {"policy": question.policy, "devices": parts}


def _part(life: _Life, question: Question, nodes: Mapping[str, str], names: Mapping[str, Named]) -> dict[str, Any] | None:
    """One run: recorded, the model under the recorded policy (how far it can be trusted), and under the one asked for."""
    tenants, arrivals, costs = life.recording.inputs()
    if not arrivals:
        return None
    recorded = life.recording.outcome(life.busy_ns, life.fed_ns)
    try:
        changes: dict[str, Any] = {"policy": question.policy}
        if question.quantum_ms is not None:
            changes["quantum_ns"] = question.quantum_ms * 10**6
        other = msgspec.structs.replace(life.config, **changes)
        same = simulate(tenants, arrivals, life.config, costs, keep_records=False)
        predicted = simulate(tenants, arrivals, other, costs, keep_records=False)
    except (SchedulerError, ValueError) as error:
        raise ReplayError(str(error)) from None
    sessions = [name for name, outcome in recorded.sessions.items() if outcome.batches]
    return {
        "node": life.node,
        "name": nodes.get(life.node, life.node),
        "gpu": life.gpu,
        "recorded_policy": life.config.policy,
        "awaited_memory": life.recording.awaited,
        "costs": msgspec.to_builtins(costs),
        "recorded": _device(recorded),
        "modelled": _device(same),
        "predicted": _device(predicted),
        "sessions": [
            {
                "session": name,
                "task": names.get(name, Named(name)).task,
                "text": names.get(name, Named(name)).text,
                "priority": recorded.sessions[name].priority,
                "batches": len(recorded.sessions[name].batches),
                "recorded": _session(recorded.sessions[name]),
                "modelled": _session(same.sessions[name]),
                "predicted": _session(predicted.sessions[name]),
            }
            for name in sessions
        ],
    }


def _session(outcome: SessionOutcome) -> dict[str, int]:
    return {
        "p50_ns": outcome.latency_ns(50),
        "p99_ns": outcome.latency_ns(99),
        "wait_p50_ns": outcome.wait_ns(50),
        "wait_p99_ns": outcome.wait_ns(99),
        "per_1000_s": outcome.per_1000_s,
        "core_ns": outcome.core_ns,
        "finished": len(outcome.batches),
        "preempted": sum(batch.preempted for batch in outcome.batches),
        "slices": sum(batch.slices for batch in outcome.batches),
    }


def _device(outcome: Outcome) -> dict[str, int]:
    span_ns = outcome.end_ns - outcome.begin_ns
    return {
        "span_ns": span_ns,
        "utilization_percent": percent(outcome.busy_ns, span_ns),
        "starvation_percent": percent(outcome.fed_ns, span_ns),
        "unfinished": outcome.unfinished,
    }
