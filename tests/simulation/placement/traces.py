"""Placement on the workload of a production cluster, beside other policies, and at 10,000 nodes:
``python -m tests.simulation.placement.traces FOLDER [--scale] [--publish]``.

FOLDER holds the public trace "alibaba/clusterdata, cluster-trace-gpu-v2023" as gzipped CSV. Its pods ask for a number of devices, or for
thousandths of one device; a device has 1,000 units of 16 MiB here, whatever its model. Processors and main memory are not counted.

``fill``: pods drawn at random arrive, none leaves (the method of Q. Weng et al., "Beware of Fragmentation: Scheduling GPU-Sharing
Workloads with Fragmentation Gradient Descent", USENIX ATC 2023). ``calendar``: copies of the trace, each shifted by a random time, with the
pods' own lives and the queue. Policies choose among the devices on which a task fits; all else is the placement core's. Fragmentation is
that paper's: memory that a pod drawn from the trace could not use, as a share of all memory.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import heapq
import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from bus_schemas.events import ConfigChanged, DeviceFact, Event, NodeRegistered, TaskPlaced, TaskStateChanged, TaskSubmitted, encode_events
from scheduler.placement import ClusterView, decide, queue
from scheduler.placement import columns as col
from scheduler.placement.columns import Columns, Ints
from scheduler.placement.decide import Decision
from scheduler.placement.queue import QueueMemory, queue_decisions
from scheduler.placement.states import COMPLETED, FAILED, PACK
from scheduler.placement.survey import survey
from tests.support.sections import write_section

_PAGE: Final = Path(__file__).resolve().parents[3] / "docs" / "scale.md"
_UNIT: Final = 16 << 20
_WHOLE: Final = 1_000
_S: Final = 10**9
_LIVES: Final = 4
_COPIES: Final = 60
"""Copies of the trace at least: with few of them arrivals come in bursts that no cluster could take."""

Floats = NDArray[np.float64]
Policy = Callable[[Columns, Ints, int, int], Floats]
"""(columns, rows that fit, units on each device, devices) to a score of each row; the highest is taken."""


@dataclass(frozen=True, slots=True)
class Pod:
    """``units``: of each of its devices; times in s."""

    devices: int
    units: int
    at_s: int
    life_s: float


def read_pods(path: Path) -> list[Pod]:
    """The pods of a trace that ask for a device; without times: 0."""
    with gzip.open(path, "rt") as file:
        rows = [row for row in csv.DictReader(file) if int(row["num_gpu"])]
    return [
        Pod(
            int(row["num_gpu"]),
            int(row["gpu_milli"]),
            int(row.get("creation_time") or 0),
            max(1, int(row.get("deletion_time") or 1) - int(row.get("scheduled_time") or row.get("creation_time") or 0)),
        )
        for row in rows
    ]


def read_nodes(path: Path) -> list[int]:
    """Devices of each node."""
    with gzip.open(path, "rt") as file:
        return [int(row["gpu"]) for row in csv.DictReader(file)]


# -- policies ----------------------------------------------------------------------------------------------------------------------------


def first_fit(columns: Columns, rows: Ints, units: int, devices: int) -> Floats:
    return -rows.astype(np.float64)


def best_fit(columns: Columns, rows: Ints, units: int, devices: int) -> Floats:
    return -_free(columns)[rows].astype(np.float64)


class Fragmentation:
    """Of a cluster for pods drawn from ``pods``: memory that such a pod cannot use, on average. As a policy: its gradient is descended."""

    def __init__(self, pods: list[Pod]) -> None:
        counts = Counter((pod.devices, pod.units) for pod in pods)
        free = np.arange(_WHOLE + 1)
        self._several: list[tuple[int, float]] = []
        #: by the free units of a device: those that a pod for a part of one device, or one, cannot use
        self._alone: Floats = np.zeros(_WHOLE + 1)
        for (devices, units), count in counts.items():
            share = count / len(pods)
            if devices == 1:
                self._alone += share * np.where(free < units, free, 0)
            else:
                self._several.append((devices, share))

    def __call__(self, columns: Columns, rows: Ints, units: int, devices: int) -> Floats:
        free, node_of, count = _free(columns), columns.node_of, len(columns.names)
        whole, total = np.bincount(node_of[free == _WHOLE], minlength=count), np.bincount(node_of, free, count)
        before = self._unused_by_several(whole, total)
        here = node_of[rows]
        if devices > 1:
            after = self._unused_by_several(whole - devices, total - devices * _WHOLE)
            return -((after - before)[here] / devices + self._alone[0] - self._alone[_WHOLE])
        left = free[rows]
        from_whole, from_part = self._unused_by_several(whole - 1, total - units), self._unused_by_several(whole, total - units)
        of_several = np.where(left == _WHOLE, from_whole[here], from_part[here]) - before[here]
        return -(self._alone[left - units] - self._alone[left] + of_several)

    def _unused_by_several(self, whole: NDArray[np.int64], total: Floats) -> Floats:
        """By node: of its free units, those that pods for several whole devices cannot use."""
        out = np.zeros(len(total))
        for devices, share in self._several:
            out += share * np.where(whole < devices, total, total - _WHOLE * whole)
        return out

    def share(self, columns: Columns) -> float:
        """Of all memory of the cluster."""
        free, count = _free(columns), len(columns.names)
        whole = np.bincount(columns.node_of[free == _WHOLE], minlength=count)
        several = self._unused_by_several(whole, np.bincount(columns.node_of, free, count))
        return float((self._alone[free].sum() + several.sum()) / (_WHOLE * columns.rows))


def _free(columns: Columns) -> Ints:
    free: Ints = (columns.devices[col.SCHEDULABLE] - columns.devices[col.PROMISED]) // _UNIT
    return free


def _by(policy: Policy, view: ClusterView, task: TaskSubmitted, at_ns: int) -> Decision:
    """The placement core's decision, with the policy's choice among what fits."""
    decision = decide(view, task, at_ns)
    if not decision.gpus:
        return decision
    columns, found = view.columns, survey(view, task, {})
    rows = found.fits
    score = policy(columns, rows, found.need // _UNIT, task.gpu_count)
    nodes = columns.node_of[rows]
    order = np.lexsort((rows, -score, nodes))
    begins = np.flatnonzero(np.r_[True, np.diff(nodes[order]) > 0])
    sums = sum(score[order[begins + at]] for at in range(task.gpu_count))
    begin = int(begins[int(np.argmax(sums))])
    chosen = np.sort(rows[order[begin : begin + task.gpu_count]])
    gpus = tuple(columns.devices[col.GPU, chosen].tolist())
    node = columns.names[int(columns.node_of[chosen[0]])]
    return Decision(at_ns, task.task, node, gpus, (), (), (), view.position, len(rows), ())


@contextmanager
def _decided_by(policy: Policy | None) -> Iterator[None]:
    if policy is None:
        yield
        return
    with mock.patch.object(queue, "decide", lambda view, task, at_ns: _by(policy, view, task, at_ns)):
        yield


# -- the cluster -------------------------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    """A cluster that takes tasks. ``allocated``: units of placed tasks. ``waits_s``: of each placed task. ``decide_ns``: CPU time of the
    passes through the queue, which contain all decisions."""

    nodes: list[int]
    pack: bool = False
    view: ClusterView = field(default_factory=ClusterView)
    position: int = 0
    log_bytes: int = 0
    memory: QueueMemory = field(default_factory=QueueMemory)
    tasks: dict[str, tuple[Pod, float]] = field(default_factory=dict)
    allocated: int = 0
    placed: int = 0
    waits_s: list[float] = field(default_factory=list)
    pass_ns: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        for number, count in enumerate(self.nodes):
            devices = tuple(DeviceFact(gpu, "device", "host", 8, _WHOLE * _UNIT) for gpu in range(count))
            self.put(NodeRegistered(1, f"n{number:05}", f"n{number:05}", "", 1, devices))
        self.put(ConfigChanged(1, "global", PACK, int(self.pack)))

    @property
    def units(self) -> int:
        return _WHOLE * sum(self.nodes)

    def put(self, event: Event) -> None:
        self.position += 1
        self.log_bytes += len(encode_events([event]))
        self.view.apply(self.position, event)

    def submit(self, name: str, pod: Pod, at_s: float) -> None:
        self.tasks[name] = (pod, at_s)
        self.put(TaskSubmitted(int(at_s * _S), name, "tenant", 2, pod.units * _UNIT, pod.devices, queue=True))

    def look(self, at_s: float) -> list[str]:
        """Go through the queue; the tasks placed."""
        out = []
        begin_ns = time.process_time_ns()
        for decision in queue_decisions(self.view, int(at_s * _S), self.memory):
            event = decision.event()
            self.put(event)
            if isinstance(event, TaskPlaced):
                pod, since_s = self.tasks[event.task]
                self.allocated += pod.devices * pod.units
                self.placed += 1
                self.waits_s.append(at_s - since_s)
                out.append(event.task)
        self.pass_ns.append(time.process_time_ns() - begin_ns)
        return out

    def end(self, name: str, at_s: float, state: str = COMPLETED) -> None:
        pod, _ = self.tasks.pop(name)
        if state == COMPLETED:
            self.allocated -= pod.devices * pod.units
        self.put(TaskStateChanged(int(at_s * _S), name, state))


@dataclass(frozen=True, slots=True)
class Filled:
    """After pods for as much memory as the cluster has arrived, and for 1.2 times as much: what is allocated, in percent; how many of the
    pods found no place by the first, and the percentage of memory that was asked for when the first one found none."""

    at_once: float
    at_last: float
    refused: int
    first_refused: float


def fill(nodes: list[int], pods: list[Pod], policy: Policy | None, pack: bool, seed: int) -> Filled:
    run, draw = Run(nodes, pack), random.Random(seed)
    arrived = refused = 0
    first, once = 0.0, (0.0, 0)
    with _decided_by(policy):
        number = 0
        while arrived < 1.2 * run.units:
            pod, name = draw.choice(pods), f"t{number}"
            number += 1
            arrived += pod.devices * pod.units
            run.submit(name, pod, number)
            if not run.look(number):
                run.end(name, number, FAILED)
                refused += 1
                first = first or 100 * arrived / run.units
            if not once[0] and arrived >= run.units:
                once = (100 * run.allocated / run.units, refused)
    return Filled(once[0], 100 * run.allocated / run.units, once[1], first)


@dataclass(frozen=True, slots=True)
class Day:
    """``arrivals``: (time in s, pod), in order; ``window_s``: until the last of them."""

    arrivals: list[tuple[float, Pod]]
    window_s: float


def calendar(pods: list[Pod], units: int, tasks: int, load: float, seed: int) -> Day:
    """``tasks`` arrivals, drawn from copies of the trace with random shifts, in a window in which they ask for ``load`` times the memory
    that there is. Lives are cut at a quarter of the window, so that its second half is stationary."""
    draw = random.Random(seed)
    span_s = max(pod.at_s for pod in pods) + 1
    copies = max(_COPIES, -(-tasks // len(pods)))
    shifted = sorted(
        (
            ((pod.at_s + shift) % span_s, pod)
            for shift in (draw.randrange(span_s) for _ in range(copies))
            for pod in draw.sample(pods, -(-tasks // copies))
        ),
        key=lambda arrival: arrival[0],
    )[:tasks]
    at = np.array([when for when, _ in shifted], np.float64) / shifted[-1][0]
    life = np.array([pod.life_s for _, pod in shifted], np.float64)
    size = np.array([pod.devices * pod.units for _, pod in shifted], np.float64)
    low, high = 1.0, float(span_s)
    for _ in range(60):
        window = (low + high) / 2
        asked = (size * np.minimum(life, window / _LIVES)).sum() / (window * units)
        low, high = (low, window) if asked < load else (window, high)
    lives = np.minimum(life, window / _LIVES)
    return Day(
        [(float(when) * window, replace(pod, life_s=float(life_s))) for when, life_s, (_, pod) in zip(at, lives, shifted, strict=True)],
        window,
    )


@dataclass(frozen=True, slots=True)
class Passed:
    """Of the second half of the window: shares of memory allocated and fragmented, in percent, over time; waits in s of the tasks placed
    then; how many tasks waited at its end."""

    allocated: float
    fragmented: float
    waits_s: tuple[float, float, float]
    waited: float
    left: int
    run: Run


def play(nodes: list[int], day: Day, of: Fragmentation, policy: Policy | None = None, pack: bool = False) -> Passed:
    run = Run(nodes, pack)
    ends: list[tuple[float, str]] = []
    half, last_s = day.window_s / 2, day.window_s / 2
    allocated = 0.0
    fragmented: list[float] = []
    first = 0

    def step(when_s: float) -> None:
        """Count what was so until then."""
        nonlocal allocated, last_s, first
        if when_s > half:
            first = first or len(run.waits_s)
            allocated += run.allocated * (when_s - last_s)
            last_s = when_s
            if when_s >= half + len(fragmented) * half / 200:
                fragmented.append(of.share(run.view.columns))

    def look(when_s: float) -> None:
        for placed in run.look(when_s) if run.view.queue else ():
            heapq.heappush(ends, (when_s + run.tasks[placed][0].life_s, placed))

    with _decided_by(policy):
        for number, (at_s, pod) in enumerate(day.arrivals):
            while ends and ends[0][0] <= at_s:
                when_s, name = heapq.heappop(ends)
                step(when_s)
                run.end(name, when_s)
                look(when_s)
            step(at_s)
            run.submit(f"t{number}", pod, at_s)
            look(at_s)
    waits = np.array(run.waits_s[first:])
    p50, p90, p99 = np.percentile(waits, [50, 90, 99]).tolist()
    return Passed(
        100 * allocated / (run.units * (last_s - half)),
        100 * sum(fragmented) / len(fragmented),
        (p50, p90, p99),
        100 * float((waits > 0).mean()),
        len(run.view.queue),
        run,
    )


# -- the program -------------------------------------------------------------------------------------------------------------------------


def policies(pods: list[Pod]) -> dict[str, tuple[Policy | None, bool]]:
    return {
        "Wooly, spreading (default)": (None, False),
        "Wooly, packing (`pack`)": (None, True),
        "first fit": (first_fit, False),
        "best fit": (best_fit, False),
        "fragmentation gradient": (Fragmentation(pods), False),
    }


def compare(folder: Path, tasks: int, seeds: int) -> str:
    nodes = read_nodes(folder / "alibaba-gpu-2023-nodes.csv.gz")
    lines = [f"Fill: {len(nodes):,} nodes with {sum(nodes):,} devices, mean of {seeds} draws.", ""]
    lines += [
        "| pods | policy | first refused at | allocated at 100 % asked | refused by then | allocated at 120 % |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for title, file in (
        ("default", "alibaba-gpu-2023-pods.csv.gz"),
        ("more of several devices", "alibaba-gpu-2023-pods-multigpu50.csv.gz"),
    ):
        pods = read_pods(folder / file)
        for name, (policy, pack) in policies(pods).items():
            found = [fill(nodes, pods, policy, pack, seed) for seed in range(seeds)]
            mean = [sum(getattr(one, key) for one in found) / seeds for key in ("first_refused", "at_once", "refused", "at_last")]
            lines.append(f"| {title} | {name} | {mean[0]:.1f} % | {mean[1]:.1f} % | {mean[2]:.0f} | {mean[3]:.1f} % |")
            print(lines[-1], flush=True)
    pods = read_pods(folder / "alibaba-gpu-2023-pods.csv.gz")
    of = Fragmentation(pods)
    lines += ["", f"Calendar: the same nodes, {tasks:,} tasks with the queue; figures of the second half of the window.", ""]
    lines += [
        "| load | policy | allocated | fragmented | waited | wait P50 / P90 / P99 | left waiting |",
        "|---:|---|---:|---:|---:|---:|---:|",
    ]
    for load in (0.8, 0.9):
        day = calendar(pods, _WHOLE * sum(nodes), tasks, load, 1)
        for name, (policy, pack) in policies(pods).items():
            at = play(nodes, day, of, policy, pack)
            waits = " / ".join(f"{wait:,.0f}" for wait in at.waits_s)
            lines.append(
                f"| {load:.0%} | {name} | {at.allocated:.1f} % | {at.fragmented:.1f} % | {at.waited:.1f} % | {waits} s | {at.left:,} |"
            )
            print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def scale(folder: Path, nodes: int, tasks: int, load: float) -> str:
    pods = read_pods(folder / "alibaba-gpu-2023-pods.csv.gz")
    sizes = [8] * nodes
    begin_ns = time.process_time_ns()
    run = Run(sizes)
    joined_s = (time.process_time_ns() - begin_ns) / 1e9
    begin_ns = time.process_time_ns()
    at = play(sizes, calendar(pods, run.units, tasks, load, 1), Fragmentation(pods))
    spent_s = (time.process_time_ns() - begin_ns) / 1e9
    passes = sorted(at.run.pass_ns)
    p50, p99, p999 = (passes[int(len(passes) * share)] / 1e6 for share in (0.5, 0.99, 0.999))
    return "\n".join([
        "| | |", "|---|---|",
        f"| nodes x devices, tasks, load | {nodes:,} x 8, {tasks:,}, {load:.0%} |",
        f"| placed, allocated in the second half, waited | {at.run.placed:,}, {at.allocated:.1f} %, {at.waited:.1f} % |",
        f"| passes through the queue, CPU time P50 / P99 / P99.9 | {len(passes):,}, {p50:.2f} / {p99:.2f} / {p999:.2f} ms |",
        f"| events, bytes of the log before compression | {at.run.position:,}, {at.run.log_bytes / 1e9:.2f} GB |",
        f"| folding the registration of all nodes | {joined_s:.1f} s |",
        f"| CPU time in all, peak memory | {spent_s / 60:.0f} min, {_peak_mb():,.0f} MB |",
    ]) + "\n"  # fmt: skip


def _peak_mb() -> float:
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.placement.traces", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scale", action="store_true", help="the run at 10,000 nodes instead of the comparison")
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--tasks", type=int, default=0, help="default: 100,000, with --scale 1,000,000")
    parser.add_argument("--load", type=float, default=0.9, help="with --scale")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--publish", action="store_true", help="write the figures to docs/scale.md")
    asked = parser.parse_args()
    text = (
        scale(asked.folder, asked.nodes, asked.tasks or 1_000_000, asked.load) if asked.scale
        else compare(asked.folder, asked.tasks or 100_000, asked.seeds)
    )  # fmt: skip
    print(text)
    if asked.publish:
        write_section(_PAGE, "scale" if asked.scale else "policies", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
