"""Rows of nodes, devices, sessions and of the Dashboard: what a scope sees, what counts as measured, that templates escape everything."""

from __future__ import annotations

import re
from typing import Any

import pytest

from bus_schemas.events import (
    ConfigChanged,
    DeviceFact,
    Event,
    NodeLost,
    NodeRegistered,
    SessionOpenedFact,
    TaskPlaced,
    TaskRefused,
    TaskSubmitted,
)
from bus_schemas.telemetry import RunningSession, Telemetry
from scheduler.placement import ClusterView
from services.controller.presenters.nodes import device_rows, node_row, session_rows
from services.controller.web.dashboard import glance
from services.controller.web.formats import bytes_text, credits_text, duration_text
from services.controller.web.listing import Listing
from services.controller.web.nodes import SORTS, listed_nodes
from services.controller.web.scope import CLUSTER, Scope
from services.controller.web.templating import ENVIRONMENT
from services.kit.access import Identity, local_identity

GIB = 1 << 30
ACME = Scope.of(Identity("ann", "acme", "member"))
HOSTILE = "<img src=x onerror=alert(1)>\"'&{{7*7}}</script>"


def node(name: str, *, title: str = "", gpus: int = 1, epoch: int = 1, groups: tuple[str, ...] = ()) -> NodeRegistered:
    devices = tuple(DeviceFact(index, f"gpu{index}", "host", 8, 10 * GIB) for index in range(gpus))
    return NodeRegistered(1, name, title or name, f"{name}.example", epoch, devices, groups, "1")


def seen(name: str, gpu: int = 0, *, utilization: int = 40, epoch: int = 1, running: tuple[RunningSession, ...] = ()) -> Telemetry:
    return Telemetry(10**9, name, epoch, gpu, 1000, utilization, 5, 10 * GIB, 4 * GIB, 0, GIB, running, 8, 2 * GIB, GIB)


def fold(*events: Event) -> ClusterView:
    view = ClusterView()
    for position, event in enumerate(events, 1):
        view.apply(position, event)
    return view


def placed(task: str, tenant: str, where: str) -> list[Event]:
    return [TaskSubmitted(1, task, tenant, 1, GIB, title=f"{task} of {tenant}"), TaskPlaced(2, task, where, (0,), (), (), 1)]


def busy() -> tuple[ClusterView, list[Telemetry]]:
    """Two nodes, tasks of two tenants on the first, one lost node, one task that waits."""
    opened = [SessionOpenedFact(3, f"s-{task}", tenant, task, "n1", 0, 1, GIB) for task, tenant in (("t1", "acme"), ("t2", "globex"))]
    waits = TaskSubmitted(4, "t3", "globex", 2, 99 * GIB, queue=True, title="too large")
    refused = TaskRefused(5, "t3", (("n1", 0, "vram_short", "x"), ("n2", 0, "vram_short", "y")), 1)
    view = fold(
        node("n1", gpus=2), node("n2"), node("n3"), *placed("t1", "acme", "n1"), *placed("t2", "globex", "n1"), *opened,
        NodeLost(6, "n3", 1, "silent"), waits, refused,
    )  # fmt: skip
    runs = tuple(
        RunningSession(f"s-{task}", task, 1, GIB, tenant, f"{task} script", core_ns=4 * 10**9, waits=2, wait_ns=6 * 10**6, state="running")
        for task, tenant in (("t1", "acme"), ("t2", "globex"))
    )
    return view, [seen("n1", running=runs), seen("n1", 1, utilization=60), seen("n2", utilization=2), seen("n3", utilization=99)]


def test_the_cluster_at_a_glance() -> None:
    view, measured = busy()
    found = glance(view, measured, CLUSTER, 10**10)
    figures = found.figures
    assert (figures.nodes, figures.nodes_ready, figures.nodes_lost, figures.devices) == (3, 2, 1, 3)
    assert (figures.running, figures.queued, figures.waiting, figures.sessions) == (2, 1, 1, 2)
    assert (figures.utilization, figures.used_bytes, figures.swapped_bytes) == (34, 12 * GIB, 3 * GIB)  # the lost one does not count
    assert [(row.node, row.index) for row in found.devices] == [("n1", 0), ("n1", 1), ("n2", 0)]
    assert [row.share_percent for row in found.sessions] == [50.0, 50.0]
    assert [(row.id, row.refusal) for row in found.queue] == [("t3", "Not enough VRAM is left")]


def test_a_member_sees_nodes_whole_and_tasks_of_their_tenant_only() -> None:
    view, measured = busy()
    found = glance(view, measured, ACME, 10**10)
    assert (found.figures.nodes, found.figures.utilization) == (3, 34)
    assert (found.figures.running, found.figures.queued, found.figures.sessions) == (1, 0, 1)
    assert {row.tenant for row in found.sessions} == {"acme"} and not found.queue
    by_device = {(one.node, one.gpu): one for one in measured}
    assert node_row(view, by_device, ACME.sees, "n1").tasks == 1 and node_row(view, by_device, CLUSTER.sees, "n1").tasks == 2
    assert [row.sessions for row in device_rows(view, by_device, ACME.sees, "n1")] == [1, 0]
    text = "".join(
        ENVIRONMENT.get_template(f"dashboard/{name}.html").render(glance=found, figures=found.figures, rate=0, scope=ACME)
        for name in ("stats", "devices", "sessions", "queue")
    )
    assert "acme" in text and "globex" not in text and "t2" not in text


def test_a_measurement_of_an_earlier_life_is_none() -> None:
    view = fold(node("n1", epoch=2))
    old = {("n1", 0): seen("n1", epoch=1)}
    assert not device_rows(view, old, CLUSTER.sees, "n1")[0].measured
    assert node_row(view, old, CLUSTER.sees, "n1").utilization == 0
    assert session_rows(view, list(old.values()), CLUSTER) == []


def names(view: ClusterView, **query: str) -> list[str]:
    measured = {(f"n{at}", 0): seen(f"n{at}", utilization=at * 9) for at in range(1, 4)}
    listing = Listing.parse("/nodes", query, sorts=SORTS, default="name", filters=("state", "group"))
    return [row.id for row in listed_nodes(view, measured, CLUSTER, listing)[0]]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ({}, ["n2", "n1", "n3"]),
        ({"sort": "-utilization"}, ["n2", "n1", "n3"]),
        ({"sort": "utilization"}, ["n3", "n1", "n2"]),
        ({"state": "drained"}, ["n2"]),
        ({"state": "lost"}, ["n3"]),
        ({"group": "west"}, ["n1"]),
        ({"q": "ALPHA"}, ["n2"]),
        ({"q": "n1.example"}, ["n1"]),
        ({"q": "nothing"}, []),
        ({"q": "alpha", "state": "lost"}, []),
    ],
)
def test_the_list_of_nodes(query: dict[str, str], expected: list[str]) -> None:
    events = [node("n1", title="beta", groups=("west",)), node("n2", title="Alpha"), node("n3", title="gamma")]
    view = fold(*events, ConfigChanged(1, "n2", "drained", 1), NodeLost(2, "n3", 1, "silent"))
    assert names(view, **query) == expected


# -- escaping --------------------------------------------------------------------------------------------------------------------------


def hostile_context() -> dict[str, Any]:
    """Every text that comes from outside says something hostile."""
    registered = NodeRegistered(1, "n1", HOSTILE, HOSTILE, 1, (DeviceFact(0, HOSTILE, HOSTILE, 8, GIB),), (), HOSTILE)
    submitted = TaskSubmitted(1, "t1", HOSTILE, 2, 99 * GIB, queue=True, title=HOSTILE)
    view = fold(registered, submitted, TaskRefused(2, "t1", (("n1", 0, HOSTILE, HOSTILE),), 1), NodeLost(3, "n1", 0, HOSTILE))
    run = RunningSession(HOSTILE, HOSTILE, 1, GIB, HOSTILE, HOSTILE, state=HOSTILE)
    measured = [seen("n1", running=(run,))]
    by_device = {("n1", 0): measured[0]}
    found = glance(view, measured, CLUSTER, 10**10)
    row = node_row(view, by_device, CLUSTER.sees, "n1")
    return {
        "glance": found, "figures": found.figures, "rate": 1.0, "scope": CLUSTER, "row": row, "node": row,
        "device": device_rows(view, by_device, CLUSTER.sees, "n1")[0], "sessions": session_rows(view, measured, CLUSTER.sees),
    }  # fmt: skip


FRAGMENTS = (
    "dashboard/stats.html", "dashboard/devices.html", "dashboard/sessions.html", "dashboard/queue.html", "nodes/row.html",
    "nodes/facts.html", "nodes/device.html", "nodes/sessions.html",
)  # fmt: skip


@pytest.mark.parametrize("template", FRAGMENTS)
def test_nothing_from_outside_becomes_markup(template: str) -> None:
    text = ENVIRONMENT.get_template(template).render(hostile_context())
    assert "<img" not in text and "</script" not in text
    assert not re.search(r'="[^"]*<', text)


def test_a_hostile_text_is_shown_as_it_is() -> None:
    text = ENVIRONMENT.get_template("dashboard/sessions.html").render(hostile_context())
    assert text.count("&lt;img src=x onerror=alert(1)&gt;&#34;&#39;&amp;{{7*7}}&lt;/script&gt;") >= 3


# -- figures ---------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536 << 20, "1.5 GiB"),
        (200 << 30, "200 GiB"),
        (3 << 50, "3 PiB"),
        (5000 << 50, "5000 PiB"),
    ],
)
def test_bytes(size: int, text: str) -> None:
    assert bytes_text(size) == text


@pytest.mark.parametrize(
    ("ns", "text"),
    [
        (0, "0 ms"),
        (850 * 10**6, "850 ms"),
        (1_500_000_000, "1.5 s"),
        (61 * 10**9, "1 min 1 s"),
        (3600 * 10**9, "1 h"),
        (90_000 * 10**9, "1 d 1 h"),
    ],
)
def test_durations(ns: int, text: str) -> None:
    assert duration_text(ns) == text


def test_credits() -> None:
    assert [credits_text(value) for value in (0, 0.5, 12.345, 1234567.8)] == ["0", "0.50", "12.35", "1,234,568"]


def test_a_scope_is_what_an_identity_may() -> None:
    assert Scope.of(local_identity()) == CLUSTER or Scope.of(local_identity()).actions <= CLUSTER.actions
    viewer, member = Scope.of(Identity("v", "acme", "viewer")), ACME
    assert viewer.may("task.read") and not viewer.may("task.cancel") and not viewer.may("node.configure")
    assert member.may("task.cancel") and not member.may("node.configure")
    assert Scope.of(Identity("", "", "")).actions == frozenset()
