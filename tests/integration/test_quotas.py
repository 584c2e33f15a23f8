"""Quotas on a real stack: each refuses at its limit with its name and a time to try again, other tenants are not affected, and after that
time work is taken again."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import nats.errors
import pytest

from bus_schemas import faults, subjects
from bus_schemas.batch import Batch, encode_batch, pack_message
from bus_schemas.journal import QUOTAS
from bus_schemas.quotas import QUOTAS as QUOTAS_TABLE
from bus_schemas.quotas import Excess
from bus_schemas.session import CloseSession, OpenSession, Ping, Pong, SessionClosed, SessionOpened
from services.kit.process import free_port
from tests.support.node import until
from tests.support.secure import Line, SecureStack, line

SESSIONS, CONNECTIONS, MESSAGES_A_SECOND = 4, 4, 100
DEADLINE_S = 30.0
NODE_HTTP = free_port()


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureStack]:
    limits = {
        "WOOLY_TENANT_SESSIONS_MAX": str(SESSIONS),
        "WOOLY_KEY_CONNECTIONS_MAX": str(CONNECTIONS),
        "WOOLY_TENANT_MESSAGES_A_SECOND": str(MESSAGES_A_SECOND),
        "WOOLY_TENANT_MODEL_CACHE_MB": "1",
        "WOOLY_NODE_HTTP": f"127.0.0.1:{NODE_HTTP}",
    }
    with SecureStack(tmp_path_factory.mktemp("quotas"), **limits) as stack:
        yield stack


@pytest.fixture
def tenant(stack: SecureStack, request: pytest.FixtureRequest) -> str:
    """A tenant of the test's own: nothing of its quotas is used."""
    name = f"t{abs(hash(request.node.name)) % 10**8}"
    stack.tenant(name)
    return name


def member(stack: SecureStack, tenant: str) -> str:
    return stack.key(role="member", tenant=tenant)


class Client:
    """A raw client of the node, with one key."""

    def __init__(self, stack: SecureStack, key: str, bus: Line) -> None:
        self.principal = key.split("_")[1]
        self._node = str(stack.addresses["node"])
        self.bus = bus

    async def ask(self, verb: str, request: Any, kind: Any) -> Any:
        subject = subjects.node_request(self._node, verb, self.principal)
        answer = await self.bus.client.request(subject, msgspec.msgpack.encode(request), DEADLINE_S)
        return msgspec.msgpack.decode(answer.data, type=kind)

    def session(self, name: str) -> str:
        return subjects.session_name(self.principal, name)

    async def open(self, name: str) -> Excess | None:
        """The quota that refuses it, or None."""
        opened = await self.ask("open", OpenSession(self.session(name), "", "", 3, (0,), 0), SessionOpened)
        assert opened.fault is None or opened.fault.name == faults.QUOTA_REACHED, opened.fault
        return opened.fault.excess if opened.fault is not None else None

    async def close(self, name: str) -> None:
        await self.ask("close", CloseSession(self.session(name)), SessionClosed)

    async def opened_in_the_end(self, name: str, *, because_of: str) -> None:
        """Try until it is opened; each refusal is by this quota, and the next try comes when it says."""
        async with asyncio.timeout(DEADLINE_S):
            while (excess := await self.open(name)) is not None:
                assert excess.quota == because_of and excess.used >= excess.limit
                await asyncio.sleep(excess.retry_after_ms / 1000)

    async def send(self, name: str) -> None:
        """A batch of an epoch that the node has not had."""
        batch = pack_message(encode_batch(Batch(self.session(name), 1, 1)))
        await self.bus.client.publish(subjects.batch_subject(self._node, self.session(name), self.principal), batch)

    async def answers(self, name: str) -> Any:
        """A subscription to the answers of batches."""
        return await self.bus.client.subscribe(subjects.session_done(self.session(name), self.principal, "*"))


def test_opens_are_refused_by_key_then_by_tenant_and_taken_again(stack: SecureStack, tenant: str) -> None:
    stack.tenant(other := f"{tenant}-other")
    keys = [member(stack, tenant), member(stack, tenant), member(stack, tenant), member(stack, other)]

    async def work() -> None:
        async with line(stack, keys[0]) as a, line(stack, keys[1]) as b, line(stack, keys[2]) as c, line(stack, keys[3]) as d:
            first, second, third, stranger = (Client(stack, key, bus) for key, bus in zip(keys, (a, b, c, d), strict=True))
            assert [await first.open(name) for name in ("one", "two")] == [None, None]
            excess = await first.open("three")
            assert excess is not None and (excess.quota, excess.limit, excess.used) == ("key_opens", 2, 2)
            assert 0 < excess.retry_after_ms <= 1_000
            assert [await second.open(name) for name in ("one", "two")] == [None, None], "another key of the tenant"
            excess = await third.open("one")
            assert excess is not None and excess.limit == SESSIONS and excess.quota in ("opens", "sessions")
            assert await stranger.open("one") is None, "another tenant"
            await second.close("one")
            await second.close("two")
            await third.opened_in_the_end("one", because_of="opens")
            await first.opened_in_the_end("three", because_of="key_opens")

    asyncio.run(work())


def test_sessions_are_limited_for_a_tenant_and_an_end_makes_room(stack: SecureStack, tenant: str) -> None:
    key = member(stack, tenant)

    async def work() -> None:
        async with line(stack, key) as bus:
            client = Client(stack, key, bus)
            for number in range(SESSIONS):
                await client.opened_in_the_end(str(number), because_of="key_opens")
            excess: Excess | None = None
            async with asyncio.timeout(DEADLINE_S):
                while excess is None or excess.quota == "key_opens":
                    excess = await client.open("more")
            assert (excess.quota, excess.limit, excess.used) == ("sessions", SESSIONS, SESSIONS)
            await client.close("0")
            await client.opened_in_the_end("more", because_of="key_opens")

    asyncio.run(work())


def test_messages_beyond_the_rate_wait_and_the_pong_names_the_quota(stack: SecureStack, tenant: str) -> None:
    stack.tenant(other := f"{tenant}-other")
    keys = [member(stack, tenant), member(stack, other)]

    async def work() -> None:
        async with line(stack, keys[0]) as a, line(stack, keys[1]) as b:
            flooding, stranger = Client(stack, keys[0], a), Client(stack, keys[1], b)
            assert await flooding.open("s") is None and await stranger.open("s") is None
            for _ in range(6 * MESSAGES_A_SECOND):
                await flooding.send("s")
            excess = await pong_excess(flooding, wanted=True)
            assert excess is not None and excess.quota == "messages" and excess.limit == 4 * MESSAGES_A_SECOND
            assert excess.limit - excess.used < MESSAGES_A_SECOND and excess.retry_after_ms > 0, "some regain while the answer is made"
            assert await pong_excess(stranger, wanted=False) is None, "another tenant"
            answers = await stranger.answers("s")
            await stranger.send("s")
            assert (await answers.next_msg(DEADLINE_S)).data, "it is read at once"
            await asyncio.sleep(excess.retry_after_ms / 1000)
            assert await pong_excess(flooding, wanted=False) is None

    asyncio.run(work())


async def pong_excess(client: Client, *, wanted: bool, session: str = "s") -> Excess | None:
    """Of the answer to a ping, once there is one (or none any more)."""
    async with asyncio.timeout(DEADLINE_S):
        while True:
            pong = await client.ask("ping", Ping(client.session(session)), Pong)
            assert pong.session_known
            if (pong.excess is not None) is wanted:
                excess: Excess | None = pong.excess
                return excess


def test_requests_of_a_key_are_limited_in_number_and_length(stack: SecureStack, tenant: str) -> None:
    keys = [member(stack, tenant), member(stack, tenant)]
    limit = QUOTAS_TABLE["requests"].limit

    async def work() -> None:
        async with line(stack, keys[0]) as a, line(stack, keys[1]) as b:
            flooding, calm = Client(stack, keys[0], a), Client(stack, keys[1], b)
            long = OpenSession(flooding.session("s"), "", "", 3, (0,), 0, traceparent="x" * 8_000_000)
            opened = await flooding.ask("open", long, SessionOpened)
            assert opened.fault is not None and opened.fault.name == faults.MALFORMED
            answers = await a.client.subscribe(inbox := a.client.new_inbox())
            subject, ping = subjects.node_request(str(stack.addresses["node"]), "ping", flooding.principal), msgspec.msgpack.encode(Ping())
            for _ in range(3 * limit):
                await a.client.publish(subject, ping, reply=inbox)
            await a.client.flush()
            assert await pong_of(calm), "another key"
            async with asyncio.timeout(DEADLINE_S):
                while not await pong_of(flooding):
                    pass
            assert 0 < answers.pending_msgs < 3 * limit, "what was beyond the quota is not answered"

    async def pong_of(client: Client) -> bool:
        try:
            subject = subjects.node_request(str(stack.addresses["node"]), "ping", client.principal)
            return bool((await client.bus.client.request(subject, msgspec.msgpack.encode(Ping()), 2)).data)
        except nats.errors.TimeoutError:
            return False

    asyncio.run(work())


def test_connections_of_a_key_are_limited_and_one_that_ends_makes_room(stack: SecureStack, tenant: str) -> None:
    keys = [member(stack, tenant), member(stack, tenant)]

    async def connected(key: str) -> bool:
        try:
            async with line(stack, key):
                return True
        except nats.errors.Error:
            return False

    async def work() -> None:
        held = [line(stack, keys[0]) for _ in range(CONNECTIONS)]
        for one in held:
            await one.__aenter__()
        try:
            assert not await connected(keys[0])
            assert await connected(keys[1]), "another key of the tenant"
        finally:
            await held.pop().__aexit__(None, None, None)
        async with asyncio.timeout(DEADLINE_S):
            while not await connected(keys[0]):
                pass
        for one in held:
            await one.__aexit__(None, None, None)

    asyncio.run(work())
    log = (stack.folder / "state" / "logs" / "controller.log").read_text()
    assert f"has used {CONNECTIONS} of {CONNECTIONS} connections to the bus (quota connections)" in log


def test_queued_tasks_are_limited_by_tier_over_rest(stack: SecureStack, tenant: str) -> None:
    stack.tenant(other := f"{tenant}-other")
    stack.ask("PUT", "/api/v1/billing/tiers/basic", {"priority_ceiling": 0, "queued_tasks": 2}, service="billing")
    stack.ask("PUT", f"/api/v1/billing/tenants/{tenant}/tier", {"tier": "basic"}, service="billing")
    key = member(stack, tenant)
    body = {"required_vram_mb": 16, "queue": True, "groups": ["nowhere"]}

    def queued(number: int, key: str) -> urllib.error.HTTPError | None:
        try:
            stack.ask("POST", "/api/v1/tasks", {**body, "id": f"{tenant}-{number}"}, key=key)
        except urllib.error.HTTPError as error:
            return error
        return None

    def limit() -> int:
        found: int = quota_of(stack, key, "queued_tasks")["limit"]
        return found

    until(lambda: limit() == 2, "the controller knows the tier")
    assert [queued(number, key) for number in (1, 2)] == [None, None]
    refused = queued(3, key)
    assert refused is not None and (refused.code, refused.headers["Retry-After"]) == (429, "5")
    problem = json.loads(refused.read())
    assert problem["type"] == "urn:wooly:problem:quota-reached"
    assert [problem[name] for name in ("quota", "limit", "used", "retry_after_ms")] == ["queued_tasks", 2, 2, 5_000]
    assert queued(4, member(stack, other)) is None, "another tenant, of another tier"
    shown = quota_of(stack, key, "queued_tasks")
    assert (shown["used"], shown["limit"]) == (2, 2)
    stack.ask("POST", f"/api/v1/tasks/{tenant}-1/cancel", key=key)
    assert queued(3, key) is None


def quota_of(stack: SecureStack, key: str, name: str) -> dict[str, Any]:
    """What the caller's page of quotas says of one."""
    (found,) = [item for item in stack.ask("GET", "/api/v1/quotas", key=key)["items"] if item["quota"] == name]
    return found


def test_stored_bytes_are_refused_by_name_on_the_command_line_and_shown_over_rest_and_to_monitoring(
    stack: SecureStack, tenant: str, tmp_path: Path
) -> None:
    key = member(stack, tenant)

    def keep(nbytes: int) -> subprocess.CompletedProcess[str]:
        header = json.dumps({"w": {"dtype": "U8", "shape": [nbytes], "data_offsets": [0, nbytes]}}).encode()
        source = tmp_path / f"of-{nbytes}.safetensors"
        source.write_bytes(len(header).to_bytes(8, "little") + header + os.urandom(nbytes))
        command = [sys.executable, "-m", "wooly.cli", "model-cache", "add", "--source", str(source)]
        return subprocess.run(command, env=stack.client_environment(key), capture_output=True, text=True, timeout=120)

    def measured(name: str) -> float:
        with urllib.request.urlopen(f"https://127.0.0.1:{NODE_HTTP}/metrics", timeout=30, context=stack.context) as answer:
            lines = answer.read().decode().splitlines()
        return float(next(line.split()[1] for line in lines if line.startswith(f'wooly_node_quota_{name}{{quota="stored_bytes"}}')))

    assert keep(600_000).returncode == 0
    refusals = measured("refusals_total")
    refused = keep(600_001)
    assert refused.returncode == 2
    assert f"tenant {tenant} has used 600000 of 1048576 bytes in the model cache (quota stored_bytes); delete a model" in refused.stderr
    assert "try again in 5 s" in refused.stderr
    until(lambda: quota_of(stack, key, "stored_bytes")["used"] == 600_000, "REST has it")
    assert quota_of(stack, key, "stored_bytes")["limit"] == 1 << 20
    until(lambda: measured("refusals_total") > refusals and measured("used") == 600_000, "so has monitoring")


def test_what_was_refused_and_delayed_is_in_the_journal_and_decided_again(stack: SecureStack, tenant: str) -> None:
    """One record a second for each quota and asker, however much is refused."""
    key = member(stack, tenant)
    before = recorded(stack)

    async def refuse() -> int:
        async with line(stack, key) as bus:
            client, refusals, opened = Client(stack, key, bus), 0, 0
            while refusals < 100:
                excess = await client.open(str(refusals + opened))
                refusals, opened = refusals + (excess is not None), opened + (excess is None)
            return refusals

    async def delay() -> None:
        async with line(stack, key) as bus:
            client = Client(stack, key, bus)
            for _ in range(6 * MESSAGES_A_SECOND):
                await client.send("0")
            assert await pong_excess(client, wanted=True, session="0") is not None

    refusals = asyncio.run(refuse())
    until(lambda: recorded(stack) > before, "the refusals are on record")
    between = recorded(stack)
    assert between - before < refusals // 2
    asyncio.run(delay())
    until(lambda: recorded(stack) > between, "the delay is on record")


def recorded(stack: SecureStack) -> int:
    """Refusals and delays on record; all are decided again as they were."""
    command = [sys.executable, "-m", "wooly.cli", "replay", "--json"]
    done = subprocess.run(command, env=stack.client_environment(stack.admin), capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [line for line in json.loads(done.stdout)["segments"] if line["lane"] == QUOTAS]
    assert all(line["equal"] and line["decisions"] <= line["records"] for line in lines)
    return sum(line["records"] for line in lines)
