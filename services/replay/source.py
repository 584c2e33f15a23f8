"""Sources of segments: the stream on the bus, or files of a node.

May live here: reading. May not: running anything again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Final

import msgspec

from bus_schemas import subjects
from bus_schemas.events import Event, NodeRegistered, SessionOpenedFact, decode_events
from bus_schemas.journal import decode_part
from services.kit.bus import Bus
from services.replay.errors import NothingFound, ReplayError
from services.replay.history import history
from services.replay.question import Question
from services.replay.seek import start_of
from services.replay.segments import Segment, Segments, segment_of_file
from services.replay.why import Named

__all__ = ["node_names", "segments_of_bus", "segments_of_files", "session_names"]

_SKEW_NS: Final = 10 * 10**9
"""How far the times of facts and of journals may be apart: a node's clock is set now and then."""


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
    """Facts of a node; none of a message that no node of ours wrote."""
    try:
        return decode_events(data)
    except msgspec.DecodeError:
        return []


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
