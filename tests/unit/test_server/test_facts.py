"""The fact log across restarts: epochs grow, what was not acknowledged is published again, progress is remembered, use counts once."""

from __future__ import annotations

import asyncio
import base64
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest

from bus_schemas.events import DeviceAccounted, Event, NodeLost, decode_events, encode_events
from bus_schemas.subjects import EVENTS_STREAM
from services.kit.bus import connect
from services.kit.nats_server import NatsServer
from services.server.facts import FactLog, JournalFile, Progress, _name
from services.server.meter import Account


def fact(number: int) -> NodeLost:
    return NodeLost(number, "node", 1, f"number {number}")


def test_epochs_grow_with_every_start(tmp_path: Path) -> None:
    assert [FactLog(tmp_path / "facts", "node").epoch for _ in range(3)] == [1, 2, 3]


def test_a_journal_that_is_new_begins_behind_what_the_log_knows(tmp_path: Path) -> None:
    assert FactLog(tmp_path / "lost", "node", 7).epoch == 8
    assert FactLog(tmp_path / "lost", "node", 3).epoch == 9


def test_progress_is_remembered_once_synced(tmp_path: Path) -> None:
    async def body() -> None:
        log = FactLog(tmp_path / "facts", "node")
        progress = Progress(0, "boot", 123, 77, 5, (Account("s", "t", "", 1, core_ns=9),), "made", 42)
        log.note(progress, lambda: None)
        await log.close()
        assert FactLog(tmp_path / "facts", "node").progress == {0: progress}

    asyncio.run(body())


def accounted(serial: int) -> DeviceAccounted:
    """The second that ends at ``serial`` seconds."""
    return DeviceAccounted("node", 1, 0, serial, serial - 1, 1, 1, 0, 0, 1, 1, 0)


def progress(serial: int) -> Progress:
    return Progress(0, "boot", serial, 77, 5, ())


def test_a_server_that_dies_while_writing_leaves_no_use_that_the_next_one_measures_again(tmp_path: Path) -> None:
    """Wherever the file ends: what is to be published reaches exactly as far as the progress that the next start goes on from."""

    async def body() -> bytes:
        log = FactLog(tmp_path / "facts", "node")
        for serial in (1, 2, 3):
            log.record("usage", "node", [accounted(serial)])
            log._file.flush()
            log.record("session", "s", [fact(serial)])
            log._file.flush()
            log.note(progress(serial), lambda: None)
            log._file.flush()
        await log.close()
        return (tmp_path / "facts").read_bytes()

    data = asyncio.run(body())
    reached = set()
    for end in range(len(data) + 1):
        (tmp_path / "torn").write_bytes(data[:end])
        log = FactLog(tmp_path / "torn", "node")
        said = [event.serial for record in log._waiting for event in decode_events(record.events) if isinstance(event, DeviceAccounted)]
        known = log.progress[0].accounted_ns if log.progress else 0
        assert said == list(range(1, known + 1))
        reached.add(known)
    assert reached == {0, 1, 2, 3}


def test_what_is_recorded_while_the_bus_is_away_is_on_disk_all_the_same_and_leaves_after(tmp_path: Path) -> None:
    nats = NatsServer(tmp_path / "nats")
    nats.start()

    async def body() -> None:
        bus = await connect(nats.url, name="facts")
        await bus.ensure_streams()
        nats.kill()
        log = FactLog(tmp_path / "facts", "node")
        log.start(bus)
        log.record("node", "node", [fact(1)])
        durable = asyncio.Event()
        log.record("usage", "node", [accounted(1)])
        log.note(progress(1), durable.set)
        await asyncio.wait_for(durable.wait(), 60)
        log.record("usage", "node", [accounted(2)])
        durable.clear()
        log.note(progress(2), durable.set)
        await asyncio.wait_for(durable.wait(), 60)
        assert log.waiting == 3
        nats.start()
        assert await log.settled(60)
        await log.close()
        await bus.close()
        assert FactLog(tmp_path / "facts", "node").waiting == 0

    try:
        asyncio.run(body())
    finally:
        nats.stop()


def test_a_journal_of_much_that_waits_is_not_rewritten_again_and_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While the bus is away nothing of it can go."""
    monkeypatch.setattr("services.server.facts._REWRITE_BYTES", 4 << 10)
    nats = NatsServer(tmp_path / "nats")
    nats.start()

    async def body() -> None:
        bus = await connect(nats.url, name="facts")
        await bus.ensure_streams()
        nats.kill()
        log = FactLog(tmp_path / "facts", "node")
        log.start(bus)
        rewritten, rewrite = list[int](), log._file.rewrite

        def counted(bodies: Iterable[bytes]) -> None:
            rewrite(bodies)
            rewritten.append(log._file.nbytes)

        monkeypatch.setattr(log._file, "rewrite", counted)
        for number in range(400):
            log.record("node", "node", [fact(number)])
            assert await log.durable()
        assert 1 <= len(rewritten) <= 6, rewritten
        nats.start()
        assert await log.settled(60)
        await log.close()
        await bus.close()

    try:
        asyncio.run(body())
    finally:
        nats.stop()


def test_what_was_not_acknowledged_is_published_by_the_next_start(tmp_path: Path) -> None:
    """The server dies with the bus away; the next one finds the bus again. Facts acknowledged before are not repeated."""
    nats = NatsServer(tmp_path / "nats")
    nats.start()

    async def body() -> None:
        bus = await connect(nats.url, name="facts")
        await bus.ensure_streams()
        first = FactLog(tmp_path / "facts", "node")
        first.start(bus)
        first.record("node", "node", [fact(1)])
        assert await first.settled(60)
        await first.close()
        unheard = FactLog(tmp_path / "facts", "node")
        unheard.record("node", "node", [fact(2), fact(3)])
        await unheard.close()
        last = FactLog(tmp_path / "facts", "node")
        last.start(bus)
        last.record("node", "node", [fact(4)])
        assert await last.settled(60)
        await last.close()
        replay = bus.replay()
        end = await replay.history_end()
        seen: list[int] = []
        async for position, events in replay:
            seen += [event.at_ns for event in events if isinstance(event, NodeLost)]
            if position >= end:
                break
        await replay.close()
        await bus.close()
        assert seen == [1, 2, 3, 4]

    try:
        asyncio.run(body())
    finally:
        nats.stop()


def test_message_ids_of_facts_are_unpredictable(tmp_path: Path) -> None:
    """The log drops a message with a known id as a duplicate, whichever node sent the first: another node must not know the next id."""
    nats = NatsServer(tmp_path / "nats")
    nats.start()

    async def body() -> None:
        bus = await connect(nats.url, name="facts")
        await bus.ensure_streams()
        log = FactLog(tmp_path / "facts", "node")
        log.start(bus)
        log.record("usage", "node", [accounted(1)])
        log.note(progress(1), lambda: None)
        assert await log.settled(10)
        answer = await bus.js_api(f"STREAM.MSG.GET.{EVENTS_STREAM}", {"seq": 1})
        name = base64.b64decode(answer["message"]["hdrs"]).decode().partition("Nats-Msg-Id: ")[2].strip()
        for guess in ("node.1.2.0", name.replace(".1.0", ".2.0")):
            await bus.publish_acked("wooly.evt.node.other", b"\x90", message_id=guess)
        log.record("usage", "node", [accounted(2)])
        log.note(progress(2), lambda: None)
        assert await log.settled(10)
        answer = await bus.js_api(f"STREAM.MSG.GET.{EVENTS_STREAM}", {"last_by_subj": "wooly.evt.usage.node"})
        assert decode_events(base64.b64decode(answer["message"]["data"])) == [accounted(2)]
        await log.close()
        await bus.close()

    try:
        asyncio.run(body())
    finally:
        nats.stop()


def test_a_journal_of_old_keeps_its_names(tmp_path: Path) -> None:
    """What an older version published without hearing so is a repeat."""
    journal = JournalFile(tmp_path / "facts")
    journal.append(msgspec.msgpack.encode(["recorded.v1", 7, "node", "node", b"\x90", 3]))
    journal.append(msgspec.msgpack.encode(["recorded.v1", 8, "node", "node", b"\x90"]))
    journal.sync()
    journal.close()
    assert [_name("node", record) for record in FactLog(tmp_path / "facts", "node")._waiting] == ["node.3.7", "node.8"]


def test_nothing_is_published_that_is_not_in_the_journal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Facts come while others are on their way. If the server died, the next one would give their names to facts of its own, which the
    stream would take for repeats; and what they say would be counted, and said, again."""
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    journal = tmp_path / "facts"

    def left_behind() -> set[int]:
        """The facts, by index, that the journal would have if the server were killed now."""
        records = [msgspec.msgpack.decode(body) for body in JournalFile(Path(shutil.copy(journal, tmp_path / "copy"))).bodies]
        return {record[1] for record in records if record[0] == "recorded.v1"}

    async def body() -> None:
        bus = await connect(nats.url, name="facts")
        await bus.ensure_streams()
        log = FactLog(journal, "node")
        published: dict[int, bool] = {}
        publish = bus.publish_events

        async def watched(area: str, entity: str, events: list[msgspec.Raw], *, message_id: str, node: str) -> int:
            index = int(message_id.rsplit(".", 1)[1])
            if index < 4:
                log.record("node", "node", [fact(index + 1)])
            published[index] = index in left_behind()
            return await publish(area, entity, events, message_id=message_id, node=node)

        monkeypatch.setattr(bus, "publish_events", watched)
        log.start(bus)
        log.record("node", "node", [fact(1)])
        assert await log.settled(60)
        await log.close()
        await bus.close()
        assert published == dict.fromkeys(range(1, 5), True)

    try:
        asyncio.run(body())
    finally:
        nats.stop()


def test_facts_of_use_leave_only_with_the_progress_that_covers_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use that is held for its note stays on the node through any number of writes to disk, and so does what was recorded behind it."""
    nats = NatsServer(tmp_path / "nats")
    nats.start()
    journal = tmp_path / "facts"

    def on_disk() -> int:
        """How many facts the journal would give to the next start."""
        return FactLog(Path(shutil.copy(journal, tmp_path / "copy")), "node").waiting

    async def body() -> None:
        bus = await connect(nats.url, name="facts")
        await bus.ensure_streams()
        log = FactLog(journal, "node")
        publish, sync = bus.publish_events, log._file.sync
        published: list[Event] = []
        found: list[int] = []
        loop, synced = asyncio.get_running_loop(), asyncio.Event()

        async def watched(area: str, entity: str, events: list[msgspec.Raw], *, message_id: str, node: str) -> int:
            published.extend(decode_events(encode_events(events)))
            found.append(on_disk())
            return await publish(area, entity, events, message_id=message_id, node=node)

        def counted() -> None:
            sync()
            loop.call_soon_threadsafe(synced.set)

        monkeypatch.setattr(bus, "publish_events", watched)
        monkeypatch.setattr(log._file, "sync", counted)
        log.start(bus)
        log.record("usage", "node", [accounted(1)])
        log.record("node", "node", [fact(2)])
        for _ in range(3):
            synced.clear()
            log._wake.set()
            await asyncio.wait_for(synced.wait(), 60)
            for _ in range(10):  # tasks that wait for the disk run
                await asyncio.sleep(0)
        assert published == [] and on_disk() == 0 and log.waiting == 2
        log.note(progress(1), lambda: None)
        assert await log.settled(60)
        assert published == [accounted(1), fact(2)] and found[0] == 2 and found[1] in (1, 2), "each was on disk when it left"
        await log.close()
        await bus.close()

    try:
        asyncio.run(body())
    finally:
        nats.stop()
