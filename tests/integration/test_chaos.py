"""Exactly once, under random crashes: bus and server are killed at random moments while sessions count; every count must come out exact.

A seed names the run. What is drawn: who is killed, when, how long a script pauses to look at a value.
"""

from __future__ import annotations

import random
import threading
from pathlib import Path

import numpy as np
import pytest

from bus_schemas.events import DeviceAccounted, UsageRecorded
from tests.support.node import Node, floats, increment
from wooly.link import Flush
from wooly.session import Session

BATCHES = 400


class Script:
    """Adds one, again and again, and now and then looks whether the sum is what it must be."""

    def __init__(self, session: Session, seed: int) -> None:
        self._session = session
        self._random = random.Random(seed)
        self.done = 0
        self.failure: BaseException | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            session, program = self._session, increment()
            session.submit(Flush(uploads=[(1, memoryview(np.zeros(16)).cast("B"))]))
            for count in range(1, BATCHES + 1):
                ticket = session.submit(program.flush([1], reads=[(1, 0, 128)]))
                if self._random.random() < 0.1 or count == BATCHES:
                    assert floats(session.wait(ticket)[0]).tolist() == [float(count)] * 16
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
            script._session.close()
            assert script._session.totals is not None
            totals.append(script._session.totals)
        assert [total.launches for total in totals] == [BATCHES, BATCHES]
        assert totals[0].launch_digest == totals[1].launch_digest
        events = node.events()
    used = {(e.epoch, e.serial): e for e in events if isinstance(e, UsageRecorded)}
    assert sum(e.launches for e in used.values()) == 2 * BATCHES
    assert sum(e.core_ns for e in used.values()) == sum(total.core_ns for total in totals)
    for fact in (e for e in events if isinstance(e, DeviceAccounted)):
        assert fact.charged_core_ns + fact.scheduler_core_ns + fact.idle_core_ns == fact.wall_ns * fact.cores
