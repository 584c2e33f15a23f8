"""The story of a task in words: reasons, scores, waiting, what happened; and who may read which name."""

from __future__ import annotations

from typing import Any

import pytest

from bus_schemas.events import (
    ActionTaken,
    DeviceFact,
    NodeRegistered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskPlaced,
    TaskRefused,
    TaskStateChanged,
    TaskSubmitted,
)
from scheduler.placement import ClusterView, decide
from scheduler.placement.reasons import REASONS
from services.controller.presenters.tasks import REASON_TITLES, placement_of
from services.controller.presenters.waiting import Waiting, waiting_of
from services.controller.task_history import moments, session_lines, trace_of
from services.controller.web.scope import CLUSTER, Scope

GIB = 1 << 30
ACME = Scope("acme", frozenset())


def fold(*facts: Any) -> ClusterView:
    view = ClusterView()
    for position, fact in enumerate(facts, start=1):
        view.apply(position, fact)
    return view


def node(name: str, *gib: int) -> NodeRegistered:
    return NodeRegistered(1, name, f"{name}-name", "", 1, tuple(DeviceFact(i, "gpu", "host", 8, size * GIB) for i, size in enumerate(gib)))


def placed(view: ClusterView, task: TaskSubmitted) -> None:
    view.apply(view.position + 1, task)
    view.apply(view.position + 1, decide(view, task, 10).event())


def test_every_reason_has_words() -> None:
    assert set(REASON_TITLES) == REASONS


def test_a_placement_names_its_devices_and_its_parts() -> None:
    view = fold(node("a", 8, 8), node("b", 2))
    placed(view, TaskSubmitted(2, "t", "acme", 1, 4 * GIB))
    found = placement_of(view, view.tasks["t"], CLUSTER.sees)
    assert found is not None and found.placed and (found.node_name, found.fits) == ("a-name", 2)
    assert [one.chosen for one in found.candidates] == [True, False]
    for one in found.candidates:
        assert [part.name for part in one.parts] == ["utilization", "starvation", "vram", "priority"]
        assert sum(part.points for part in one.parts) == one.score
    assert [(why.reason, why.count, why.examples[0][0]) for why in found.why_not] == [("vram_short", 1, "b-name, GPU 0")]


def test_counts_of_reasons_are_of_all_and_not_of_the_examples() -> None:
    view = fold(*(node(f"n{number:03d}", 1) for number in range(50)))
    placed(view, TaskSubmitted(2, "t", "acme", 1, 4 * GIB, queue=True))
    found = placement_of(view, view.tasks["t"], CLUSTER.sees)
    assert found is not None and not found.placed
    assert [(why.reason, why.count, len(why.examples)) for why in found.why_not] == [("vram_short", 50, 3)]


def waiting(view: ClusterView, scope: Scope) -> Waiting:
    found = waiting_of(view, "wish", 60 * 10**9, scope.sees)
    assert found is not None
    return found


def text(found: Waiting) -> str:
    return " | ".join(f"{way.before}{', '.join(label for label, _ in way.links)}{way.after}" for way in found.frees)


def test_remedies_name_only_what_the_reader_may_know() -> None:
    view = fold(node("a", 8))
    placed(view, TaskSubmitted(2, "mine", "acme", 1, 3 * GIB, title="my training"))
    placed(view, TaskSubmitted(2, "other", "globex", 1, 4 * GIB, title="secret project"))
    placed(view, TaskSubmitted(2, "wish", "acme", 2, 8 * GIB, queue=True))
    everyone, member = waiting(view, CLUSTER), waiting(view, ACME)
    assert (everyone.place, everyone.of) == (1, 1)
    assert "my training" in text(everyone) and "secret project" in text(everyone) and "an overcommit of a-name" in text(everyone)
    assert "my training" in text(member) and "1 task of other tenants" in text(member)
    for word in ("secret", "other,", "globex"):
        assert word not in text(member)
    assert ("my training", "/tasks/mine") in [link for way in member.frees for link in way.links]


def test_a_task_that_does_not_wait_has_nothing_to_tell() -> None:
    view = fold(node("a", 8))
    placed(view, TaskSubmitted(2, "t", "acme", 1, GIB))
    assert waiting_of(view, "t", 10, CLUSTER.sees) is None
    assert waiting_of(view, "unheard-of", 10, CLUSTER.sees) is None


def test_reservations_are_shown_to_identities_that_see_all() -> None:
    view = fold(node("a", 8), TaskSubmitted(2, "t", "acme", 1, GIB, queue=True))
    view.apply(3, TaskRefused(3, "t", (("a", 0, "reserved", "kept for task theirs, which goes first"),), 2))
    for scope, named in ((CLUSTER, True), (ACME, False)):
        found = placement_of(view, view.tasks["t"], scope.sees)
        assert found is not None and ("theirs" in found.why_not[0].examples[0][1]) is named


FACTS = [
    (5, TaskSubmitted(1, "t", "acme", 2, 3 * GIB, gpu_count=2)),
    (5, ActionTaken(1, "ada", "acme", "task.submit", "t")),
    (6, TaskPlaced(2, "t", "a", (0, 1), (("a", 0, 700),), (), 5)),
    (8, SessionOpenedFact(3, "s1", "acme", "t", "a", 0, 2, GIB, traceparent=f"00-{'ab' * 16}-{'cd' * 8}-01")),
    (9, SessionClosedFact(7, "s1", "a", "done", 5_000, 6_000, 7, 8, "digest")),
    (9, TaskStateChanged(9, "t", "completed", "")),
]


def test_the_timeline_is_in_order_and_names_who_did_it() -> None:
    found = moments(FACTS)
    assert [(one.kind, one.actor) for one in found] == [
        ("queued", "ada"),
        ("placed", ""),
        ("started", ""),
        ("ended", ""),
        ("completed", ""),
    ]
    assert found[0].detail == "priority 2, 3 GiB on each of 2 GPUs" and found[1].title == "Placed on a, GPU 0, 1"


def test_a_session_is_open_until_it_is_closed() -> None:
    (open_one,) = session_lines(FACTS[:4])
    assert (open_one.session, open_one.closed_ns, open_one.core_ns) == ("s1", 0, 0)
    (closed,) = session_lines(FACTS)
    assert (closed.closed_ns, closed.reason, closed.core_ns, closed.launches, closed.digest) == (7, "done", 5_000, 8, "digest")
    assert session_lines(FACTS[4:]) == []


@pytest.mark.parametrize("given", ["", "nonsense", f"00-{'ab' * 16}-{'cd' * 8}-00", f"00-{'00' * 16}-{'cd' * 8}-01"])
def test_what_is_no_trace_is_none(given: str) -> None:
    assert trace_of([(1, SessionOpenedFact(3, "s1", "acme", "t", "a", 0, 2, GIB, traceparent=given))]) == ""
    assert trace_of(FACTS) == "ab" * 16
