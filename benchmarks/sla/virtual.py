"""Runs of the SLA matrix in virtual time: the real dispatcher over arrivals and costs that a real run recorded (scheduler.model).

Two uses. The matrix: what scheduling alone costs, on a device that does nothing but what was recorded. What-if: a run under one policy
predicts the P99 of a run under another, which was measured as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Final

import msgspec

from benchmarks.sla.load import WINDOW_STEPS
from benchmarks.sla.measure import quantile_ns
from benchmarks.sla.real import INFERENCE, TRAINING, Matrix, Phase
from scheduler.dispatch import DispatchConfig, Record
from scheduler.model import Arrival, DeviceCosts, Tenant, simulate
from scheduler.model.recorded import Recording

__all__ = ["Prediction", "VirtualCell", "predict", "virtual_matrix"]

_QUEUE_MAX: Final = 1 << 20
_REPEATS: Final = 5
"""The schedule of a cell is played so many times in a row: P99 of a few hundred requests says little."""


@dataclass(frozen=True, slots=True)
class VirtualCell:
    """``alone_ns`` and ``beside_ns``: P99 of inference; ``kept``: training's throughput over its own alone."""

    policy: str
    inference: str
    training: str
    alone_ns: int
    beside_ns: int
    kept: float

    @property
    def overhead(self) -> float:
        return self.beside_ns / self.alone_ns - 1


@dataclass(frozen=True, slots=True)
class Prediction:
    """P99 from arrival at the node to the end of the launch: recorded under ``policy`` (of the requests of all rounds, and the least and
    most of a round), and predicted from the recordings under strict."""

    policy: str
    inference: str
    training: str
    real_ns: int
    predicted_ns: int
    real_least_ns: int
    real_most_ns: int

    @property
    def error(self) -> float:
        return self.predicted_ns / self.real_ns - 1


def virtual_matrix(matrix: Matrix, policies: Sequence[str], config: DispatchConfig) -> list[VirtualCell]:
    """Every cell under every policy, with the costs of the strict run's node; ``config``: of the real runs."""
    costs = _read(matrix.journals["strict"]).costs()
    out = []
    for policy in policies:
        # Under a policy that keeps requests waiting, a queue grows here that in the real run stands in the client: latencies include both.
        under = msgspec.structs.replace(_with(config, policy), parked_batches_max=_QUEUE_MAX)
        for kind in INFERENCE:
            work = _work(matrix, matrix.phase("strict", kind, "").sessions[0])
            schedule = _repeated(matrix.schedules[kind])
            inference = [Arrival("inference", at, *work[at % len(work)], at_ns=at_ns) for at, at_ns in enumerate(schedule)]
            alone_ns = _p99(inference, [], under, costs)[0]
            for training in TRAINING:
                cost = _work(matrix, matrix.training_sessions[training])
                steps = _steps(cost, schedule[-1])
                beside_ns, trained = _p99(inference, steps, under, costs)
                _, undisturbed = _p99([], steps, under, costs, until_ns=schedule[-1])
                out.append(VirtualCell(policy, kind, training, alone_ns, beside_ns, trained / undisturbed))
    return out


def predict(matrix: Matrix, policies: Sequence[str], config: DispatchConfig) -> list[Prediction]:
    """For every cell and every policy but strict: the recordings of the strict cell played under that policy, beside what was measured.
    Requests of all rounds count as one run: the P99 of a round is the second longest of its 150."""
    out = []
    for policy in policies:
        for kind in INFERENCE:
            for training in TRAINING:
                foretold = [_foretold(matrix, cell, _with(config, policy)) for cell in matrix.rounds("strict", kind, training)]
                seen = [_seen(matrix, cell) for cell in matrix.rounds(policy, kind, training)]
                real_ns, predicted_ns = _measured([*chain(*seen)]), _measured([*chain(*foretold)])
                rounds_ns = [_measured(latencies_ns) for latencies_ns in seen]
                out.append(Prediction(policy, kind, training, real_ns, predicted_ns, min(rounds_ns), max(rounds_ns)))
    return out


def _foretold(matrix: Matrix, cell: Phase, config: DispatchConfig) -> list[int]:
    """Latencies of the cell's inference, had it run under ``config``."""
    tenants, arrivals, costs = _read(_records(matrix, cell)).inputs()
    return simulate(tenants, arrivals, config, costs, keep_records=False).sessions[cell.sessions[0]].latencies_ns


def _seen(matrix: Matrix, cell: Phase) -> list[int]:
    """Latencies of the cell's inference, as it ran."""
    return _read(_records(matrix, cell)).outcome(0, 0).sessions[cell.sessions[0]].latencies_ns


def _with(config: DispatchConfig, policy: str) -> DispatchConfig:
    return msgspec.structs.replace(config, policy=policy)


def _read(records: Sequence[Record]) -> Recording:
    recording = Recording()
    for record in records:
        recording.take(record.stimulus, record.decisions)
    return recording


def _records(matrix: Matrix, phase: Phase) -> list[Record]:
    """What the journal says of a cell: from the opening of its sessions on."""
    names = set(phase.sessions)
    journal = matrix.journals[phase.policy]
    return [record for record in journal if getattr(record.stimulus, "session", "") in names]


def _work(matrix: Matrix, session: str) -> list[tuple[int, int]]:
    """(wall, core) ns of every batch of a session of the strict run that ran alone."""
    records = [record for record in matrix.journals["strict"] if getattr(record.stimulus, "session", "") == session]
    batches = _read(records).outcome(0, 0).sessions[session].batches
    return [(batch.wall_ns, batch.core_ns) for batch in batches[len(batches) // 10 :]]  # (what was not warm is no cost of the steady state)


def _repeated(schedule: list[int]) -> list[int]:
    span = schedule[-1] + schedule[-1] // len(schedule)
    return [at + span * repeat for repeat in range(_REPEATS) for at in schedule]


def _steps(cost: list[tuple[int, int]], until_ns: int) -> list[Arrival]:
    """More steps than fit, each sent when the one ``WINDOW_STEPS`` before it is done."""
    mean_ns = sum(wall for wall, _ in cost) // len(cost)
    count = until_ns // max(1, mean_ns) + 8
    return [
        Arrival("training", at, *cost[at % len(cost)], after_seq=at - WINDOW_STEPS if at >= WINDOW_STEPS else -1) for at in range(count)
    ]


def _p99(inference: list[Arrival], steps: list[Arrival], config: DispatchConfig, costs: DeviceCosts, until_ns: int = 0) -> tuple[int, int]:
    """P99 of inference, and how many steps were done by its end (or by ``until_ns``)."""
    tenants = [Tenant("inference", 0)] * bool(inference) + [Tenant("training", 3)] * bool(steps)
    outcome = simulate(tenants, [*inference, *steps], config, costs, keep_records=False)
    p99 = 0
    if inference:
        batches = outcome.sessions["inference"].batches
        p99 = _measured([batch.latency_ns for batch in batches])
        until_ns = batches[-1].finished_ns
    done = outcome.sessions["training"].batches if steps else []
    return p99, sum(batch.finished_ns <= until_ns for batch in done)


def _measured(latencies_ns: list[int]) -> int:
    return quantile_ns(latencies_ns, 99)
