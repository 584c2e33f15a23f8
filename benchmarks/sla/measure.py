"""Statistics of latencies and of a node's journal. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scheduler.dispatch import Launch, LaunchFinished, LaunchStopped, Preempt, Record

__all__ = ["Counts", "Decisions", "count", "quantile_ns"]


def quantile_ns(values_ns: Sequence[int], percent: int) -> int:
    """The smallest value that at least ``percent`` of 100 values do not exceed (nearest rank); ValueError without values."""
    if not values_ns:
        raise ValueError("no latencies")
    return sorted(values_ns)[max(0, -(-len(values_ns) * percent // 100) - 1)]


@dataclass(frozen=True, slots=True)
class Counts:
    """What a node did in a span of time. ``core_ns`` by session; ``stop_ns``: from a Preempt of a slice under way to its answer, each."""

    batches: int
    slices: int
    preemptions: int
    core_ns: dict[str, int]
    stop_ns: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Decisions:
    """How long the dispatcher took over ``count`` stimuli, and what part of the device's time that is."""

    count: int
    mean_us: float
    share: float


def count(records: Iterable[Record], begin_ns: int, end_ns: int) -> Counts:
    """Of the journal's records from ``begin_ns`` to ``end_ns`` (the node's monotonic clock, which is the generator's on one machine)."""
    batches = slices = preemptions = 0
    core_ns: dict[str, int] = {}
    stopping: dict[tuple[str, int], int] = {}
    stop_ns: list[int] = []
    for record in records:
        stimulus = record.stimulus
        if not begin_ns <= stimulus.at_ns < end_ns:
            continue
        if isinstance(stimulus, LaunchFinished | LaunchStopped):
            batches += isinstance(stimulus, LaunchFinished)
            core_ns[stimulus.session] = core_ns.get(stimulus.session, 0) + stimulus.core_ns
            asked_ns = stopping.pop((stimulus.session, stimulus.seq), None)
            if asked_ns is not None and stimulus.at_ns - stimulus.wall_ns <= asked_ns:  # it had begun by then
                stop_ns.append(stimulus.at_ns - asked_ns)
        for decision in record.decisions:
            slices += isinstance(decision, Launch)
            if isinstance(decision, Preempt):
                preemptions += 1
                stopping[decision.session, decision.seq] = stimulus.at_ns
    return Counts(batches, slices, preemptions, core_ns, tuple(stop_ns))
