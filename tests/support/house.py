"""A small cluster for browser tests and screenshots: bus, controller, billing, three real nodes, and tasks of two tenants that run, wait
and end. To look at it:

    python -m tests.support.house            # prints the address, until Ctrl-C; --history gives charts an hour that was never lived
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from bus_schemas.subjects import telemetry_subject
from bus_schemas.telemetry import RunningSession, Telemetry, encode_telemetry
from services.kit.bus import Bus, connect
from services.kit.nats_server import NatsServer
from tests.support.fork_server import ForkedProcess, start_service
from tests.support.node import Program, increment, until
from tests.support.plane import Controller
from tests.support.stack import plain_environment
from wooly.config import Config
from wooly.errors import WoolyError
from wooly.link import Flush
from wooly.session import Session, open_session

__all__ = ["GUESTS", "NODES", "Guest", "House", "NodeSpec"]

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """One node server: ``vram_mb`` for each of its ``devices``."""

    name: str
    vram_mb: int
    devices: int = 1
    groups: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Guest:
    """A task that runs until the house closes, or for ``rounds``. ``held_mb``: memory it really takes; ``elements``: size of each step;
    ``pause_s`` between steps, as the script of a person thinks between two tokens."""

    title: str
    tenant: str
    priority: int
    vram_mb: int
    held_mb: int = 16
    elements: int = 1 << 14
    pause_s: float = 0.02
    group: str = ""
    rounds: int = 0
    gpus: int = 1


NODES = (NodeSpec("atlas", 3072, 2), NodeSpec("borealis", 2048), NodeSpec("cirrus", 1024, groups=("research",)))
GUESTS = (
    Guest("chat-7b serving", "acme", 0, 1536, 192, pause_s=0.03),
    Guest("embedding service", "acme", 1, 640, 96, pause_s=0.05),
    Guest("finetune llama adapters", "globex", 2, 1280, 256, 1 << 17, 0.01),
    Guest("nightly evaluation", "globex", 3, 512, 64, pause_s=0.08),
    Guest("ablation sweep", "acme", 2, 700, 128, 1 << 15, 0.02, group="research"),
    Guest("tokenizer statistics", "acme", 4, 256, 32, rounds=20),
    Guest("unit test of a kernel", "globex", 4, 128, 16, rounds=5),
)
WAITING = (
    {"tenant": "globex", "priority": 2, "required_vram_mb": 2900, "gpu_count": 2, "title": "pretraining restart", "queue": True},
    {"tenant": "acme", "priority": 3, "required_vram_mb": 1000, "gpu_mode": "Exclusive", "title": "benchmark", "queue": True},
)
"""Tasks for which there is no room: they stay in the queue."""


class House:
    """``with House() as house``: the nodes are there; ``house.fill()`` brings the guests. ``url``: the controller.
    ``watch``: nodes answer over HTTP too, at ``watched[name]``."""

    def __init__(
        self,
        folder: Path | None = None,
        *,
        nodes: Sequence[NodeSpec] = NODES,
        history: bool = False,
        watch: bool = False,
        **environment: str,
    ) -> None:
        self._own = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = Path(self._own.name) if self._own is not None else folder or Path()
        self._nodes = nodes
        self._history = history
        self._watch = watch
        self.watched: dict[str, str] = {}
        self._environment = environment
        self.nats = NatsServer(self.folder / "nats", sync_always=False)
        self.processes: dict[str, ForkedProcess] = {}
        self.billing = ""
        self._leave = threading.Event()
        self._threads: list[threading.Thread] = []
        self._opened = 0

    @property
    def url(self) -> str:
        return self.controller.url

    def __enter__(self) -> Self:
        self.nats.start()
        try:
            if self._history:
                asyncio.run(_publish_history(self.nats.url, self._nodes))
            self.billing = json.loads(self._start("billing", "services.billing", WOOLY_HTTP="127.0.0.1:0"))["http"]
            environment = {
                "WOOLY_BILLING_URL": self.billing,
                "CONTROLLER_START_LEASE_MS": "600000",
                "CONTROLLER_NODE_LEASE_MS": "60000",
                **self._environment,
            }
            self.controller = Controller(self.nats.url, self.folder, **environment)
            self.controller.start()
            for node in self._nodes:
                self.start_node(node)
            until(lambda: self._ready_nodes() == len(self._nodes), "every node is known")
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        self._leave.set()
        for thread in self._threads:
            thread.join(20)
        for name in reversed([*self.processes]):
            self.stop(name)
        if hasattr(self, "controller") and self.controller.process is not None:
            self.controller.stop()
        self.nats.stop()
        if self._own is not None:
            self._own.cleanup()

    # -- processes -----------------------------------------------------------------------------------------------------------------

    def start_node(self, node: NodeSpec) -> None:
        line = self._start(
            node.name,
            "services.server",
            NODE_NAME=node.name,
            NODE_ID=node.name,
            NODE_GROUPS=",".join(node.groups),
            WOOLY_BACKEND="reference",
            WOOLY_DEVICES=str(node.devices),
            WOOLY_DEVICE_VRAM_MB=str(node.vram_mb),
            WOOLY_DEVICE_THREADS="1",
            WOOLY_CACHE_DIR=str(self.folder / node.name / "cache"),
            **({"WOOLY_NODE_HTTP": "127.0.0.1:0"} if self._watch else {}),
        )
        self.watched[node.name] = line.split(", ")[-1].strip() if self._watch else ""

    def stop(self, name: str) -> None:
        self.processes.pop(name).stop()

    def _start(self, name: str, module: str, **environment: str) -> str:
        """Start a service; its ready line."""
        given = plain_environment(
            WOOLY_NATS_URL=self.nats.url, CONTROLLER_NATS_URL=self.nats.url, WOOLY_DATA_DIR=str(self.folder / name), **environment
        )
        if "PYTHONPATH" in os.environ:
            given["PYTHONPATH"] = os.environ["PYTHONPATH"]
        with (self.folder / f"{name}.log").open("ab") as log:
            process = start_service(module, env=given, stderr=log)
        self.processes[name] = process
        assert process.stdout is not None
        line = process.stdout.readline().decode()
        if not line:
            raise RuntimeError(f"{name} did not start:\n" + (self.folder / f"{name}.log").read_text()[-4000:])
        return line

    def _ready_nodes(self) -> int:
        return sum(node["state"] == "ready" for node in self.controller.get("/api/v1/nodes")["items"])

    # -- people --------------------------------------------------------------------------------------------------------------------

    def fill(self, guests: Sequence[Guest] = GUESTS, waiting: Sequence[dict[str, Any]] = WAITING) -> None:
        """Bring guests, one after the other and each in a thread, so that each finds its place on the same node every time, and tasks that
        wait; returns when all guests have a session and all others a decision."""
        for count, guest in enumerate(guests, self._opened + 1):
            thread = threading.Thread(target=self._live, args=(guest,), daemon=True, name=guest.title)
            self._threads.append(thread)
            thread.start()
            until(partial(self._has_opened, count), f"{guest.title} has a session")
        for body in waiting:
            answer = self.controller.ask("POST", "/api/v1/tasks", body)
            if answer.status >= 400:
                raise RuntimeError(f"{body['title']}: {answer.body.decode()}")

    def _has_opened(self, count: int) -> bool:
        return self._opened >= count

    def config(self, guest: Guest) -> Config:
        return Config(
            prio=guest.priority,
            gpu_count=guest.gpus,
            controller_url=self.url,
            controller_node_group_ids=(guest.group,) if guest.group else (),
            required_vram_mb=guest.vram_mb,
            nats_urls=(self.nats.url,),
            tenant=guest.tenant,
        )

    def _live(self, guest: Guest) -> None:
        """One simulated user: open, take memory, step and pause, until the cluster stops or its rounds are over."""
        session = open_session(self.config(guest), title=guest.title)
        self._opened += 1
        try:
            _work(session, guest, increment(guest.elements), self._leave.wait)
        except WoolyError:
            pass  # cancelled, or its node was stopped: a guest goes
        finally:
            session.close()


def _work(session: Session, guest: Guest, step: Program, think: Callable[[float], bool]) -> None:
    session.wait(session.submit(Flush(allocs=((1, guest.held_mb * _MIB), (2, guest.elements * 8)))))
    done = 0
    while not think(guest.pause_s) and (not guest.rounds or done < guest.rounds):
        session.wait(session.submit(step.flush([2])))
        done += 1


# -- an hour that was never lived ------------------------------------------------------------------------------------------------------

_HOUR_S = 3600
_STEP_S = 5


async def _publish_history(nats_url: str, nodes: Sequence[NodeSpec]) -> None:
    """Telemetry of the last hour, before anything is started: charts of a demonstration that has just begun are otherwise empty."""
    bus = await connect(nats_url, name="history")
    try:
        await bus.ensure_streams()
        now_s = int(time.time())
        for second in range(now_s - _HOUR_S, now_s - 10, _STEP_S):
            await asyncio.gather(*(_publish(bus, node, gpu, second) for node in nodes for gpu in range(node.devices)))
    finally:
        await bus.close()


async def _publish(bus: Bus, node: NodeSpec, gpu: int, second: int) -> None:
    total = node.vram_mb * _MIB
    phase = second / 600 + len(node.name) + 2 * gpu
    busy = 58 + 26 * math.sin(phase) + 9 * math.sin(second / 37 + gpu) + 4 * math.sin(second / 11)
    hungry = max(0.0, busy - 42 + 8 * math.sin(second / 53))
    held = 0.45 + 0.2 * math.sin(phase / 2)
    core_ns = int(busy / 200 * 1e9)
    running = tuple(RunningSession(f"past-{name}", "", 1, int(total * held / 2), name, core_ns=core_ns) for name in ("acme", "globex"))
    seen = Telemetry(
        second * 10**9, node.name, 0, gpu, 1000, round(min(99, max(0, busy))), round(min(95, hungry)), total, int(total * held),
        int(total * 0.8), int(total * max(0, 0.12 * math.sin(phase))), running, 1, int(total * 0.08), int(total * 0.05),
    )  # fmt: skip
    await bus.publish_acked(telemetry_subject(node.name, gpu), encode_telemetry(seen))


def main() -> None:
    parser = argparse.ArgumentParser(description="A cluster to look at.")
    parser.add_argument("--history", action="store_true", help="charts begin an hour ago")
    options = parser.parse_args()
    with House(history=options.history) as house:
        house.fill()
        print(house.url, "billing", house.billing, "bus", house.nats.url, flush=True)
        try:
            threading.Event().wait()
        except KeyboardInterrupt:
            print("closing")


if __name__ == "__main__":
    main()
