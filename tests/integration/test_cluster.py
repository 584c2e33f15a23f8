"""A bus of three servers: facts on all of them, and a session that runs on while the server that leads the log is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import signal
from collections.abc import Iterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import nats.errors
import pytest

from bus_schemas.events import TaskStateChanged
from bus_schemas.subjects import EVENTS_STREAM, JOURNAL_STREAM, TELEMETRY_STREAM, batch_stream
from services.controller.metrics import log_copies
from services.kit import rotation
from services.kit.bus import connect
from services.kit.bus_permissions import CONTROLLER
from services.kit.credentials import Credentials
from services.kit.errors import BusRefused
from services.kit.keyring import Keyring
from services.kit.nats_server import Member, NatsCluster, NatsServer
from services.kit.process import free_port
from services.up.secure import LOOPBACK
from tests.support.cluster import BusServers, hub, launches_of
from tests.support.node import DEADLINE_S, Node, floats, increment, until
from tests.support.secure import SecureStack, line
from tests.support.stack import ROOT, EmbeddedStack
from wooly.config import Config
from wooly.link import Flush
from wooly.session import Session, open_session

STEPS = 60


def count_up(session: Session, first: int, last: int) -> None:
    """Add one to a buffer of ones, and look at the sum, in each of these steps."""
    if first == 1:
        session.submit(Flush(uploads=[(1, memoryview(bytes(128)))]))
    for count in range(first, last + 1):
        ticket = session.submit(increment().flush([1], reads=[(1, 0, 128)]))
        assert floats(session.wait(ticket)[0]).tolist() == [float(count)] * 16


def test_a_session_runs_on_when_the_leader_of_the_log_stops(tmp_path: Path) -> None:
    with EmbeddedStack(tmp_path, "--cluster", "3", WOOLY_BACKEND="reference", PYTHONPATH=str(ROOT)) as stack:
        servers = BusServers(tmp_path / "state" / "nats", stack.addresses["nats"])
        for stream, copies in {EVENTS_STREAM: 3, TELEMETRY_STREAM: 3, "KV_wooly_config": 3, "WOOLY_LEASES": 3, JOURNAL_STREAM: 1}.items():
            assert servers.info(stream)["config"]["num_replicas"] == copies, stream
        assert servers.info(batch_stream(stack.addresses["node"]))["config"]["num_replicas"] == 1
        session = open_session(Config(nats_urls=tuple(stack.addresses["nats"].split(",")), recovery_target_s=86_400))
        until(servers.settled, "three copies of the log")
        count_up(session, 1, STEPS // 2)
        servers.signal(servers.leader(), signal.SIGTERM)
        count_up(session, STEPS // 2 + 1, STEPS)
        session.close()
        assert session.totals is not None and session.totals.launches == STEPS
        until(lambda: launches_of(servers.events()) == STEPS, "the session's use in the log")
        until(lambda: stack.get("billing", "/api/v1/billing/credits?by=tenant")["total"]["launches"] == STEPS, "the bill")
        assert stack.get("billing", "/api/v1/billing/verify")["ok"]
        until(servers.settled, "the stopped server is back and has caught up")
        assert stack.stop() == 0


def test_a_server_alone_is_refused_as_a_cluster_and_keeps_what_it_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ensured(copies: str) -> tuple[int, int]:
        monkeypatch.setenv("WOOLY_BUS_REPLICAS", copies)
        bus = await connect(server.url, name="test")
        try:
            await bus.ensure_streams()
            return log_copies(await bus.js_api(f"STREAM.INFO.{EVENTS_STREAM}"), int(copies))
        finally:
            await bus.close()

    server = NatsServer(tmp_path)
    server.start()
    try:
        with pytest.raises(BusRefused, match="WOOLY_BUS_REPLICAS=3 needs a cluster of three servers"):
            asyncio.run(ensured("3"))
        assert asyncio.run(ensured("1")) == (1, 1)
        assert asyncio.run(ensured("3")) == (1, 3), "a service runs on: the alert says what is missing"
    finally:
        server.stop()


def test_streams_of_one_server_get_copies_when_the_setting_rises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a restored backup: the streams are of one server, and so are the facts in them. Then that server may be lost; services start
    also while the one with the journals is away, which only replay needs."""
    cluster = NatsCluster(tmp_path, 3)
    cluster.start()
    try:
        servers = BusServers(tmp_path, cluster.url)
        servers.ask(lambda bus: bus.ensure_streams())
        position = servers.ask(lambda bus: bus.publish_events("task", "t", [TaskStateChanged(1, "t", "completed")]))
        assert servers.info(EVENTS_STREAM)["config"]["num_replicas"] == 1
        monkeypatch.setenv("WOOLY_BUS_REPLICAS", "3")
        servers.ask(lambda bus: bus.ensure_streams())
        until(servers.settled, "three copies of the log")
        servers.signal(servers.leader(JOURNAL_STREAM), signal.SIGKILL)
        assert servers.ask(lambda bus: bus.message(EVENTS_STREAM, last_by_subj="wooly.evt.task.t"))[0] == position  # type: ignore[index]
        monkeypatch.setenv("WOOLY_BUS_REPLICAS", "1")
        servers.ask(lambda bus: bus.ensure_streams())
        assert servers.info(EVENTS_STREAM)["config"]["num_replicas"] == 3, "a service with an older setting takes no copies away"
    finally:
        cluster.stop()


def test_every_server_admits_keys_and_ends_the_connections_of_revoked_ones(tmp_path: Path) -> None:
    with SecureStack(tmp_path, "--cluster", "3", PYTHONPATH=str(ROOT)) as stack:
        stack.tenant("acme")
        key = stack.key(role="member", tenant="acme")
        urls = stack.addresses["nats"].split(",")
        assert len(urls) == 3

        async def connected_to_each() -> None:
            async with AsyncExitStack() as lines:
                found = [await lines.enter_async_context(line(stack, key, at=url)) for url in urls]
                await asyncio.to_thread(stack.ask, "DELETE", f"/api/v1/keys/{key.split('_')[1]}")
                for one in found:
                    await asyncio.wait_for(one.ended.wait(), DEADLINE_S)
            for url in urls:
                with pytest.raises(nats.errors.Error, match="Authorization"):
                    async with line(stack, key, at=url):
                        pass

        asyncio.run(connected_to_each())


def test_a_session_at_a_leaf_server_runs_on_without_the_hub(tmp_path: Path) -> None:
    """Batches are stored at the node; its facts wait in its journal for the log."""
    cluster, make_leaf = hub(tmp_path / "hub")
    leaf = make_leaf(tmp_path / "leaf", "node1")
    try:
        cluster.start()
        leaf.start()
        servers = BusServers(tmp_path / "hub", cluster.url)
        with Node(tmp_path, bus=leaf, WOOLY_BUS_REPLICAS="3", WOOLY_BUS_LEAF="node1") as node:
            batches = batch_stream(node.info().node)
            assert [batches] == BusServers(tmp_path / "leaf", leaf.url).streams() and batches not in servers.streams()
            until(servers.settled, "three copies of the log")
            with_hub = open_session(Config(nats_urls=tuple(cluster.url.split(",")), recovery_target_s=86_400))
            count_up(with_hub, 1, STEPS)
            with_hub.close()
            session = node.open()
            count_up(session, 1, STEPS // 2)
            for server in cluster.servers:
                server.kill()
            count_up(session, STEPS // 2 + 1, STEPS)
            cluster.start()
            session.close()
            assert session.totals is not None and session.totals.launches == STEPS
            until(lambda: launches_of(servers.events()) == 2 * STEPS, "the use of both sessions in the log")
    finally:
        leaf.stop()
        cluster.stop()


def test_a_server_that_hangs_is_left_for_another_one(tmp_path: Path) -> None:
    """Over TLS, where it does not answer the end of the connection either: asyncio waits 30 s for that."""
    ring = Keyring.make(tmp_path / "keyring", {"bus": LOOPBACK, "controller": LOOPBACK}, [])
    servers = [NatsServer(tmp_path / name, security=ring.folder / "bus" / "security.conf") for name in ("a", "b")]
    for server in servers:
        server.start()

    async def left() -> None:
        url = ",".join(server.url for server in servers)
        bus = await connect(url, name=CONTROLLER, credentials=Credentials.from_environment(ring.environment("controller"), url))
        hung = next(server for server in servers if server.url.endswith(f":{bus.nc.connected_url.port}"))
        assert hung.process is not None
        back = asyncio.Event()
        bus.on_reconnect(back.set)
        hung.process.send_signal(signal.SIGSTOP)
        try:
            await asyncio.wait_for(back.wait(), 25)
            assert not hung.url.endswith(f":{bus.nc.connected_url.port}")
        finally:
            hung.process.send_signal(signal.SIGCONT)
            await bus.close()

    try:
        asyncio.run(left())
    finally:
        for server in servers:
            server.stop()


@contextlib.contextmanager
def pair(tmp_path: Path, ring: Keyring, other: Path) -> Iterator[tuple[NatsServer, NatsServer]]:
    """Two servers of a cluster: one with the files of the bus in ``ring``, one with those in ``other``."""
    ports = (free_port(), free_port())
    first, second = (
        NatsServer(tmp_path / name, security=at / "security.conf", member=Member(name, port, ports))
        for name, port, at in zip("ab", ports, (ring.folder / "bus", other), strict=True)
    )
    try:
        first.start()
        second.start()
        yield first, second
    finally:
        first.stop()
        second.stop()


def thief_of(ring: Keyring, part: str, folder: Path) -> Path:
    """The files of the bus with the certificate of ``part``, without a limit on those of other servers."""
    own = ring.folder / "bus"
    shutil.copytree(own, folder)
    for name in ("cert.pem", "key.pem"):
        shutil.copy(ring.folder / part / name, folder / name)
    for name in ("security.conf", "routes.conf"):
        (folder / name).write_text(re.sub(r" *pinned_certs.*\n", "", (own / name).read_text().replace(str(own), str(folder))))
    return folder


def refused(server: NatsServer, ring: Keyring) -> bool:
    """Whether the server refuses another one, which tries again and again, and has no route."""
    before = len(server.log_path.read_text())
    until(lambda: "TLS route handshake error" in server.log_path.read_text()[before:] or routes_of(server, ring) > 0, "a decision")
    return routes_of(server, ring) == 0


def test_only_holders_of_the_certificate_of_the_bus_join_it_as_servers(tmp_path: Path) -> None:
    """The controller's certificate is of the same authority, for the same names, and good for a client."""
    ring = Keyring.make(tmp_path / "keyring", {"bus": LOOPBACK, "controller": LOOPBACK}, [])
    with pair(tmp_path / "1", ring, thief_of(ring, "controller", tmp_path / "thief")) as (server, _):
        assert refused(server, ring)
    stolen = thief_of(ring, "bus", tmp_path / "stolen")
    with pair(tmp_path / "2", ring, stolen) as (server, other):
        until(lambda: routes_of(server, ring) > 0, "a route")
        other.stop()
        rotation.add(ring.folder, "ca")
        shutil.copy(ring.ca, stolen / "ca.pem")
        rotation.use(ring.folder, "ca")
        assert server.process is not None
        server.process.send_signal(signal.SIGHUP)
        other.start()
        until(lambda: routes_of(server, ring) > 0, "a route of a server that does not have its new certificate yet")
        other.stop()
        rotation.retire(ring.folder, "ca", 0)
        server.process.send_signal(signal.SIGHUP)
        shutil.copy(ring.ca, stolen / "ca.pem")  # so that it accepts the others
        other.start()
        assert refused(server, ring)
    with pair(tmp_path / "3", ring, ring.folder / "bus") as (server, _):
        until(lambda: routes_of(server, ring) > 0, "a route with the new certificate")


def routes_of(server: NatsServer, ring: Keyring) -> int:
    """How many routes the server has to others."""

    async def asked() -> int:
        seed = (ring.folder / "controller" / "guard.nk").read_text()
        shown = replace(Credentials.from_environment(ring.environment("controller"), server.url), nkey_seed=lambda: seed, seal=None)
        bus = await connect(server.url, name="guard", credentials=shown)
        try:
            return len(json.loads(await bus.request("$SYS.REQ.SERVER.PING.ROUTEZ", b""))["data"]["routes"])
        finally:
            await bus.close()

    return asyncio.run(asked())


@pytest.mark.soak
def test_a_controller_has_the_batches_of_a_node_stored_elsewhere_when_their_server_hangs(tmp_path: Path) -> None:
    """With authentication, where a node may make no streams. The server holds half of the connections, too."""
    with SecureStack(tmp_path, "--cluster", "3", PYTHONPATH=str(ROOT)) as stack:
        servers = BusServers(tmp_path / "state" / "nats", stack.addresses["nats"], stack.ring.environment("controller"))
        until(servers.settled, "three copies of the log")
        config = Config(
            nats_urls=tuple(stack.addresses["nats"].split(",")), api_key=stack.admin, tls_ca=str(stack.ring.ca), recovery_target_s=86_400
        )
        session = open_session(config)
        count_up(session, 1, STEPS // 2)
        batches = batch_stream(stack.addresses["node"])
        name = servers.leader(batches)
        servers.signal(name, signal.SIGSTOP)
        try:
            count_up(session, STEPS // 2 + 1, STEPS)
            assert servers.leader(batches) != name
        finally:
            servers.signal(name, signal.SIGCONT)
        session.close()
        assert session.totals is not None and session.totals.launches == STEPS
        until(lambda: launches_of(servers.events()) == STEPS, "the session's use in the log")
