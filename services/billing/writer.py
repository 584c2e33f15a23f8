"""Appends of facts about money, each on the condition that its tenant's (or tier's) subject has not moved on since it was decided."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import blake3

from billing.projection import BillingView
from bus_schemas.events import Event
from bus_schemas.subjects import EVENTS_STREAM, event_subject, token
from services.billing.projection import BillingProjection
from services.kit.errors import BusUnavailable, Conflict
from services.kit.facts import FactWriter

__all__ = ["Writer"]

_ATTEMPTS: Final = 20
_REACH_S: Final = 10.0


class Writer(FactWriter[BillingProjection]):
    """``decide(view)`` gives the facts of one message; it is called again when another writer came first, and may raise."""

    async def tenant(self, tenant: str, decide: Callable[[BillingView], list[Event]]) -> int:
        """Append to the subject of ``tenant``'s money; the position, 0 when there was nothing to append. Raises BusUnavailable."""
        return await self._append(event_subject("budget", _entity(tenant)), decide)

    async def tier(self, tier: str, decide: Callable[[BillingView], list[Event]]) -> int:
        """Append to the subject of ``tier``; the position."""
        return await self._append(event_subject("tier", _entity(tier)), decide)

    async def _append(self, subject: str, decide: Callable[[BillingView], list[Event]]) -> int:
        for attempt in range(_ATTEMPTS):
            expected, _ = await self._bus.message(EVENTS_STREAM, last_by_subj=subject) or (0, b"")
            await self._shown(expected)
            events = decide(self._projection.view)
            if not events:
                return 0
            try:
                return await self.write(subject, events, after=expected)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _shown(self, position: int) -> None:
        if not await self._projection.reached(position, _REACH_S):
            raise BusUnavailable(f"billing has not followed the log up to position {position} within {_REACH_S:g} s")


def _entity(name: str) -> str:
    """``name`` as it may stand in a subject: itself where that is allowed, else a name of its own derived from it."""
    try:
        return token(name)
    except ValueError:
        return "x-" + blake3.blake3(name.encode()).hexdigest()[:32]
