"""Simulation of another policy: the recorded arrivals and costs through the model (scheduler.model), beside what was recorded."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from bus_schemas.journal import DISPATCH
from scheduler.dispatch import DispatchConfig, percent
from scheduler.errors import SchedulerError
from scheduler.model import Outcome, SessionOutcome, simulate
from scheduler.model.recorded import Recording
from services.replay.lanes import Segment, begins_life, steps
from services.replay.question import NothingFound, Question, ReplayError
from services.replay.why import Named

__all__ = ["whatif"]


@dataclass(slots=True)
class _Life:
    """One run of a device's dispatcher, read. ``busy_ns`` and ``fed_ns``: of the records taken."""

    node: str
    gpu: int
    recording: Recording = field(default_factory=Recording)
    config: DispatchConfig = field(default_factory=DispatchConfig)
    records: int = 0
    busy_ns: int = 0
    fed_ns: int = 0

    def read(self, segment: Segment, question: Question) -> None:
        """The segment's records that are in the window asked for."""
        before = (0, 0)
        for core, step in steps(segment):
            occupancy = core.state.occupancy
            totals = (occupancy.busy_ns, occupancy.fed_ns)
            if step is not None:
                unix_ns = step[0].at_ns + segment.unix_offset_ns
                if question.from_ns <= unix_ns and (question.to_ns is None or unix_ns < question.to_ns):
                    if not self.records:
                        self.recording.resume(core.state)
                    self.recording.take(step[0], step[1])
                    self.records += 1
                    self.busy_ns += totals[0] - before[0]
                    self.fed_ns += totals[1] - before[1]
                    self.config = core.state.config
            before = totals


async def whatif(
    segments: AsyncIterator[Segment], question: Question, nodes: Mapping[str, str], names: Mapping[str, Named]
) -> dict[str, Any]:
    """The document: a part for every run that launched something. Raises ReplayError, NothingFound."""
    lives: dict[tuple[str, int], _Life] = {}
    before: dict[tuple[str, int], Segment] = {}
    done: list[_Life] = []
    async for segment in segments:
        if segment.lane != DISPATCH:
            continue
        device = (segment.node, segment.gpu)
        if begins_life(segment, before.get(device)):
            lives[device] = _Life(segment.node, segment.gpu)
            done.append(lives[device])
        before[device] = segment
        lives[device].read(segment, question)
    parts = [part for life in done if life.records and (part := _part(life, question, nodes, names)) is not None]
    if not parts:
        raise NothingFound("nothing that ran is in the journals of that node and time")
    return {"policy": question.policy, "devices": parts}


def _part(life: _Life, question: Question, nodes: Mapping[str, str], names: Mapping[str, Named]) -> dict[str, Any] | None:
    """One run: recorded, the model under the recorded policy (how far it can be trusted), and under the one asked for."""
    tenants, arrivals, costs = life.recording.inputs()
    if not arrivals:
        return None
    recorded = life.recording.outcome(life.busy_ns, life.fed_ns)
    try:
        changes: dict[str, Any] = {"policy": question.policy}
        if question.quantum_ms is not None:
            changes["quantum_ns"] = question.quantum_ms * 10**6
        other = msgspec.structs.replace(life.config, **changes)
        same = simulate(tenants, arrivals, life.config, costs, keep_records=False)
        predicted = simulate(tenants, arrivals, other, costs, keep_records=False)
    except (SchedulerError, ValueError) as error:
        raise ReplayError(str(error)) from None
    sessions = [name for name, outcome in recorded.sessions.items() if outcome.batches]
    return {
        "node": life.node,
        "name": nodes.get(life.node, life.node),
        "gpu": life.gpu,
        "recorded_policy": life.config.policy,
        "awaited_memory": life.recording.awaited,
        "costs": msgspec.to_builtins(costs),
        "recorded": _device(recorded),
        "modelled": _device(same),
        "predicted": _device(predicted),
        "sessions": [
            {
                "session": name,
                "task": names.get(name, Named(name)).task,
                "text": names.get(name, Named(name)).text,
                "priority": recorded.sessions[name].priority,
                "batches": len(recorded.sessions[name].batches),
                "recorded": _session(recorded.sessions[name]),
                "modelled": _session(same.sessions[name]),
                "predicted": _session(predicted.sessions[name]),
            }
            for name in sessions
        ],
    }


def _session(outcome: SessionOutcome) -> dict[str, int]:
    return {
        "p50_ns": outcome.latency_ns(50),
        "p99_ns": outcome.latency_ns(99),
        "wait_p50_ns": outcome.wait_ns(50),
        "wait_p99_ns": outcome.wait_ns(99),
        "per_1000_s": outcome.per_1000_s,
        "core_ns": outcome.core_ns,
        "finished": len(outcome.batches),
        "preempted": sum(batch.preempted for batch in outcome.batches),
        "slices": sum(batch.slices for batch in outcome.batches),
    }


def _device(outcome: Outcome) -> dict[str, int]:
    span_ns = outcome.end_ns - outcome.begin_ns
    return {
        "span_ns": span_ns,
        "utilization_percent": percent(outcome.busy_ns, span_ns),
        "starvation_percent": percent(outcome.fed_ns, span_ns),
        "unfinished": outcome.unfinished,
    }
