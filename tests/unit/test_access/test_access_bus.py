"""Access on a real nats-server: the secret that replicas share, the view that follows the log, and what the environment says."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from bus_schemas.events import ActionTaken, UserChanged
from bus_schemas.subjects import event_subject
from services.kit.access.access import AccessProjection, open_access, shared_secrets
from services.kit.access.errors import Unauthenticated
from services.kit.access.view import AccessView
from services.kit.bus import Bus, connect
from services.kit.errors import LogUnreadable, StartError
from services.kit.nats_server import NatsServer
from tests.support.node import DEADLINE_S

ANNA = UserChanged(1, "anna", "acme", "member", "hash")


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, DEADLINE_S))


async def ready(nats: NatsServer) -> Bus:
    bus = await connect(nats.url, name="access")
    await bus.ensure_streams("n1")
    return bus


def test_replicas_that_start_at_once_share_one_secret(nats: NatsServer) -> None:
    async def work() -> None:
        buses = [await ready(nats) for _ in range(4)]
        made = [secrets() for secrets in await asyncio.gather(*(shared_secrets(bus) for bus in buses))]
        assert len(set(made)) == 1 and [len(secret) for secret in made[0]] == [32]
        assert (await shared_secrets(buses[0]))() == made[0]
        for bus in buses:
            await bus.close()

    run(work())


def test_bytes_that_are_no_secret_are_refused(nats: NatsServer) -> None:
    async def work() -> None:
        bus = await ready(nats)
        await shared_secrets(bus)
        await bus.publish_acked("$KV.wooly_access.session_secret", b"short")
        with pytest.raises(StartError, match=r"session_secret holds 5 bytes instead of 32"):
            await shared_secrets(bus)
        await bus.close()

    run(work())


def test_a_follower_begins_with_the_history_and_catches_up(nats: NatsServer) -> None:
    async def work() -> None:
        bus = await ready(nats)
        async with AccessProjection(bus) as empty:
            assert not empty.view.users and empty.receives_revocations
            await empty.caught_up()
        await bus.publish_events("access", "anna", [ANNA])
        await bus.publish_events("task", "t", [ActionTaken(2, "anna", "acme", "task.submit", "t")])
        async with AccessProjection(bus) as follower:
            assert list(follower.view.users) == ["anna"] and follower.receives_revocations
            await bus.publish_events("access", "eve", [UserChanged(3, "eve", "shop", "viewer", "hash")])
            await follower.caught_up()
            assert sorted(follower.view.users) == ["anna", "eve"]
        await bus.close()

    run(work())


def test_a_follower_that_cannot_read_a_fact_says_that_it_hears_no_more(nats: NatsServer) -> None:
    async def work() -> None:
        bus = await ready(nats)
        async with AccessProjection(bus) as follower:
            await bus.publish_acked(event_subject("access", "anna"), b"\x00no events")
            with pytest.raises(LogUnreadable, match="event log position 1 "):
                await follower.caught_up()
            assert not follower.receives_revocations and follower.failure is not None
        await bus.close()

    run(work())


def test_access_is_what_the_environment_says(nats: NatsServer) -> None:
    async def work() -> None:
        bus = await ready(nats)
        view = AccessView()
        view.apply(1, ANNA)

        def opened(**environment: str) -> Coroutine[Any, Any, Any]:
            return open_access(bus, environment, listens_on=["127.0.0.1"], view=lambda: view, follows_log=lambda: True)

        on, off = await opened(WOOLY_AUTH="on"), await opened(WOOLY_AUTH="off")
        assert (on.on, off.on) == (True, False)
        with pytest.raises(Unauthenticated, match="not valid"):
            await on.identity_of_key("no key at all", "x")
        assert await on.identity_of_text("no key at all") is None
        for access in (on, off):
            access.close()
        await bus.close()

    run(work())
