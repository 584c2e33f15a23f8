"""Appends of facts about money, each on the condition that its tenant's (or tier's) subject has not moved on since it was decided. Of every
BudgetCrossed event that the projection derived, one is appended, however many billing services run.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import blake3
import msgspec

from billing.projection import BillingView
from bus_schemas.events import Event
from bus_schemas.subjects import EVENTS_STREAM, event_subject, token
from services.billing.projection import BillingProjection
from services.kit.errors import BusRefused, BusUnavailable, Conflict
from services.kit.log import get_logger
from services.kit.projection import FactWriter
from services.kit.streams import ELECTION_S

_ATTEMPTS: Final = 20


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
        if not await self._projection.reached(position, ELECTION_S):
            raise BusUnavailable(f"billing has not followed the log up to position {position} within {ELECTION_S:g} s")


def _entity(name: str) -> str:
    """``name`` as it may stand in a subject: itself where that is allowed, else a name of its own derived from it."""
    try:
        return token(name)
    except ValueError:
        return "x-" + blake3.blake3(name.encode()).hexdigest()[:32]


_RETRY_S: Final = 1.0


async def announce_forever(projection: BillingProjection, writer: Writer) -> None:
    """Runs until cancelled. An event that could not be written is retried: it stays due until the log holds it."""
    while True:
        while not projection.view.budgets.due:
            await projection.changed()
        for tenant in {crossing[0] for crossing in projection.view.budgets.due}:
            try:
                await writer.tenant(tenant, lambda view, tenant=tenant: _due(view, tenant))  # type: ignore[misc]  # a default binds it
            except (BusUnavailable, BusRefused) as error:
                get_logger().warning("a crossed budget waits for the bus", tenant=tenant, problem=str(error))
                await asyncio.sleep(_RETRY_S)


def _due(view: BillingView, tenant: str) -> list[Event]:
    """The crossings of ``tenant`` that the log lacks, in the order they were derived."""
    now_ns = time.time_ns()
    found: list[Event] = []
    for crossing, fact in view.budgets.due.items():
        if crossing[0] == tenant:
            found.append(msgspec.structs.replace(fact, at_ns=now_ns))
            get_logger().info("budget crossed", tenant=tenant, period=fact.period, threshold=fact.threshold, used_micro=fact.used_micro)
    return found
