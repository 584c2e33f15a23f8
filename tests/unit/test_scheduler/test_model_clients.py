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
    by_the_clock = [k for k in range(200) if whys[k].at_ns == arrivals[k] and whys[k].after_seq in (-1, k - 32)]
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
    assert whys[3:] == [Why(after_seq=k - 3, think_ns=MS, reacts=True) for k in range(3, 12)]


def windowed(costs: list[int], react_ns: list[int], window: int, busy_ns: dict[int, int]) -> list[Seen]:
    """A client that sends batch k when it has heard of k - window, ``react_ns`` after it ended; before some its script is ``busy_ns``."""
    seen: list[Seen] = []
    for k, cost in enumerate(costs):
        heard = seen[k - window].finished_ns + react_ns[k] if k >= window else 0
        at = max(heard, seen[-1].arrived_ns + 10_000 + busy_ns.get(k, 0) if seen else 0)
        seen.append(Seen(at, max(at, seen[-1].finished_ns if seen else 0) + cost))
    return seen


def test_a_slow_client_with_a_window_is_not_taken_for_one_that_sends_less() -> None:
    """Its answers take longer to come back than a batch takes, so it rarely has as many under way as it may: it still waits for the one
    four before, and on a busier device will have four waiting there."""
    draw = random.Random(5)
    costs = [draw.choice((MS // 3, MS // 2, 6 * MS)) for _ in range(400)]
    react = [draw.randrange(6 * MS // 10, 14 * MS // 10) for _ in range(400)]
    seen = windowed(costs, react, 4, {200: 90 * MS})
    whys = explain_arrivals(seen)
    assert [why.after_seq for why in whys[4:]] == list(range(396))
    assert sum(why.think_ns == react[k] for k, why in enumerate(whys)) > 340, (
        "it reacts as it did (where two answers come at once, one waits)"
    )
    assert whys[200].gap_ns == seen[200].arrived_ns - seen[199].arrived_ns, "and once its script was busy, whatever came back"


def test_of_nothing_nothing_is_said() -> None:
    assert explain_arrivals([]) == []


def test_a_client_that_does_not_look_at_answers_goes_by_the_clock_also_in_bursts() -> None:
    draw = random.Random(3)
    arrivals: list[int] = []
    while len(arrivals) < 200:
        start = (arrivals[-1] if arrivals else 0) + int(draw.expovariate(1 / 60) * MS)
        arrivals += [start] * draw.randrange(1, 4)
    whys = explain_arrivals(served(arrivals, [18 * MS + k for k in range(len(arrivals))]))
    assert whys == [Why(at_ns=at, after_seq=max(-1, k - 32)) for k, at in enumerate(arrivals)], "but no more than a client sends"
