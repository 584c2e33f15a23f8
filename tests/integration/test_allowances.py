"""What billing lends to nodes, asked over a real bus."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from billing.allowance import Leases
from bus_schemas.allowance import EXHAUSTED, GRANTED, MICRO_MAX, WAIT, AllowancesGiven, AskAllowances, TenantUse, allowance_request
from bus_schemas.events import BudgetSet, UsageRecorded
from services.billing.allowances import Allowances
from services.billing.projection import BillingProjection
from services.kit.bus import connect
from services.kit.nats_server import NatsServer
from tests.support.billing import BillingProcess
from tests.support.node import asked

TENANTS = ("harmed", "other")


async def ask_billing(url: str, *uses: TenantUse) -> AllowancesGiven:
    """What billing answers to a node that asks for these tenants."""
    bus = await connect(url, name="test")
    given = await asked(bus, allowance_request("n1"), msgspec.msgpack.encode(AskAllowances("n1", 1, uses)), AllowancesGiven)
    await bus.close()
    return given


@pytest.mark.parametrize("junk", [b"not json", b"\xff\xfe", b'{"stream":"WOOLY_KV","seq":7}', b'{"lent":{"n":"much"}}'])
def test_unreadable_leases_keep_no_tenant_waiting(junk: bytes, tmp_path: Path) -> None:
    """Neither the tenant whose they are, nor those that the node asks about in the same breath."""
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    billing = BillingProcess(nats.url, tmp_path / "billing")

    async def body() -> AllowancesGiven:
        bus = await connect(nats.url, name="test")
        await bus.publish_acked(f"wooly.lease.allow.{blake3(b'harmed').hexdigest()[:32]}", junk)
        await bus.close()
        return await ask_billing(nats.url, *map(TenantUse, TENANTS))

    try:
        for tenant in TENANTS:
            billing.do("PUT", f"budgets/{tenant}/total", {"limit_micro": 1000})
        given = asyncio.run(body())
        assert [(one.tenant, one.state, one.micro) for one in given.tenants] == [(tenant, GRANTED, 1000) for tenant in TENANTS]
    finally:
        billing.end(signal.SIGTERM)
        nats.stop()


@pytest.mark.parametrize(
    ("user", "micro", "state", "given"), [("n1", 90, WAIT, 0), ("n2", 30, GRANTED, 100)], ids=["another node", "the node that asks"]
)
def test_use_that_is_billed_while_leases_are_read_is_counted_once(user: str, micro: int, state: str, given: int, tmp_path: Path) -> None:
    """Of 100, ``user`` uses some, and the log has it just then. n1 may use all of it; n2 asks."""
    nats = NatsServer(tmp_path / "nats")
    nats.start()

    async def body() -> None:
        bus = await connect(nats.url, name="billing")
        await bus.ensure_streams()
        at_ns = time.time_ns()
        await bus.publish_events("budget", "lab", [BudgetSet(at_ns, "lab", "total", 100)])
        used = UsageRecorded(user, 1, 0, 1, "s", "lab", "t", 0, at_ns, at_ns + 10**9, micro, 0, 1, 1)
        async with BillingProjection(bus, tmp_path / "view.json") as projection:
            await projection.fresh_view()
            lending = Allowances(bus, projection)
            await lending.start()

            async def ask(node: str, *facts: tuple[int, int, int]) -> AllowancesGiven:
                about = AskAllowances(node, 1, (TenantUse("lab", facts, busy=False),))
                return await asked(bus, allowance_request(node), msgspec.msgpack.encode(about), AllowancesGiven)

            if user == "n1":
                assert (await ask("n1")).tenants[0].micro == 100
            read = Allowances._leases

            async def slowly(self: Allowances, subject: str) -> tuple[int, Leases]:
                found = await read(self, subject)
                await bus.publish_events("usage", user, [used])
                await projection.fresh_view()
                return found

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Allowances, "_leases", slowly)
                answer = await ask("n2", *([(0, 1, micro)] if user == "n2" else []))
            assert (answer.tenants[0].state, answer.tenants[0].micro) == (state, given)
            assert answer.serials == (), "the facts that it holds beyond"
            if user == "n2":  # it was lent what it used and what was left, no more
                assert (await ask("n1")).tenants[0].state == WAIT
                assert (await lending._leases(f"wooly.lease.allow.{blake3(b'lab').hexdigest()[:32]}"))[1].nodes["n2"].ceiling_micro == 100
        await bus.close()

    try:
        asyncio.run(body())
    finally:
        nats.stop()


def test_use_beyond_64_bits_is_answered(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    billing = BillingProcess(nats.url, tmp_path / "billing")
    facts = tuple((0, serial, MICRO_MAX) for serial in range(1, 10))
    try:
        for tenant in TENANTS:
            billing.do("PUT", f"budgets/{tenant}/total", {"limit_micro": 1000})
        harmed, other = asyncio.run(ask_billing(nats.url, TenantUse("harmed", facts, MICRO_MAX), TenantUse("other"))).tenants
        assert (harmed.state, harmed.micro) == (EXHAUSTED, MICRO_MAX) and (other.state, other.micro) == (GRANTED, 1000)
    finally:
        billing.end(signal.SIGTERM)
        nats.stop()
