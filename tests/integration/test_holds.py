"""On a real stack: a task that holds a device and does not start pays for it, an ordinary start pays nothing, and the bill adds up."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from billing.holds import HELD
from bus_schemas import subjects
from bus_schemas.session import CloseSession, OpenSession, SessionClosed, SessionOpened
from tests.support.node import DEADLINE_S, until
from tests.support.secure import SecureStack, line

START_LEASE_MS = 2_000


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureStack]:
    with SecureStack(tmp_path_factory.mktemp("holds"), CONTROLLER_START_LEASE_MS=str(START_LEASE_MS)) as stack:
        yield stack


def start(stack: SecureStack, key: str, task: str = "") -> None:
    """A session, for a moment: before and after it the node accounts for its device."""

    async def work() -> None:
        principal, node = key.split("_")[1], str(stack.addresses["node"])
        name = subjects.session_name(principal, secrets.token_hex(8))

        async def ask(verb: str, request: Any, kind: Any) -> Any:
            data = msgspec.msgpack.encode(request)
            answer = await bus.client.request(subjects.node_request(node, verb, principal), data, DEADLINE_S)
            return msgspec.msgpack.decode(answer.data, type=kind)

        async with line(stack, key) as bus:
            opened = await ask("open", OpenSession(name, "", task, 3, (0,), 0), SessionOpened)
            assert opened.fault is None, opened.fault
            await ask("close", CloseSession(name), SessionClosed)

    asyncio.run(work())


def lines(stack: SecureStack, tenant: str) -> dict[str, dict[str, Any]]:
    found = stack.ask("GET", f"/api/v1/billing/credits?by=model&tenant={tenant}", service="billing")
    return {item["key"]: item for item in found["items"]}


def tenant_of(stack: SecureStack, name: str) -> str:
    stack.tenant(name)
    return stack.key(role="member", tenant=name)


def submit(stack: SecureStack, key: str, task: str) -> None:
    stack.ask("POST", "/api/v1/tasks", {"id": task, "gpu_mode": "Exclusive", "required_vram_mb": 16, "queue": True}, key=key)
    until(lambda: stack.ask("GET", f"/api/v1/tasks/{task}", key=key)["node"], f"{task} is placed")


def test_holding_without_starting_is_charged_and_starting_is_not(stack: SecureStack) -> None:
    idler, quick = tenant_of(stack, "idler"), tenant_of(stack, "quick")
    submit(stack, idler, "never")
    until(lambda: stack.ask("GET", "/api/v1/tasks/never", key=idler)["state"] == "failed", "its start lease is over")
    submit(stack, quick, "at-once")
    start(stack, quick, "at-once")
    until(lambda: HELD in lines(stack, "idler"), "the bill has it")
    cores = stack.ask("GET", "/api/v1/nodes")["items"][0]["devices"][0]["cores"]
    held = lines(stack, "idler")[HELD]
    assert cores * START_LEASE_MS * 10**6 <= held["core_ns"] <= cores * 30 * 10**9
    account = stack.ask("GET", "/api/v1/billing/accounts/idler", service="billing")
    assert held["core_credits_micro"] == held["core_ns"] == -account["balance_micro"]
    until(lambda: stack.ask("GET", "/api/v1/tasks/at-once", key=quick)["state"] == "completed", "its session has ended")
    assert set(lines(stack, "quick")) <= {""}
    checked = stack.ask("GET", "/api/v1/billing/verify", service="billing")
    assert checked["ok"] and not checked["findings"]


def test_a_tier_sets_the_price(stack: SecureStack) -> None:
    stack.ask("PUT", "/api/v1/billing/tiers/basic", {"priority_ceiling": 0, "exclusive": True, "hold_percent": 0}, service="billing")
    key = tenant_of(stack, "guest")
    stack.ask("PUT", "/api/v1/billing/tenants/guest/tier", {"tier": "basic"}, service="billing")

    def exclusive() -> bool:
        quotas = stack.ask("GET", "/api/v1/quotas", key=key)["items"]
        return bool(next(item["limit"] for item in quotas if item["quota"] == "exclusive"))

    until(exclusive, "the controller knows the tier")
    submit(stack, key, "free")
    until(lambda: stack.ask("GET", "/api/v1/tasks/free", key=key)["state"] == "failed", "its start lease is over")
    other = tenant_of(stack, "other")
    start(stack, other)
    before = stack.ask("GET", "/api/v1/billing/verify", service="billing")["position"]
    start(stack, other, "")
    until(lambda: stack.ask("GET", "/api/v1/billing/verify", service="billing")["position"] > before, "billing has the accounts")
    assert not lines(stack, "guest")
