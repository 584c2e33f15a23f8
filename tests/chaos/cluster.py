"""``python -m tests.chaos.cluster [--seed S] [--only WORDS] [--publish]``: two tenants train, and tasks are submitted, on a bus of three
servers, of which one or all are lost meanwhile (`make test-cluster`). Exits with 1 when something does not hold.

The trainings are unmodified scripts. Every line that they print is compared with a run without faults; the log is read and checked: no fact
of use is lost or doubled, and every task whose submission was acknowledged is there once.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError

from bus_schemas.events import TaskSubmitted
from bus_schemas.subjects import EVENTS_STREAM, batch_stream, node_id
from tests.chaos.bill import Work, as_undisturbed, bill, findings
from tests.chaos.stack import NODES, Script, Stack
from tests.support.cluster import BusServers, launches_of
from tests.support.node import until
from tests.support.sections import write_section
from tests.support.stack import ROOT

_SCRIPT_S = 300
_SUBMIT_EVERY_S = 0.2
_TENANTS = ("left", "right")
_BATCHES = batch_stream(node_id(NODES["server"]))


@dataclass(frozen=True, slots=True)
class Loss:
    """``strike`` is called while both scripts train."""

    what: str
    strike: Callable[[Stack, BusServers], None]
    #: the node has a leaf server, and the scripts use it
    leaf: bool = False


def _one(number: int, stream: str = EVENTS_STREAM, away_s: float = 20) -> Callable[[Stack, BusServers], None]:
    """The server that leads this stream, or alone holds it, gets a signal, and returns after a while."""

    def strike(stack: Stack, servers: BusServers) -> None:
        name = servers.leader(stream)
        server = stack.cluster.servers[int(name.rsplit("_", 1)[1]) - 1]
        servers.signal(name, number)
        time.sleep(away_s)  # the loss lasts as long
        if number == signal.SIGSTOP:
            servers.signal(name, signal.SIGCONT)
        else:
            server.kill()  # collects the ended process
            server.start(deadline_s=60)

    return strike


def _all(away_s: float) -> Callable[[Stack, BusServers], None]:
    def strike(stack: Stack, servers: BusServers) -> None:
        stack.end("nats", signal.SIGKILL)
        time.sleep(away_s)  # the loss lasts as long
        stack.start("nats")

    return strike


LOSSES = (
    Loss("none: the control", lambda stack, servers: None),
    Loss("the leader of the log, by SIGTERM, for 20 s", _one(signal.SIGTERM)),
    Loss("the leader of the log, by kill -9, for 20 s", _one(signal.SIGKILL)),
    Loss("the leader of the log hangs (SIGSTOP) for 20 s", _one(signal.SIGSTOP)),
    Loss("the server with the node's batches, by SIGTERM, for 20 s", _one(signal.SIGTERM, _BATCHES)),
    Loss("the server with the node's batches, by kill -9, for 20 s", _one(signal.SIGKILL, _BATCHES)),
    Loss("the server with the node's batches hangs (SIGSTOP) for 20 s", _one(signal.SIGSTOP, _BATCHES)),
    Loss("all three, by kill -9, for 30 s", _all(30)),
    Loss("with a leaf server: the leader of the log, by kill -9, for 20 s", _one(signal.SIGKILL), leaf=True),
    Loss("with a leaf server: all three, by kill -9, for 30 s", _all(30), leaf=True),
)


class Submitting(threading.Thread):
    """Submits tasks, one after another, each again under its id until it is acknowledged."""

    def __init__(self, stack: Stack) -> None:
        super().__init__(daemon=True)
        self._stack = stack
        self._over = threading.Event()
        self.acknowledged: list[str] = []
        self.start()

    def run(self) -> None:
        number = 0
        while not self._over.wait(_SUBMIT_EVERY_S):
            name = f"task-{number}"
            try:
                self._stack.ask("controller", "/api/v1/tasks", {"id": name, "required_vram_mb": 1, "tenant": _TENANTS[number % 2]})
            except (HTTPError, OSError):
                continue  # asked again
            self.acknowledged.append(name)
            number += 1

    def ends(self) -> None:
        self._over.set()
        self.join(_SCRIPT_S)


def undisturbed(folder: Path) -> tuple[list[str], Work]:
    """Lines and bill of one training on one bus server."""
    with Stack(folder) as stack:
        script = Script(stack, "undisturbed")
        if script.ends(_SCRIPT_S) != 0 or findings(stack):
            raise RuntimeError(f"the undisturbed run failed: {findings(stack)}\n{script.errors}")
        return script.lines, bill(stack)


def suffer(loss: Loss, chance: random.Random, folder: Path, lines: list[str], use: Work) -> tuple[list[str], str]:
    """What does not hold, and the row of the table."""
    with Stack(folder, servers=3, leaf=loss.leaf) as stack:
        servers = BusServers(folder / "nats", stack.cluster.url)
        until(servers.settled, "three copies of the log")
        scripts = [Script(stack, tenant, tenant) for tenant in _TENANTS]
        submitting = Submitting(stack)
        wrong: list[str] = []
        if not all(script.reaches(chance.randint(1, 8), 120) for script in scripts):
            wrong.append("a script did not get so far")
        loss.strike(stack, servers)
        for script in scripts:
            code = script.ends(_SCRIPT_S)
            if code != 0 or script.lines != lines:
                wrong.append(f"exit code {code}, {len(script.lines)} lines\n{script.errors[-3000:]}")
        submitting.ends()
        wrong += as_undisturbed()(stack, (2 * use[0], 2 * use[1]))
        until(servers.settled, "three copies of the log again")
        events = servers.events()
        used = launches_of(events)  # raises when a fact is lost or doubled
        if used != 2 * use[0]:
            wrong.append(f"the log has {used} launches instead of {2 * use[0]}")
        submitted = Counter(event.task for event in events if isinstance(event, TaskSubmitted))
        if bad := {name: submitted[name] for name in submitting.acknowledged if submitted[name] != 1}:
            wrong.append(f"acknowledged tasks that are not in the log once: {bad}")
        pauses = ", ".join(f"{script.longest_pause_s:.1f} s" for script in scripts)
        tasks = len(submitting.acknowledged)
        row = f"| {loss.what} | {'yes' if not wrong else 'no'} | {len(events):,} | {tasks} | {pauses} |\n"
    return wrong, row


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=1, help="of the moments of the losses")
    parser.add_argument("--only", default="", help="losses whose description has these words")
    parser.add_argument("--publish", action="store_true", help="write the table to docs/how-to/cluster.md")
    asked = parser.parse_args()
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as folder:
        lines, use = undisturbed(Path(folder))
    table = "| lost | all held | facts in the log | tasks submitted | longest pause of each training |\n|---|---|---|---|---|\n"
    failed = False
    for loss in LOSSES:
        if asked.only not in loss.what:
            continue
        with tempfile.TemporaryDirectory() as folder:
            wrong, row = suffer(loss, chance, Path(folder), lines, use)
        failed |= bool(wrong)
        table += row
        print(row.strip(), *wrong, sep="\n", flush=True)
    if asked.publish:
        write_section(ROOT / "docs" / "how-to" / "cluster.md", "cluster", table)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
