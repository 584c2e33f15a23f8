"""The history of one task, read from the log: its own facts, its placements, its sessions; a few subjects, never the whole log."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from bus_schemas.events import (
    ActionTaken,
    Event,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskDisplaced,
    TaskPlaced,
    TaskPriorityChanged,
    TaskRefused,
    TaskStateChanged,
    TaskStayed,
    TaskSubmitted,
    decode_events,
)
from bus_schemas.subjects import EVENTS_STREAM, event_subject, session_facts
from scheduler.placement import TaskView
from scheduler.placement.decide import SCORE_MAX
from services.controller.journals import Life
from services.controller.log_projection import LogProjection
from services.controller.web.formats import bytes_text
from services.kit.bus import Bus
from services.kit.errors import BusRefused
from services.kit.seal import SEALED_FROM, SealedLog
from wooly.shared.trace import parse_traceparent

__all__ = ["Moment", "SessionLine", "facts_of", "life_of", "moments", "session_lines", "trace_of"]

_NOT_FOUND: Final = 10037
_FACTS_MAX: Final = 200

Fact = tuple[int, Event]
"""(log position, event)"""


@dataclass(frozen=True, slots=True)
class Moment:
    """An entry of a task's timeline."""

    at_ns: int
    kind: str  #: queued, placed, refused, started, ended, completed, failed, cancelled, changed
    title: str
    detail: str = ""
    actor: str = ""  #: who caused it; empty: the system
    position: int = 0


@dataclass(slots=True)
class SessionLine:
    """A session of the task; meters are those of its end."""

    session: str
    node: str
    gpu: int
    opened_ns: int
    node_name: str = ""
    closed_ns: int = 0  #: 0: open
    reason: str = ""
    failed: bool = False
    core_ns: int = 0
    byte_ms: int = 0
    launches: int = 0
    digest: str = ""


async def life_of(projection: LogProjection, task: TaskView) -> Life:
    """When and where the task ran. Raises BusUnavailable, BusRefused."""
    said = task.submitted
    lines = session_lines(await facts_of(projection.bus, task, ()))
    over = not task.live and all(line.closed_ns for line in lines)
    return Life(
        said.task,
        said.tenant,
        tuple(line.session for line in lines),
        tuple(sorted({(line.node, line.gpu) for line in lines})),
        min((line.opened_ns for line in lines), default=said.at_ns),
        max((line.closed_ns for line in lines), default=0) if over else 0,
    )


async def facts_of(bus: Bus, task: TaskView, placements: Iterable[str]) -> list[Fact]:
    """The task's facts by position, the first ``_FACTS_MAX`` of each subject; those of sessions only from nodes where it was placed.
    ``placements``: the subjects of decisions on it. Raises BusUnavailable."""
    sessions = [*task.past_sessions, *sorted(task.sessions)]
    of_sessions = [session_facts(name, node) for name in sessions for node in sorted(task.hosts)]
    subjects = [event_subject("task", task.submitted.task), *placements, *of_sessions]
    found: dict[int, list[Event]] = {}
    log = await _sealed_log(bus)
    for subject in subjects:
        position = 1
        for _ in range(_FACTS_MAX):
            message = await _next(bus, subject, position, log)
            if message is None:
                break
            found[message[0]] = message[1]
            position = message[0] + 1
    return [(position, event) for position in sorted(found) for event in found[position]]


async def _sealed_log(bus: Bus) -> SealedLog | None:
    """The seal that distinguishes facts of services from messages by others on their subjects; None where facts carry no seals."""
    if bus.seal is None:
        return None
    log = SealedLog(bus.seal)
    info = await bus.js_api(f"STREAM.INFO.{EVENTS_STREAM}")
    since = (info["config"].get("metadata") or {}).get(SEALED_FROM)
    log.since = None if since is None else int(since)
    return log


async def _next(bus: Bus, subject: str, position: int, log: SealedLog | None) -> tuple[int, list[Event]] | None:
    """The first message on ``subject`` at ``position`` or later, as it counts."""
    try:
        answer = await bus.js_api(f"STREAM.MSG.GET.{EVENTS_STREAM}", {"seq": position, "next_by_subj": subject})
    except BusRefused as error:
        if error.code == _NOT_FOUND:
            return None
        raise
    message = answer["message"]
    at, data = int(message["seq"]), base64.b64decode(message.get("data", ""))
    if log is not None:
        lines = base64.b64decode(message.get("hdrs", "")).decode(errors="replace").split("\r\n")[1:]
        headers = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines if line)}
        data = log.accepted(at, message["subject"], headers, data)
    return at, decode_events(data)


def moments(facts: Iterable[Fact], name_of: Callable[[str], str] = str) -> list[Moment]:
    """The timeline, oldest first; ``name_of``: a node's name by its id. An ActionTaken names the actor of the fact it rides with."""
    out: list[Moment] = []
    for position, event in facts:
        if isinstance(event, ActionTaken):
            if out and out[-1].position == position:
                out[-1] = _by(out[-1], event.actor)
            continue
        moment = _moment(position, event, name_of)
        if moment is not None:
            out.append(moment)
    out.sort(key=lambda moment: (moment.position, moment.at_ns))
    return out


def _short(session: str) -> str:
    return f"session {session[:8]}"


def _by(moment: Moment, actor: str) -> Moment:
    return Moment(moment.at_ns, moment.kind, moment.title, moment.detail, actor, moment.position)


def _moment(position: int, event: Event, name_of: Callable[[str], str]) -> Moment | None:
    at = getattr(event, "at_ns", 0)
    match event:
        case TaskSubmitted():
            gpus = "1 GPU" if event.gpu_count == 1 else f"each of {event.gpu_count} GPUs"
            asked = f"priority {event.priority}, {bytes_text(event.vram_bytes)} on {gpus}"
            return Moment(at, "queued", "Submitted", asked, position=position)
        case TaskPlaced():
            where = f"{name_of(event.node)}, GPU {', '.join(map(str, event.gpus))}"
            score = f"score {event.scores[0][2]:,} of {SCORE_MAX:,}" if event.scores else ""
            return Moment(at, "placed", f"Placed on {where}", score, position=position)
        case TaskDisplaced():
            if event.gpus:
                return Moment(
                    at, "changed", f"Goes to {name_of(event.to)}", f"it runs on {name_of(event.node)} until then", position=position
                )
            why = "the node is lost" if event.lost else "the task is moved"
            return Moment(at, "changed", f"Displaced from {name_of(event.node)}", why, position=position)
        case TaskStayed():
            return Moment(at, "changed", f"Stays on {name_of(event.node)}", event.reason, position=position)
        case TaskRefused():
            return Moment(at, "refused", "No device fits", "the reasons are below", position=position)
        case TaskStateChanged():
            return Moment(at, event.state, event.state.capitalize(), event.reason, position=position)
        case TaskPriorityChanged():
            return Moment(at, "changed", f"Priority set to {event.priority}", position=position)
        case SessionPriorityChanged():
            return Moment(at, "changed", f"Priority of the session set to {event.priority}", _short(event.session), position=position)
        case SessionOpenedFact():
            session = _short(event.session)
            return Moment(at, "started", f"Session opened on {name_of(event.node)}, GPU {event.gpu}", session, position=position)
        case SessionClosedFact():
            kind = "failed" if event.failed else "ended"
            return Moment(at, kind, "Session closed", f"{_short(event.session)}: {event.reason}", position=position)
        case _:
            return None


def session_lines(facts: Iterable[Fact], name_of: Callable[[str], str] = str) -> list[SessionLine]:
    """The sessions in the facts, in order of their opening; ``name_of`` as of ``moments``."""
    lines: dict[str, SessionLine] = {}
    for _, event in facts:
        if isinstance(event, SessionOpenedFact) and event.session not in lines:
            lines[event.session] = SessionLine(event.session, event.node, event.gpu, event.at_ns, name_of(event.node))
        elif isinstance(event, SessionClosedFact) and event.session in lines:
            line = lines[event.session]
            line.closed_ns, line.reason, line.failed = event.at_ns, event.reason, event.failed
            line.core_ns, line.byte_ms, line.launches, line.digest = event.core_ns, event.byte_ms, event.launches, event.launch_digest
    return list(lines.values())


def trace_of(facts: Iterable[Fact]) -> str:
    """The id of the newest trace that a session of the task continued, or empty."""
    found = ""
    for _, event in facts:
        parsed = parse_traceparent(getattr(event, "traceparent", "") or "")
        if parsed is not None:
            found = f"{parsed[0]:032x}"
    return found
