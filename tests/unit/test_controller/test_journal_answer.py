"""What a member sees of a task's journal: their own names, and of every other tenant the same words and nothing that tells them apart."""

from __future__ import annotations

import json
from typing import Any

from bus_schemas.events import DeviceFact, NodeRegistered, SessionOpenedFact, TaskPlaced, TaskSubmitted
from scheduler.placement import ClusterView
from services.controller.presenters.journal import HIDDEN, timeline_answer, waits_answer

GIB = 1 << 30
_GIVEN = {"s-zebra": 1, "s-lion": 2, "s-sister": 4}
_LANES = [{"node": "n1", "gpu": 0}, {"node": "n9", "gpu": 1}]


def view() -> ClusterView:
    found = ClusterView()
    facts: list[Any] = [NodeRegistered(1, "n1", "atlas", "", 1, (DeviceFact(0, "cpu", "host", 2, GIB),))]
    for tenant, session in (("acme", "s-own"), ("acme", "s-sister"), ("zebra", "s-zebra"), ("lion", "s-lion")):
        facts.append(TaskSubmitted(1, f"{tenant}-{session}", tenant, 0, GIB, title=f"{tenant} title"))
        facts.append(TaskPlaced(1, f"{tenant}-{session}", "n1", (0,), (), (), 0))
        facts.append(SessionOpenedFact(1, session, tenant, f"{tenant}-{session}", "n1", 0, 0, GIB, title=f"{tenant} title"))
    for position, fact in enumerate(facts, 1):
        found.apply(position, fact)
    return found


def line(session: str, ns: int, priority: int = 1) -> dict[str, Any]:
    return {"session": session, "task": "", "tenant": "", "priority": priority, "text": session, "ns": ns, "times": 1, "core_ns": ns,
            "rules": {"higher_priority": ns}}  # fmt: skip


def document() -> dict[str, Any]:
    stretches = [{"from_ns": 0, "to_ns": 5, "rule": "higher_priority", **line("s-zebra", 5)}]
    return {
        "asked": "acme-s-own", "complete": True, "batches": 1, "finished": 1, "latency_ns": 9, "waited_ns": 9, "waited": 0, "preempted": 0,
        "by_rule": [], "programs": [], "sessions": [{"session": "s-own"}],
        "by_other": [line("s-zebra", 4, 0), line("s-sister", 3), line("s-lion", 2, 2), line("", 1), line("s-unknown", 1)],
        "longest": [{"session": "s-own", "seq": 1, "arrived_ns": 0, "waited_ns": 5, "stretches": stretches}],
        "memory": {
            "waits": [{"session": "s-own", "nbytes": 9, "from_ns": 0, "to_ns": 1, "swapped_out": _GIVEN}],
            "moves": [{"at_ns": 1, "session": "s-own", "what": "out", "nbytes": 1, "for_session": "s-lion"}],
            "refused": 0,
        },
        "timeline": {"from_ns": 0, "to_ns": 1, "slot_ns": 1, "lanes_total": 2, "lanes": _LANES},
    }  # fmt: skip


def test_other_tenants_are_one_line_without_a_name() -> None:
    found = waits_answer(view(), "acme", document(), lambda tenant: tenant == "acme")
    assert [(one["text"], one["ns"]) for one in found["by_other"]] == [(HIDDEN, 7), ("acme-s-sister (acme title)", 3), ("", 1)]
    hidden = found["by_other"][0]
    assert (hidden["session"], hidden["priority"], hidden["core_ns"], hidden["rules"]) == ("", -1, 0, {"higher_priority": 7})
    assert found["memory"]["waits"][0]["swapped_out"] == {HIDDEN: 3, "s-sister": 4}
    assert found["memory"]["moves"][0]["for_session"] == HIDDEN
    text = json.dumps(found)
    assert not [word for word in ("zebra", "lion", "unknown") if word in text]


def test_who_may_know_of_all_tenants_sees_every_name() -> None:
    found = waits_answer(view(), "acme", document(), lambda tenant: True)
    assert [one["task"] for one in found["by_other"]] == ["zebra-s-zebra", "acme-s-sister", "lion-s-lion", "", ""]
    assert found["by_other"][-1]["text"] == "s-unknown"
    assert found["memory"] == document()["memory"]


def test_a_lane_has_the_name_of_its_node() -> None:
    assert [lane["node_name"] for lane in timeline_answer(view(), document())["lanes"]] == ["atlas", "n9"]
