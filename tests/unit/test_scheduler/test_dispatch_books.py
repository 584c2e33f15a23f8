"""The arithmetic of shares and paces at their boundaries."""

from __future__ import annotations

from fractions import Fraction

import pytest

from scheduler.dispatch import DispatchConfig, fairness_bound, pacing, percent
from scheduler.dispatch.fair import virtual
from scheduler.dispatch.state import SessionState


@pytest.mark.parametrize("in_flight", [1, 2, 5])
@pytest.mark.parametrize("weights", [(1, 1), (100, 300), (10_000, 7)])
@pytest.mark.parametrize("leads", [(0, 0), (1_000, 0), (0, 50), (70, 3)])
def test_the_bound_is_leads_and_for_each_twice_the_depth_and_one_largest_slices(
    leads: tuple[int, int], weights: tuple[int, int], in_flight: int
) -> None:
    """In parts of 1/10,000 core-ns over the weight; every slice is rounded by less than one part."""
    costs = (1_234, 99)
    exact = sum(
        Fraction(10_000 * lead, weight) + (2 * in_flight + 1) * Fraction(10_000 * cost, weight)
        for lead, weight, cost in zip(leads, weights, costs, strict=True)
    )
    bound = fairness_bound(costs, weights, in_flight, leads)
    assert exact - 2 <= bound <= exact + 2 * (2 * in_flight + 1)


@pytest.mark.parametrize(("core_ns", "weight", "want"), [(0, 1, 0), (1, 10_000, 1), (1, 1, 10_000), (3, 7_000, 4), (-3, 10_000, -3)])
def test_virtual_time_is_core_time_over_the_weight_rounded_down(core_ns: int, weight: int, want: int) -> None:
    assert virtual(core_ns, weight) == want


def paced(tokens: int, permille: int = 500) -> SessionState:
    session = SessionState("a", 1, 2, 0, b"")
    session.pace_permille, session.tokens, session.tokens_at_ns = permille, tokens, 1_000
    return session


@pytest.mark.parametrize(
    ("tokens", "ready_ns"),
    [
        (5_000, 1_000),
        (1, 1_000),
        (0, 1_001),
        (-1, 1_001),
        (-999, 1_001),
        (-1_000, 1_002),
        (-1_001, 1_002),
        (-1_999, 1_002),
        (-2_000, 1_003),
    ],
)
def test_a_session_is_ready_at_the_first_time_at_which_it_has_a_token(tokens: int, ready_ns: int) -> None:
    """Half of two cores gives 1,000 tokens a nanosecond."""
    config = DispatchConfig(cores=2)
    assert pacing.ready_at_ns(paced(tokens), config, 1_000) == ready_ns
    if ready_ns > 1_000:  # and not before
        assert pacing.ready_at_ns(paced(tokens), config, ready_ns) == ready_ns
        assert pacing.ready_at_ns(paced(tokens), config, ready_ns - 1) > ready_ns - 1


@pytest.mark.parametrize("core_ns", [0, 1, 40, 10_000, -10_000])
def test_tokens_are_spent_and_saved_up_to_the_burst(core_ns: int) -> None:
    """2 of 4 cores for 30 ns are 60 core-ns, of which 50 ns of the pace (100 core-ns) can be kept."""
    config = DispatchConfig(cores=4, pace_burst_ns=50)
    session = paced(0)
    pacing.spend(session, config, 1_030, core_ns)
    assert session.tokens == 1_000 * (60 - core_ns)
    pacing.spend(session, config, 1_030 + 10**9, 0)
    assert session.tokens == 1_000 * 100


@pytest.mark.parametrize(
    ("part_ns", "window_ns", "want"), [(0, 0, 0), (5, 0, 0), (0, 10, 0), (1, 200, 1), (1, 201, 0), (3, 200, 2), (10, 10, 100)]
)
def test_a_part_of_a_window_is_rounded_half_up_to_whole_percent(part_ns: int, window_ns: int, want: int) -> None:
    assert percent(part_ns, window_ns) == want
