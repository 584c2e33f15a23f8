"""Personal fields of the log: encrypted under keys beside it, read by every controller, and erased by destroying a key."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bus_schemas.events import Event, KeyIssued, TaskSubmitted, TenantChanged, UserChanged
from bus_schemas.subjects import EVENTS_STREAM
from services.controller.log_projection import LogProjection
from services.controller.personal import ERASED, PersonalKeys
from services.controller.task_index import TaskIndex
from services.controller.writer import Writer
from services.kit.access import AccessView
from services.kit.at_rest import FileKeyWrap
from services.kit.bus import Bus, connect
from services.kit.errors import StartError
from services.kit.nats_server import NatsServer
from tests.support.node import until_async

WRAP = FileKeyWrap(b"k" * 32)
FACTS: tuple[TenantChanged | UserChanged | KeyIssued, ...] = (
    TenantChanged(1, "acme", "Acme Limited"),
    UserChanged(2, "anna", "acme", "admin", "$argon2id$", "Anna Example", False, "anna@example.org", "https://id.example.org 4711"),
    UserChanged(3, "bert", "acme", "viewer", title="Bert Example"),
    KeyIssued(4, "k1", "acme", "anna", "admin", "$argon2id$", title="Anna's notebook"),
    KeyIssued(5, "k2", "acme", "", "service", "$argon2id$", title="Acme's robot"),
    KeyIssued(6, "k3", "", "", "node", "$argon2id$", title="rack-7", node="rack-7"),
)
OWNERS = ("tenant.acme", "user.anna", "user.bert")
NAMES = (b"Acme", b"Anna", b"example.org", b"4711", b"Bert", b"notebook", b"robot")


@contextlib.asynccontextmanager
async def controller(url: str) -> AsyncIterator[tuple[Writer, LogProjection]]:
    """What a controller keeps of access, and how it writes it."""
    bus = await connect(url, name="controller")
    await bus.ensure_streams()
    async with PersonalKeys(bus, WRAP) as personal:
        projection = LogProjection(bus, personal)
        async with projection:
            yield Writer(bus, projection, personal), projection
    await bus.close()


def shown(projection: LogProjection) -> list[Event]:
    view = projection.fold(AccessView)
    return [one.fact for kind in (view.tenants, view.users, view.keys) for one in kind.values()]


async def stored(bus: Bus) -> list[bytes]:
    found = [await bus.message(EVENTS_STREAM, seq=at) for at in range(1, 1 + await bus.last_position(EVENTS_STREAM))]
    return [message[1] for message in found if message is not None]


async def write(writer: Writer, projection: LogProjection, *facts: Event) -> None:
    for fact in facts:
        await writer.append_access("x", [fact], projection.access_position)


def on_disk(folder: Path, data: bytes) -> bool:
    return any(data in path.read_bytes() for path in folder.rglob("*") if path.is_file())


def test_erased_names_are_nowhere_and_the_log_is_as_it_was(tmp_path: Path) -> None:
    async def whole() -> None:
        async with controller(nats.url) as (writer, first), controller(nats.url) as (_, second):
            await write(writer, first, *FACTS)
            await until_async(lambda: reads(second, FACTS), "the other controller reads them")
            assert shown(first) == list(FACTS)
            log = await stored(first.bus)
            assert not [name for name in NAMES if name in b"".join(log)]
            assert b"rack-7" in b"".join(log), "a node's key is about no person"
            stamp = first.fold(AccessView).users["anna"].stamp
            await write(writer, first, first.fold(AccessView).users["anna"].fact)
            assert first.fold(AccessView).users["anna"].stamp == stamp, "the same fact again ends no session"
            log = await stored(first.bus)
            message = await first.bus.message("KV_wooly_personal", last_by_subj="$KV.wooly_personal.user.anna")
            assert message is not None and await asyncio.to_thread(on_disk, folder, message[1])

            await writer.erase(["user.anna", "tenant.acme"])
            gone = [
                TenantChanged(1, "acme", ERASED),
                UserChanged(2, "anna", "acme", "admin", "$argon2id$", ERASED),
                FACTS[2],
                KeyIssued(4, "k1", "acme", "anna", "admin", "$argon2id$", title=ERASED),
                KeyIssued(5, "k2", "acme", "", "service", "$argon2id$", title=ERASED),
                FACTS[5],
            ]
            assert shown(first) == gone
            await until_async(lambda: reads(second, gone), "the other controller forgets them")
            assert await stored(first.bus) == log
            assert not await asyncio.to_thread(on_disk, folder, message[1]), "the bus overwrote the key"
            await write(writer, first, UserChanged(7, "anna", "acme", "viewer", title="Another Anna"))
            async with controller(nats.url) as (_, third):
                assert third.fold(AccessView).users["anna"].fact.title == "Another Anna"
                assert third.fold(AccessView).tenants["acme"].fact.title == ERASED

    async def reads(projection: LogProjection, facts: object) -> bool:
        await projection.caught_up()
        return shown(projection) == list(facts)  # type: ignore[call-overload]  # facts is what shown() made

    folder = tmp_path / "nats"
    nats = NatsServer(folder, sync_always=True)
    nats.start()
    try:
        asyncio.run(whole())
    finally:
        nats.stop()


def test_titles_of_tasks_are_erased_with_their_tenant(tmp_path: Path) -> None:
    def titles(projection: LogProjection) -> dict[str, str]:
        return {name: task.submitted.title for name, task in projection.view.tasks.items()}

    async def whole() -> None:
        bus = await connect(nats.url, name="controller")
        await bus.ensure_streams()
        await bus.publish_events("task", "t0", [TaskSubmitted(1, "t0", "acme", 2, 0, title="of an earlier version")])
        async with controller(nats.url) as (writer, first), controller(nats.url) as (_, second):
            index = TaskIndex()
            for task, tenant, title in (
                ("t1", "acme", "Anna's study"),
                ("t2", "best", "Bert's study"),
                ("t3", "", "local"),
                ("t4", "acme", ""),
            ):
                await writer.append("task", task, [TaskSubmitted(1, task, tenant, 2, 0, title=title)])
            wanted = {"t0": "of an earlier version", "t1": "Anna's study", "t2": "Bert's study", "t3": "local", "t4": ""}
            assert titles(first) == wanted
            await until_async(lambda: shows(second, wanted), "the other controller reads them")
            index.follow(first.view)
            log = b"".join(await stored(first.bus))
            assert b"study" not in log and b"local" in log
            await writer.erase(["tenant.acme"])
            assert titles(first) == wanted | {"t1": ERASED}
            await until_async(lambda: shows(second, wanted | {"t1": ERASED}), "the other controller forgets them")
            index.follow(first.view)
            assert index.all.rows["t1"].title == ERASED
            async with controller(nats.url) as (_, third):
                assert titles(third) == wanted | {"t1": ERASED}
        await bus.close()

    async def shows(projection: LogProjection, wanted: dict[str, str]) -> bool:
        await projection.caught_up()
        return titles(projection) == wanted

    nats = NatsServer(tmp_path / "nats", sync_always=False)
    nats.start()
    try:
        asyncio.run(whole())
    finally:
        nats.stop()


def test_personal_keys_outlive_the_key_that_wraps_them(tmp_path: Path) -> None:
    async def whole() -> None:
        async with controller(nats.url) as (writer, projection):
            await write(writer, projection, *FACTS)
            before = await keys(projection.bus)
        bus = await connect(nats.url, name="controller")
        async with PersonalKeys(bus, FileKeyWrap(b"n" * 32, b"k" * 32)), PersonalKeys(bus, FileKeyWrap(b"n" * 32, b"k" * 32)):
            pass
        after = await keys(bus)
        assert after.keys() == before.keys() and not set(after.values()) & set(before.values())
        for data in before.values():
            assert not await asyncio.to_thread(on_disk, tmp_path / "nats", data), "the bus overwrote it"
        with pytest.raises(StartError, match="WOOLY_AT_REST_KEY_FILE"):
            await PersonalKeys(bus, WRAP).__aenter__()
        async with PersonalKeys(bus, FileKeyWrap(b"n" * 32)) as personal:
            sealed = await personal.sealed(FACTS)
            assert [personal.opened(fact) for fact in sealed] == list(FACTS)  # type: ignore[type-var]  # facts of access alone
            assert await keys(bus) == after, "nothing is left to wrap again"
            unnamed = TaskSubmitted(1, "t1", "<b>any text</b>", 3, 1, title="a title")
            assert await personal.sealed([unnamed]) == [unnamed], "no subject has such a tenant's name"
        assert not [name for name in NAMES if name in b"".join(await stored(bus))]
        await bus.close()

    async def keys(bus: Bus) -> dict[str, bytes]:
        found = [await bus.message("KV_wooly_personal", last_by_subj=f"$KV.wooly_personal.{owner}") for owner in OWNERS]
        return {owner: message[1] for owner, message in zip(OWNERS, found, strict=True) if message is not None}

    nats = NatsServer(tmp_path / "nats", sync_always=True)
    nats.start()
    try:
        asyncio.run(whole())
    finally:
        nats.stop()


def test_facts_without_encryption_are_read_and_wrapped_keys_need_their_key(tmp_path: Path) -> None:
    async def whole() -> None:
        bus = await connect(nats.url, name="controller")
        await bus.ensure_streams()
        await bus.publish_events("access", "acme", FACTS[:2])
        async with controller(nats.url) as (writer, projection):
            assert shown(projection) == list(FACTS[:2])
            await write(writer, projection, FACTS[2])
        for other in (None, FileKeyWrap(b"o" * 32)):
            with pytest.raises(StartError, match=r"user\.bert .*WOOLY_AT_REST_KEY_FILE"):
                await PersonalKeys(bus, other).__aenter__()
        await bus.close()

    nats = NatsServer(tmp_path / "nats", sync_always=False)
    nats.start()
    try:
        asyncio.run(whole())
    finally:
        nats.stop()
