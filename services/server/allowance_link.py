"""The node and the billing service: follows the money facts of the log, asks for allowances, and passes the answers to the gates.

Billing is asked once a second for the tenants with a budget that have sessions here, and at once when a batch waits. While it does not
answer, a node goes on within what it was lent, for as long as the lease holds (30 s); then batches of these tenants wait for 40 s, and are
refused. Tenants without a budget notice nothing, whatever billing does.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from typing import Final

import msgspec

from bus_schemas.allowance import EXHAUSTED, WAIT, Allowance, AllowancesGiven, AskAllowances, allowance_request
from bus_schemas.events import decode_events
from bus_schemas.subjects import EVENTS_STREAM
from services.kit.bus import Bus
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.follow import Follower
from services.kit.log import get_logger
from services.server.allowance import Allowances, Gate, budget_fault, silence_fault

__all__ = ["AllowanceLink"]

MONEY_SUBJECTS: Final = ("wooly.evt.budget.>", "wooly.evt.tier.>")
_EVERY_S: Final = 1.0
_WAIT_S: Final = 0.2
_ANSWER_S: Final = 2.0
_HISTORY_S: Final = 30.0
_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(AllowancesGiven).decode


class AllowanceLink:
    """One for a node: ``gates`` are its devices'."""

    def __init__(self, node: str, epoch: int, allowances: Allowances, gates: Sequence[Gate]) -> None:
        self._node = node
        self._epoch = epoch
        self._allowances = allowances
        self._gates = gates
        self._followers: list[Follower] = []
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        allowances.on_changed = self._soon
        for gate in gates:
            gate.ask = self._soon

    async def start(self, bus: Bus) -> None:
        """Returns once the money facts that are in the log are applied: the first session finds its tenant's ceiling."""
        for subject in MONEY_SUBJECTS:
            follower = bus.follow(EVENTS_STREAM, 1, self._on_fact, subject=subject)
            self._followers.append(follower)
            await follower.start()
            await asyncio.wait_for(follower.current.wait(), _HISTORY_S)
        self._task = asyncio.create_task(self._ask_forever(bus), name="allowances")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        for follower in self._followers:
            await follower.stop()

    def _on_fact(self, position: int, subject: str, data: bytes) -> None:
        try:
            for event in decode_events(data):
                self._allowances.apply(position, event)
        except msgspec.DecodeError:  # of a newer version
            get_logger().warning("a fact about money cannot be read: is this node older than billing?", subject=subject, position=position)

    def _soon(self, tenant: str) -> None:
        self._wake.set()

    # -- asking --------------------------------------------------------------------------------------------------------------------

    async def _ask_forever(self, bus: Bus) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_EVERY_S):  # wait_for forgets a cancellation that meets a wake-up (Python 3.11)
                    await self._wake.wait()
            self._wake.clear()
            waiting: set[str] = set().union(*(gate.tenants for gate in self._gates))
            for tenant in waiting - self._allowances.purses.keys():
                self._open(tenant)  # it has no budget any more
            tenants = self._allowances.present() | (waiting & self._allowances.purses.keys())
            if tenants and not await self._ask(bus, sorted(tenants), waiting):
                self._give_up(waiting)
                await asyncio.sleep(_WAIT_S)
                if waiting:
                    self._wake.set()

    async def _ask(self, bus: Bus, tenants: list[str], waiting: set[str]) -> bool:
        """Ask, and act on the answer; False: there was no usable answer, or a tenant has to wait."""
        asked_ns = time.monotonic_ns()
        uses = tuple(self._allowances.use(tenant, tenant in waiting) for tenant in tenants)
        try:
            question = _encode(AskAllowances(self._node, self._epoch, uses))
            answer = _decode(await bus.request(allowance_request(self._node), question, _ANSWER_S))
        except (BusUnavailable, BusRefused, msgspec.DecodeError):
            return False
        if not self._allowances.fresh(answer.serials):
            return False
        patient = True
        for allowance in answer.tenants:
            patient &= self._allowances.given(answer.serials, allowance, asked_ns) and self._act(allowance, asked_ns)
        return patient

    def _act(self, allowance: Allowance, asked_ns: int) -> bool:
        """False: the tenant's batches wait on."""
        tenant = allowance.tenant
        if allowance.state == WAIT:
            return False
        if allowance.state != EXHAUSTED:
            self._open(tenant)
            return True
        for gate in self._gates:
            if gate.shut(tenant, budget_fault(allowance.reason), asked_ns):
                get_logger().info("budget used up", tenant=tenant, reason=allowance.reason)
        if any(gate.waits(tenant) for gate in self._gates):
            self._wake.set()  # they came after the question: it may be answered otherwise by now
        return True

    def _open(self, tenant: str) -> None:
        for gate in self._gates:
            gate.open(tenant)

    def _give_up(self, waiting: set[str]) -> None:
        """Refuse what has waited too long for an answer."""
        for tenant in waiting:
            if any(gate.overdue(tenant) for gate in self._gates):
                get_logger().warning("billing does not answer", tenant=tenant)
                for gate in self._gates:
                    gate.shut(tenant, silence_fault(tenant), time.monotonic_ns())
