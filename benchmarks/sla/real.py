"""Runs of the SLA matrix on a real node: inference alone and beside each kind of training, under every policy, with the same arrivals."""

from __future__ import annotations

import gc
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.sla.arrivals import bursts
from benchmarks.sla.load import Player, Tenant
from benchmarks.sla.measure import Counts, Decisions, count, quantile_ns
from benchmarks.sla.recording import Recording, load
from benchmarks.sla.stand import stand
from scheduler.dispatch import Dispatch, Record
from tests.support.stack import ROOT, plain_environment

__all__ = ["INFERENCE", "POLICIES", "TRAINING", "Matrix", "Phase", "Plan", "play_matrix", "record_all", "time_decisions"]

INFERENCE: Final = ("short", "long", "memory")
TRAINING: Final = ("short", "long", "memory")
POLICIES: Final = ("strict", "fifo", "timeslice")

_WARM_REQUESTS: Final = 30
_RATE_REQUESTS: Final = 60
_TRAINING_ALONE_S: Final = 6.0
_SEED: Final = 2024
_PRIORITY_OF_TRAINING: Final = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """``seconds``: how long inference is offered to the node in each cell; at least ``requests_min`` requests whatever that takes.
    ``rounds``: how often the strict policy's cells are played, all in turn each time; the others once. ``load_percent``: requests offered,
    of the rate that inference alone reaches back to back.

    ``beside_only``: policies are compared with each other, and not with inference alone. Each kind's cells are then played under one policy
    after the other, as often under each, before the next kind comes: a machine that is slower for some minutes is so for all policies."""

    seconds: float = 5.0
    requests_min: int = 150
    rounds: int = 3
    load_percent: int = 50
    beside_only: bool = False

    def turns(self, policies: tuple[str, ...]) -> list[tuple[str, list[tuple[str, str]]]]:
        """(policy, its cells), in the order in which they are played."""
        if self.beside_only:
            rows = [[(kind, training) for training in TRAINING] for kind in INFERENCE]
            return [(policy, row) for _ in range(self.rounds) for row in rows for policy in policies]
        cells = [(kind, training) for kind in INFERENCE for training in ("", *TRAINING)]
        return [(policy, cells * (self.rounds if policy == "strict" else 1)) for policy in policies]


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

    def add(self, more: Matrix) -> None:
        """The rounds of another run, too."""
        self.phases += more.phases
        for policy, records in more.journals.items():
            self.journals[policy] = self.journals.get(policy, []) + records

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
    with stand() as node, node.under("strict"):
        for kind in missing:
            environment = plain_environment(WOOLY_NATS_URL=node.url, PYTHONPATH=str(ROOT))
            command = [sys.executable, "-m", "benchmarks.sla.record", kind, str(folder / kind)]
            subprocess.run(command, env=environment, cwd=ROOT, check=True, stderr=subprocess.DEVNULL)


def play_matrix(folder: Path, plan: Plan, policies: tuple[str, ...] = POLICIES) -> Matrix:
    """All cells under all policies, on one executor; the first policy also tells the rates and what training does alone."""
    recordings = {path.name: load(path) for path in folder.iterdir()}
    matrix = Matrix()
    with stand() as node:
        for policy, cells in plan.turns(policies):
            with node.under(policy) as player:
                _play_turn(player, policy, cells, recordings, plan, matrix)
        matrix.journals, matrix.scheduler_share = node.journals, node.scheduler_share()
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


def _play_turn(
    player: Player, policy: str, cells: Sequence[tuple[str, str]], recordings: dict[str, Recording], plan: Plan, matrix: Matrix
) -> None:
    """These cells, (inference, training) each, one after the other; the collector stays out of them."""
    gc.collect()
    gc.disable()
    try:
        _warm(player, recordings)
        if not matrix.alone_steps_s:
            for kind in TRAINING:
                matrix.alone_steps_s[kind], matrix.training_sessions[kind] = _training_alone(player, recordings[f"train_{kind}"])
        for kind, training in cells:
            _play_cell(player, policy, kind, training, recordings, plan, matrix)
    finally:
        gc.enable()


def _warm(player: Player, recordings: dict[str, Recording]) -> None:
    """Run every program once: compile time is not part of the measured latency."""
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


def _play_cell(player: Player, policy: str, kind: str, training: str, recordings: dict[str, Recording], plan: Plan, matrix: Matrix) -> None:
    """One kind of inference, alone (``training`` empty) or beside one kind of training; the same arrivals every time."""
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
