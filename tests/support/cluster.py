"""The servers of a bus, by their process ids: which of them leads a stream, signals, and what each holds."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from bus_schemas.events import Event, UsageRecorded
from bus_schemas.subjects import EVENTS_STREAM
from services.kit.bus import Bus, connect
from services.kit.bus_permissions import CONTROLLER
from services.kit.credentials import Credentials
from services.kit.errors import BusRefused, BusUnavailable
from services.kit.nats_server import NatsCluster, NatsServer
from services.kit.process import free_port
from services.kit.streams import HUB_DOMAIN
from tests.support.node import history, until

__all__ = ["BusServers", "hub", "launches_of"]

T = TypeVar("T")


class BusServers:
    """``folder``: that of a ``services.kit.nats_server.NatsCluster``, which may be of another process; ``url``: its addresses;
    ``identity``: the environment of the controller, where the bus wants one."""

    def __init__(self, folder: Path, url: str, identity: Mapping[str, str] | None = None) -> None:
        self._folder = folder
        self._url = url
        self._credentials = Credentials.from_environment(identity, url) if identity is not None else None

    def ask(self, work: Callable[[Bus], Coroutine[Any, Any, T]]) -> T:
        """Run ``work`` with a connection to the bus."""

        async def body() -> T:
            bus = await connect(self._url, name=CONTROLLER, deadline_s=60, credentials=self._credentials)
            try:
                return await work(bus)
            finally:
                await bus.close()

        return asyncio.run(body())

    def info(self, stream: str) -> dict[str, Any]:
        return self.ask(lambda bus: bus.js_api(f"STREAM.INFO.{stream}"))

    def streams(self) -> list[str]:
        found: list[str] = self.ask(lambda bus: bus.js_api("STREAM.NAMES"))["streams"] or []
        return found

    def leader(self, stream: str = EVENTS_STREAM) -> str:
        """The name of the server that leads ``stream``, or alone holds it."""
        return str(self.info(stream)["cluster"]["leader"])

    def settled(self, stream: str = EVENTS_STREAM) -> bool:
        """Whether three servers hold the stream, and none is behind."""
        try:
            cluster = self.info(stream)["cluster"]
        except (BusUnavailable, BusRefused):
            return False
        copies = cluster.get("replicas") or []
        return bool(cluster.get("leader")) and len(copies) == 2 and all(copy["current"] and not copy.get("offline") for copy in copies)

    def pid(self, name: str) -> int:
        """Of the server ``wooly_N``, which lives in the folder ``N``."""
        found = [int(path.stem.rsplit("_", 1)[1]) for path in (self._folder / name.rsplit("_", 1)[1]).glob("nats-server_*.ports")]
        return max(found, key=lambda pid: (Path(f"/proc/{pid}").exists(), pid))

    def signal(self, name: str, number: int) -> None:
        """Send it, and after a SIGTERM or SIGKILL wait for the end of the process."""
        pid = self.pid(name)
        os.kill(pid, number)
        if number in (signal.SIGTERM, signal.SIGKILL):
            until(lambda: not _runs(pid), f"the end of {name}")

    def events(self) -> list[Event]:
        """Every fact in the log now, in order."""
        return self.ask(history)


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def launches_of(events: list[Event]) -> int:
    """What the facts of use come to. AssertionError when one of them is lost or is there twice: each device of a node numbers its own."""
    used = [event for event in events if isinstance(event, UsageRecorded)]
    serials: dict[tuple[str, int, int], list[int]] = {}
    for event in used:
        serials.setdefault((event.node, event.epoch, event.gpu), []).append(event.serial)
    for key, found in serials.items():
        assert found == list(range(found[0], found[0] + len(found))), f"facts of {key} are lost or doubled: {found}"
    return sum(event.launches for event in used)


class _Configured(NatsServer):
    """A server with further options in its block ``jetstream`` and behind it."""

    jetstream = ""
    more = ""

    def _config(self) -> str:
        return super()._config().replace("jetstream {", f"jetstream {{\n  {self.jetstream}", 1) + self.more


def hub(folder: Path) -> tuple[NatsCluster, Callable[[Path, str], NatsServer]]:
    """Three servers that leaf servers may connect to, and what makes such a leaf server: from its folder and its JetStream domain."""
    cluster = NatsCluster(folder, 3)
    ports = [free_port() for _ in cluster.servers]
    for server, port in zip(cluster.servers, ports, strict=True):
        server.__class__ = _Configured
        assert isinstance(server, _Configured)
        server.jetstream, server.more = f"domain: {HUB_DOMAIN}", f'leafnodes {{ listen: "127.0.0.1:{port}", no_advertise: true }}\n'

    def leaf(folder: Path, domain: str) -> NatsServer:
        made = _Configured(folder)
        urls = ", ".join(f'"nats://127.0.0.1:{port}"' for port in ports)
        made.jetstream, made.more = f"domain: {domain}", f"leafnodes {{ reconnect: 1, remotes: [ {{ urls: [{urls}] }} ] }}\n"
        return made

    return cluster, leaf
