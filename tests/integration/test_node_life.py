"""A node from start to stop: telemetry, the dispatch journal, the data port over TCP, several devices, what it tells about itself."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np

from bus_schemas import subjects
from bus_schemas.events import NodeRegistered, SessionClosedFact, SessionOpenedFact
from bus_schemas.session import NodeInfo, OpenSession, Ping, Pong, SessionOpened
from bus_schemas.telemetry import Telemetry, decode_telemetry
from scheduler.dispatch import BatchArrived, Launch, chain, decode_journal
from services.kit.bus import Bus
from tests.support.node import DEADLINE_S, Node, asked, floats, increment, until
from tests.support.replayed import verify
from wooly.link import Flush


def telemetry(node: Node, count: int) -> list[Telemetry]:
    """The next ``count`` messages."""

    async def read(bus: Bus) -> list[Telemetry]:
        heard: asyncio.Queue[Telemetry] = asyncio.Queue()

        async def on_message(subject: str, data: bytes) -> None:
            heard.put_nowait(decode_telemetry(data))

        await bus.subscribe(subjects.TELEMETRY_ALL, on_message)
        return [await asyncio.wait_for(heard.get(), DEADLINE_S) for _ in range(count)]

    return node.run(read)


def test_telemetry_shows_load_memory_and_who_runs(node: Node) -> None:
    (idle,) = telemetry(node, 1)
    assert (idle.utilization_percent, idle.starvation_percent, idle.vram_used_bytes, idle.running) == (0, 0, 0, ())
    assert idle.vram_total_bytes == 2048 << 20
    sessions = [node.open(prio=prio, required_vram_mb=256) for prio in (0, 3)]
    program = increment(200_000)
    for session in sessions:
        session.submit(Flush(allocs=[(1, 1_600_000)]))
        for _ in range(20):
            session.submit(program.flush([1]))
    stop = asyncio.Event()

    async def busy(bus: Bus) -> Telemetry:
        """Keep both sessions busy until a window shows it."""
        heard: asyncio.Queue[Telemetry] = asyncio.Queue()

        async def on_message(subject: str, data: bytes) -> None:
            heard.put_nowait(decode_telemetry(data))

        await bus.subscribe(subjects.TELEMETRY_ALL, on_message)

        def load() -> None:
            while not stop.is_set():
                for session in sessions:
                    session.submit(program.flush([1]))

        loading = asyncio.create_task(asyncio.to_thread(load))
        try:
            while True:
                message = await asyncio.wait_for(heard.get(), DEADLINE_S)
                if message.utilization_percent > 50 and message.starvation_percent > 25:
                    return message
        finally:
            stop.set()
            await loading

    message = node.run(busy)
    assert message.utilization_percent <= 100
    assert message.starvation_percent <= message.utilization_percent
    assert sorted((r.session, r.priority, r.resident_bytes) for r in message.running) == sorted(
        (s.info.session, prio, 1_600_000) for s, prio in zip(sessions, (0, 3), strict=True)
    )
    assert message.cores >= 1
    for r in message.running:
        assert (r.tenant, r.weight, r.allocated_bytes, r.swapped_bytes, r.shared_bytes) == ("default", 100, 1_600_000, 0, 0)
        assert r.state in ("running", "ready", "idle")
        assert 0 <= r.wait_max_ns <= r.wait_ns or not r.waits
    assert sum(r.slices for r in message.running) > 0 and sum(r.core_ns for r in message.running) > 0
    assert (message.vram_swapped_bytes, message.vram_shared_bytes, message.vram_saved_bytes) == (0, 0, 0)
    assert message.vram_used_bytes == 3_200_000
    assert message.vram_reserved_bytes == 512 << 20


def test_the_dispatch_journal_replays_decision_for_decision(node: Node) -> None:
    """Also through a fault; and the launch digests sent to the sessions follow from it."""
    digests = {}
    for session in (node.open(), node.open(prio=2)):
        session.submit(Flush(allocs=[(1, 128)]))
        for _ in range(10):
            session.submit(increment().flush([1]))
        session.close()
        assert session.totals is not None
        digests[session.info.session] = session.totals.launch_digest
    bad = node.open()
    bad.submit(increment().flush([5]))
    bad.close()
    node.stop_server()
    (path,) = (node.folder / "server" / "dispatch").glob("*.journal")
    records, taken = decode_journal(path.read_bytes())
    assert taken == path.stat().st_size
    verify(records)
    contents = {(r.stimulus.session, r.stimulus.seq): r.stimulus.content for r in records if isinstance(r.stimulus, BatchArrived)}
    chains: dict[str, bytes] = {}
    for launch in (decision for record in records for decision in record.decisions if isinstance(decision, Launch)):
        before = chains.get(launch.session, b"")
        chains[launch.session] = chain(before, launch.seq, contents[(launch.session, launch.seq)])
    assert {session: chains[session].hex() for session in digests} == digests


def test_bulk_bytes_travel_over_tcp_as_well(node: Node) -> None:
    """From another machine there is no Unix socket to be found."""
    session = node.open()
    port = session._state.remote.port
    port.close()
    port._addresses = ("unix:/nowhere/at/all", *(address for address in port._addresses if address.startswith("tcp:")))
    data = np.random.default_rng(3).random(1_500_000)
    session.submit(Flush(uploads=[(1, memoryview(data).cast("B"))]))
    answer = session.wait(session.submit(Flush(reads=[(1, 0, data.nbytes)])))
    assert (floats(answer[0]) == data).all()
    assert port._socket is not None
    assert port._socket.getpeername()[0] == "127.0.0.1"


def test_several_devices(tmp_path: Path) -> None:
    """One executor a device; a session lives on the one it asked for, and one that dies takes only its own along."""
    with Node(tmp_path, WOOLY_DEVICES="2") as node:
        zero, one = node.open(gpus=(0,)), node.open(gpus=(1,))
        for session in (zero, one):
            session.wait(session.submit(Flush(allocs=[(1, 128)])))
        assert [session.info.gpus for session in (zero, one)] == [(0,), (1,)]
        assert [(stats.gpu, stats.resident_bytes) for stats in node.stats().sessions] == [(0, 128), (1, 128)]
        (registered,) = node.facts(NodeRegistered)
        assert [device.index for device in registered.devices] == [0, 1]
        opened = {e.session: e.gpu for e in node.facts(SessionOpenedFact, 2)}
        assert opened == {zero.info.session: 0, one.info.session: 1}
        pids = sorted(node.executor_pids())
        assert len(pids) == 2
        os.kill(pids[1], signal.SIGKILL)
        until(lambda: len(node.stats().sessions) == 1, "the loss to be noticed")
        (left,) = node.stats().sessions
        survivor = zero if left.session == zero.info.session else one
        survivor.wait(survivor.submit(increment().flush([1])))


def test_discovery_and_ping(node: Node) -> None:
    info = node.info()
    assert (info.name, info.epoch) == ("test-node", 1)
    assert [device.backend for device in info.devices] == ["reference"]

    async def ping(bus: Bus) -> tuple[Pong, NodeInfo]:
        pong = await asked(bus, subjects.node_request(info.node, "ping"), msgspec.msgpack.encode(Ping()), Pong)
        return pong, await asked(bus, subjects.discover(), b"\xc1garbage", NodeInfo)

    pong, again = node.run(ping)
    assert (pong.node, pong.session_known) == (info.node, False)
    assert again.node == info.node


def test_two_servers_do_not_share_a_folder(node: Node) -> None:
    done = subprocess.run(
        [sys.executable, "-P", "-m", "services.server"], env=node.environment(), capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 2
    assert "another server uses" in done.stderr


def test_a_full_disk_stops_the_node_and_says_so(node: Node) -> None:
    """What is not in the journal would not be billed. With room again the next server takes over what runs, also of a node that ends its
    sessions when it is stopped."""
    session = node.open()
    session.wait(session.submit(increment().flush([1], allocs=[(1, 128)])))
    assert node.server is not None
    resource.prlimit(node.server.pid, resource.RLIMIT_FSIZE, ((node.folder / "server.log").stat().st_size,) * 2)
    assert node.server.wait(DEADLINE_S) == 1
    node.start_server()
    (data,) = session.wait(session.submit(increment().flush([1], reads=[(1, 0, 128)])))
    assert floats(data).tolist() == [2.0] * 16
    assert node.info().epoch == 2


def test_a_device_whose_executor_cannot_be_started_tries_again(node: Node) -> None:
    """It died because the machine was short of something, and the machine still is."""
    assert node.server is not None
    limits = resource.prlimit(node.server.pid, resource.RLIMIT_NOFILE)
    resource.prlimit(node.server.pid, resource.RLIMIT_NOFILE, (0, limits[1]))
    node.kill_executor()
    until(lambda: "no executor" in node.log(), "a start that fails")
    resource.prlimit(node.server.pid, resource.RLIMIT_NOFILE, limits)
    until(lambda: node.info().devices, "the device is back")
    session = node.open()
    session.wait(session.submit(Flush(allocs=[(1, 128)])))


def test_sessions_that_fall_silent_cost_no_heartbeat(tmp_path: Path) -> None:
    with Node(tmp_path, WOOLY_LEASE_MS="1000") as node:
        for at in range(4):
            opened = node.ask("open", OpenSession(f"silent{at}", "default", "", 3, (0,), 0), SessionOpened)
            assert opened.fault is None
        closed = node.facts(SessionClosedFact, 4)
        assert [(fact.reason, fact.outcome is not None and fact.outcome.lost) for fact in closed] == [("lease", True)] * 4
        telemetry(node, 1)
        assert "StimulusError" not in node.log()
