"""What a launch takes to the executor and back, estimated from a journal session by session."""

from __future__ import annotations

import random

from scheduler.dispatch import FIFO, DispatchConfig
from scheduler.model import Arrival, DeviceCosts, Tenant, simulate
from scheduler.model.recorded import Recording

MS = 1_000_000
US = 1_000
WAYS = {"near": 100 * US, "far": 600 * US}


def played(ways: dict[str, int], requests: int) -> Recording:
    """Two clients by the clock, sometimes beside each other and sometimes alone."""
    draw = random.Random(2)
    works: list[Arrival] = []
    for name, way_ns in ways.items():
        at_ns = 0
        for seq in range(requests):
            at_ns += draw.choice((MS // 2, 24 * MS))
            works.append(Arrival(name, seq, draw.randrange(2 * MS, 4 * MS), 0, at_ns=at_ns, overhead_ns=300 * US, way_ns=way_ns))
    outcome = simulate([Tenant(name, 0) for name in ways], works, DispatchConfig(policy=FIFO), DeviceCosts())
    recording = Recording()
    for record in outcome.records:
        recording.take(record.stimulus, record.decisions)
    return recording


def told(recording: Recording) -> dict[str, tuple[int, int]]:
    """(way, median of what the batches take beside their run) by session, in us."""
    _, arrivals, _ = recording.inputs()
    out = {}
    for name in WAYS:
        own = [arrival for arrival in arrivals if arrival.session == name]
        out[name] = (own[0].way_ns // US, sorted(arrival.overhead_ns for arrival in own)[len(own) // 2] // US)
    return out


def test_two_sessions_have_each_its_own() -> None:
    found = told(played(WAYS, 200))
    for name, way_ns in WAYS.items():
        way_us, beside_us = found[name]
        assert abs(way_us - way_ns // US) <= 60 and abs(beside_us - 300) <= 60, (name, found)


def test_a_session_with_too_little_on_record_takes_the_other_ones() -> None:
    draw = random.Random(2)
    times = [(k // 2 * 20 + k % 2) * MS for k in range(200)]
    works = [Arrival("far", k, draw.randrange(2 * MS, 4 * MS), 0, at_ns=at_ns, way_ns=600 * US) for k, at_ns in enumerate(times)]
    works += [Arrival("near", k, MS, 0, at_ns=k * 50 * MS, way_ns=100 * US) for k in range(5)]
    outcome = simulate([Tenant("near", 0), Tenant("far", 0)], works, DispatchConfig(policy=FIFO), DeviceCosts())
    recording = Recording()
    for record in outcome.records:
        recording.take(record.stimulus, record.decisions)
    found = told(recording)
    assert found["near"][0] == found["far"][0] and abs(found["far"][0] - 600) <= 60
