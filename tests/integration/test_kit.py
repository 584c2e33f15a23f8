"""The shared kit on a real nats-server: acknowledged and conditional publishes, replay, following across crashes of the bus."""

from __future__ import annotations

import asyncio
import base64
import signal
import subprocess
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from bus_schemas import subjects
from bus_schemas.events import Event, TaskStateChanged, encode_events
from services.controller.log_projection import LogProjection
from services.controller.personal import PersonalKeys
from services.kit.bus import Bus, connect
from services.kit.errors import BusRefused, BusUnavailable, Conflict, StartError
from services.kit.nats_server import NatsServer
from tests.support.node import DEADLINE_S, history, until, until_async
from tests.support.stack import ROOT


def run(work: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 2 * DEADLINE_S))


async def ready(nats: NatsServer, name: str = "kit") -> Bus:
    bus = await connect(nats.url, name=name)
    await bus.ensure_streams("n1")
    return bus


def event(number: int) -> Event:
    return TaskStateChanged(number, "t", "started")


class TestServer:
    def test_its_port_stays_across_restarts(self, nats: NatsServer) -> None:
        url = nats.url
        nats.kill()
        nats.start()
        assert nats.url == url
        again = NatsServer(nats.folder)
        nats.stop()
        again.start()
        assert again.url == url
        again.stop()

    def test_a_taken_port_is_given_up(self, nats: NatsServer, tmp_path: Path) -> None:
        other = NatsServer(tmp_path / "other")
        other.port = nats.port
        other.start()
        assert other.port != nats.port
        other.stop()

    def test_a_binary_that_is_not_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("NATS_SERVER_BIN", str(tmp_path / "none"))
        with pytest.raises(StartError, match="NATS_SERVER_BIN"):
            NatsServer(tmp_path / "nats").start()

    def test_it_dies_with_its_parent(self, tmp_path: Path) -> None:
        """Even when the parent gets SIGKILL."""
        script = (
            "import sys\nfrom pathlib import Path\nfrom services.kit.nats_server import NatsServer\n"
            f"s = NatsServer(Path({str(tmp_path / 'nats')!r}))\ns.start()\nprint(s.process.pid, flush=True)\nsys.stdin.read()\n"
        )
        parent = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert Path(f"/proc/{pid}").exists()
        parent.send_signal(signal.SIGKILL)
        parent.communicate()
        until(lambda: not _runs(pid), "its end")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


class TestPublish:
    def test_a_repeat_under_one_id_is_stored_once(self, nats: NatsServer) -> None:
        async def body() -> None:
            bus = await ready(nats)
            first = await bus.publish_events("task", "t", [event(1)], message_id="m")
            again = await bus.publish_events("task", "t", [event(1)], message_id="m")
            assert again == first
            assert await bus.last_position(subjects.EVENTS_STREAM) == first
            await bus.close()

        run(body())

    def test_message_ids_are_unpredictable(self, nats: NatsServer) -> None:
        """A reader of what was published (nodes read facts of services) must not know under which id the next message comes."""

        async def body() -> None:
            bus = await ready(nats)
            position = await bus.publish_events("config", "c", [event(1)])
            answer = await bus.js_api(f"STREAM.MSG.GET.{subjects.EVENTS_STREAM}", {"seq": position})
            head = base64.b64decode(answer["message"]["hdrs"]).decode()
            front, _, count = head.partition("Nats-Msg-Id: ")[2].strip().rpartition(".")
            heads = [b"NATS/1.0\r\nNats-Msg-Id: %s.%d\r\n\r\n" % (front.encode(), int(count, 16) + ahead) for ahead in range(1, 21)]
            await _say(nats, *(_message(b"wooly.evt.node.n1", head) for head in heads))
            assert await bus.publish_events("access", "a", [event(2)]) == position + len(heads) + 1
            await bus.close()

        run(body())

    def test_a_conditional_write_whose_acknowledgement_is_lost_is_no_conflict(self, nats: NatsServer) -> None:
        """nats-server checks conditions before it recognises a repeat."""

        async def body() -> None:
            bus = await ready(nats)
            subject, inbox = subjects.event_subject("task", "t"), bus._ack_inbox
            bus._ack_inbox = "_INBOX.lost"  # nothing listens there
            writing = asyncio.create_task(bus.publish_acked(subject, b"\x90", expect_last_on_subject=0))
            await until_async(lambda: stored(bus), "the message is stored")
            bus._ack_inbox = inbox
            assert await writing == 1
            assert await bus.last_position(subjects.EVENTS_STREAM) == 1
            await bus.close()

        async def stored(bus: Bus) -> bool:
            return await bus.last_position(subjects.EVENTS_STREAM) == 1

        run(body())

    def test_conditions(self, nats: NatsServer) -> None:
        """Two writers on one state: the one that saw the older log gets a Conflict."""

        async def body() -> None:
            bus = await ready(nats)
            position = await bus.publish_events("task", "t", [event(1)])
            subject = subjects.event_subject("task", "t")
            assert await bus.publish_acked(subject, b"\x90", expect_last_on_subject=position) == position + 1
            with pytest.raises(Conflict):
                await bus.publish_acked(subject, b"\x90", expect_last_on_subject=position)
            await bus.close()

        run(body())

    def test_a_subject_without_a_stream(self, nats: NatsServer) -> None:
        async def body() -> None:
            bus = await ready(nats)
            with pytest.raises((BusRefused, BusUnavailable)):
                await bus.publish_acked("nobody.listens", b"", deadline_s=0.5)
            await bus.close()

        run(body())

    def test_publishes_survive_a_crash_of_the_bus_in_order(self, nats: NatsServer) -> None:
        async def body() -> None:
            bus = await ready(nats)

            async def publish() -> None:
                for number in range(300):
                    await bus.publish_events("task", "t", [event(number)])

            publishing = asyncio.create_task(publish())
            for stop_at in (50, 150):
                await until_async(partial(_reached, bus, stop_at), f"{stop_at} events")
                nats.kill()
                nats.start()
            await publishing
            assert [e.at_ns for e in await history(bus) if isinstance(e, TaskStateChanged)] == list(range(300))
            await bus.close()

        async def _reached(bus: Bus, position: int) -> bool:
            try:
                return await bus.last_position(subjects.EVENTS_STREAM) >= position
            except BusUnavailable:
                return False  # asked while it was away

        run(body())


class TestReplay:
    def test_history_from_a_position_then_the_live_tail(self, nats: NatsServer) -> None:
        async def body() -> None:
            bus = await ready(nats)
            await bus.publish_events("task", "t", [event(n) for n in range(250)])  # three messages: 100, 100, 50
            replay = bus.replay(subjects.EVENTS_STREAM, 2)
            assert await replay.history_end() == 3
            got = [await anext(replay), await anext(replay)]
            assert [position for position, _ in got] == [2, 3]
            assert [e.at_ns for _, events in got for e in events if isinstance(e, TaskStateChanged)] == list(range(100, 250))
            await bus.publish_events("task", "t", [event(1000)])
            assert await asyncio.wait_for(anext(replay), DEADLINE_S) == (4, [event(1000)])
            await replay.close()
            await bus.close()

        run(body())

    def test_an_empty_log(self, nats: NatsServer) -> None:
        async def body() -> None:
            bus = await ready(nats)
            replay = bus.replay()
            assert await replay.history_end() == 0
            await bus.publish_events("task", "t", [event(1)])
            assert await asyncio.wait_for(anext(replay), DEADLINE_S) == (1, [event(1)])
            await replay.close()
            await bus.close()

        run(body())

    def test_the_tail_goes_on_after_a_crash_of_the_bus(self, nats: NatsServer) -> None:
        async def body() -> None:
            bus = await ready(nats)
            replay = bus.replay()
            await replay.history_end()
            for number in range(6):
                await bus.publish_events("task", "t", [event(number)])
                assert await asyncio.wait_for(anext(replay), DEADLINE_S) == (number + 1, [event(number)])
                nats.kill()
                nats.start()
            await replay.close()
            await bus.close()

        run(body())

    def test_a_slow_reader_gets_everything(self, nats: NatsServer) -> None:
        """More than the reader's buffer: it says no more that it keeps up until it has caught up."""

        async def body() -> None:
            bus = await ready(nats)
            subject = subjects.journal_subject("n1", 0, "s")  # a stream that is not synced to disk each time
            await asyncio.gather(*(bus.publish_acked(subject, b"\x90") for _ in range(6000)))
            replay = bus.replay(subjects.JOURNAL_STREAM)
            assert await replay.history_end() == 6000
            await until_async(lambda: _paused(replay), "the reader to be full")
            seen = [(await asyncio.wait_for(anext(replay), DEADLINE_S))[0] for _ in range(6000)]
            assert seen == list(range(1, 6001))
            await replay.close()
            await bus.close()

        async def _paused(replay: Any) -> bool:
            return bool(replay._messages._follower._paused)

        run(body())


def test_a_paused_follower_holds_the_bus_back(nats: NatsServer) -> None:
    """Megabytes wait on the bus, not in our memory, for as long as the pause lasts; then all of them come."""
    count, nbytes = 800, 100_000

    async def body() -> None:
        bus = await ready(nats)
        subject = subjects.journal_subject("n1", 0, "s")
        await asyncio.gather(*(bus.publish_acked(subject, bytes(nbytes)) for _ in range(count)))
        heard: list[int] = []
        follower = bus.follow(subjects.JOURNAL_STREAM, 1, lambda position, subject, data: heard.append(position))
        follower.pause()
        await follower.start()

        async def stalled() -> bool:
            return bool(follower._stalled)

        await until_async(stalled, "the bus to wait")
        assert follower.hearing
        assert 0 < len(heard) * nbytes <= 32 << 20
        follower.resume()

        async def all_of_them() -> bool:
            return len(heard) == count

        await until_async(all_of_them, "the rest")
        assert heard == list(range(1, count + 1))
        await follower.stop()
        await bus.close()

    run(body())


class Counting(LogProjection):
    """Notes what it reads, and does ``at_2000`` after as many messages."""

    def __init__(self, bus: Bus, personal: PersonalKeys, at_2000: Callable[[], None] = lambda: None) -> None:
        super().__init__(bus, personal)
        self.read: list[str] = []
        self.positions: list[int] = []
        self._at_2000 = at_2000

    def apply(self, position: int, subject: str, data: bytes) -> None:
        self.read.append(subject)
        self.positions.append(position)
        super().apply(position, subject, data)
        if len(self.read) == 2000:
            self._at_2000()


@pytest.mark.parametrize("interrupted", [False, True])
def test_old_messages_on_thousands_of_subjects_are_read_in_their_order(nats: NatsServer, interrupted: bool) -> None:
    """Areas have consumers of their own; the bus may be away while they are read."""
    areas = [area for area in subjects.AREAS if area not in ("usage", "placement", "session")]
    stored = [subjects.event_subject(areas[number % len(areas)], f"one-{number}") for number in range(6000)]

    def restart() -> None:
        nats.stop()
        nats.start()

    async def body() -> None:
        bus = await ready(nats)
        for first in range(0, len(stored), 500):
            await asyncio.gather(*(bus.publish_acked(subject, encode_events([])) for subject in stored[first : first + 500]))
        async with PersonalKeys(bus, None) as personal, Counting(bus, personal, restart if interrupted else lambda: None) as log:
            assert log.positions == list(range(1, 6001)) and set(log.read) == set(stored) and log.position == 6000
        await bus.close()

    run(body())


def test_old_messages_that_do_not_count_are_passed_over(nats: NatsServer) -> None:
    """A projection reads those that count, its position is the end of the log all the same, and live messages come on any subject."""
    usage, empty = subjects.event_subject("usage", "n1"), encode_events([])

    async def body() -> None:
        bus = await ready(nats)
        counted = [subjects.event_subject(area, "one") for area in subjects.AREAS if area not in ("usage", "placement", "session")]
        counted += [subjects.placement_subject("0", "one"), subjects.session_facts("one", "n1")]
        for subject in counted:
            await bus.publish_acked(subject, empty)
            await asyncio.gather(*(bus.publish_acked(usage, empty) for _ in range(500)))
        end = await bus.last_position(subjects.EVENTS_STREAM)
        assert end == len(counted) * 501
        async with PersonalKeys(bus, None) as personal, Counting(bus, personal) as log:
            assert log.read == counted and log.position == end
            assert await log.caught_up()
            await log.wait_for(await bus.publish_acked(usage, empty))
            await log.wait_for(await bus.publish_acked(counted[0], empty))
            assert log.read[len(counted) :] == [usage, counted[0]] and log.position == end + 2
        await bus.close()

    run(body())


BAD_HEADERS = (b"N", b"NATS/1.0", b"NATS/1.0 \xff\xfe\xfd\r\n\r\n", b"NATS/1.0 100 \xff\xfe\xfd\r\n\r\n")
BAD_WORDS = (b"\xff", b"a\x0bb", b"a\x0c7", b"\x00", b"*")


def test_no_message_stops_those_who_hear_it(nats: NatsServer) -> None:
    """The bus takes any bytes for headers, and nearly any in subjects and replies. A subscriber that receives them continues."""
    asked = [_message(b"test.asked", reply=word) for word in BAD_WORDS] + [_message(b"test.asked", head) for head in BAD_HEADERS]
    facts = [_message(b"wooly.evt.session.%s.n1" % word) for word in BAD_WORDS]
    facts += [_message(b"wooly.evt.node.n1", head) for head in BAD_HEADERS]

    async def body() -> None:
        bus = await ready(nats)
        live: list[bytes] = []
        stored: list[tuple[int, bytes]] = []

        async def hear(subject: str, data: bytes) -> None:
            live.append(data)

        await bus.subscribe("test.asked", hear)
        follower = bus.follow(subjects.EVENTS_STREAM, 1, lambda position, subject, data: stored.append((position, data)))
        await follower.start()
        await bus.nc.flush()
        await _say(nats, *asked, *facts, _message(b"test.asked", data=b"after"), _message(b"wooly.evt.node.n1", data=b"after"))

        async def heard_it() -> bool:
            return bool(live and stored) and live[-1] == stored[-1][1] == b"after"

        await until_async(heard_it, "what follows")
        assert len(live) == len(asked) + 1
        assert [position for position, _ in stored] == list(range(1, len(facts) + 2))
        assert bus.nc.stats["reconnects"] == 0
        await follower.stop()
        await bus.close()

    run(body())


def _message(subject: bytes, head: bytes = b"", data: bytes = b"\x90", reply: bytes = b"") -> bytes:
    """Its bytes on the wire."""
    to = subject + b" " + reply + b" " * bool(reply)
    if head:
        return b"HPUB %s%d %d\r\n%s%s\r\n" % (to, len(head), len(head) + len(data), head, data)
    return b"PUB %s%d\r\n%s\r\n" % (to, len(data), data)


async def _say(nats: NatsServer, *messages: bytes) -> None:
    """Over a connection without a client library; returns once the bus has taken them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", nats.port)
    writer.write(b'CONNECT {"verbose":false,"headers":true}\r\n' + b"".join(messages) + b"PING\r\n")
    while not (await reader.readline()).startswith(b"PONG"):
        pass
    writer.close()


def test_a_follower_goes_back_once_however_often_it_is_refused(nats: NatsServer) -> None:
    class Refusing:
        """The bus's own reads, which are refused a few times."""

        def __init__(self, reads: Any) -> None:
            self._reads = reads
            self.left = 5

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reads, name)

        async def follow(self, asked: Any) -> Any:
            if self.left:
                self.left -= 1
                raise BusUnavailable("not yet")
            return await self._reads.follow(asked)

    async def body() -> None:
        bus = await ready(nats)
        subject = subjects.journal_subject("n1", 0, "s")
        for _ in range(100):
            await bus.publish_acked(subject, b"x")
        heard: list[int] = []
        follower = bus.follow(subjects.JOURNAL_STREAM, 1, lambda position, subject, data: heard.append(position), rewind=10)
        await follower.start()

        async def heard_to(count: int) -> bool:
            return len(heard) >= count

        await until_async(lambda: heard_to(100), "everything")
        bus.consumers = Refusing(bus.consumers)
        follower.restart()
        await until_async(lambda: heard_to(110), "the last ten again")
        assert heard[100:] == list(range(91, 101))
        await follower.stop()
        assert not bus._reconnected
        await bus.close()

    run(body())


def test_waiting_for_a_bus_that_is_away(nats: NatsServer) -> None:
    """Until it is back; once it is away for longer than one waits, later waits end at once."""

    async def body() -> None:
        bus = await connect(nats.url, name="kit")
        await bus.reconnected(60)
        nats.kill()
        await until_async(lambda: _away(bus), "the end of the connection")
        for _ in range(1_000):
            await bus.reconnected(0.2)
        assert not bus.connected
        waiting = asyncio.create_task(bus.reconnected(60))
        nats.start()
        await waiting
        assert bus.connected
        await bus.close()

    async def _away(bus: Bus) -> bool:
        return not bus.connected

    run(body())


def test_no_answer() -> None:
    async def body() -> None:
        with pytest.raises(BusUnavailable, match="no NATS server"):
            await connect("nats://127.0.0.1:1", name="kit", deadline_s=0.3)

    run(body())


def test_a_follower_that_is_woken_while_it_is_stopped_stops(nats: NatsServer) -> None:
    """Whatever the order in which the wake-up and the stop reach it: a bus that goes away wakes every follower of a service that ends."""

    async def work() -> None:
        bus = await ready(nats)
        for steps in range(6):
            follower = bus.follow(subjects.EVENTS_STREAM, 1, lambda position, subject, data: None)
            await follower.start()
            await asyncio.sleep(0)
            follower._wake.set()
            for _ in range(steps):
                await asyncio.sleep(0)
            done, _ = await asyncio.wait([asyncio.create_task(follower.stop())], timeout=DEADLINE_S)
            assert done, f"it follows on, {steps} steps after it was woken"
        await bus.close()

    run(work())
