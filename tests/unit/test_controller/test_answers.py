"""What the API shows, from a view made of facts."""

from __future__ import annotations

import json

import pytest

from bus_schemas.events import ConfigChanged, DeviceFact, NodeRegistered, TaskPlaced, TaskRefused, TaskSubmitted
from scheduler.placement import ClusterView, decide
from services.controller.presenters import rfc3339
from services.controller.presenters.nodes import node_answer
from services.controller.presenters.tasks import placement_answer, refusal_sentence, task_answer, task_row


@pytest.mark.parametrize(
    ("unix_ns", "text"),
    [
        (0, "1970-01-01T00:00:00.000Z"),
        (1_700_000_000_123_999_999, "2023-11-14T22:13:20.123Z"),
        (4_102_444_800 * 10**9, "2100-01-01T00:00:00.000Z"),
    ],
)
def test_times_are_rfc3339_cut_to_milliseconds(unix_ns: int, text: str) -> None:
    assert rfc3339(unix_ns) == text


def view_with(*events: object) -> ClusterView:
    view = ClusterView()
    for position, event in enumerate(events, start=1):
        view.apply(position, event)  # type: ignore[arg-type]  # a row of facts
    return view


def test_the_sentence_for_the_user_groups_reasons() -> None:
    refused = TaskRefused(
        0, "t", (("a", -1, "node_lost", "the node is lost: silent"), ("b", 0, "vram_short", "x"), ("b", 1, "vram_short", "y")), 1
    )
    view = view_with(NodeRegistered(1, "b", "bee", "", 1, (DeviceFact(0, "gpu", "host", 8, 1 << 34),)))
    assert refusal_sentence(view, refused) == (
        "no device fits: 1 node lost (a: the node is lost: silent); 2 devices with too little free VRAM (e.g. bee, GPU 0: x)"
    )
    nowhere = TaskRefused(0, "t", (("", -1, "no_nodes", "start one"),), 1)
    assert refusal_sentence(ClusterView(), nowhere) == "no device fits: no node has joined (start one)"


def test_the_commonest_reason_is_that_of_most_devices_not_of_most_examples() -> None:
    full = [NodeRegistered(1, name, name, "", 1, (DeviceFact(0, "gpu", "host", 8, 1 << 20),)) for name in "abcdefgh"]
    drained = [ConfigChanged(1, name, "drained", 1) for name in "abc"]
    view = view_with(*full, *drained, TaskSubmitted(2, "t", "acme", 0, 1 << 30, queue=True))
    view.apply(99, decide(view, view.tasks["t"].submitted, 3).event())
    assert task_row(view, view.tasks["t"]).refusal == "Not enough VRAM is left"


def test_a_decision_on_a_node_unknown_today_is_still_shown() -> None:
    """An old log whose node facts another tool removed: the placement has what it needs in itself, but for the name."""
    answer = placement_answer(ClusterView(), TaskPlaced(0, "t", "gone", (0,), (), (("x", -1, "node_lost", "why"),), 7))
    assert (answer["node"], answer["node_name"], answer["position"]) == ("gone", None, 7)
    assert answer["refusals"] == [{"node": "x", "gpu": None, "reason": "node_lost", "detail": "why"}]


def test_scores_of_which_nothing_else_is_known_are_shown() -> None:
    answer = placement_answer(ClusterView(), TaskPlaced(0, "t", "a", (0,), (("a", 0, 7),), (), 7))
    assert answer["candidates"] == [{"node": "a", "gpu": 0, "score": 7, "parts": {}, "measured": None}]


def test_equal_views_give_equal_bytes_whatever_the_order_of_sets() -> None:
    node = NodeRegistered(1, "a", "a", "", 1, (DeviceFact(0, "gpu", "host", 8, 1 << 34),))
    facts: list[object] = [node]
    for name in ("t3", "t1", "t2", "t10"):
        facts.append(TaskSubmitted(2, name, "acme", 0, 1 << 20))
        facts.append(TaskPlaced(3, name, "a", (0,), (), (), 1))
    first, second = view_with(*facts), view_with(*facts)
    second.nodes["a"].tasks = set()
    for name in ("t10", "t2", "t1", "t3"):
        second.nodes["a"].tasks.add(name)
    answers = [json.dumps(node_answer(view, "a")) for view in (first, second)]
    assert answers[0] == answers[1]
    assert node_answer(first, "a")["devices"][0]["tasks"] == ["t1", "t10", "t2", "t3"]


def test_a_waiting_task_has_no_node_and_no_placement() -> None:
    submitted = TaskSubmitted(1, "t", "acme", 2, 3 << 20, 2, True, ("g",), True, "train", True)
    view = view_with(submitted)
    assert task_answer(view, view.tasks["t"]) == {
        "id": "t",
        "tenant": "acme",
        "title": "train",
        "priority": 2,
        "state": "queued",
        "reason": "",
        "outcome": None,
        "required_vram_mb": 3,
        "vram_grows": False,
        "gpu_count": 2,
        "gpu_mode": "Exclusive",
        "groups": ["g"],
        "noswap": True,
        "queue": True,
        "queue_timeout_ms": 0,
        "reservation": False,
        "start_lease_ms": 0,
        "gang": "",
        "gang_size": 0,
        "weight": 100,
        "sla_ms_p99": 0,
        "pace_percent": 0,
        "node": None,
        "node_name": None,
        "gpus": [],
        "move": None,
        "stayed": None,
        "sessions": 0,
        "submitted_at": "1970-01-01T00:00:00.000Z",
        "updated_at": "1970-01-01T00:00:00.000Z",
        "placement": None,
    }


def test_every_candidate_shows_the_parts_of_its_score() -> None:
    devices = tuple(DeviceFact(index, "gpu", "host", 8, 10 << 30) for index in range(2))
    view = view_with(NodeRegistered(1, "a", "a", "", 1, devices))
    answer = placement_answer(view, decide(view, TaskSubmitted(1, "t", "acme", 0, 1 << 30), 5).event())
    assert [candidate["gpu"] for candidate in answer["candidates"]] == [0, 1]
    for candidate in answer["candidates"]:
        parts = candidate["parts"]
        assert candidate["score"] == 3 * parts["utilization"] + 3 * parts["starvation"] + 2 * parts["vram"] + 2 * parts["priority"]
