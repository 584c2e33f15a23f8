"""Starts a control plane for tests: a real nats-server, a real controller process, and nodes that exist as their facts and telemetry."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bus_schemas.events import DeviceFact, Event, NodeRegistered
from bus_schemas.subjects import event_subject, telemetry_subject
from bus_schemas.telemetry import Telemetry, encode_telemetry
from services.kit.bus import Bus, connect
from services.kit.errors import BusRefused
from services.kit.nats_server import NatsServer
from tests.support.fork_server import ForkedProcess, start_service

__all__ = ["GIB", "Answer", "Controller", "Plane", "registered", "wait_until"]

GIB = 1 << 30
_START_S = 30


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: bytes
    media_type: str

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Controller:
    """A controller process."""

    def __init__(self, nats_url: str, folder: Path, **environment: str) -> None:
        self._environment = {"WOOLY_NATS_URL": nats_url, "WOOLY_HTTP": "127.0.0.1:0", "WOOLY_DATA_DIR": str(folder / "data"), **environment}
        self._log = folder / "controller.log"
        self.url = ""
        self.process: ForkedProcess | None = None

    def start(self) -> None:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("WOOLY", "CONTROLLER_", "NODE_"))}
        with self._log.open("ab") as log:
            self.process = start_service("services.controller", env=kept | self._environment, stderr=log)
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the controller did not start:\n" + self.log_tail())
        self.url = json.loads(line)["http"]

    def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        return process.stop(number)

    def kill(self) -> None:
        self.stop(signal.SIGKILL)

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]

    def ask(self, method: str, path: str, body: Any = None, revision: object = None) -> Answer:
        """``body``: bytes as they are, anything else as JSON. ``revision``: that the change is based on."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **({} if revision is None else {"If-Match": str(revision)})}
        request = urllib.request.Request(self.url + path, data=data, method=method, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return Answer(answer.status, answer.read(), answer.headers.get_content_type())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read(), error.headers.get_content_type())

    def submit(self, **body: Any) -> Any:
        answer = self.ask("POST", "/api/v1/tasks", {"required_vram_mb": 1024, **body})
        assert answer.status in (200, 201, 202), answer.body
        return answer.json

    def get(self, path: str) -> Any:
        answer = self.ask("GET", path)
        if answer.status != 200:
            raise RuntimeError(f"GET {path}: {answer.status} {answer.body.decode()}")
        return answer.json


class Plane:
    """A bus and a controller, with a connection of its own to play the nodes. The node lease is long unless the test is about it."""

    def __init__(self, folder: Path | None = None, **environment: str) -> None:
        self._own = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = Path(self._own.name) if self._own is not None else folder or Path()
        self.environment = {"CONTROLLER_NODE_LEASE_MS": "600000", **environment}
        self.nats = NatsServer(self.folder / "nats", sync_always=False)
        self._runner = asyncio.Runner()

    def __enter__(self) -> Self:
        self.nats.start()
        self.bus: Bus = self._runner.run(connect(self.nats.url, name="test"))
        self.controller = Controller(self.nats.url, self.folder, **self.environment)
        self.controller.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._runner.run(self.bus.close())
        self._runner.close()
        if self.controller.process is not None:
            self.controller.stop()
        self.nats.stop()
        if self._own is not None:
            self._own.cleanup()

    def publish(self, area: str, entity: str, *events: Event) -> int:
        """Store facts; their position. Returns once the controller, if there is one, has read them: its answers wait a second for that."""
        position = self._runner.run(self.bus.publish_events(area, entity, events))
        if self.controller.process is not None:
            wait_until(lambda: bool(self.controller.ask("GET", "/health").json["position"] >= position))
        return position

    def publish_raw(self, area: str, entity: str, data: bytes) -> int:
        """Store bytes where facts are; their position."""
        return self._runner.run(self.bus.publish_acked(event_subject(area, entity), data))

    def limit_events(self, **options: Any) -> None:
        """Change limits of the stream of facts."""

        async def change() -> None:
            info = await self.bus.js_api("STREAM.INFO.WOOLY_EVENTS")
            await self.bus.js_api("STREAM.UPDATE.WOOLY_EVENTS", {**info["config"], **options})

        self._runner.run(change())

    def divert_telemetry(self) -> None:
        """Have what nodes measure go into another stream than the one that is followed."""

        async def change() -> None:
            info = await self.bus.js_api("STREAM.INFO.WOOLY_TELEMETRY")
            while True:
                await self.bus.js_api("STREAM.DELETE.WOOLY_TELEMETRY")
                with contextlib.suppress(BusRefused):  # the controller was quicker and has made it anew
                    await self.bus.js_api("STREAM.CREATE.ELSEWHERE", {**info["config"], "name": "ELSEWHERE"})
                    return

        self._runner.run(change())

    def register(self, name: str, *, gib: Sequence[int] = (10,), groups: Sequence[str] = (), epoch: int = 1) -> None:
        """A node with one device for each number of GiB."""
        self.publish("node", name, registered(name, gib=gib, groups=groups, epoch=epoch))

    def publish_telemetry(self, seen: Telemetry) -> None:
        """Publish a measurement, and do not wait until it is shown."""
        self._runner.run(self.bus.publish_acked(telemetry_subject(seen.node, seen.gpu), encode_telemetry(seen)))

    @contextlib.contextmanager
    def measuring(self, node: str, *, utilization: int = 0) -> Iterator[None]:
        """The node is heard of five times a second inside the block, and no more after it: for tests whose lease of nodes is short."""
        over = threading.Event()
        subject = telemetry_subject(node, 0)

        def measure() -> None:
            with asyncio.Runner() as runner:
                bus = runner.run(connect(self.nats.url, name=node))
                while not over.wait(0.2):
                    seen = Telemetry(time.time_ns(), node, 1, 0, 1000, utilization, 0, 10 * GIB, 0)
                    runner.run(bus.publish_acked(subject, encode_telemetry(seen)))
                runner.run(bus.close())

        thread = threading.Thread(target=measure)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def measure(self, node: str, gpu: int = 0, *, utilization: int = 0, starvation: int = 0, used: int = 0, epoch: int = 1) -> None:
        """Publish telemetry as the node would, and return once the controller shows it, and as a fact of the log too."""
        at_ns = time.time_ns()
        seen = Telemetry(at_ns, node, epoch, gpu, 1000, utilization, starvation, 10 * GIB, used)
        self.publish_telemetry(seen)

        def shown() -> bool:
            return any(
                item["node"] == node and item["gpu"] == gpu and item["utilization_percent"] == utilization and item["age_ms"] < 60_000
                for item in self.controller.get("/api/v1/telemetry")["items"]
            )

        wait_until(shown)
        wanted = {"utilization_percent": utilization, "starvation_percent": starvation, "vram_used_bytes": used}
        wait_until(lambda: self.controller.get(f"/api/v1/nodes/{node}")["devices"][gpu]["observed"] == wanted)


def registered(name: str, *, gib: Sequence[int] = (10,), groups: Sequence[str] = (), epoch: int = 1) -> NodeRegistered:
    devices = tuple(DeviceFact(index, f"gpu{index}", "host", 8, size * GIB) for index, size in enumerate(gib))
    return NodeRegistered(time.time_ns(), name, f"{name}-name", f"{name}.example", epoch, devices, tuple(groups), "1.0")


def wait_until(condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
    """Ask again until ``condition()``; raises TimeoutError."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"still not so after {timeout_s:g} s")
        time.sleep(0.02)
