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
from typing import Any

from tests.conformance.client import LOST, Plan, rows_of
from tests.conformance.harness import Outcome, op_name
from tests.support.node import Node
from tests.support.stack import ROOT, plain_environment

__all__ = ["Record", "run_on_wire"]

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


def run_on_wire(plan: Plan, progress: Callable[[int, int, str], None], backend: str = "host") -> Record:
    """Run every row of ``plan`` through client, bus and node."""
    rows = rows_of(plan)
    record = Record()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Node(folder, WOOLY_BACKEND=backend, WOOLY_DEVICE_VRAM_MB="4096") as node:
            at = 0
            while at < len(rows):
                record.sessions += 1
                at = _one_client(plan, at, node, folder, record, lambda n: progress(n, len(rows), op_name(rows[n][0].op)), rows)
    record.seconds = time.monotonic() - start
    return record


def _one_client(plan: Plan, start: int, node: Node, folder: Path, record: Record, progress: Callable[[int], None], rows: list[Any]) -> int:
    """Run rows from ``start`` in one client process; the number of the row to go on with."""
    out, job = folder / f"out{record.sessions}", folder / f"job{record.sessions}"
    out.touch()
    job.write_text(json.dumps({"plan": plan, "start": start, "out": str(out)}))
    environment = plain_environment(WOOLY_NATS_URL=node.nats.url, PYTHONPATH=str(ROOT))
    client = subprocess.Popen([sys.executable, "-m", "tests.conformance.client", str(job)], env=environment, cwd=ROOT)
    at, moved = start, time.monotonic()
    hung = False
    with out.open() as lines:
        while True:
            ended = client.poll() is not None
            for line in lines:
                number, outcome = json.loads(line)
                moved = time.monotonic()
                progress(number)
                at = number
                if outcome is not None:
                    record.outcomes.append(Outcome(**outcome))
                    at = number + 1
            if ended:
                break
            if time.monotonic() - moved > _STANDSTILL_S:
                hung = True
                client.kill()
                client.wait()
            else:
                time.sleep(_POLL_S)
    if client.returncode == 0:
        return len(rows)
    if client.returncode != LOST:
        row = rows[at][0]
        outcome = Outcome(op_name(row.op), row.dtype, row.direction)
        outcome.add("wrong", "", "stood still" if hung else f"the client process ended with {client.returncode}", set())
        record.outcomes.append(outcome)
        at += 1
        record.crashes += 1
    else:
        record.sessions_lost += 1
    return at
