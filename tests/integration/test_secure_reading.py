"""On a real secure bus, clients authenticated by API key read streams through the controllers' proxy, and have no access to JetStream."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import pytest
from nats.aio.msg import Msg

from bus_schemas import subjects
from bus_schemas.access import AboutStream, Asked, Follow, Following, Refused, Said, Unfollow, consumer_prefix, read_subject
from services.kit.access.access import BUCKET
from services.kit.bus import Bus
from tests.support.node import until
from tests.support.secure import SecureStack, line
from tests.support.world import DEADLINE_S, END, World, refused, settled

_NODES_READ = ("config", "budget", "tier")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with SecureStack(tmp_path_factory.mktemp("reading"), WOOLY_DATA_HOST="127.0.0.1") as stack:
        yield World(stack)


def test_nothing_that_jetstream_says_to_a_node_reaches_jetstream(world: World) -> None:
    """An empty answer on the subject that ends a stream would end it, and a node chooses where its answers go."""
    before = world.log(_log_state)
    ends = [f"$JS.API.STREAM.{verb}.{subjects.EVENTS_STREAM}" for verb in ("DELETE", "PURGE")]
    node, principal, consumer = world.n1, world.names.key1, secrets.token_hex(12)
    stream, own = subjects.EVENTS_STREAM, subjects.event_subject("node", node)
    follow = Follow(stream, consumer_prefix(principal) + consumer, "", 1, own)
    config = {"name": consumer, "ack_policy": "none", "deliver_policy": "new", "mem_storage": True, "filter_subject": own}
    create = json.dumps({"stream_name": stream, "config": config, "action": "create"}).encode()

    async def body() -> None:
        async with line(world.stack, **world.way_in("node 1")) as bus:
            await bus.client.publish(f"$JS.API.CONSUMER.CREATE.{stream}.{consumer}.{own}", create)
            await bus.client.flush()
            for end in ends:
                await bus.client.publish(own, b"\x90", reply=end)  # is acknowledged there
                for question in (msgspec.structs.replace(follow, inbox=end), AboutStream(stream)):
                    await bus.client.publish(read_subject(principal), msgspec.msgpack.encode(question), reply=end)
                for subject in (f"$JS.API.CONSUMER.MSG.NEXT.{stream}.{consumer}", f"$JS.FC.{stream}.{consumer}.x"):
                    await bus.client.publish(subject, b'{"batch":1,"no_wait":true}', reply=end)
            said = await _ask_to_read(bus.client, principal, msgspec.structs.replace(follow, inbox=ends[0]))
            assert isinstance(said, Refused)

    asyncio.run(body())
    after = world.log(_log_state)
    assert after["first_seq"] == before["first_seq"]
    assert after["messages"] >= before["messages"] + len(ends)


def test_what_is_a_nodes(world: World) -> None:
    own = subjects.event_subject("node", world.n1)
    reads = [(subjects.batch_stream(world.n1), ""), *((subjects.EVENTS_STREAM, f"wooly.evt.{area}.>") for area in _NODES_READ)]
    heard = asyncio.run(_reading(world, "node 1", world.names.key1, [(subjects.EVENTS_STREAM, own), *reads]))
    assert all(isinstance(said, Following) for said in heard.said)
    assert heard.first is not None
    assert heard.first.subject == own


def test_what_is_not(world: World) -> None:
    others = [(subjects.batch_stream("n2"), ""), (subjects.EVENTS_STREAM, ""), (subjects.EVENTS_STREAM, "wooly.evt.access.>"),
              (subjects.EVENTS_STREAM, "wooly.evt.>"), (subjects.EVENTS_STREAM, "wooly.evt.node.n2"), (subjects.JOURNAL_STREAM, ""),
              (f"KV_{BUCKET}", ""), ("WOOLY_LEASES", ""), ("", ""), (f"{subjects.EVENTS_STREAM}.x", ""),
              (subjects.EVENTS_STREAM, "wooly.evt.config.> \r\nPUB x 0"),
              (subjects.batch_stream(world.n1), "wooly.evt.access.>")]  # fmt: skip
    heard = asyncio.run(_reading(world, "node 1", world.names.key1, others))
    assert all(isinstance(said, Refused) for said in heard.said)


def test_a_watcher_without_the_audit_reads_nothing(world: World) -> None:
    async def body() -> None:
        async with line(world.stack, world.watcher) as bus:
            await bus.client.publish(read_subject(world.names.watcher), msgspec.msgpack.encode(AboutStream(subjects.EVENTS_STREAM)))
            await bus.client.publish(END, b"")
            await settled(bus, "publish")
            assert refused(bus.refused, "publish", read_subject(world.names.watcher))

    asyncio.run(body())


def test_not_into_the_inbox_or_consumer_of_another_principal(world: World) -> None:
    me, other = world.names.key1, world.names.key2
    good = Follow(subjects.batch_stream(world.n1), consumer_prefix(me) + "a", f"{subjects.inbox_prefix(me)}.a", 1)
    bad: list[Asked] = [
        msgspec.structs.replace(good, inbox=f"{subjects.inbox_prefix(other)}.a"),
        msgspec.structs.replace(good, inbox=f"{subjects.inbox_prefix(me)}.>"),
        msgspec.structs.replace(good, inbox=f"{subjects.inbox_prefix(me)}.a\r\n"),
        msgspec.structs.replace(good, inbox=""),
        msgspec.structs.replace(good, consumer=consumer_prefix(other) + "a"),
        msgspec.structs.replace(good, consumer=consumer_prefix(me) + "a.b"),
        msgspec.structs.replace(good, consumer=consumer_prefix(me)),
        msgspec.structs.replace(good, from_position=0),
        Unfollow(good.stream, consumer_prefix(other) + "a"),
        Unfollow(f"KV_{BUCKET}", good.consumer),
    ]

    async def body() -> list[Said]:
        async with line(world.stack, **world.way_in("node 1")) as bus:
            return [await _ask_to_read(bus.client, me, asked) for asked in bad]

    assert all(isinstance(said, Refused) for said in asyncio.run(body()))


def test_consumers_are_bounded(world: World) -> None:
    """Also for one who ends none of them: the oldest end."""
    stream, me = subjects.batch_stream("n2"), world.names.key2

    async def body() -> None:
        async with line(world.stack, **world.way_in("node 2")) as bus:
            await bus.client.subscribe(f"{subjects.inbox_prefix(me)}.many")
            for at in range(70):
                asked = Follow(stream, f"{consumer_prefix(me)}{at}", f"{subjects.inbox_prefix(me)}.many", 1)
                assert isinstance(await _ask_to_read(bus.client, me, asked), Following)

    asyncio.run(body())
    names = _consumers_of(world, stream, me)
    assert len(names) == 64
    assert f"{consumer_prefix(me)}69" in names
    assert f"{consumer_prefix(me)}5" not in names


def test_consumers_are_bounded_however_they_are_asked_for(world: World) -> None:
    """Many at once; of several streams; and by who says that another one is to end."""
    me = world.names.key2
    facts, batches = subjects.EVENTS_STREAM, subjects.batch_stream("n2")
    own, inbox = subjects.event_subject("node", "n2"), f"{subjects.inbox_prefix(me)}.more"

    async def body() -> None:
        async with line(world.stack, **world.way_in("node 2")) as bus:
            await bus.client.subscribe(inbox)

            async def follow(stream: str, name: str, subject: str = "") -> None:
                asked = Follow(stream, consumer_prefix(me) + name, inbox, 1, subject)
                assert isinstance(await _ask_to_read(bus.client, me, asked), Following)

            await asyncio.gather(*(follow(batches, f"once{at}") for at in range(200)))
            for at in range(40):
                await follow(batches, f"both{at}")
                await follow(facts, f"both{at}", own)
            for at in range(80):
                await follow(facts, f"kept{at}", own)
                await _ask_to_read(bus.client, me, Unfollow(batches, f"{consumer_prefix(me)}kept{at}"))

    asyncio.run(body())
    assert sum(len(_consumers_of(world, stream, me)) for stream in (facts, batches)) == 64


def test_who_may_read_no_more_hears_no_more(world: World) -> None:
    """Also who still may come in, to the same inbox."""
    world.stack.ask("POST", "/api/v1/users", {"id": "eve", "role": "admin"})
    key = world.stack.key(role="admin", tenant="", user="eve")
    me = key.split("_")[1]
    inbox, stream = f"{subjects.inbox_prefix(me)}.facts", subjects.EVENTS_STREAM

    async def body() -> None:
        async with line(world.stack, key) as bus:
            await bus.client.subscribe(inbox)
            assert isinstance(await _ask_to_read(bus.client, me, Follow(stream, f"{consumer_prefix(me)}all", inbox, 1)), Following)
            await asyncio.to_thread(world.stack.ask, "PATCH", "/api/v1/users/eve", {"role": "viewer"})
            await asyncio.wait_for(bus.ended.wait(), DEADLINE_S)
        async with line(world.stack, key) as bus:
            await bus.client.subscribe(inbox)
            await bus.client.flush()
            await asyncio.to_thread(until, lambda: not _consumers_of(world, stream, me), "the reading to end")

    asyncio.run(body())


# -- helpers -------------------------------------------------------------------------------------------------------------------------


async def _ask_to_read(client: Any, principal: str, asked: Asked) -> Said:
    answer = await client.request(read_subject(principal), msgspec.msgpack.encode(asked), timeout=DEADLINE_S)
    said: Said = msgspec.msgpack.decode(answer.data, type=Said)
    return said


class Heard(NamedTuple):
    said: list[Said]
    first: Msg | None


async def _reading(world: World, identity: str, principal: str, wanted: list[tuple[str, str]]) -> Heard:
    """Ask for each (stream, subject); what was said, and the first message that came of the first."""
    async with line(world.stack, **world.way_in(identity)) as bus:
        box = await bus.client.subscribe(f"{subjects.inbox_prefix(principal)}.mine0")
        said = []
        for at, (stream, subject) in enumerate(wanted):
            consumer = consumer_prefix(principal) + secrets.token_hex(12)
            asked = Follow(stream, consumer, f"{subjects.inbox_prefix(principal)}.mine{at}", 1, subject)
            said.append(await _ask_to_read(bus.client, principal, asked))
        return Heard(said, await box.next_msg(DEADLINE_S) if isinstance(said[0], Following) else None)


def _consumers_of(world: World, stream: str, principal: str) -> list[str]:
    names = world.log(lambda bus: bus.js_api(f"CONSUMER.NAMES.{stream}"))["consumers"] or []
    return [name for name in names if name.startswith(consumer_prefix(principal))]


async def _log_state(bus: Bus) -> dict[str, Any]:
    state: dict[str, Any] = (await bus.js_api(f"STREAM.INFO.{subjects.EVENTS_STREAM}"))["state"]
    return state
