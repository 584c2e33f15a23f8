"""Turns of tenants at a shared worker: order within a lane, round robin between tenants, a budget that is regained with time."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.quotas import Rate
from scheduler.turns import Turns, TurnsConfig

SECOND = 10**9
CONFIG = TurnsConfig(rate=Rate(100, 200), lane_items_max=4, waiting_bytes_max=1000)


def served(turns: Turns[str], now_ns: int, cost: int = 0) -> list[str]:
    out = []
    while (taken := turns.take(now_ns)) is not None:
        out.append(taken.item)
        turns.done(taken, cost, now_ns)
    return out


def test_tenants_take_turns_and_a_lane_keeps_its_order() -> None:
    turns: Turns[str] = Turns(CONFIG)
    for item in ("a1", "a2", "a3"):
        assert turns.add("a", "s", item, 1, 0)
    assert turns.add("a", "t", "at", 1, 0) and turns.add("b", "u", "b1", 1, 0) and turns.add("c", "v", "c1", 1, 0)
    assert served(turns, 0) == ["a1", "b1", "c1", "at", "a2", "a3"]
    assert turns.take(0) is None and turns.wakeup_ns() is None and turns.items() == []


def test_a_lane_is_served_one_at_a_time() -> None:
    turns: Turns[str] = Turns(CONFIG)
    turns.add("a", "s", "first", 1, 0)
    turns.add("a", "s", "second", 1, 0)
    first = turns.take(0)
    assert first is not None and first.item == "first"
    assert turns.take(0) is None and not turns.free("a", "s", 0) and turns.free("a", "t", 0)
    assert turns.items() == ["second", "first"]
    turns.done(first, 0, 0)
    assert not turns.free("a", "s", 0), "one still waits"
    assert served(turns, 0) == ["second"] and turns.free("a", "s", 0)


def test_a_budget_that_is_used_up_returns_with_time_and_costs_no_other_tenant() -> None:
    turns: Turns[str] = Turns(CONFIG)
    for lane in "stu":
        turns.add("a", lane, lane, 1, 0)
    turns.add("b", "v", "b", 1, 0)
    assert served(turns, 0, cost=150) == ["s", "b", "t"], "300 of 200: it may overdraw once"
    assert not turns.free("a", "w", 0) and turns.free("b", "v", 0)
    wakeup_ns = turns.wakeup_ns()
    assert wakeup_ns == SECOND + 1, "100 too many, at 100 a second"
    assert served(turns, wakeup_ns - 1) == [] and served(turns, wakeup_ns) == ["u"]
    turns.charge("a", 1, 10 * SECOND)
    assert turns.free("a", "w", 10 * SECOND), "what was not used in the pause is the burst, and no more"
    turns.charge("a", 199, 10 * SECOND)
    assert not turns.free("a", "w", 10 * SECOND) and turns.free("a", "w", 10 * SECOND + 10**7)


def test_what_waits_is_bounded_by_lane_and_by_tenant() -> None:
    turns: Turns[str] = Turns(CONFIG)
    assert [turns.add("a", "s", str(at), 1, 0) for at in range(5)] == [True] * 4 + [False]
    assert turns.add("a", "t", "t", 996, 0) and not turns.add("a", "u", "u", 1, 0)
    assert turns.add("b", "v", "v", 1000, 0) and not turns.add("b", "w", "w", 1, 0)
    assert len(served(turns, 0)) == 6 and turns.add("a", "u", "u", 1000, 0)


def test_full_budgets_are_forgotten() -> None:
    turns: Turns[str] = Turns(CONFIG)
    for at in range(5000):
        turns.charge(f"tenant {at}", 1, at * SECOND)
    assert len(turns._tenants) <= 1024


def test_the_best_priority_goes_first_in_turns_of_tenants() -> None:
    turns: Turns[str] = Turns(CONFIG)
    for tenant, lane, item, priority in (
        ("a", "s", "low", 4), ("a", "t", "a1", 1), ("a", "t", "a2", 0), ("b", "u", "b1", 1), ("b", "u", "b2", 1), ("c", "v", "top", 0),
    ):  # fmt: skip
        turns.add(tenant, lane, item, 1, 0, priority)
    assert served(turns, 0) == ["top", "a1", "a2", "b1", "b2", "low"], "a lane keeps its order whatever is behind"


def test_late_tenants_are_served_when_no_other_wants_anything() -> None:
    turns: Turns[str] = Turns(msgspec.structs.replace(CONFIG, late=True))
    turns.charge("a", 250, 0)
    turns.charge("c", 250, 0)
    for tenant, item, priority in (("a", "a1", 0), ("a", "a2", 0), ("b", "b1", 4), ("b", "b2", 4), ("c", "c1", 4)):
        turns.add(tenant, tenant, item, 1, 0, priority)
    assert served(turns, 0, cost=1) == ["b1", "b2", "a1", "c1", "a2"], "without budget priority is worth nothing"


def test_what_is_put_back_is_the_next_of_its_lane_and_what_is_dropped_is_gone() -> None:
    turns: Turns[str] = Turns(CONFIG)
    for tenant, item in (("a", "a1"), ("a", "a2"), ("b", "b1"), ("b", "b2")):
        turns.add(tenant, tenant, item, 500, 0)
    first = turns.take(0)
    assert first is not None and first.item == "a1"
    turns.put_back(first, 150, 0)
    assert turns.items() == ["b1", "b2", "a1", "a2"] and not turns.add("a", "t", "a3", 1, 0), "it waits again, with its size"
    turns.drop("b", "b")
    turns.drop("b", "b")
    assert turns.add("b", "c", "b3", 1000, 0) and served(turns, 0) == ["a1", "b3", "a2"]
    turns.charge("a", 49, 0)
    assert turns.free("a", "t", 0), "one part cost 150, the other nothing"
    turns.charge("a", 1, 0)
    assert not turns.free("a", "t", 0)


def test_items_have_a_budget_of_their_own() -> None:
    """Cheap ones too: two at once, then one each second; a piece of one is not one more."""
    turns: Turns[str] = Turns(msgspec.structs.replace(CONFIG, items=Rate(1, 2)))
    for item in "abc":
        turns.add("x", item, item, 1, 0)
    first = turns.take(0)
    assert first is not None
    turns.put_back(first, 1, 0)
    assert turns.used("x", 0) == (1, 0)
    assert len(served(turns, 0)) == 2 and turns.used("x", 0) == (1, 2)
    assert turns.wakeup_ns() == 1 and not turns.free("x", "y", 0) and turns.free("y", "y", 0)
    assert len(served(turns, 1)) == 1 and turns.wakeup_ns() is None and not turns.free("x", "y", SECOND), "it overdraws once"
    assert turns.free("x", "y", SECOND + 1)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3), st.integers(0, 400), st.integers(0, SECOND)), max_size=60))
def test_everything_is_served_once_in_the_order_of_its_lane_and_no_tenant_exceeds_its_rate(steps: list[tuple[str, int, int, int]]) -> None:
    turns: Turns[tuple[str, int]] = Turns(TurnsConfig(rate=Rate(100, 200), lane_items_max=100, waiting_bytes_max=1000))
    now_ns, out, spent, largest = 0, [], dict.fromkeys("abc", 0), 0
    added: list[tuple[tuple[str, int], int]] = []
    costs = {}

    def serve() -> None:
        while (taken := turns.take(now_ns)) is not None:
            cost = costs[taken.item]
            assert spent[taken.tenant] <= 200 + 100 * now_ns // SECOND + 1 + largest
            spent[taken.tenant] += cost
            out.append(taken.item)
            turns.done(taken, cost, now_ns)

    for at, (tenant, lane, cost, pause_ns) in enumerate(steps):
        item = (f"{tenant}{lane}", at)
        costs[item], largest = cost, max(largest, cost)
        assert turns.add(tenant, item[0], item, 1, now_ns)
        added.append((item, cost))
        serve()
        now_ns += pause_ns
    while (wakeup_ns := turns.wakeup_ns()) is not None:
        now_ns = max(now_ns, wakeup_ns)
        serve()
    assert sorted(out) == sorted(item for item, _ in added)
    for lane in {item[0] for item in out}:
        numbers = [at for name, at in out if name == lane]
        assert numbers == sorted(numbers)
