"""Sources of journal segments and of names: streams on the bus, or files of a node."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

import msgspec

from bus_schemas import subjects
from bus_schemas.events import Event, NodeRegistered, SessionOpenedFact, decode_events
from bus_schemas.journal import decode_part
from services.kit.bus import Bus
from services.kit.errors import BusRefused
from services.kit.follow import Messages
from services.replay.lanes import Segment, Segments, segment_of_file
from services.replay.question import NothingFound, Question, ReplayError
from services.replay.why import Named

_BUFFERED_MAX: Final = 512
_NO_STREAM: Final = 10059
"""JetStream's err_code."""
_SKEW_NS: Final = 10 * 10**9
"""How far the times of facts and of journals may be apart: a node's clock is corrected now and then."""


async def segments_of_bus(bus: Bus, question: Question) -> AsyncIterator[Segment]:
    """Every segment on the stream (a service: from the one that holds ``from_ns`` on): each when the next of its lane begins, last the open
    ones. Raises ReplayError, BusUnavailable."""
    subject = subjects.JOURNAL_ALL
    if question.node:
        node = question.node if question.service else await _node_id(bus, question.node)
        subject = f"wooly.journal.{node}.>" if question.gpu is None else f"wooly.journal.{node}.{question.gpu}.>"
    begin = 1
    if question.service and question.from_ns:
        begin = await start_of(bus, subject, question.from_ns - _SKEW_NS)
    segments = Segments()
    async for data in history(bus, subjects.JOURNAL_STREAM, subject, begin):
        try:
            part = decode_part(data)
        except msgspec.DecodeError as error:
            raise ReplayError(f"the journal stream holds something that is not a part of a journal ({error})") from None
        complete = segments.feed(part)
        if complete is not None:
            yield complete
    for segment in segments.rest():
        yield segment


async def segments_of_files(question: Question) -> AsyncIterator[Segment]:
    """A segment a file. Raises ReplayError."""
    for path in question.files:
        try:
            yield segment_of_file(path)
        except OSError as error:
            raise ReplayError(f"{path} cannot be read: {error.strerror}") from None


async def node_names(bus: Bus) -> dict[str, str]:
    """Every node that ever registered: its id, its name."""
    names: dict[str, str] = {}
    async for data in history(bus, subjects.EVENTS_STREAM, "wooly.evt.node.>"):
        names |= {event.node: event.name for event in _readable(data) if isinstance(event, NodeRegistered)}
    return names


async def session_names(bus: Bus) -> dict[str, Named]:
    """Every session that was ever opened, by id."""
    names: dict[str, Named] = {}
    async for data in history(bus, subjects.EVENTS_STREAM, "wooly.evt.session.>"):
        for event in _readable(data):
            if isinstance(event, SessionOpenedFact):
                names[event.session] = Named(event.session, event.task, event.title, event.tenant, event.node)
    return names


def _readable(data: bytes) -> list[Event]:
    """The events of a message; none of an unreadable one."""
    try:
        return decode_events(data)
    except msgspec.DecodeError:
        return []


async def history(bus: Bus, stream: str, subject: str, begin: int = 1) -> AsyncIterator[bytes]:
    """The data of every message on ``subject`` (wildcards allowed) from position ``begin`` to the last one of now, in order; none without
    such a stream. Raises BusUnavailable."""
    try:
        end = await bus.last_position(stream, subject)
    except BusRefused as error:
        if error.code == _NO_STREAM:
            return
        raise
    if end < begin or not end:
        return
    messages = Messages(bus, stream, begin, subject, _BUFFERED_MAX)
    try:
        async for position, data in messages:
            if position <= end:
                yield data
            if position >= end:
                return
    finally:
        await messages.close()


async def start_of(bus: Bus, subject: str, at_ns: int) -> int:
    """The position from which on every lane on ``subject`` (wildcards allowed) can be run up to Unix time ``at_ns`` and further: where the
    segment that holds it begins. Found by bisection, so that the story of a short task does not need a week of journals. For services: it
    asks JetStream itself. Raises BusUnavailable, msgspec.DecodeError."""
    try:
        state: dict[str, Any] = (await bus.js_api(f"STREAM.INFO.{subjects.JOURNAL_STREAM}", {"subjects_filter": subject}))["state"]
    except BusRefused as refused:
        if refused.code == _NO_STREAM:
            return 1
        raise
    first, last = max(1, int(state["first_seq"])), int(state["last_seq"])
    starts = [await _lane_start(bus, lane, at_ns, first, last) for lane in state.get("subjects") or ()]
    return min(starts, default=1)


async def _lane_start(bus: Bus, lane: str, at_ns: int, first: int, last: int) -> int:
    """Segments are numbered by the Unix time (ms) of their beginning, and grow along the stream."""
    low, high, segment = first, last + 1, 0
    while low < high:
        middle = (low + high) // 2
        found = await _part(bus, lane, middle)
        if found is None or found[1] * 10**6 > at_ns:
            high = middle
        else:
            low, segment = found[0] + 1, found[1]
    low, high, start = first, last + 1, first
    while low < high:
        middle = (low + high) // 2
        found = await _part(bus, lane, middle)
        if found is not None and found[1] < segment:
            low = found[0] + 1
        else:
            high, start = middle, start if found is None else found[0]
    return start


async def _part(bus: Bus, lane: str, position: int) -> tuple[int, int] | None:
    """Position and segment of the first part of the lane at ``position`` or later."""
    found = await bus.message(subjects.JOURNAL_STREAM, seq=position, next_by_subj=lane)
    return None if found is None else (found[0], decode_part(found[1]).segment)


async def _node_id(bus: Bus, asked: str) -> str:
    """The id of a node given by id or name."""
    names = await node_names(bus)
    if asked in names:
        return asked
    found = [node for node, name in names.items() if name == asked]
    if not found:
        known = ", ".join(sorted(names.values())) or "none"
        raise NothingFound(f"no node {asked!r} is on record; there are: {known}")
    return found[0]
