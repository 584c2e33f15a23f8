"""What billing lends to nodes, asked over a real bus."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import msgspec
import pytest
from blake3 import blake3

from bus_schemas.allowance import GRANTED, AllowancesGiven, AskAllowances, TenantUse, allowance_request
from services.kit.bus import connect
from services.kit.nats_server import NatsServer
from tests.support.billing import BillingProcess
from tests.support.node import asked

TENANTS = ("harmed", "other")


@pytest.mark.parametrize("junk", [b"not json", b"\xff\xfe", b'{"stream":"WOOLY_KV","seq":7}', b'{"lent":{"n":"much"}}'])
def test_unreadable_leases_keep_no_tenant_waiting(junk: bytes, tmp_path: Path) -> None:
    """Neither the tenant whose they are, nor those that the node asks about in the same breath."""
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    billing = BillingProcess(nats.url, tmp_path / "billing")

    async def body() -> AllowancesGiven:
        bus = await connect(nats.url, name="test")
        await bus.publish_acked(f"wooly.lease.allow.{blake3(b'harmed').hexdigest()[:32]}", junk)
        about = AskAllowances("n1", 1, tuple(TenantUse(tenant) for tenant in TENANTS))
        given = await asked(bus, allowance_request("n1"), msgspec.msgpack.encode(about), AllowancesGiven)
        await bus.close()
        return given

    try:
        for tenant in TENANTS:
            billing.do("PUT", f"budgets/{tenant}/total", {"limit_micro": 1000})
        given = asyncio.run(body())
        assert [(one.tenant, one.state, one.micro) for one in given.tenants] == [(tenant, GRANTED, 1000) for tenant in TENANTS]
    finally:
        billing.end(signal.SIGTERM)
        nats.stop()
