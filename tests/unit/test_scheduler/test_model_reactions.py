"""How long a client takes to go on goes by the time, whatever the policy."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from scheduler.dispatch import FIFO, DispatchConfig
from scheduler.model import Arrival, DeviceCosts, Reactions, Tenant, simulate
from scheduler.model.recorded import Recording

MS = 1_000_000
REACTIONS = Reactions((10, 20, 30), (1, 2, 3))


@pytest.mark.parametrize(("heard_ns", "took_ns"), [(9, None), (10, 1), (15, 1), (16, 2), (20, 2), (25, 2), (26, 3), (30, 3), (31, None)])
def test_the_nearest_in_time_counts_and_outside_nothing_is_known(heard_ns: int, took_ns: int | None) -> None:
    assert REACTIONS.at(heard_ns) == took_ns


def test_a_batch_reacts_as_its_client_did_at_that_time_and_else_as_it_did_itself() -> None:
    """One under way at a time, each takes 10 ms: heard of at 10, 21, 37 and 50 ms, beyond what is known."""
    tenant = Tenant("a", 0, reactions=Reactions((10 * MS, 22 * MS, 40 * MS), (1 * MS, 6 * MS, 3 * MS)))
    works = [Arrival("a", k, 10 * MS, 10 * MS, after_seq=k - 1, think_ns=99 * MS, reacts=k > 0) for k in range(5)]
    batches = simulate([tenant], works, DispatchConfig(policy=FIFO), DeviceCosts()).sessions["a"].batches
    assert [batch.arrived_ns // MS for batch in batches] == [0, 11, 27, 40, 149]


def test_a_client_that_is_slow_for_a_while_is_so_at_that_time_also_where_its_batches_come_earlier() -> None:
    """It has four batches under way, and takes 1 ms to hear and send, but 5 ms from 200 to 300 ms. Played with half the work, it has sent
    far more by then, and is slow at the same time."""
    draw = random.Random(1)
    slow = range(200 * MS, 300 * MS)
    times = tuple(range(0, 2000 * MS, MS // 2))
    reactions = Reactions(times, tuple(5 * MS if at in slow else MS for at in times))
    works = [Arrival("t", k, draw.randrange(2 * MS, 9 * MS), 0, after_seq=max(-1, k - 4), think_ns=MS, reacts=k >= 4) for k in range(300)]
    first = simulate([Tenant("t", 3, reactions=reactions)], works, DispatchConfig(policy=FIFO), DeviceCosts())
    recording = Recording()
    for record in first.records:
        recording.take(record.stimulus, record.decisions)
    tenants, arrivals, costs = recording.inputs()
    assert tenants[0].reactions is not None and sum(arrival.reacts for arrival in arrivals) > 250
    halves = [replace(arrival, wall_ns=arrival.wall_ns // 2) for arrival in arrivals]
    batches = simulate(tenants, halves, DispatchConfig(policy=FIFO), costs).sessions["t"].batches
    waited = [(late.arrived_ns - early.finished_ns, early.finished_ns) for early, late in zip(batches, batches[4:], strict=False)]
    assert all(took_ns >= 4 * MS for took_ns, heard_ns in waited if 205 * MS < heard_ns < 295 * MS)
    assert sum(took_ns >= 4 * MS for took_ns, heard_ns in waited if heard_ns < 195 * MS or heard_ns > 305 * MS) == 0
