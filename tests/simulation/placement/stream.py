"""A long stream of tasks at a large cluster, without waiting: ``python -m tests.simulation.placement.stream [--tasks N] [--publish]``.

Every decision is looked at (each node or device is a candidate or refused by a known name, the best scores come in their total order, the
choice is one of them), the log is decided once more, and the times are those of one decision with its event. The queue, and books of
another hand, are the other program's (``python -m tests.simulation.placement``), at fewer tasks.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from blake3 import blake3

from bus_schemas.events import (
    DeviceFact,
    Event,
    LoadObserved,
    NodeRegistered,
    TaskPlaced,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
    encode_events,
)
from scheduler.placement import ClusterView, decide
from scheduler.placement.reasons import REASONS
from scheduler.placement.view import COMPLETED
from tests.support.sections import write_section

_PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "placement.md"
_GIB: Final = 1 << 30
_LIVE_MAX: Final = 14_000
_ENDS: Final = 0.3


@dataclass
class Stream:
    """``decision_ns``: CPU time of each decision and its event; ``decided``: of all of them, in order."""

    nodes: int
    gpus: int
    view: ClusterView = field(default_factory=ClusterView)
    log: list[Event] = field(default_factory=list)
    decision_ns: list[int] = field(default_factory=list)
    live: list[str] = field(default_factory=list)

    def put(self, event: Event) -> None:
        self.log.append(event)
        self.view.apply(len(self.log), event)

    def decide(self, task: TaskSubmitted, at_ns: int) -> None:
        start_ns = time.process_time_ns()
        event = decide(self.view, task, at_ns).event()
        self.decision_ns.append(time.process_time_ns() - start_ns)
        self._look(event)
        self.put(event)
        if isinstance(event, TaskPlaced):
            self.live.append(task.task)

    def _look(self, event: TaskPlaced | TaskRefused) -> None:
        counts = dict(event.refused)
        assert counts.keys() <= REASONS, counts
        candidates = event.candidates if isinstance(event, TaskPlaced) else 0
        nodes_refused = sum(counts.get(reason, 0) for reason in ("group_only", "not_in_group"))
        devices_refused = sum(counts.values()) - nodes_refused
        assert candidates + devices_refused + nodes_refused * self.gpus == self.nodes * self.gpus, event
        if isinstance(event, TaskPlaced):
            best = [(-score, node, gpu) for node, gpu, score in event.scores]
            assert best == sorted(best) and len(set(best)) == len(best), "a total order"
            assert {(event.node, gpu) for gpu in event.gpus} <= {(node, gpu) for node, gpu, _ in event.scores}


def run(tasks: int, nodes: int, gpus: int, seed: int) -> Stream:
    draw = random.Random(seed)
    stream = Stream(nodes, gpus)
    at_ns = 10**18
    for number in range(nodes):
        devices = tuple(DeviceFact(gpu, "device", "host", 8, draw.choice((24, 40, 80)) * _GIB) for gpu in range(gpus))
        groups = ("research",) if number % 10 == 0 else ()
        stream.put(NodeRegistered(at_ns, f"n{number:04}", f"n{number:04}", "", 1, devices, groups))
    for number in range(tasks):
        at_ns += 10**7
        if number % 10 == 0:
            stream.put(LoadObserved(at_ns, tuple(_load(draw, nodes, gpus) for _ in range(4))))
        task = _task(draw, number, at_ns)
        stream.put(task)
        stream.decide(task, at_ns)
        while len(stream.live) > _LIVE_MAX or (stream.live and draw.random() < _ENDS):
            at = draw.randrange(len(stream.live))
            stream.live[at], stream.live[-1] = stream.live[-1], stream.live[at]
            stream.put(TaskStateChanged(at_ns, stream.live.pop(), COMPLETED))
    return stream


def again(log: list[Event]) -> str:
    """The digest of all decisions, made anew from the log alone."""
    view, digest = ClusterView(), blake3()
    for position, event in enumerate(log, start=1):
        if isinstance(event, TaskPlaced | TaskRefused):
            digest.update(encode_events([decide(view, view.tasks[event.task].submitted, event.at_ns).event()]))
        view.apply(position, event)
    return digest.hexdigest()


def digest_of(log: list[Event]) -> str:
    digest = blake3()
    for event in log:
        if isinstance(event, TaskPlaced | TaskRefused):
            digest.update(encode_events([event]))
    return digest.hexdigest()


def _load(draw: random.Random, nodes: int, gpus: int) -> tuple[str, int, int, int, int]:
    return (f"n{draw.randrange(nodes):04}", draw.randrange(gpus), draw.randrange(100), draw.randrange(100), 0)


def _task(draw: random.Random, number: int, at_ns: int) -> TaskSubmitted:
    return TaskSubmitted(
        at_ns,
        f"t{number}",
        "tenant",
        draw.randrange(5),
        draw.choice((2, 8, 16, 24, 60)) * _GIB,
        draw.choice((1, 1, 1, 1, 2, 4)),
        draw.random() < 0.03,
        ("research",) if draw.random() < 0.1 else (),
        draw.random() < 0.2,
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.placement.stream", description=__doc__)
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--publish", action="store_true", help="write the figures to docs/placement.md")
    asked = parser.parse_args()
    stream = run(asked.tasks, 1_000, 8, 1)
    equal = again(stream.log) == digest_of(stream.log)
    times = sorted(stream.decision_ns)
    p50, p99, p999 = (times[int(len(times) * share)] / 1e6 for share in (0.5, 0.99, 0.999))
    placed = sum(isinstance(event, TaskPlaced) for event in stream.log)
    text = (
        f"{asked.tasks:,} tasks, {placed:,} of them placed, up to {_LIVE_MAX:,} live, on 1,000 x 8 devices: CPU time of a decision P50 "
        f"{p50:.2f}, P99 {p99:.2f}, P99.9 {p999:.2f} ms, at most {times[-1] / 1e6:.0f}; decided "
        f"again from the log: {'equal' if equal else 'DIFFERENT'}, `{digest_of(stream.log)[:16]}`.\n"
    )
    print(text)
    if asked.publish:
        write_section(_PAGE, "stream", text)
    return 0 if equal else 1


if __name__ == "__main__":
    sys.exit(main())
