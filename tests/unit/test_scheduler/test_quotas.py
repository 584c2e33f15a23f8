"""Answers of quotas follow from the question, so what is on record can be run again; a flood of refusals is one record."""

from __future__ import annotations

import pytest

from bus_schemas.journal import QUOTAS
from bus_schemas.quotas import Excess, Rate
from scheduler.buckets import Buckets
from scheduler.quotas import Asked, Refusals, answer, asked_of, excess_of
from services.replay.lanes import Segment, check
from services.server.journal_stream import Lane, QuotaLane

SECOND = 10**9


@pytest.mark.parametrize(
    ("asked", "excess"),
    [
        (Asked(7, "sessions", "a", 4, 3), None),
        (Asked(7, "sessions", "a", 4, 4), Excess("sessions", 4, 4, 5_000)),
        (Asked(7, "staged_bytes", "a", 100, 60, 40), None),
        (Asked(7, "staged_bytes", "a", 100, 60, 41), Excess("staged_bytes", 100, 60, 5_000)),
        (Asked(0, "opens", "a", Rate(2, 4), 3 * SECOND // 2), None),
        (Asked(0, "opens", "a", Rate(2, 4), 2 * SECOND), Excess("opens", 4, 4, 500)),
        (Asked(SECOND // 2, "opens", "a", Rate(2, 4), 2 * SECOND), None),
    ],
)
def test_an_answer_follows_from_the_question(asked: Asked, excess: Excess | None) -> None:
    assert answer(asked) == excess


def test_a_bucket_is_asked_with_its_own_state() -> None:
    buckets: Buckets[str] = Buckets(Rate(1, 2))
    for _ in range(2):
        assert excess_of("opens", buckets, "a", 0) is None
        buckets.take("a", 0)
    assert asked_of("opens", buckets, "a", 0) == Asked(0, "opens", "a", Rate(1, 2), 2 * SECOND)
    assert excess_of("opens", buckets, "a", 0) == Excess("opens", 2, 2, 1_000)


def test_a_flood_is_one_record_for_each_quota_and_asker_and_of_very_many_askers_one_for_the_quota() -> None:
    refusals = Refusals()
    for at_ns in range(1000):
        refusals.note(Asked(at_ns, "opens", "a", 4, 4))
        refusals.note(Asked(at_ns, "opens", "b", 4, 4))
    assert [(asked.who, asked.at_ns, asked.times) for asked in refusals.take()] == [("a", 999, 1000), ("b", 999, 1000)]
    assert refusals.take() == []
    for number in range(10_000):
        refusals.note(Asked(number, "opens", f"tenant {number}", 4, 4))
    taken = refusals.take()
    assert len(taken) == 257 and sum(asked.times for asked in taken) == 10_000
    assert taken[-1].who == "" and taken[-1].times == 10_000 - 256


def test_what_is_on_record_is_decided_again_and_another_decision_is_found() -> None:
    lane = Lane("n", 1, 0, QUOTAS, lambda: None)
    quotas = QuotaLane(lane)
    quotas.add([Asked(1, "opens", "a", Rate(2, 4), 2 * SECOND, 1, 17), Asked(2, "sessions", "a", 4, 4)])
    quotas.add([Asked(3, "messages", "b", Rate(4, 8), 4 * SECOND, 40)])
    lane.seal()
    segment = Segment("n", 1, 0, QUOTAS, lane.segment, list(lane.parts))
    verdict = check(segment)
    assert verdict is not None and verdict.equal and (verdict.records, verdict.decisions) == (3, 3)
    (part,) = segment.parts
    forged = part.frames.replace(b"sessions", b"sessionz")
    segment.parts = [type(part)(**{name: getattr(part, name) for name in part.__struct_fields__} | {"frames": forged})]
    verdict = check(segment)
    assert verdict is not None and not verdict.equal
