"""Facts as lines of the log that people read: what was written, about which task, session and tenant, for whom."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from bus_schemas.events import Event, LoadObserved
from services.kit.log import get_logger

__all__ = ["ids_of", "log_written"]

_IDS: Final = (
    "task", "tenant", "session", "node", "gpus", "state", "reason", "priority", "group", "scope", "key", "user", "tier", "period",
    "threshold", "actor", "action", "target", "detail",
)  # fmt: skip
_FREQUENT: Final = (LoadObserved,)


def ids_of(event: Event) -> dict[str, Any]:
    """What names the things that a fact is about; nothing secret has such a name."""
    found = ((field, getattr(event, field)) for field in _IDS if field in event.__struct_fields__)
    return {field: value for field, value in found if value not in ("", (), None)}


def log_written(position: int, events: Sequence[Event], tenant: str = "") -> None:
    """One line a fact. ``tenant``: whose it is where the fact itself does not say."""
    for event in events:
        log = get_logger()
        say = log.debug if isinstance(event, _FREQUENT) else log.info
        about = ids_of(event)
        if tenant:
            about.setdefault("tenant", tenant)
        say("fact written", fact=type(event).__name__, position=position, **about)
