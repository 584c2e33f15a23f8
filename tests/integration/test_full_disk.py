"""A bus and a node whose disk was full: what had been acknowledged is kept, and they work again once there is room, without help."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

from bus_schemas.events import SessionClosedFact, UsageRecorded
from services.kit.bus import Bus, connect
from services.kit.errors import BusUnavailable
from services.kit.nats_server import NatsCluster, NatsServer
from services.kit.process import free_port
from services.up import __main__ as up
from tests.support.kube.helm import rendered
from tests.support.node import Node, increment, until, until_async
from tests.support.stack import ROOT
from wooly.link import Flush

SUBJECT = "wooly.evt.node.full"
STREAM = {"name": "FULL", "subjects": [SUBJECT], "storage": "file"}


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 128 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=128m", "tmpfs", folder], capture_output=True).returncode:
        pytest.skip("this user can mount nothing")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


@contextlib.contextmanager
def filled(disk: Path) -> Iterator[None]:
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(1 << 12))
    yield
    filler.unlink()


async def published(bus: Bus, first: int, count: int, deadline_s: float = 30.0) -> list[bytes]:
    """What the bus has acknowledged."""
    bodies = [b"%d " % number + bytes(20_000) for number in range(first, first + count)]
    for body in bodies:
        await bus.publish_acked(SUBJECT, body, deadline_s=deadline_s)
    return bodies


async def stored(bus: Bus) -> list[bytes]:
    """Every message of the stream."""
    last = (await bus.js_api("STREAM.INFO.FULL"))["state"]["last_seq"]
    found = [await bus.js_api("STREAM.MSG.GET.FULL", {"seq": seq}) for seq in range(1, last + 1)]
    return [base64.b64decode(one["message"]["data"]) for one in found]


async def refused_until_room(bus: Bus, server: NatsServer, disk: Path) -> list[bytes]:
    """Messages that were acknowledged before the disk was full, of a server that refuses more."""
    await bus.js_api("STREAM.CREATE.FULL", STREAM)
    kept = await published(bus, 0, 20)
    with filled(disk):
        with pytest.raises(BusUnavailable):
            await published(bus, 20, 1, deadline_s=1)
        assert not server.outdated, "there is no room to start it again"
    with contextlib.suppress(BusUnavailable):  # a server before 2.14 takes it
        await published(bus, 20, 1, deadline_s=1)
    return kept


def test_the_embedded_bus_is_started_again_when_there_is_room(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(up, "_RENEW_S", 0.1)
    cluster = NatsCluster(disk / "nats", 1)
    (server,) = cluster.servers

    async def go() -> None:
        server.start()
        bus = await connect(server.url, name="test", deadline_s=30)
        kept = await refused_until_room(bus, server, disk)
        first = server.process
        keeping = [asyncio.create_task(up._keep_nats(server)), asyncio.create_task(up._renew_nats(cluster))]
        more = await published(bus, 30, 5)
        assert server.process is not first and not server.outdated
        found = await stored(bus)
        assert found[:20] == kept and found[-5:] == more
        for task in keeping:
            task.cancel()
        await bus.close()

    try:
        asyncio.run(asyncio.wait_for(go(), 120))
    finally:
        server.stop()


def probes() -> dict[str, str]:
    """Shell commands that look after the server of the bus, by platform."""
    compose = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["nats"]["healthcheck"]["test"]
    assert compose[0] == "CMD-SHELL"
    (bus,) = (one for one in rendered() if one["kind"] == "StatefulSet" and one["metadata"]["name"].endswith("-nats"))
    *shell, kubernetes = bus["spec"]["template"]["spec"]["containers"][0]["livenessProbe"]["exec"]["command"]
    assert shell == ["sh", "-c"]
    return {"compose": compose[1], "kubernetes": kubernetes}


@pytest.mark.parametrize("platform", ["compose", "kubernetes"])
def test_a_container_of_the_bus_is_started_again_when_there_is_room(disk: Path, platform: str, tmp_path: Path) -> None:
    """The probe fails, or ends the server, as long as a stream takes nothing, and passes before and after."""
    busybox = shutil.which("busybox")
    if busybox is None:
        pytest.skip("no busybox, which the images' shell is")
    commands = tmp_path / "bin"
    commands.mkdir()
    subprocess.run([busybox, "--install", "-s", commands], check=True)
    monitor = free_port()

    class Monitored(NatsServer):
        """As deploy/nats/nats.conf has it."""

        def _config(self) -> str:
            return f'http: "127.0.0.1:{monitor}"\n{super()._config()}'

    server = Monitored(disk / "nats")

    def probe() -> int:
        assert server.process is not None
        text = probes()[platform].replace(":8222", f":{monitor}").replace(" 8222 ", f" {monitor} ")
        text = text.replace("kill 1;", f"kill {server.process.pid};")
        return subprocess.run(["sh", "-c", text], executable=commands / "sh", env={"PATH": str(commands)}, capture_output=True).returncode

    async def go() -> None:
        server.start()
        bus = await connect(server.url, name="test", deadline_s=30)
        assert probe() == 0
        kept = await refused_until_room(bus, server, disk)
        assert server.process is not None
        if platform == "compose":
            probe()
            until(lambda: server.process is not None and server.process.poll() is not None, "the probe ends the server")
        else:
            assert probe() != 0
            server.stop()
        server.start()
        more = await published(bus, 30, 1)
        found = await stored(bus)
        assert found[:20] == kept and found[-1:] == more
        await until_async(lambda: asyncio.to_thread(lambda: probe() == 0), "the probe passes")
        await bus.close()

    try:
        asyncio.run(asyncio.wait_for(go(), 120))
    finally:
        server.stop()


@pytest.mark.parametrize("on_stop", ["end", "keep"])
def test_a_node_bills_what_it_executed_while_its_disk_was_full(tmp_path: Path, on_stop: str) -> None:
    """The session ends meanwhile, and the node as well; the next one has the executor's reports."""
    with Node(tmp_path, WOOLY_ON_STOP=on_stop, WOOLY_LEASE_MS="2000") as node:
        session, program = node.open(), increment()
        session.wait(session.submit(Flush(allocs=[(1, 128)])))
        for _ in range(10):
            session.wait(session.submit(program.flush([1])))
        server = node.server
        assert server is not None
        full = (tmp_path / "server" / "facts.journal").stat().st_size
        psutil.Process(server.pid).rlimit(psutil.RLIMIT_FSIZE, (full, full))
        for _ in range(10):
            session.wait(session.submit(program.flush([1])))
        session.close()
        assert session.totals is None, "what it used is not on record"
        until(lambda: server.poll() is not None, "the node ends")
        node.start_server()
        (closed,) = node.facts(SessionClosedFact)
        used = [fact for fact in node.events() if isinstance(fact, UsageRecorded)]
        assert (closed.launches, sum(fact.launches for fact in used)) == (20, 20)
