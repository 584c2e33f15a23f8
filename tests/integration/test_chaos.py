"""Exactly once, under random crashes and moves: bus and server are killed, or the task is moved to another node and back, at random moments
while sessions count; every count must come out exact.

A seed names the run. What is drawn: who is killed, when, how long a script pauses to look at a value.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest

from billing.projection import BillingView
from bus_schemas.events import DeviceAccounted, Event, SessionClosedFact, SessionOpenedFact, TaskDisplaced, UsageRecorded
from tests.support.node import Node, floats, increment, until
from tests.support.plane import Controller
from wooly.link import Flush
from wooly.session import Session

BATCHES = 400
MOVES = 4


class Script:
    """Adds one, again and again, and now and then looks whether the sum is what it must be."""

    def __init__(self, session: Session, seed: int, looks: float = 0.1) -> None:
        """``looks``: at what part of the values."""
        self.session = session
        self._looks = looks
        self._random = random.Random(seed)
        self.done = 0
        """Batches that were submitted."""
        self.seen = 0
        """The last value that it looked at."""
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def sees(self, count: int) -> None:
        """Wait until it has looked at this value or a later one, or has ended."""
        while self.seen < count and self.thread.is_alive():
            self.thread.join(0.002)

    def ends(self) -> None:
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            session, program = self.session, increment()
            session.submit(Flush(uploads=[(1, memoryview(np.zeros(16)).cast("B"))]))
            for count in range(1, BATCHES + 1):
                ticket = session.submit(program.flush([1], reads=[(1, 0, 128)]))
                if self._random.random() < self._looks or count == BATCHES:
                    assert floats(session.wait(ticket)[0]).tolist() == [float(count)] * 16
                    self.seen = count
                self.done = count
        except BaseException as error:  # handed to the test's own thread
            self.failure = error


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_every_batch_is_executed_once(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    with Node(tmp_path) as node:
        scripts = [Script(node.open(tenant=f"tenant{number}"), seed * 10 + number) for number in range(2)]
        for script in scripts:
            script.thread.start()
        kills = sorted(chance.sample(range(20, BATCHES - 20), 4))
        for at in kills:
            while all(script.done < at and script.failure is None for script in scripts) and any(s.thread.is_alive() for s in scripts):
                scripts[0].thread.join(0.002)
            victim = chance.choice(["bus", "server", "both"])
            if victim in ("server", "both"):
                node.kill_server()
            if victim in ("bus", "both"):
                node.nats.kill()
                node.nats.start()
            if victim in ("server", "both"):
                node.start_server()
        for script in scripts:
            script.thread.join(60)
            assert not script.thread.is_alive(), node.log()
            if script.failure is not None:
                raise script.failure
        totals = []
        for script in scripts:
            script.session.close()
            assert script.session.totals is not None
            totals.append(script.session.totals)
        assert [total.launches for total in totals] == [BATCHES, BATCHES]
        assert totals[0].launch_digest == totals[1].launch_digest
        events = node.events()
    used = {(e.epoch, e.serial): e for e in events if isinstance(e, UsageRecorded)}
    assert sum(e.launches for e in used.values()) == 2 * BATCHES
    assert sum(e.core_ns for e in used.values()) == sum(total.core_ns for total in totals)
    for fact in (e for e in events if isinstance(e, DeviceAccounted)):
        assert fact.charged_core_ns + fact.scheduler_core_ns + fact.idle_core_ns == fact.wall_ns * fact.cores


def runs_on(script: Script) -> str:
    """The name of the node that the script's batches go to."""
    node = script.session.info.node
    assert node is not None
    return node.name


def move(controller: Controller, script: Script) -> None:
    """To the other node, and wait until it runs there, or the script has failed."""
    path = f"/api/v1/tasks/{script.session.info.task}"

    def seen() -> tuple[str, str]:
        found = controller.get(path)
        return found["state"], found["node_name"]

    (to,) = {"a", "b"} - {seen()[1]}
    assert controller.ask("POST", f"{path}/move", {"to": to}).status == 200
    until(lambda: script.failure is not None or (seen() == ("started", to) and runs_on(script) == to), "the task runs on the other node")


def all_over(node: Node) -> list[Event]:
    """The log, once every session is over."""

    def found() -> list[Event]:
        events = node.events()
        opened = {event.session for event in events if isinstance(event, SessionOpenedFact)}
        closed = {event.session for event in events if isinstance(event, SessionClosedFact)}
        return events if opened == closed else []

    return until(found, "the end of all sessions")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_every_batch_of_a_task_that_is_moved_is_executed_once(tmp_path: Path, seed: int) -> None:
    """Once as far as the script and the bill can tell: what the node that it leaves did is repeated, and not counted again."""
    chance = random.Random(seed)
    for name in ("a", "b", "controller"):
        (tmp_path / name).mkdir()
    with Node(tmp_path / "a", NODE_NAME="a") as a, Node(tmp_path / "b", beside=a, NODE_NAME="b"):
        controller = Controller(a.nats.url, tmp_path / "controller")
        controller.start()
        try:
            until(lambda: len(controller.get("/api/v1/nodes")["items"]) == 2, "two nodes")
            script = Script(a.open(controller_url=controller.url, required_vram_mb=64), seed, looks=0.5)
            script.thread.start()
            for number in range(MOVES):
                script.sees(80 * number + chance.randint(1, 60))
                move(controller, script)
            script.ends()
            script.session.close()
            events = all_over(a)
        finally:
            controller.stop()
    assert len([event for event in events if isinstance(event, TaskDisplaced)]) == MOVES
    view = BillingView()
    for position, event in enumerate(events, start=1):
        view.apply(position, [event])
    assert not view.findings
    assert sum(row.launches for row in view.rows.values()) == BATCHES
    assert script.session.totals is not None and script.session.totals.launches == BATCHES
