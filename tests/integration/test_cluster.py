"""A bus of three servers: facts on all of them, and a session that runs on while the server that leads the log is stopped."""

from __future__ import annotations

import asyncio
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import nats.errors
import pytest

from bus_schemas.subjects import EVENTS_STREAM, JOURNAL_STREAM, TELEMETRY_STREAM, batch_stream
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
