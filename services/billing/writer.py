"""Money facts into the log, each on the condition that its tenant's (or tier's) subject has not moved on since it was decided.

May live here: conditional appends. May not: what to append.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import blake3

from billing.projection import BillingView
from bus_schemas.events import Event, encode_events
from bus_schemas.subjects import EVENTS_STREAM, event_subject, token
from services.billing.keeper import Keeper
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable, Conflict
from services.kit.facts_log import log_written

__all__ = ["Writer", "last_on_subject"]

_ATTEMPTS: Final = 20
_DEADLINE_S: Final = 10.0
_REACH_S: Final = 10.0
_NO_MESSAGE: Final = 10037
"""JetStream err_code: there is no message."""


async def last_on_subject(bus: Bus, stream: str, subject: str) -> tuple[int, str]:
    """Position and data (base64) of the last message on ``subject``; (0, "") when there is none."""
    try:
        answer = await bus.js_api(f"STREAM.MSG.GET.{stream}", {"last_by_subj": subject})
    except BusRefused as refused:
        if refused.code == _NO_MESSAGE:
            return 0, ""
        raise
    return int(answer["message"]["seq"]), str(answer["message"].get("data", ""))


class Writer:
    """``decide(view)`` gives the facts of one message; it is called again when another writer came first, and may raise."""

    def __init__(self, bus: Bus, keeper: Keeper) -> None:
        self._bus = bus
        self._keeper = keeper

    async def tenant(self, tenant: str, decide: Callable[[BillingView], list[Event]]) -> int:
        """Append to the subject of ``tenant``'s money; the position, 0 when there was nothing to append. Raises BusUnavailable."""
        return await self._append(event_subject("budget", _entity(tenant)), decide)

    async def tier(self, tier: str, decide: Callable[[BillingView], list[Event]]) -> int:
        """Append to the subject of ``tier``; the position."""
        return await self._append(event_subject("tier", _entity(tier)), decide)

    async def _append(self, subject: str, decide: Callable[[BillingView], list[Event]]) -> int:
        for attempt in range(_ATTEMPTS):
            expected, _ = await last_on_subject(self._bus, EVENTS_STREAM, subject)
            await self._reach(expected)
            events = decide(self._keeper.view)
            if not events:
                return 0
            try:
                data = encode_events(events)
                position = await self._bus.publish_acked(subject, data, expect_last_on_subject=expected, deadline_s=_DEADLINE_S)
            except Conflict:
                if attempt == _ATTEMPTS - 1:
                    raise
                continue
            await self._reach(position)
            log_written(position, events)
            return position
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _reach(self, position: int) -> None:
        if not await self._keeper.reached(position, _REACH_S):
            raise BusUnavailable(f"billing has not followed the log up to position {position} within {_REACH_S:g} s")


def _entity(name: str) -> str:
    """``name`` as it may stand in a subject: itself where that is allowed, else a name of its own derived from it."""
    try:
        return token(name)
    except ValueError:
        return "x-" + blake3.blake3(name.encode()).hexdigest()[:32]
