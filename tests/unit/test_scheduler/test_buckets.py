"""Token buckets: what is had at once, what is regained, and how long it takes."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from bus_schemas.quotas import Rate
from scheduler.buckets import Buckets

SECOND = 10**9


def test_a_bucket_has_its_burst_at_once_and_then_its_rate() -> None:
    buckets: Buckets[str] = Buckets(Rate(1, 3, 2 * SECOND))
    for _ in range(3):
        assert buckets.wait_ns("a", 0) == 0
        buckets.take("a", 0)
    assert (buckets.wait_ns("a", 0), buckets.used("a", 0)) == (2 * SECOND, 3)
    assert buckets.wait_ns("a", 2 * SECOND - 1) == 1 and buckets.wait_ns("a", 2 * SECOND) == 0
    assert buckets.wait_ns("a", 2 * SECOND, cost=2) == 2 * SECOND
    assert buckets.wait_ns("b", 0) == 0 and buckets.used("b", 0) == 0, "each key has its own"
    buckets.give_back("a")
    assert buckets.wait_ns("a", 0) == 0 and buckets.most_used(0) == 2


def test_the_bucket_untouched_for_longest_is_forgotten_first() -> None:
    buckets: Buckets[str] = Buckets(Rate(1, 1), kept_max=2)
    for key in ("a", "b", "a", "c"):
        buckets.take(key, 0)
    assert buckets.wait_ns("b", 0) == 0 and buckets.wait_ns("a", 0) > 0 and buckets.wait_ns("c", 0) > 0


@example(2, 1, 1, [1])  # more than one a nanosecond
@given(st.integers(1, 50), st.integers(1, 20), st.integers(1, 3 * SECOND), st.lists(st.integers(0, SECOND), max_size=50))
def test_no_more_is_taken_than_burst_and_rate_and_what_is_named_as_wait_suffices(
    amount: int, burst: int, every_ns: int, pauses_ns: list[int]
) -> None:
    rate, now_ns, taken = Rate(amount, burst, every_ns), 0, 0
    buckets: Buckets[str] = Buckets(rate)
    for pause_ns in pauses_ns:
        wait_ns = buckets.wait_ns("a", now_ns)
        if wait_ns:
            assert buckets.wait_ns("a", now_ns + wait_ns - 1) == 1 and buckets.wait_ns("a", now_ns + wait_ns) == 0
        else:
            buckets.take("a", now_ns)
            taken += 1
        assert buckets.used("a", now_ns) <= burst
        assert (taken - burst) * rate.ns(1) <= now_ns
        now_ns += pause_ns
