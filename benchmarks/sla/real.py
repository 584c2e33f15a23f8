"""The real runs: a node for every policy, inference alone and beside each kind of training, the same arrivals in all of them.

The device has one thread on a core of its own; the bus, the server and the load generator share the other one.
"""

from __future__ import annotations

import contextlib
import gc
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.sla.arrivals import bursts
from benchmarks.sla.load import Player, Tenant
from benchmarks.sla.measure import Counts, Decisions, count, quantile_ns
from benchmarks.sla.recording import Recording, load
from bus_schemas.events import DeviceAccounted
from scheduler.dispatch import Dispatch, Record, decode_journal
from tests.support.node import Node
from tests.support.stack import ROOT, plain_environment

__all__ = ["INFERENCE", "POLICIES", "TRAINING", "Matrix", "Phase", "Plan", "hasten_node", "play_matrix", "record_all", "time_decisions"]

INFERENCE: Final = ("short", "long", "memory")
TRAINING: Final = ("short", "long", "memory")
POLICIES: Final = ("strict", "fifo", "timeslice")

_WARM_REQUESTS: Final = 30
_RATE_REQUESTS: Final = 60
_TRAINING_ALONE_S: Final = 6.0
_SEED: Final = 2024
_PRIORITY_OF_TRAINING: Final = 3
_NICE: Final = -20


@dataclass(frozen=True, slots=True)
class Plan:
    """``seconds``: how long inference is offered to the node in each cell; at least ``requests_min`` requests whatever that takes.
    ``rounds``: how often the strict policy's cells are played, all in turn each time; the others once, or as often (``even``).
    ``load_percent``: requests offered, of the rate that inference alone reaches back to back."""

    seconds: float = 5.0
    requests_min: int = 150
    rounds: int = 3
    even: bool = False
    load_percent: int = 50

    def rounds_of(self, policy: str) -> int:
        return self.rounds if self.even or policy == "strict" else 1


@dataclass(slots=True)
class Phase:
    """One stretch of a run. ``training`` empty: alone. ``latencies_ns`` of inference, in order of arrival; ``trained``: steps of training
    that ended in it. ``begin_ns`` and ``end_ns`` on the monotonic clock. ``sessions``: (inference, training). ``wrong``: answers that
    differ from the recorded ones."""

    policy: str
    inference: str
    training: str
    begin_ns: int
    end_ns: int = 0
    latencies_ns: list[int] = field(default_factory=list)
    trained: int = 0
    sessions: tuple[str, str] = ("", "")
    wrong: int = 0
    counts: Counts | None = None

    @property
    def seconds(self) -> float:
        return (self.end_ns - self.begin_ns) / 1e9

    def p_ms(self, percent: int) -> float:
        return quantile_ns(self.latencies_ns, percent) / 1e6


@dataclass(slots=True)
class Matrix:
    """Everything measured. ``rates``: requests a second offered, by inference kind. ``alone_steps_s``: training
    alone, ``training_sessions`` of that. ``journals``: by policy. ``scheduler_share``: of the device's wall time x cores."""

    rates: dict[str, float] = field(default_factory=dict)
    alone_steps_s: dict[str, float] = field(default_factory=dict)
    phases: list[Phase] = field(default_factory=list)
    journals: dict[str, list[Record]] = field(default_factory=dict)
    scheduler_share: dict[str, float] = field(default_factory=dict)
    schedules: dict[str, list[int]] = field(default_factory=dict)
    training_sessions: dict[str, str] = field(default_factory=dict)

    def rounds(self, policy: str, inference: str, training: str) -> list[Phase]:
        return [p for p in self.phases if (p.policy, p.inference, p.training) == (policy, inference, training)]

    def phase(self, policy: str, inference: str, training: str) -> Phase:
        """The one in the middle, by P99, of its rounds."""
        phases = sorted(self.rounds(policy, inference, training), key=lambda phase: phase.p_ms(99))
        return phases[len(phases) // 2]

    def overhead(self, policy: str, inference: str, training: str) -> float:
        """By what part P99 beside background is longer than alone; the median of the rounds, each with its own alone."""
        pairs = zip(self.rounds(policy, inference, ""), self.rounds(policy, inference, training), strict=True)
        return statistics.median(beside.p_ms(99) / alone.p_ms(99) - 1 for alone, beside in pairs)

    def kept(self, policy: str, inference: str, training: str) -> float:
        """Training's throughput beside inference over its own alone; the median of the rounds."""
        rates = (phase.trained / phase.seconds for phase in self.rounds(policy, inference, training))
        return statistics.median(rates) / self.alone_steps_s[training]


def record_all(folder: Path) -> None:
    """Every kind that ``folder`` does not hold yet, each by its script in a process of its own."""
    missing = [k for k in (*(f"p0_{k}" for k in INFERENCE), *(f"train_{k}" for k in TRAINING)) if not (folder / k).exists()]
    if not missing:
        return
    with _node("strict") as node:
        for kind in missing:
            environment = plain_environment(WOOLY_NATS_URL=node.nats.url, PYTHONPATH=str(ROOT))
            command = [sys.executable, "-m", "benchmarks.sla.record", kind, str(folder / kind)]
            subprocess.run(command, env=environment, cwd=ROOT, check=True, stderr=subprocess.DEVNULL)


def play_matrix(folder: Path, plan: Plan, policies: tuple[str, ...] = POLICIES) -> Matrix:
    """All cells under all policies; the first policy's node also tells the rates and what training does alone."""
    recordings = {path.name: load(path) for path in folder.iterdir()}
    matrix = Matrix()
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, cores[:1])
    try:
        for policy in policies:
            with _node(policy) as node:
                _pin(node, cores)
                _play_policy(node, policy, recordings, plan, matrix)
                node.stop_server()
                matrix.journals[policy] = _journal(node)
    finally:
        os.sched_setaffinity(0, cores)
    for phase in matrix.phases:
        phase.counts = count(matrix.journals[phase.policy], phase.begin_ns, phase.end_ns)
    return matrix


def time_decisions(matrix: Matrix, policy: str) -> Decisions:
    """A new dispatcher over the journal of a run, by the clock."""
    stimuli = [record.stimulus for record in matrix.journals[policy]]
    dispatch = Dispatch()
    gc.disable()
    began_ns = time.perf_counter_ns()
    for stimulus in stimuli:
        dispatch.on(stimulus)
    took_ns = time.perf_counter_ns() - began_ns
    gc.enable()
    return Decisions(len(stimuli), took_ns / len(stimuli) / 1e3, took_ns / (stimuli[-1].at_ns - stimuli[0].at_ns))


@contextlib.contextmanager
def _node(policy: str) -> Iterator[Node]:
    with (
        tempfile.TemporaryDirectory() as folder,
        Node(
            Path(folder),
            WOOLY_BACKEND="host",
            WOOLY_DEVICE_THREADS="1",
            WOOLY_SCHED_POLICY=policy,
            WOOLY_LEASE_MS="3600000",
            WOOLY_CACHE_DIR=str(Path(folder) / "cache"),
        ) as node,
    ):
        yield node


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


def _play_policy(node: Node, policy: str, recordings: dict[str, Recording], plan: Plan, matrix: Matrix) -> None:
    player = Player(node.nats.url, node.info().node)
    gc.collect()
    gc.disable()
    began_ns = time.time_ns()
    try:
        _warm(player, recordings)
        if not matrix.alone_steps_s:
            for kind in TRAINING:
                matrix.alone_steps_s[kind], matrix.training_sessions[kind] = _training_alone(player, recordings[f"train_{kind}"])
        for _ in range(plan.rounds_of(policy)):
            for kind in INFERENCE:
                _play_inference(player, policy, kind, recordings, plan, matrix)
    finally:
        gc.enable()
        player.close()
    matrix.scheduler_share[policy] = _scheduler_share(node, began_ns)


def _warm(player: Player, recordings: dict[str, Recording]) -> None:
    """Every program once: compiling belongs to nobody's latency."""
    for name, recording in recordings.items():
        tenant = player.enter(recording, 0)
        if name.startswith("p0"):
            player.back_to_back(tenant, _WARM_REQUESTS)
        else:
            _stride(player, tenant)
            tenant.closed_loop = False
        player.leave(tenant)


def _training_alone(player: Player, recording: Recording) -> tuple[float, str]:
    """Steps a second of a training script that has the device to itself, and its session."""
    tenant = player.enter(recording, _PRIORITY_OF_TRAINING)
    begin_ns = _stride(player, tenant)
    begin = len(tenant.finished_ns)
    player.idle_until(begin_ns + int(_TRAINING_ALONE_S * 1e9))
    steps, end_ns = len(tenant.finished_ns) - begin, tenant.finished_ns[-1]
    tenant.closed_loop = False
    player.leave(tenant)
    return steps / ((end_ns - begin_ns) / 1e9), tenant.session


def _stride(player: Player, tenant: Tenant) -> int:
    """Let a training script run until its programs are warm; the time then, which is the end of a step."""
    tenant.closed_loop = True
    while len(tenant.finished_ns) < len(tenant.recording.steps) + 2:
        player.idle_until(time.monotonic_ns() + 10**7)
    return tenant.finished_ns[-1]


def _play_inference(player: Player, policy: str, kind: str, recordings: dict[str, Recording], plan: Plan, matrix: Matrix) -> None:
    """One kind of inference: alone, then beside each kind of training; the same arrivals every time."""
    for training in ("", *TRAINING):
        tenant = player.enter(recordings[f"p0_{kind}"], 0)
        player.back_to_back(tenant, _WARM_REQUESTS)
        if kind not in matrix.rates:
            took_ns = sum(player.back_to_back(tenant, _RATE_REQUESTS))
            matrix.rates[kind] = _RATE_REQUESTS / (took_ns / 1e9) * plan.load_percent / 100
            requests = max(plan.requests_min, int(plan.seconds * matrix.rates[kind]))
            matrix.schedules[kind] = bursts(requests, matrix.rates[kind], _SEED)
        other = player.enter(recordings[f"train_{training}"], _PRIORITY_OF_TRAINING) if training else None
        if other is not None:
            _stride(player, other)
        trained = len(other.finished_ns) if other is not None else 0
        phase = Phase(policy, kind, training, time.monotonic_ns())
        phase.latencies_ns = player.play(tenant, matrix.schedules[kind])
        phase.end_ns = time.monotonic_ns()
        phase.wrong = tenant.wrong
        phase.sessions = (tenant.session, other.session if other is not None else "")
        if other is not None:
            phase.trained = sum(begin >= phase.begin_ns for begin in other.finished_ns[trained:])
            other.closed_loop = False
            player.leave(other)
        player.leave(tenant)
        matrix.phases.append(phase)
        print(f"{policy}: {kind} beside {training or 'nothing'}: P99 {phase.p_ms(99):.2f} ms", file=sys.stderr, flush=True)


def _scheduler_share(node: Node, since_unix_ns: int) -> float:
    facts = [f for f in node.events() if isinstance(f, DeviceAccounted) and f.from_ns >= since_unix_ns]
    wall_ns = sum(f.wall_ns * f.cores for f in facts)
    return sum(f.scheduler_core_ns for f in facts) / wall_ns if wall_ns else 0.0


def _journal(node: Node) -> list[Record]:
    """The dispatch journal of device 0, all segments of this node's life."""
    records: list[Record] = []
    for path in sorted((node.folder / "server" / "dispatch").glob("gpu0-*.journal")):
        records += decode_journal(path.read_bytes())[0]
    return records
