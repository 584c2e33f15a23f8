"""docs/sla.md from what was measured. Pure: text only."""

from __future__ import annotations

import os
import statistics
from typing import Final

from benchmarks.sla.measure import quantile_ns
from benchmarks.sla.real import INFERENCE, TRAINING, Matrix, Phase

__all__ = ["overhead", "write"]

_NAMES: Final = {"short": "short kernels", "long": "long kernels", "memory": "memory bound"}


def overhead(alone: Phase, beside: Phase) -> float:
    """By what part P99 beside background is longer than alone."""
    return beside.p_ms(99) / alone.p_ms(99) - 1


def write(matrix: Matrix) -> str:
    """The document."""
    policies = list(dict.fromkeys(phase.policy for phase in matrix.phases))
    lines = [
        "# Latency beside background work",
        "",
        "Written by `python -m benchmarks.sla` (part of `make bench`).",
        "",
        f"Machine: {os.cpu_count()} cores. Inference at P0, training at P3, one device with one thread on a core of its own; bus, server",
        "and load generator on the other. Requests come in Poisson bursts (geometric, mean 2), open loop, at half the rate that inference",
        "alone reaches back to back; every cell plays the same arrivals. A latency runs from when a request was due to its answer at the",
        "client.",
        "",
    ]
    for policy in policies:
        lines += _policy_table(matrix, policy)
    return "\n".join(lines) + "\n"


def _policy_table(matrix: Matrix, policy: str) -> list[str]:
    lines = [
        f"## Policy `{policy}`",
        "",
        "| inference | training | P50 alone ms | beside | P99 alone ms | beside | P99 overhead | training, of alone | of what is left "
        "| slices | preemptions | wrong answers |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    overheads, kept = [], []
    for kind in INFERENCE:
        alone = matrix.phase(policy, kind, "")
        share = _share(alone)
        for training in TRAINING:
            beside = matrix.phase(policy, kind, training)
            assert beside.counts is not None
            over = overhead(alone, beside)
            part = beside.trained / beside.seconds / matrix.alone_steps_s[training]
            overheads.append(over)
            kept.append(part)
            lines.append(
                f"| {_NAMES[kind]} | {_NAMES[training]} | {alone.p_ms(50):.2f} | {beside.p_ms(50):.2f} | {alone.p_ms(99):.2f} | "
                f"{beside.p_ms(99):.2f} | **{100 * over:.1f} %** | {part:.2f} | {part / (1 - share):.2f} | {beside.counts.slices} | "
                f"{beside.counts.preemptions} | {beside.wrong + alone.wrong} |"
            )
    stops = [ns for p in matrix.phases if p.policy == policy and p.counts for ns in p.counts.stop_ns]
    lines += [
        "",
        f"P99 overhead: mean {100 * statistics.mean(overheads):.1f} %, max {100 * max(overheads):.1f} %. Training keeps "
        f"{statistics.mean(kept):.2f} of its throughput alone in the mean, {min(kept):.2f} at least. "
        f"Scheduler: {100 * matrix.scheduler_share[policy]:.2f} % of device time.",
    ]
    if stops:
        lines += [
            "",
            f"From a preemption to its answer: P50 {quantile_ns(stops, 50) / 1e3:.0f} us, P99 {quantile_ns(stops, 99) / 1e3:.0f} us.",
        ]
    return [*lines, ""]


def _share(alone: Phase) -> float:
    """The part of the device that inference takes, alone at this load."""
    assert alone.counts is not None
    return alone.counts.core_ns.get(alone.sessions[0], 0) / (alone.end_ns - alone.begin_ns)
