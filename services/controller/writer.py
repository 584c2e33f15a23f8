"""Conditional appends (fences): each append fails when another writer came first, and ``change`` then decides again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from bus_schemas.events import Event, encode_events
from bus_schemas.subjects import event_subject
from services.controller.mirror import ACCESS, Mirror
from services.kit.access import AccessView
from services.kit.bus import Bus
from services.kit.errors import Conflict
from services.kit.facts_log import log_written

__all__ = ["Writer"]

_DEADLINE_S: Final = 10.0
_FILTER: Final = "Nats-Expected-Last-Subject-Sequence-Subject"


class Writer:
    """Its methods raise kit.errors.Conflict when the log has moved on, BusUnavailable or BusRefused when it cannot be written; they return
    once the mirror shows the fact."""

    def __init__(self, bus: Bus, mirror: Mirror) -> None:
        self._bus = bus
        self._mirror = mirror

    async def append(self, area: str, entity: str, events: Sequence[Event]) -> int:
        """Append to the subject of ``entity``, as one message, if its last fact is the one the mirror knows; the position. An ActionTaken
        goes behind the facts it caused: one message is stored whole or not at all."""
        subject = event_subject(area, entity)
        expected = self._mirror.subject_positions.get(subject, 0)
        data = encode_events(list(events))
        position = await self._bus.publish_acked(subject, data, expect_last_on_subject=expected, deadline_s=_DEADLINE_S)
        return await self._written(position, events)

    async def change(self, area: str, entity: str, decide: Callable[[], Sequence[Event]]) -> None:
        """Append what ``decide`` makes of the view; on a conflict decide again. Nothing is written when it raises or returns nothing."""
        while events := decide():
            try:
                await self.append(area, entity, events)
                return
            except Conflict:
                await self._mirror.caught_up()

    async def change_access(self, decide: Callable[[AccessView], tuple[str, Sequence[Event]] | None]) -> None:
        """The same for facts about a tenant, user or key: ``decide`` gives its id and the facts."""
        while True:
            after = self._mirror.access_position
            wanted = decide(self._mirror.fold(AccessView))
            if wanted is None:
                return
            try:
                await self.append_access(*wanted, after)
                return
            except Conflict:
                await self._mirror.caught_up()

    async def append_placement(self, task: str, event: Event) -> int:
        """Append a placement decided on the mirror's view as it is at this call, if no other of any task came meanwhile: so no two promise
        the same memory, however many controllers there are (``turns``)."""
        turns = self._mirror.turns
        position = await self._bus.publish_acked(
            turns.subject(task),
            encode_events([event]),
            expect_last_on_subject=turns.last,
            headers={_FILTER: turns.rivals()},
            deadline_s=_DEADLINE_S,
        )
        return await self._written(position, [event])

    async def append_access(self, entity: str, events: Sequence[Event], after: int) -> int:
        """Append facts about a tenant, user or key, as one message, if ``after`` is the position of the last one about any of them: so
        what must be true of all together is decided on all of them."""
        position = await self._bus.publish_acked(
            event_subject("access", entity),
            encode_events(list(events)),
            expect_last_on_subject=after,
            headers={_FILTER: ACCESS + "*"},
            deadline_s=_DEADLINE_S,
        )
        return await self._written(position, events)

    async def append_always(self, area: str, entity: str, events: Sequence[Event]) -> int:
        """Append facts that depend on nothing."""
        position = await self._bus.publish_acked(event_subject(area, entity), encode_events(list(events)), deadline_s=_DEADLINE_S)
        return await self._written(position, events)

    async def _written(self, position: int, events: Sequence[Event]) -> int:
        """Wait until the mirror shows the facts, and write the log for operators."""
        await self._mirror.wait_for(position)
        task = self._mirror.view.tasks.get(getattr(events[0], "task", "")) if events else None
        log_written(position, events, task.submitted.tenant if task is not None else "")
        return position
