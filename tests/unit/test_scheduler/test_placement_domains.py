"""Nodes whose devices serve one trust domain at a time: whose tasks go where, what waits for whom, and what changes that."""

from __future__ import annotations

import msgspec

from bus_schemas.events import NodeLost, NodeRecovered, NodeRegistered, SessionClosedFact, SessionOpenedFact, TaskSubmitted
from scheduler.placement import why_waiting
from tests.unit.test_scheduler.clusters import GIB, Cluster, node, session, task

SHARED = (("acme", "ally"),)


def divided(name: str, *gib: int) -> NodeRegistered:
    return msgspec.structs.replace(node(name, *gib), domains=SHARED)


def of(tenant: str, name: str, gib: int = 1, **more: object) -> TaskSubmitted:
    return msgspec.structs.replace(task(name, gib, **more), tenant=tenant)


def why(cluster: Cluster, name: str) -> dict[str, int]:
    waiting = why_waiting(cluster.view, name, 0)
    return dict(waiting.refused) if waiting is not None else {}


def test_a_device_is_for_one_domain_while_anything_of_it_is_there() -> None:
    cluster = Cluster(divided("a", 10), of("acme", "one"), of("rival", "other"), of("ally", "friend"))
    assert [cluster.where(name) for name in ("one", "friend", "other")] == ["a", "a", ""]
    assert why(cluster, "other") == {"other_domain": 1}
    cluster.end("one", 0)
    assert cluster.where("other") == ""
    cluster.end("friend", 0)
    assert cluster.where("other") == "a"


def test_each_device_serves_a_domain_of_its_own() -> None:
    cluster = Cluster(divided("a", 10, 10), of("acme", "one"), of("rival", "other"), of("third", "last"), of("ally", "friend"))
    assert {(task.placed.node, task.placed.gpus) for task in cluster.view.tasks.values() if task.placed} == {("a", (0,)), ("a", (1,))}
    assert cluster.where("last") == "" and cluster.where("friend") == "a"
    assert why(cluster, "last") == {"other_domain": 2}


def test_a_node_that_serves_all_tenants_beside_each_other_is_not_asked_whose_a_task_is() -> None:
    cluster = Cluster(divided("a", 10), node("b", 10), of("acme", "one", 9), of("rival", "other", 9), of("third", "last"))
    assert sorted(cluster.where(name) for name in ("one", "other")) == ["a", "b"]
    assert cluster.where("last") == "b"


def test_one_tenants_wait_says_nothing_of_anothers() -> None:
    """Of two tasks that ask for the same, the one behind fits."""
    cluster = Cluster(divided("a", 10), of("acme", "one"), of("rival", "waits"), of("acme", "fits"))
    assert cluster.where("waits") == "" and cluster.where("fits") == "a"


def test_a_session_without_a_task_has_the_device_for_its_domain() -> None:
    cluster = Cluster(divided("a", 10), session("s", "", "a"), of("rival", "other"))
    assert cluster.where("other") == ""
    cluster.add(SessionClosedFact(1, "s", "a", "done", 0, 0, 0, 0, ""))
    assert cluster.where("other") == "a"


def test_all_of_another_domain_must_end_however_small_the_task() -> None:
    cluster = Cluster(divided("a", 10), of("acme", "one", 2), of("ally", "two", 1), of("rival", "t"))
    waiting = why_waiting(cluster.view, "t", 0)
    assert waiting is not None
    assert [(remedy.kind, remedy.tasks) for remedy in waiting.remedies] == [("end", ("one", "two"))]


def test_a_node_that_comes_back_with_sessions_of_another_domain_is_no_remedy() -> None:
    cluster = Cluster(divided("a", 10), of("acme", "one"), session("s", "one", "a"), NodeLost(1, "a", 1, "silent"), of("rival", "t"))
    waiting = why_waiting(cluster.view, "t", 0)
    assert waiting is not None and [remedy.kind for remedy in waiting.remedies] == ["join"]
    cluster.add(NodeRecovered(1, "a", 1))
    assert cluster.where("t") == "" and why(cluster, "t") == {"other_domain": 1}


def test_a_node_that_registers_otherwise_is_divided_otherwise() -> None:
    cluster = Cluster(node("a", 10), of("acme", "one"), of("rival", "other"))
    assert cluster.where("other") == "a"
    cluster.add(msgspec.structs.replace(divided("a", 10), epoch=2))
    cluster.add(of("acme", "third"))
    assert cluster.where("third") == "", "tenants of two domains are there, so it takes no task of either"
    cluster.add(msgspec.structs.replace(node("a", 10), epoch=3))
    assert cluster.where("third") == "a" and not cluster.view.divisions


def test_sums_that_are_made_anew_know_whom_a_device_serves() -> None:
    """The node registers with another device, so its rows are new."""
    cluster = Cluster(divided("a", 10), of("acme", "one"))
    cluster.add(msgspec.structs.replace(divided("a", 10, 10), epoch=1))
    cluster.add(SessionOpenedFact(1, "s", "ally", "", "a", 1, 0, GIB))
    cluster.add(of("rival", "other"))
    assert cluster.where("other") == "" and why(cluster, "other") == {"other_domain": 2}
