"""Counts of refusals: few whatever callers send, none lost, and beside the records of what was done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from bus_schemas.events import ActionTaken
from services.kit.access import AccessView
from services.kit.access.refusals import BUCKETS_MAX, DENIED, FAILED, Refusal, Refusals, records

REFUSALS = st.builds(
    Refusal,
    action=st.sampled_from((DENIED, FAILED)),
    target=st.sampled_from(("", "task.cancel")),
    reason=st.just("wrong key"),
    actor=st.sampled_from(("", "anna")),
    tenant=st.just(""),
    source=st.integers(0, 300).map(str),
)


@given(st.lists(REFUSALS, max_size=400))
def test_every_refusal_is_counted_in_a_bounded_number_of_records(given_refusals: list[Refusal]) -> None:
    counts = Refusals()
    for refusal in given_refusals:
        counts.add(refusal)
    taken = counts.take()
    assert counts.take() == {}
    for action in (DENIED, FAILED):
        mine = {refusal: count for refusal, count in taken.items() if refusal.action == action}
        assert sum(mine.values()) == sum(refusal.action == action for refusal in given_refusals)
        assert len(mine) <= BUCKETS_MAX + 1
        assert all(refusal in given_refusals or (refusal.actor, refusal.source) == ("", "") for refusal in mine)
    assert len(records(taken, 7)) == len(taken)


def test_a_record_says_what_how_often_and_where() -> None:
    found = records({Refusal(DENIED, "task.cancel", "denied", "anna", "acme", "192.0.2.1"): 2}, 7)
    assert found == [ActionTaken(7, "anna", "acme", DENIED, "task.cancel", "denied, 2 times", "192.0.2.1")]


def test_refusals_do_not_displace_what_was_done() -> None:
    view = AccessView()
    view.apply(1, ActionTaken(1, "anna", "", "task.cancel", "t"))
    for position in range(2, 30_002):
        view.apply(position, ActionTaken(1, "", "", FAILED, "", "wrong key, 1 time", "192.0.2.1"))
    view.apply(30_002, ActionTaken(1, "anna", "", "task.cancel", "u"))
    kept = [done.position for done in view.actions()]
    assert kept[0] == 30_002 and kept[-1] == 1 and len(kept) == 20_002 and kept == sorted(kept, reverse=True)
    assert view.has_actions_since(30_001 - 20_000 + 1) and not view.has_actions_since(5_000)


def test_refusals_beyond_the_bound_are_one_count_for_each_action() -> None:
    counts = Refusals()
    for number in range(BUCKETS_MAX + 3):
        for action in (DENIED, FAILED):
            counts.add(Refusal(action, "task.cancel", "wrong key", "anna", "acme", str(number)))
    counts.add(Refusal(DENIED, "task.cancel", "wrong key", "anna", "acme", "0"))
    taken = counts.take()
    assert len(taken) == 2 * (BUCKETS_MAX + 1)
    assert [taken[Refusal(action, "", "further ones", "", "", "")] for action in (DENIED, FAILED)] == [3, 3]
    assert taken[Refusal(DENIED, "task.cancel", "wrong key", "anna", "acme", "0")] == 2, "a known one is counted as itself"
