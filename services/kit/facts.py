"""Writing facts: conditional appends to the event log that return once the projection shows them, and a log line for each fact."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Generic, TypeVar

from bus_schemas.events import Event, LoadObserved, encode_events
from services.kit.bus import Bus
from services.kit.log import get_logger
from services.kit.projection import Projection

__all__ = ["FactWriter", "ids_of"]

_IDS: Final = (
    "task", "tenant", "session", "node", "gpus", "state", "reason", "priority", "group", "scope", "key", "user", "tier", "period",
    "threshold", "actor", "action", "target", "detail",
)  # fmt: skip
_FREQUENT: Final = (LoadObserved,)
_FILTER: Final = "Nats-Expected-Last-Subject-Sequence-Subject"
_DEADLINE_S: Final = 10.0
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
        position = await self._bus.publish_acked(subject, data, expect_last_on_subject=after, headers=headers, deadline_s=_DEADLINE_S)
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
