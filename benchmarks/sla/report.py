"""Renders docs/sla.md from measurements. Pure: text only."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from typing import Final

from benchmarks.sla.measure import Decisions, quantile_ns
from benchmarks.sla.real import INFERENCE, TRAINING, Matrix, Phase
from benchmarks.sla.virtual import Prediction, VirtualCell

__all__ = ["write", "write_what_if"]

_NAMES: Final = {"short": "short kernels", "long": "long kernels", "memory": "memory bound"}
_RULE: Final = "|---|---|---|---|---|---|---|---|---|---|---|---|"


def write(matrix: Matrix, cells: Sequence[VirtualCell], predictions: Sequence[Prediction], decisions: Decisions) -> str:
    """The document."""
    policies = list(dict.fromkeys(phase.policy for phase in matrix.phases))
    lines = [
        "# Latency beside background work",
        "",
        "Written by `python -m benchmarks.sla` (part of `make bench`).",
        "",
        f"Machine: {os.cpu_count()} cores. Inference at P0, training at P3, one device with one thread on a core of its own; bus,",
        "server and load generator on the other. Batches were recorded from PyTorch scripts (`benchmarks/sla/kinds.py`) through our",
        "client and are played onto the bus as clients elsewhere would. Requests come in Poisson bursts (geometric, mean 2), open loop,",
        "at half the rate that inference alone reaches back to back; every cell plays the same arrivals. A latency runs from when a",
        "request was due to its answer at the client. Every answer is compared, bit for bit, with the one that the script got. The",
        f"strict cells are played {_rounds(matrix, policies)} times in turn: overheads are medians of rounds, times those of the "
        "round in the middle.",
        "",
        "Where other work runs on the machine meanwhile, real times show it (a cell beside training may even look faster than alone); the",
        "measured processes go before it where the system allows that. Virtual time has no such noise.",
        "",
        *_summary(matrix, policies, cells, predictions, decisions),
    ]
    for policy in policies:
        lines += _policy_table(matrix, policy)
    lines += _virtual_table(cells) if cells else []
    lines += _prediction_table(predictions) if predictions else []
    return "\n".join(lines) + "\n"


def write_what_if(matrix: Matrix, predictions: Sequence[Prediction], load_percent: int) -> str:
    """The document about predictions alone."""
    policies = list(dict.fromkeys(phase.policy for phase in matrix.phases))
    errors = sorted(abs(prediction.error) for prediction in predictions)
    lines = [
        "# Predictions of other policies",
        "",
        "Written by `python -m benchmarks.sla --what-if`. The matrix of [sla.md](sla.md), with inference offered at",
        f"{load_percent} % of the rate that it reaches back to back. At such a load every policy can serve it; where one cannot, a P99",
        f"says how long the run was and nothing else. All policies are played in turn, {_rounds(matrix, policies)} rounds; those of a run",
        "share one executor.",
        "",
        f"Within 10 %: {sum(error <= 0.1 for error in errors)} of {len(errors)}; median of the errors "
        f"{_percent(errors[len(errors) // 2])}, the largest {_percent(errors[-1])}.",
        "",
        *_prediction_table(predictions),
    ]
    return "\n".join(lines).rstrip() + "\n"


def _summary(
    matrix: Matrix, policies: list[str], cells: Sequence[VirtualCell], predictions: Sequence[Prediction], decisions: Decisions
) -> list[str]:
    """One table: what was asked for, what is."""
    rows = ["| | P99 overhead, mean | max | training keeps, mean | least |", "|---|---|---|---|---|"]
    rows += [_summary_row(f"real, {policy}", _overheads(matrix, policy), _kept(matrix, policy)) for policy in policies]
    for policy in dict.fromkeys(cell.policy for cell in cells):
        under = [cell for cell in cells if cell.policy == policy]
        rows.append(_summary_row(f"virtual, {policy}", [cell.overhead for cell in under], [cell.kept for cell in under]))
    rows += [
        "",
        "Asked for: strict in virtual time at most 5 % in the mean and 10 % at most, in the real run 15 %, training at least 0.6.",
        "Published for GPUs: 4.8 % mean and 9.9 % max with 0.44 of training's throughput; MPS 290 %, time slicing 138 %.",
        "",
        f"Decisions: {decisions.count} of the strict run, replayed and timed: {decisions.mean_us:.1f} us each, "
        f"{100 * decisions.share:.2f} % of the device's time.",
    ]
    if predictions:
        errors = [abs(prediction.error) for prediction in predictions]
        within = sum(error <= 0.1 for error in errors)
        rows.append(f"What-if: {within} of {len(errors)} predictions of P99 are within 10 % of the real run under that policy.")
    wrong = sum(phase.wrong for phase in matrix.phases)
    answers = sum(len(phase.latencies_ns) for phase in matrix.phases)
    return [*rows, f"Answers that differ from the recorded ones: {wrong} of {answers}.", ""]


def _summary_row(name: str, overheads: Sequence[float], kept: Sequence[float]) -> str:
    mean, most = _percent(statistics.mean(overheads)), _percent(max(overheads))
    return f"| {name} | {mean} | {most} | {statistics.mean(kept):.2f} | {min(kept):.2f} |"


def _policy_table(matrix: Matrix, policy: str) -> list[str]:
    lines = [
        f"## Policy `{policy}`, real",
        "",
        "| inference | training | requests | P50 alone ms | beside | P99 alone ms | beside | P99 overhead | training, of alone "
        "| of what is left | slices | preemptions |",
        _RULE,
    ]
    for kind in INFERENCE:
        alone = matrix.phase(policy, kind, "")
        share = _share(alone)
        for training in TRAINING:
            beside = matrix.phase(policy, kind, training)
            assert beside.counts is not None
            part = matrix.kept(policy, kind, training)
            lines.append(
                f"| {_NAMES[kind]} | {_NAMES[training]} | {len(beside.latencies_ns)} | {alone.p_ms(50):.2f} | {beside.p_ms(50):.2f} | "
                f"{alone.p_ms(99):.2f} | {beside.p_ms(99):.2f} | **{_percent(matrix.overhead(policy, kind, training))}** | {part:.2f} | "
                f"{part / (1 - share):.2f} | {beside.counts.slices} | {beside.counts.preemptions} |"
            )
    stops = [ns for p in matrix.phases if p.policy == policy and p.counts for ns in p.counts.stop_ns]
    lines += ["", f"The executor's work beside launches takes {100 * matrix.scheduler_share[policy]:.1f} % of the device's time."]
    if stops:
        p50_us, p99_us = (quantile_ns(stops, percent) / 1e3 for percent in (50, 99))
        lines.append(f"From a preemption of a slice that ran to its answer: P50 {p50_us:.0f} us, P99 {p99_us:.0f} us.")
    return [*lines, ""]


def _virtual_table(cells: Sequence[VirtualCell]) -> list[str]:
    """Overheads by policy, a row a cell."""
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    lines = [
        "## In virtual time",
        "",
        "The same dispatcher over the arrivals of the real run, five times in a row, and the costs recorded in it (`scheduler/model`):",
        "what scheduling costs on a device whose times do not vary from run to run.",
        "",
        "| inference | training | P99 alone ms | " + " | ".join(f"{policy}: overhead | training keeps" for policy in policies) + " |",
        "|---|---|---|" + "---|---|" * len(policies),
    ]
    for kind in INFERENCE:
        for training in TRAINING:
            row = [cell for cell in cells if (cell.inference, cell.training) == (kind, training)]
            parts = " | ".join(f"{_percent(cell.overhead)} | {cell.kept:.2f}" for cell in row)
            lines.append(f"| {_NAMES[kind]} | {_NAMES[training]} | {row[0].alone_ns / 1e6:.2f} | {parts} |")
    return [*lines, ""]


def _prediction_table(predictions: Sequence[Prediction]) -> list[str]:
    lines = [
        "## What-if",
        "",
        "The recordings of every cell under strict, played under another policy, beside the real runs under that policy. P99 of inference",
        "from arrival at the node to the end of the launch: of the requests of all rounds, and the least and the most of a real round.",
        "",
        "| policy | inference | training | predicted ms | real ms | least | most | error |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {p.policy} | {_NAMES[p.inference]} | {_NAMES[p.training]} | {p.predicted_ns / 1e6:.2f} | {p.real_ns / 1e6:.2f} "
        f"| {p.real_least_ns / 1e6:.2f} | {p.real_most_ns / 1e6:.2f} | {_percent(p.error)} |"
        for p in predictions
    ]
    return [*lines, ""]


def _overheads(matrix: Matrix, policy: str) -> list[float]:
    return [matrix.overhead(policy, kind, training) for kind in INFERENCE for training in TRAINING]


def _kept(matrix: Matrix, policy: str) -> list[float]:
    return [matrix.kept(policy, kind, training) for kind in INFERENCE for training in TRAINING]


def _rounds(matrix: Matrix, policies: list[str]) -> int:
    return max(len(matrix.rounds(policy, kind, TRAINING[0])) for policy in policies for kind in INFERENCE)


def _share(alone: Phase) -> float:
    """The part of the device that inference takes, alone at this load."""
    assert alone.counts is not None
    return alone.counts.core_ns.get(alone.sessions[0], 0) / (alone.end_ns - alone.begin_ns)


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"
