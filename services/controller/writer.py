"""Conditional appends of the controller (fences): each append fails when another writer came first."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from bus_schemas.events import Event
from bus_schemas.subjects import event_subject
from services.controller.log_projection import ACCESS, LogProjection
from services.controller.personal import PersonalKeys
from services.kit.access import AccessView
from services.kit.bus import Bus
from services.kit.errors import Conflict
from services.kit.projection import FactWriter


class Writer(FactWriter[LogProjection]):
    """Its methods raise kit.errors.Conflict when the log has moved on, BusUnavailable or BusRefused when it cannot be written; they return
    the position once the projection shows the fact."""

    def __init__(self, bus: Bus, projection: LogProjection, personal: PersonalKeys) -> None:
        super().__init__(bus, projection)
        self._personal = personal

    async def write(self, subject: str, events: Sequence[Event], *, after: int | None = None, among: str = "") -> int:
        """As ``FactWriter.write``; personal fields are encrypted."""
        return await super().write(subject, await self._personal.sealed(events), after=after, among=among)

    async def append(self, area: str, entity: str, events: Sequence[Event]) -> int:
        """Append to the subject of ``entity`` if its last fact is the one the projection knows. An ActionTaken goes behind the facts it
        caused."""
        subject = event_subject(area, entity)
        return await self.write(subject, events, after=self._projection.subject_positions.get(subject, 0))

    async def change(self, area: str, entity: str, decide: Callable[[], Sequence[Event]], *, places: bool = False) -> None:
        """Append what ``decide`` makes of the view; on a conflict decide again. Nothing is written when it raises or returns nothing.
        ``places``: it places the task ``entity``."""
        while events := decide():
            try:
                await (self.append_placement(entity, events) if places else self.append(area, entity, events))
                return
            except Conflict:
                await self._projection.caught_up()

    async def change_access(self, decide: Callable[[AccessView], tuple[str, Sequence[Event]] | None]) -> None:
        """The same for facts about a tenant, user or key: ``decide`` gives its id and the facts."""
        while True:
            after = self._projection.access_position
            wanted = decide(self._projection.fold(AccessView))
            if wanted is None:
                return
            try:
                await self.append_access(*wanted, after)
                return
            except Conflict:
                await self._projection.caught_up()

    async def append_placement(self, task: str, events: Sequence[Event]) -> int:
        """Append a placement decided on the projection's view as it is at this call, if no other of any task came meanwhile: so no two
        promise the same memory, however many controllers there are (``Turns``)."""
        turns = self._projection.turns
        return await self.write(turns.subject(task), events, after=turns.last, among=turns.rivals())

    async def append_access(self, entity: str, events: Sequence[Event], after: int) -> int:
        """Append facts about a tenant, user or key if ``after`` is the position of the last one about any of them: so what must be true of
        all together is decided on all of them."""
        return await self.write(event_subject("access", entity), events, after=after, among=ACCESS + "*")

    async def erase(self, owners: Iterable[str]) -> None:
        """Destroy the keys of the personal fields of these, each ``user.ID`` or ``tenant.ID``."""
        for owner in owners:
            await self._personal.destroy(owner)

    async def append_always(self, area: str, entity: str, events: Sequence[Event]) -> int:
        """Append facts that depend on nothing."""
        return await self.write(event_subject(area, entity), events)

    def _tenant(self, events: Sequence[Event]) -> str:
        task = self._projection.view.tasks.get(getattr(events[0], "task", "")) if events else None
        return task.submitted.tenant if task is not None else ""
