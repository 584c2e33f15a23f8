"""Why a batch came when it did: clients made by a rule, recognised from their times alone."""

from __future__ import annotations

import random

import pytest

from scheduler.model.clients import Seen, Why, explain_arrivals

MS = 1_000_000


def served(arrivals: list[int], costs: list[int]) -> list[Seen]:
    """First in, first out on a device of their own."""
    out, free = [], 0
    for at, cost in zip(arrivals, costs, strict=True):
        free = max(free, at) + cost
        out.append(Seen(at, free))
    return out


def closed(think_ns: int, costs: list[int]) -> list[Seen]:
    out, at = [], 0
    for cost in costs:
        out.append(Seen(at, at + cost))
        at += cost + think_ns
    return out


def random_costs(n: int = 200) -> list[int]:
    draw = random.Random(7)
    return [draw.randrange(5, 40) * MS for _ in range(n)]


@pytest.mark.parametrize("think_ns", [100_000, 20 * MS, 300 * MS])
def test_a_client_that_waits_for_answers_keeps_its_think_time(think_ns: int) -> None:
    """Also a long one: that the pause does not depend on the answer shows it."""
    whys = explain_arrivals(closed(think_ns, random_costs()))
    assert whys[0] == Why(at_ns=0)
    assert whys[1:] == [Why(after_seq=k - 1, think_ns=think_ns) for k in range(1, 200)]


def test_a_client_that_comes_by_the_clock_keeps_its_times() -> None:
    costs = random_costs()
    seen = served([k * 50 * MS for k in range(200)], costs)
    whys = explain_arrivals(seen)
    assert whys == [Why(at_ns=0), *(Why(at_ns=k * 50 * MS, after_seq=k - 1) for k in range(1, 200))]


def test_a_clock_that_does_not_wait_for_answers_is_seen_where_they_overlap() -> None:
    costs = random_costs()
    arrivals = [k * 30 * MS for k in range(200)]
    whys = explain_arrivals(served(arrivals, costs))
    by_the_clock = [k for k in range(200) if whys[k].at_ns == arrivals[k] and whys[k].after_seq in (-1, k - 63)]
    assert len(by_the_clock) > 180


def test_equal_answers_tell_nothing_and_a_long_pause_is_taken_for_the_clock() -> None:
    assert explain_arrivals(closed(MS, [10 * MS] * 20))[1] == Why(after_seq=0, think_ns=MS)
    assert explain_arrivals(closed(90 * MS, [10 * MS] * 20))[1] == Why(at_ns=100 * MS, after_seq=0)


def test_a_client_with_a_bounded_number_under_way_waits_for_the_oldest() -> None:
    """It makes a batch in 1 ms and has at most 3 under way; each takes 10 ms."""
    arrivals, finished = [], []
    at = 0
    for k in range(12):
        if k >= 3:
            at = max(at, finished[k - 3])
        at += MS
        arrivals.append(at)
        finished.append(max(at, finished[-1] if finished else 0) + 10 * MS)
    whys = explain_arrivals([Seen(a, f) for a, f in zip(arrivals, finished, strict=True)])
    assert whys[1:3] == [Why(gap_ns=MS)] * 2
    assert whys[3:] == [Why(after_seq=k - 3, think_ns=MS) for k in range(3, 12)]


def test_of_nothing_nothing_is_said() -> None:
    assert explain_arrivals([]) == []


def test_a_client_that_does_not_look_at_answers_goes_by_the_clock_also_in_bursts() -> None:
    draw = random.Random(3)
    arrivals: list[int] = []
    while len(arrivals) < 200:
        start = (arrivals[-1] if arrivals else 0) + int(draw.expovariate(1 / 60) * MS)
        arrivals += [start] * draw.randrange(1, 4)
    whys = explain_arrivals(served(arrivals, [18 * MS + k for k in range(len(arrivals))]))
    assert whys == [Why(at_ns=at, after_seq=max(-1, k - 63)) for k, at in enumerate(arrivals)], "but no more than a node takes"
