"""From the batch stream to the sessions: small messages are read at once, large ones by a thread, in turns of tenants.

Inflating and decoding a message costs far more than sending it. So every tenant has a budget for it (scheduler.turns), and the event loop,
on which all sessions depend, does none of it for large messages. The batches of a session keep their order.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec

from bus_schemas import faults
from bus_schemas.batch import LIMITS, Batch, Fault, encode_batch
from bus_schemas.quotas import QUOTAS, Rate
from scheduler.quotas import Asked, answer
from scheduler.turns import Taken, Turns, TurnsConfig
from services.kit.log import get_logger
from services.server.intake import Bad, cost_of, read_batch, small_body

__all__ = ["BUDGET", "Arrived", "Inflow", "Message", "inflow_budget"]

_BURST_S: Final = QUOTAS["messages"].limit // QUOTAS["messages"].regained


def inflow_budget(messages_a_second: int) -> TurnsConfig:
    """Costs are bytes inflated (``cost_of``); sizes are bytes on the bus."""
    return TurnsConfig(
        QUOTAS["decoded_bytes"].rate(),
        lane_items_max=4 * LIMITS.outstanding_batches_max,
        waiting_bytes_max=64 << 20,
        items=Rate(messages_a_second, _BURST_S * messages_a_second),
    )


BUDGET: Final = inflow_budget(QUOTAS["messages"].regained)
_SCARCE_PERCENT: Final = 5
"""A tenant whose messages wait and whose bucket holds less than this part waits for the bucket: it holds a little at times."""
_REFUSED_COST: Final = 2 * LIMITS.batch_bytes_max
_REFUSED_COST_A_BYTE: Final = 64


class Message(msgspec.Struct, frozen=True):
    """One message of the batch stream. ``position``: its place there."""

    position: int
    principal: str
    session: str
    data: bytes


class Arrived(msgspec.Struct, frozen=True):
    """What a message says."""

    #: None: nothing that can be placed in its session.
    batch: Batch | None
    #: The batch encoded.
    body: bytes
    refused: Fault | None
    #: Of reading it.
    cost: int


def read(data: bytes, session: str, small: bool) -> Arrived:
    """``small``: ``data`` is a body from ``small_body``."""
    try:
        batch, body = read_batch(data, session)
    except Bad as bad:
        cost = len(data) * _REFUSED_COST_A_BYTE if small else _REFUSED_COST
        return Arrived(bad.batch, b"" if bad.batch is None else encode_batch(bad.batch), bad.fault, cost)
    except Exception as error:  # a failure of ours in one message must not keep all others waiting
        get_logger().error("a message could not be read", session=session, problem=repr(error))
        fault = Fault(faults.NODE_FAULT, "the node failed while reading the batch; report it with the node's log")
        return Arrived(None, b"", fault, _REFUSED_COST)
    return Arrived(batch, body, None, cost_of(batch, len(body)))


class Inflow:
    """``tenant_of(principal, session)`` says whose budget a message is read on; ``take(message, arrived)`` gets what was read. Both run on
    the event loop, like every method of this class."""

    def __init__(
        self, tenant_of: Callable[[str, str], str], take: Callable[[Message, Arrived], None], budget: TurnsConfig = BUDGET
    ) -> None:
        self._tenant_of = tenant_of
        self._take = take
        self._budget = budget
        self._turns: Turns[Message] = Turns(budget)
        self._thread = ThreadPoolExecutor(1, "intake")
        self._reading: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None

    def put(self, message: Message) -> Asked | None:
        """A message that came. When its session or tenant has as many waiting as it may, it is dropped, and its session sends it again: the
        question that is refused; else None."""
        now_ns = time.monotonic_ns()
        tenant, lane = self._tenant_of(message.principal, message.session), (message.principal, message.session)
        if self._turns.free(tenant, lane, now_ns):
            body = small_body(message.data)
            if body is not None:
                arrived = read(body, message.session, small=True)
                self._turns.charge(tenant, arrived.cost, now_ns)
                self._take(message, arrived)
                return None
        if not self._turns.add(tenant, lane, message, len(message.data), now_ns):
            return self._asked(tenant, now_ns)
        self._go_on()
        return None

    def delayed(self, tenant: str, now_ns: int) -> Asked | None:
        """The question because of which messages of the tenant wait (its answer: when those will have been read at the earliest); or
        None."""
        asked = self._asked(tenant, now_ns) if self._turns.waiting(tenant)[0] else None
        return asked if asked is not None and answer(asked) is not None else None

    def _asked(self, tenant: str, now_ns: int) -> Asked:
        """May what waits be read now? About the quota of which the greater part is used."""
        full_ns, items_full_ns = self._turns.full_ns(tenant)
        rate, messages = self._budget.rate, self._messages()
        items, nbytes = self._turns.waiting(tenant)
        used, items_used = self._turns.used(tenant, now_ns)
        if used * messages.burst >= items_used * rate.burst:
            quota, bound, held, cost = "decoded_bytes", rate, full_ns, nbytes
        else:
            quota, bound, held, cost = "messages", messages, items_full_ns, items
        return Asked(now_ns, quota, tenant, bound, held, max(cost, bound.burst * _SCARCE_PERCENT // 100))

    def tenants(self) -> list[str]:
        """Those that may have used something."""
        return self._turns.tenants()

    def quotas(self, now_ns: int, tenants: Iterable[str]) -> dict[str, tuple[int, int]]:
        """By quota: the most that one of the ``tenants`` has used of it, and the limit."""
        used = [self._turns.used(tenant, now_ns) for tenant in tenants] or [(0, 0)]
        nbytes, messages = (max(column) for column in zip(*used, strict=True))
        return {"decoded_bytes": (nbytes, self._budget.rate.burst), "messages": (messages, self._messages().burst)}

    def _messages(self) -> Rate:
        return self._budget.items or QUOTAS["messages"].rate()

    def oldest_position(self) -> int | None:
        """Of the messages that are not read yet."""
        return min((message.position for message in self._turns.items()), default=None)

    async def stop(self) -> None:
        """Read nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        if self._reading is not None:
            self._reading.cancel()
        self._thread.shutdown(wait=False)

    def _go_on(self) -> None:
        """Read the next message, or wait until a budget allows it."""
        if self._reading is not None:
            return
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        now_ns = time.monotonic_ns()
        taken = self._turns.take(now_ns)
        loop = asyncio.get_running_loop()
        if taken is not None:
            self._reading = loop.create_task(self._read(taken), name="read a batch")
            return
        wakeup_ns = self._turns.wakeup_ns()
        if wakeup_ns is not None:
            self._timer = loop.call_later(max(0, wakeup_ns - now_ns) / 1e9, self._go_on)

    async def _read(self, taken: Taken[Message]) -> None:
        message = taken.item
        arrived = await asyncio.get_running_loop().run_in_executor(self._thread, read, message.data, message.session, False)
        self._reading = None
        self._turns.done(taken, arrived.cost, time.monotonic_ns())
        try:
            self._take(message, arrived)
        finally:
            self._go_on()
