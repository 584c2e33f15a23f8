"""Runs a plan through the real path: nats-server and a node as processes, and the client in a third one.

A client that loses its session, exits or stalls is counted, and another client continues with the next row.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.conformance.client import LOST, Plan
from tests.conformance.harness import Outcome
from tests.support.node import Node
from tests.support.stack import ROOT, plain_environment

__all__ = ["Record", "add_kept", "read_kept", "run_on_wire"]

_STANDSTILL_S = 600.0
"""A row that takes longer is given up."""
_POLL_S = 0.2


@dataclass
class Record:
    """What a run gave.

    Attributes:
        outcomes: of every row, in order.
        sessions_lost: sessions that ended before their rows did.
        sessions: opened.
        crashes: client processes that died, or were ended because a row did not.
        seconds: wall-clock time, start of node and clients included.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    sessions_lost: int = 0
    sessions: int = 0
    crashes: int = 0
    seconds: float = 0.0


def read_kept(kept: Path | None) -> dict[int, Outcome]:
    """The outcomes in a file, by number of the row; none where there is no file."""
    lines = kept.read_text().splitlines() if kept is not None and kept.exists() else []
    return {number: Outcome(**outcome) for number, outcome in map(json.loads, lines)}


def add_kept(kept: Path | None, number: int, outcome: Outcome) -> None:
    """Add an outcome to that file, if there is to be one."""
    if kept is not None:
        with kept.open("a") as file:
            file.write(json.dumps([number, outcome.plain()]) + "\n")


def run_on_wire(plan: Plan, progress: Callable[[int, str], None], backend: str = "host", kept: Path | None = None) -> Record:
    """Run every row of ``plan`` through client, bus and node. ``kept``: outcomes are added to this file as they come, a line of JSON each;
    those that it holds are not made again."""
    record = Record()
    made = read_kept(kept)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Node(folder, WOOLY_BACKEND=backend, WOOLY_DEVICE_VRAM_MB="4096") as node:
            at: int | None = 0
            while at is not None:
                record.sessions += 1
                at = _one_client(plan, at, made, node, folder, record, progress, kept)
    record.outcomes = [made[number] for number in sorted(made)]
    record.seconds = time.monotonic() - start
    return record


def _one_client(
    plan: Plan, start: int, made: dict[int, Outcome], node: Node, folder: Path, record: Record, progress: Callable[[int, str], None],
    kept: Path | None,
) -> int | None:  # fmt: skip
    """Run rows from ``start``, but those in ``made``, in one client process, which alone knows which there are: what torch lists depends on
    the device. The number of the row to go on with; None: that were all."""
    out, job = folder / f"out{record.sessions}", folder / f"job{record.sessions}"
    out.touch()
    job.write_text(json.dumps({"plan": plan, "start": start, "done": sorted(made), "out": str(out)}))
    environment = plain_environment(WOOLY_NATS_URL=node.nats.url, WOOLY_RECOVERY_MB="0", PYTHONPATH=str(ROOT))  # a lost session is seen
    client = subprocess.Popen([sys.executable, "-m", "tests.conformance.client", str(job)], env=environment, cwd=ROOT)
    moved = time.monotonic()
    hung = False
    at, row = start, ["", "", ""]

    def keep(number: int, outcome: Outcome) -> None:
        made[number] = outcome
        add_kept(kept, number, outcome)

    with out.open() as written:
        begun = ""
        while True:
            ended = client.poll() is not None
            *lines, begun = (begun + written.read()).split("\n")  # the last one may be written only in part
            for line in lines:
                at, row, outcome = json.loads(line)
                moved = time.monotonic()
                progress(at, row[0])
                if outcome is not None:
                    keep(at, Outcome(**outcome))
            if ended:
                break
            if time.monotonic() - moved > _STANDSTILL_S:
                hung = True
                client.kill()
                client.wait()
            else:
                time.sleep(_POLL_S)
    if client.returncode == 0:
        return None
    if client.returncode != LOST:
        failed = Outcome(*row)
        failed.add("wrong", "", "stood still" if hung else f"the client process ended with {client.returncode}", set())
        keep(at, failed)
        record.crashes += 1
    else:
        record.sessions_lost += 1
    return at + 1
