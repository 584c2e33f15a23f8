"""Appends every BudgetCrossed event that the projection derived, once, however many billing services run."""

from __future__ import annotations

import asyncio
import time
from typing import Final

import msgspec

from billing.projection import BillingView
from bus_schemas.events import Event
from services.billing.projection import BillingProjection
from services.billing.writer import Writer
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.log import get_logger

__all__ = ["announce_forever"]

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
