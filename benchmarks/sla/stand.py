"""The node under measurement: one executor, and a server in front of it that is restarted for every policy.

The device has one thread on a core of its own; the bus, the server and the load generator share the other one. Policies share the executor
because a process is as fast as where its memory came to lie: kernels that are bound by memory differ by 8 % from one process to the next.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from benchmarks.sla.load import Player
from bus_schemas.events import DeviceAccounted
from scheduler.dispatch import Record, SessionClosed, SessionOpened, decode_journal
from tests.support.node import Node, until

__all__ = ["Stand", "hasten_node", "stand"]

_NICE: Final = -20


class Stand:
    """``journals``: of device 0's dispatcher, by policy, all runs of the server under it in turn. Made by ``stand``."""

    def __init__(self, node: Node, cores: list[int]) -> None:
        self.journals: dict[str, list[Record]] = {}
        self._node = node
        self._cores = cores
        self._read: set[Path] = set()
        self._lives: dict[str, list[tuple[int, int]]] = {}

    @property
    def url(self) -> str:
        return self._node.nats.url

    @contextlib.contextmanager
    def under(self, policy: str) -> Iterator[Player]:
        """A server with this policy for the time of the block, and who plays on it."""
        node = self._node
        node.change(WOOLY_SCHED_POLICY=policy)
        node.start_server()
        _pin(node, self._cores)
        began_ns = time.time_ns()
        player = Player(self.url, node.info().node)
        try:
            yield player
        finally:
            player.close()
        self._lives.setdefault(policy, []).append((began_ns, time.time_ns()))
        self.journals.setdefault(policy, []).extend(until(self._journal, "a journal on disk to the end of its last session"))
        self._read.update(self._segments())
        node.kill_server()  # a server that is stopped ends its executor

    def scheduler_share(self) -> dict[str, float]:
        """By policy: the executor's work beside launches, of the device's wall time x cores."""
        facts = [fact for fact in self._node.events() if isinstance(fact, DeviceAccounted)]
        out = {}
        for policy, lives in self._lives.items():
            under = [fact for fact in facts if any(begin_ns <= fact.from_ns < end_ns for begin_ns, end_ns in lives)]
            wall_ns = sum(fact.wall_ns * fact.cores for fact in under)
            out[policy] = sum(fact.scheduler_core_ns for fact in under) / wall_ns if wall_ns else 0.0
        return out

    def _segments(self) -> list[Path]:
        return sorted((self._node.folder / "server" / "dispatch").glob("gpu0-*.journal"))

    def _journal(self) -> list[Record]:
        """What this run of the server has on disk; empty while a session is open in it."""
        records: list[Record] = []
        for path in self._segments():
            if path not in self._read:
                records += decode_journal(path.read_bytes())[0]
        opened = sum(isinstance(record.stimulus, SessionOpened) for record in records)
        return records if opened == sum(isinstance(record.stimulus, SessionClosed) for record in records) else []


@contextlib.contextmanager
def stand() -> Iterator[Stand]:
    """A node for the time of the block; this process goes to the bus's core."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        node = Node(
            Path(folder),
            WOOLY_BACKEND="host",
            WOOLY_DEVICE_THREADS="1",
            WOOLY_LEASE_MS="3600000",
            WOOLY_CACHE_DIR=str(Path(folder) / "cache"),
        )
        os.sched_setaffinity(0, cores[:1])
        node.nats.start()
        try:
            yield Stand(node, cores)
        finally:
            node.stop_server()
            node.kill_executor()
            node.nats.stop()
            os.sched_setaffinity(0, cores)


def _hasten(pid: int) -> None:
    """What else the machine does should not be measured; where this is not allowed, it is."""
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.setpriority(os.PRIO_PROCESS, int(thread.name), _NICE)
        Path(f"/proc/{pid}/autogroup").write_text(str(_NICE))


def hasten_node(node: Node) -> None:
    """All processes of a node, and this one."""
    assert node.server is not None and node.nats.process is not None, "it runs"
    for pid in (os.getpid(), node.server.pid, node.nats.process.pid, *node.executor_pids()):
        _hasten(pid)


def _pin(node: Node, cores: list[int]) -> None:
    """The launching thread of the executor to the last core, all else to the first."""
    hasten_node(node)
    for pid in node.executor_pids():
        for thread in Path(f"/proc/{pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), cores[-1:] if int(thread.name) == pid else cores[:1])
