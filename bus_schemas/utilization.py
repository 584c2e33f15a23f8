"""The seven states of a device: how the wall time of an interval is divided among them. Pure, integers only; the same for the event log and
for what a plain NVIDIA machine reports.

    busy         = the time that the work of the interval would take with all cores occupied
    underused    = launch time - busy: a launch ran and left cores unoccupied
    blocked      = the device did what is no launch: memory moves, transfers, checks
    rest         = wall - busy - underused - blocked, divided by its cause:
      memory bound   something ran, and memory is full (MEMORY_FULL_PERCENT) or its bandwidth is in use (BANDWIDTH_PERCENT)
      CPU bound      something ran, and memory is free: the device waits for the processes that feed it
      fragmented     nothing ran, while a task waited that a whole device of this size could hold
      idle           nothing ran, and nothing waited

Each term is limited to what those before it leave, so the states sum to the wall time exactly. Waste is all but busy.
"""

from __future__ import annotations

from typing import Final

import msgspec

STATES: Final = ("busy", "underused", "memory_bound", "cpu_bound", "blocked", "fragmented", "idle")
"""Names of the states, in the order of every list of their times."""
BUSY, UNDERUSED, MEMORY_BOUND, CPU_BOUND, BLOCKED, FRAGMENTED, IDLE = range(len(STATES))

MEMORY_FULL_PERCENT: Final = 90
"""From this part of the device's memory on, what is held leaves no room for another task."""
BANDWIDTH_PERCENT: Final = 60
"""From this part of the time with memory traffic on, the cores wait for memory."""

Times = tuple[int, ...]
"""Nanoseconds in each of STATES."""


class Interval(msgspec.Struct, frozen=True):
    """What was measured of one device in one interval, in ns and percent; 0 where it is not known.

    ``waited_ns``: time in which a task waited that the whole device could hold. ``active``: something ran, or was compiled to run."""

    wall_ns: int
    busy_ns: int = 0
    launch_ns: int = 0
    blocked_ns: int = 0
    active: bool = False
    held_percent: int = 0
    bandwidth_percent: int = 0
    waited_ns: int = 0


def states_of(seen: Interval) -> Times:
    """The wall time divided among STATES; the parts are not negative and sum to ``wall_ns`` (itself not negative)."""
    times = [0] * len(STATES)
    rest = seen.wall_ns
    for state, wanted in (
        (BUSY, seen.busy_ns),
        (UNDERUSED, seen.launch_ns - seen.busy_ns),
        (BLOCKED, seen.blocked_ns),
        (FRAGMENTED, 0 if seen.active else seen.waited_ns),
    ):
        times[state] = max(0, min(wanted, rest))
        rest -= times[state]
    full = seen.held_percent >= MEMORY_FULL_PERCENT or seen.bandwidth_percent >= BANDWIDTH_PERCENT
    times[IDLE if not seen.active else MEMORY_BOUND if full else CPU_BOUND] += rest
    return tuple(times)


def percent_of(part: int, whole: int) -> float:
    """``part`` of ``whole`` in percent with two places, rounded down; 0 of nothing."""
    return part * 10_000 // whole / 100 if whole else 0.0


class UtilizationLine(msgspec.Struct, frozen=True):
    """Times in ns: those of STATES sum to ``wall_ns``. ``used_core_ns`` + ``waste_core_ns`` = wall x cores of the devices. ``waste_micro``:
    what the waste would have cost, in micro-credits at the tariff of its time. ``waste_percent``: of the core time, two places."""

    key: str
    busy_ns: int
    underused_ns: int
    memory_bound_ns: int
    cpu_bound_ns: int
    blocked_ns: int
    fragmented_ns: int
    idle_ns: int
    wall_ns: int
    used_core_ns: int
    waste_core_ns: int
    waste_micro: int
    waste_credits: str
    waste_percent: float


class UtilizationReport(msgspec.Struct, frozen=True):
    """Utilization of [from, to), whole minutes in Unix ns; ``to_ns`` 0: no end. ``position``: of the log."""

    by: str
    from_ns: int
    to_ns: int
    position: int
    items: tuple[UtilizationLine, ...]
    total: UtilizationLine


class UtilizationBuckets(msgspec.Struct, frozen=True):
    """One device. ``times_ns``: for each of STATES, ns in each bucket."""

    key: str
    node: str
    gpu: int
    times_ns: tuple[tuple[int, ...], ...]


class UtilizationSeries(msgspec.Struct, frozen=True):
    """Bucket i is [times_ns[i], times_ns[i] + step_ns). ``devices_total``: with those that are not among ``devices``."""

    step_ns: int
    times_ns: tuple[int, ...]
    states: tuple[str, ...]
    devices: tuple[UtilizationBuckets, ...]
    devices_total: int
    position: int
