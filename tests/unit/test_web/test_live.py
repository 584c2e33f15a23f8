"""One rendering for all who follow: what they are sent, what is not kept, how much is rendered. Counts and bytes, never times."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from services.controller.web.live import Busy, Channel, Live, Patch, Topic, TopicEnded, difference, encode_patch
from services.controller.web.scope import CLUSTER, Scope

TOPIC = Topic("t", frozenset(), "node.read", lambda scope, query: Patch())
ACME, GLOBEX = Scope("acme", frozenset({"task.read"})), Scope("globex", frozenset({"task.read"}))


def patches(data: bytes) -> list[dict[str, Any]]:
    """The decoded messages of a piece of a stream."""
    return [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: ")]


def channel_with(*versions: str) -> Channel:
    channel = Channel(TOPIC, CLUSTER, {})
    for number, text in enumerate(versions, 1):
        channel.show(Patch({"a": text, "b": "same"}), number, "me")
    return channel


# -- patches ---------------------------------------------------------------------------------------------------------------------------


def test_only_what_differs_is_in_a_patch() -> None:
    before = Patch({"a": "1", "b": "2"}, {"l": ("a", "b")}, {"c": ((1.0, 2.0),)})
    after = Patch({"a": "1", "b": "3", "d": "4"}, {"l": ("d", "a", "b")}, {"c": ((1.0, 2.0),)})
    assert difference(before, after) == Patch({"b": "3", "d": "4"}, {"l": ("d", "a", "b")}, {})
    assert difference(after, after) is None
    assert difference(None, after) is after


def test_a_patch_is_one_line_whatever_is_in_it() -> None:
    data = encode_patch(Patch({"a": "one\r\ntwo\u2028\n\nevent: gone"}, {}, {"c": ((1.0, None),)}), whole=True)
    assert b"\n" not in data and b"\r" not in data
    assert json.loads(data) == {"html": {"a": "one\r\ntwo\u2028\n\nevent: gone"}, "points": {"c": [[1.0, None]]}, "all": True}


# -- channels --------------------------------------------------------------------------------------------------------------------------


def test_a_reader_gets_what_it_missed() -> None:
    channel = channel_with("1", "2", "3")
    assert [patch["html"] for patch in patches(channel.after(1, "me"))] == [{"a": "2"}, {"a": "3"}]
    assert [patch["html"] for patch in patches(channel.after(2, "me"))] == [{"a": "3"}]
    assert channel.after(3, "me") == b""


def test_a_new_reader_gets_everything_as_the_same_bytes() -> None:
    channel = channel_with("1", "2")
    first, second = channel.after(0, "me"), channel.after(0, "me")
    assert first is second
    assert patches(first) == [{"html": {"a": "2", "b": "same"}, "all": True}]


def test_a_reader_too_far_behind_gets_everything_once() -> None:
    channel = channel_with(*(str(number) for number in range(100)))
    found = patches(channel.after(3, "me"))
    assert found == [{"html": {"a": "99", "b": "same"}, "all": True}]
    assert len(channel._changes) <= 16


def test_a_version_of_an_earlier_life_of_the_channel_is_not_believed() -> None:
    channel = Channel(TOPIC, CLUSTER, {})
    channel.show(Patch({"a": "1"}), 50, "me")
    for version in (7, 99):
        assert patches(channel.after(version, "me"))[0]["all"] is True


def test_nothing_changed_is_nothing_sent() -> None:
    channel = channel_with("1", "1")
    assert channel.version == 1 and channel.after(1, "me") == b""


# -- the renderer ----------------------------------------------------------------------------------------------------------------------


class Page:
    """A page whose content tests change, and that counts how often it is rendered."""

    def __init__(self) -> None:
        self.text: dict[str, str] = {}
        self.rendered: list[tuple[str, dict[str, str]]] = []
        self.fails: Exception | None = None

    def render(self, scope: Scope, query: Mapping[str, str]) -> Patch:
        self.rendered.append((scope.tenant, dict(query)))
        if self.fails is not None:
            raise self.fails
        return Patch({"a": f"<p id=a>{self.text.get(scope.tenant, '')}</p>"})


async def followed(live: Live, channel: Channel, version: int = 0) -> bytes:
    """What comes next for a reader at ``version``."""
    async with asyncio.timeout(60):
        while not (data := channel.after(version, live.instance)):
            await channel.changed()
    return data


@pytest.fixture
def page() -> Page:
    return Page()


def running(live: Live, page: Page) -> asyncio.Task[None]:
    live.add(Topic("page", frozenset({"task"}), "task.read", page.render))
    return asyncio.create_task(live.run())


def test_two_hundred_readers_cost_one_rendering(page: Page) -> None:
    async def body() -> None:
        live = Live()
        task = running(live, page)
        topic = live.topic("page")
        assert topic is not None
        channels = [live.join(topic, CLUSTER, {"q": "x"}) for _ in range(200)]
        assert len({id(channel) for channel in channels}) == 1
        data = [await followed(live, channel) for channel in channels]
        assert len({id(one) for one in data}) == 1 and len(page.rendered) == 1
        page.text[""] = "new"
        for _ in range(1_000):
            live.wake("task")
        version = channels[0].version
        assert b"new" in await followed(live, channels[0], version)
        assert len(page.rendered) == 2
        task.cancel()

    asyncio.run(body())


def test_scopes_and_queries_are_rendered_apart(page: Page) -> None:
    async def body() -> None:
        live = Live()
        task = running(live, page)
        topic = live.topic("page")
        assert topic is not None
        page.text = {"acme": "of acme", "globex": "of globex"}
        acme, globex = live.join(topic, ACME, {}), live.join(topic, GLOBEX, {})
        other = live.join(topic, ACME, {"page": "2", "since": "x-1"})
        assert b"of acme" in await followed(live, acme) and b"of globex" not in acme.after(0, live.instance)
        assert b"of globex" in await followed(live, globex)
        await followed(live, other)
        assert sorted(tenant for tenant, _ in page.rendered) == ["acme", "acme", "globex"]
        assert {"page": "2"} in [query for _, query in page.rendered]
        task.cancel()

    asyncio.run(body())


def test_a_channel_without_followers_is_not_rendered(page: Page) -> None:
    async def body() -> None:
        live = Live()
        task = running(live, page)
        topic = live.topic("page")
        assert topic is not None
        channel = live.join(topic, CLUSTER, {})
        await followed(live, channel)
        live.leave(channel)
        live.wake("task")
        other = live.join(topic, ACME, {})  # rendered after the wake: had the first been, it would be before
        await followed(live, other)
        assert [tenant for tenant, _ in page.rendered] == ["", "acme"]
        task.cancel()

    asyncio.run(body())


def test_one_pages_slip_does_not_stop_the_others(page: Page) -> None:
    async def body() -> None:
        live = Live()
        good = Page()
        task = running(live, page)
        live.add(Topic("good", frozenset({"task"}), "task.read", good.render))
        page.fails = ValueError("a slip")
        bad, fine = live.topic("page"), live.topic("good")
        assert bad is not None and fine is not None
        live.join(bad, CLUSTER, {})
        channel = live.join(fine, CLUSTER, {})
        await followed(live, channel)
        assert page.rendered and not task.done()
        task.cancel()

    asyncio.run(body())


def test_a_page_of_a_deleted_entity_says_so(page: Page) -> None:
    async def body() -> None:
        live = Live()
        task = running(live, page)
        page.fails = TopicEnded()
        topic = live.topic("page")
        assert topic is not None
        channel = live.join(topic, CLUSTER, {})
        async with asyncio.timeout(60):
            while not channel.ended:
                await channel.changed()
        assert live.channels == 0
        task.cancel()

    asyncio.run(body())


def test_channels_are_bounded() -> None:
    async def body() -> None:
        live = Live()
        for number in range(256):
            live.join(TOPIC, CLUSTER, {"q": str(number)})
        with pytest.raises(Busy):
            live.join(TOPIC, CLUSTER, {"q": "one more"})
        live.join(TOPIC, CLUSTER, {"q": "7"})
        with pytest.raises(Busy):
            Live().join(TOPIC, CLUSTER, {"q": "x" * 2_000})

    asyncio.run(body())


def test_a_tenant_does_not_take_all_channels() -> None:
    async def body() -> None:
        live = Live()
        taken = [live.join(TOPIC, ACME, {"q": str(number)}) for number in range(128)]
        with pytest.raises(Busy):
            live.join(TOPIC, Scope("acme", frozenset()), {"q": "one more, with other rights"})
        live.join(TOPIC, GLOBEX, {})
        live.join(TOPIC, CLUSTER, {})
        live.leave(taken[0])
        live.join(TOPIC, ACME, {"q": "in the place of one without followers"})
        with pytest.raises(Busy):
            live.join(TOPIC, ACME, {"q": "one more"})

    asyncio.run(body())


def test_a_tenant_does_not_take_all_places() -> None:
    async def body() -> None:
        live = Live()
        for _ in range(1_000):
            live.join(TOPIC, ACME, {})
        with pytest.raises(Busy):
            live.join(TOPIC, ACME, {})
        live.join(TOPIC, GLOBEX, {})
        for _ in range(999):
            live.join(TOPIC, CLUSTER, {})
        with pytest.raises(Busy):
            live.join(TOPIC, CLUSTER, {})

    asyncio.run(body())


def test_the_end_lets_everybody_go(page: Page) -> None:
    async def body() -> None:
        live = Live()
        task = running(live, page)
        topic = live.topic("page")
        assert topic is not None
        channel = live.join(topic, CLUSTER, {})
        await followed(live, channel)
        waiting = asyncio.create_task(channel.changed())
        await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(60):
            await waiting
        assert live.closed
        with pytest.raises(Busy):
            live.join(topic, CLUSTER, {})

    asyncio.run(body())
