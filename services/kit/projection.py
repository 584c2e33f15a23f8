"""Projections: state folded from the event log and kept up to the log's end; and writing facts: conditional appends that return once the
projection shows them, with a log line for each fact.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
from collections.abc import Sequence
from typing import Any, ClassVar, Final, Generic, TypeVar

import msgspec

from bus_schemas.events import Event, LoadObserved, encode_events
from bus_schemas.subjects import EVENTS_STREAM
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable, LogUnreadable
from services.kit.log import get_logger
from services.kit.streams import ELECTION_S

__all__ = ["FactWriter", "Projection"]


class Projection:
    """Base of the projections: a subclass folds each message (``apply``) and forgets everything (``start_over``).

    An event that cannot be read may change every answer after it. The projection then stops and sets ``failure``: its service must give
    no answers from it.
    """

    #: exceptions of ``apply`` that stop the projection; after others the projection continues with the next message
    FATAL: ClassVar[tuple[type[Exception], ...]] = (msgspec.DecodeError,)
    #: subjects of the messages that change the state; empty: all may. Old messages on others are not read
    COUNTS: ClassVar[tuple[str, ...]] = ()

    def __init__(self, bus: Bus, subject: str = "") -> None:
        """``subject``: fold only messages on it (wildcards allowed); empty: the whole log."""
        self._bus = bus
        self._subject: Final = subject
        self._waiters: list[tuple[int, int, asyncio.Future[None]]] = []
        self._order = itertools.count()
        self._change: asyncio.Future[None] | None = None
        self._end: asyncio.Task[int] | None = None
        self._next_end: asyncio.Task[int] | None = None
        #: of the last message that was folded
        self.position = 0
        #: why it does not follow any more, or None
        self.failure: LogUnreadable | None = None

    def apply(self, position: int, subject: str, data: bytes) -> None:
        """Fold the next message. Raises msgspec.DecodeError."""
        raise NotImplementedError

    def start_over(self) -> None:
        """Return to the state before the first message: the broker lost the tail of the log and assigns its positions again."""
        raise NotImplementedError

    @property
    def bus(self) -> Bus:
        return self._bus

    @property
    def connected(self) -> bool:
        """Whether the bus is connected: without it, the state is as old as the moment the connection broke."""
        return self._bus.connected

    @property
    def stored_ns(self) -> int:
        """When the broker stored the message that is being folded, Unix time."""
        return self._follower.stored_ns

    async def follow(self) -> None:
        """Fold every message after ``position``, until ``stop``. Raises BusRefused, BusUnavailable."""
        first = self.position + 1
        self._follower = self._bus.follow(
            EVENTS_STREAM, first, self._on_message, subject=self._subject, history=self.COUNTS, on_passed=self._reach
        )
        await self._follower.start()

    async def stop(self) -> None:
        await self._follower.stop()

    async def wait_for(self, position: int) -> None:
        """Return once everything up to ``position`` is folded. Raises the failure when that will not happen."""
        if self.failure is not None:
            raise self.failure
        if position > self.position:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiters, (position, next(self._order), future))
            await future

    async def reached(self, position: int, timeout_s: float) -> bool:
        """Whether everything up to ``position`` is folded within ``timeout_s``."""
        with contextlib.suppress(TimeoutError, LogUnreadable):
            async with asyncio.timeout(timeout_s):
                await self.wait_for(position)
                return True
        return False

    async def caught_up(self, timeout_s: float = 1.0) -> bool:
        """Whether everything that was in the log at the call is folded within ``timeout_s``. Concurrent callers share one question to the
        bus. Raises the failure."""
        with contextlib.suppress(TimeoutError, BusUnavailable, BusRefused):
            async with asyncio.timeout(timeout_s):
                await self.wait_for(await self.log_end())
                return True
        return False

    async def changed(self) -> None:
        """Return after the next message; never after a failure."""
        if self._change is None:
            self._change = asyncio.get_running_loop().create_future()
        await asyncio.shield(self._change)

    async def log_end(self) -> int:
        """The log's last position, asked after the call: an answer under way may be older than what the caller knows of. Raises
        BusUnavailable."""
        if self._next_end is None:
            self._next_end = asyncio.create_task(self._ask_end(self._end))
            self._next_end.add_done_callback(lambda task: task.cancelled() or task.exception())  # its waiter may have been cancelled
        return await asyncio.shield(self._next_end)

    async def _ask_end(self, before: asyncio.Task[int] | None) -> int:
        if before is not None:
            await asyncio.wait((before,))
        self._end, self._next_end = self._next_end, None
        return await self._bus.last_position(EVENTS_STREAM, self._subject)

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        if self.failure is not None:
            return
        if position <= self.position:
            self.start_over()
        try:
            self.apply(position, subject, data)
        except self.FATAL as error:
            self._fail(f"event log position {position} ({subject}): {error}; is this service older than a node?")
            return
        self._reach(position)

    def _reach(self, position: int) -> None:
        """Everything up to ``position`` is folded."""
        self.position = position
        while self._waiters and self._waiters[0][0] <= position:
            waiter = heapq.heappop(self._waiters)[2]
            if not waiter.done():
                waiter.set_result(None)
        if self._change is not None:
            self._change.set_result(None)
            self._change = None

    def _fail(self, reason: str) -> None:
        get_logger().error("the event log is not followed any more", problem=reason)
        self.failure = LogUnreadable(reason)
        for _, _, waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(self.failure)
        self._waiters.clear()


_IDS: Final = (
    "task", "tenant", "session", "node", "gpus", "state", "reason", "priority", "group", "scope", "key", "user", "tier", "period",
    "threshold", "actor", "action", "target", "detail",
)  # fmt: skip
_FREQUENT: Final = (LoadObserved,)
_FILTER: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
P = TypeVar("P", bound=Projection)


class FactWriter(Generic[P]):
    """Appends facts about what ``projection`` shows."""

    def __init__(self, bus: Bus, projection: P) -> None:
        self._bus = bus
        self._projection = projection

    async def write(self, subject: str, events: Sequence[Event], *, after: int | None = None, among: str = "") -> int:
        """Append ``events`` as one message, which is stored whole or not at all; its position, once the projection shows it.

        ``after``: only if the last message on ``subject`` (or ``among``, a filter of subjects) has this position, 0: if there is none.
        Raises Conflict when it has another, BusUnavailable or BusRefused when the log cannot be written.
        """
        headers = {_FILTER: among} if among else None
        data = encode_events(list(events))
        position = await self._bus.publish_acked(subject, data, expect_last_on_subject=after, headers=headers, deadline_s=ELECTION_S)
        await self._shown(position)
        _log_written(position, events, self._tenant(events))
        return position

    async def _shown(self, position: int) -> None:
        """Return once the projection shows the message at ``position``."""
        await self._projection.wait_for(position)

    def _tenant(self, events: Sequence[Event]) -> str:
        """The tenant that ``events`` concern, if they do not name it themselves."""
        return ""


def ids_of(event: Event) -> dict[str, Any]:
    """The fields that identify the entities of a fact; no secret has such a name."""
    found = ((field, getattr(event, field)) for field in _IDS if field in event.__struct_fields__)
    return {field: value for field, value in found if value not in ("", (), None)}


def _log_written(position: int, events: Sequence[Event], tenant: str) -> None:
    for event in events:
        log = get_logger()
        write = log.debug if isinstance(event, _FREQUENT) else log.info
        write("fact written", fact=type(event).__name__, position=position, **({"tenant": tenant} if tenant else {}) | ids_of(event))
