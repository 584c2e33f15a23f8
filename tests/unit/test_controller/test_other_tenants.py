"""What an answer to one tenant says of another's tasks: that room is taken, never by whom."""

from __future__ import annotations

import json

from bus_schemas.events import DeviceFact, NodeRegistered, SessionOpenedFact, TaskPlaced, TaskRefused, TaskSubmitted
from bus_schemas.telemetry import RunningSession, Telemetry
from scheduler.placement import ClusterView, why_waiting
from services.controller.presenters.nodes import group_answer, node_answer, telemetry_answer
from services.controller.presenters.tasks import placement_answer, refusal_sentence, task_answer
from services.controller.presenters.waiting import waiting_answer

GIB = 1 << 30
MINE, THEIRS = "mine-1", "theirs-1"


def shown(tenant: str) -> bool:
    return tenant == "me"


def view() -> ClusterView:
    out = ClusterView()
    facts = [
        NodeRegistered(1, "n", "n", "", 1, (DeviceFact(0, "gpu", "host", 8, 2 * GIB),), ("g",)),
        TaskSubmitted(2, THEIRS, "them", 0, 2 * GIB, groups=("g",), queue=True),
        TaskPlaced(3, THEIRS, "n", (0,), (), (), 2),
        SessionOpenedFact(4, "theirs-session", "them", THEIRS, "n", 0, 0, GIB),
        TaskSubmitted(5, MINE, "me", 0, GIB, groups=("g",), queue=True),
        TaskRefused(6, MINE, (("n", 0, "reserved", f"kept for task {THEIRS}, which has waited long and goes first"),), 5),
    ]
    for position, fact in enumerate(facts, start=1):
        out.apply(position, fact)  # type: ignore[arg-type]  # a row of facts
    return out


def test_nothing_names_them() -> None:
    seen = view()
    waiting = why_waiting(seen, MINE, 10)
    decision = seen.tasks[MINE].decision
    assert waiting is not None
    assert decision is not None
    running = RunningSession("theirs-session", THEIRS, 0, GIB, "them")
    telemetry = Telemetry(1, "n", 1, 0, 1000, 90, 10, 2 * GIB, GIB, running=(running,))
    answers = [
        waiting_answer(seen, waiting, shown),
        placement_answer(seen, decision, shown),
        refusal_sentence(seen, decision, shown),
        task_answer(seen, seen.tasks[MINE], shown),
        node_answer(seen, "n", shown),
        group_answer(seen, "g", "me"),
        telemetry_answer(telemetry, 1, shown),
    ]
    for answer in answers:
        assert "theirs" not in json.dumps(answer), answer


def test_that_room_is_taken_is_said_all_the_same() -> None:
    seen = view()
    waiting = why_waiting(seen, MINE, 10)
    assert waiting is not None
    answer = waiting_answer(seen, waiting, shown)
    assert (answer["place"], answer["refused"]) == (1, [{"reason": "vram_short", "count": 1, "text": "1 device with too little free VRAM"}])
    assert answer["remedies"][0]["text"] == "the end of 1 task of other tenants on n, GPU 0"
    (device,) = node_answer(seen, "n", shown)["devices"]
    assert (device["promised_bytes"], device["tasks"], device["sessions"]) == (2 * GIB, [], [])
    assert group_answer(seen, "g", "me")["tasks"] == 1


def test_an_identity_that_sees_all_learns_whose_end_it_takes() -> None:
    seen = view()
    waiting = why_waiting(seen, MINE, 10)
    assert waiting is not None
    answer = waiting_answer(seen, waiting, lambda tenant: True)
    assert THEIRS in answer["remedies"][0]["tasks"]
    assert THEIRS in answer["sentence"]
