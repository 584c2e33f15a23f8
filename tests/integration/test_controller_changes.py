"""What people change, and how: groups, priorities, cancelling, draining; on the revision they saw, by fields that exist, each with who did
it in the log."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from bus_schemas.events import (
    ActionTaken,
    Event,
    NodeLost,
    NodeRecovered,
    SessionClosedFact,
    SessionOpenedFact,
    SessionPriorityChanged,
    TaskDisplaced,
    TierSet,
    decode_events,
)
from bus_schemas.session import EndTask, SetPriority
from bus_schemas.subjects import node_requests
from scheduler.placement.states import REASON_NODE_LOST, REASON_TAKEN
from services.kit.bus import connect
from tests.support.plane import GIB, Plane, wait_until
from wooly.cli.group import EXIT_ERROR, CommandError, app


def log_of(plane: Plane, subject: str) -> list[list[Event]]:
    """The messages on one subject, in order."""

    async def read() -> list[list[Event]]:
        bus = await connect(plane.nats.url, name="reader")
        found: list[list[Event]] = []
        info = await bus.js_api("STREAM.INFO.WOOLY_EVENTS", {"subjects_filter": subject})
        wanted = info["state"].get("subjects", {}).get(subject, 0)
        all_there = asyncio.Event()

        def on_message(position: int, on: str, data: bytes) -> None:
            found.append(decode_events(data))
            if len(found) == wanted:
                all_there.set()

        follower = bus.follow("WOOLY_EVENTS", 1, on_message, subject=subject)
        await follower.start()
        try:
            async with asyncio.timeout(60):
                await all_there.wait()
        finally:
            await follower.stop()
            await bus.close()
        return found

    return asyncio.run(read())


def test_a_group_lives_from_empty_to_deleted(plane: Plane) -> None:
    plane.register("grp-a")
    plane.register("grp-b", groups=("grp-own",))
    made = plane.controller.ask("POST", "/api/v1/groups", {"id": "grp-new", "title": "New ones"})
    assert made.status == 201
    assert (made.json["nodes"], made.json["title"]) == ([], "New ones")
    assert [item["id"] for item in plane.controller.get("/api/v1/groups?empty=true&q=grp")["items"]] == ["grp-new"]
    assert plane.controller.ask("POST", "/api/v1/groups", {"id": "grp-new"}).status == 409
    put = plane.controller.ask("PUT", "/api/v1/groups/grp-new", {"nodes": ["grp-a"]}, revision=made.json["revision"])
    assert (put.status, put.json["nodes"], put.json["title"]) == (200, ["grp-a"], "New ones")
    assert plane.controller.get("/api/v1/nodes/grp-a")["groups"] == ["grp-new"]
    assert plane.controller.submit(groups=["grp-new"])["node"] == "grp-a"
    stale = plane.controller.ask("PUT", "/api/v1/groups/grp-new", {"title": "too late"}, revision=made.json["revision"])
    assert (stale.status, stale.media_type, stale.json["errors"][0]["field"]) == (409, "application/problem+json", "If-Match")
    assert stale.json["revision"] == put.json["revision"]
    assert plane.controller.ask("DELETE", "/api/v1/groups/grp-new", revision=made.json["revision"]).status == 409
    assert plane.controller.ask("DELETE", "/api/v1/groups/grp-new", revision=put.json["revision"]).status == 204
    assert plane.controller.ask("GET", "/api/v1/groups/grp-new").status == 404
    assert plane.controller.get("/api/v1/nodes/grp-a")["groups"] == []
    assert plane.controller.get("/api/v1/groups/grp-own")["declared_by"] == ["grp-b"]
    named = plane.controller.ask("DELETE", "/api/v1/groups/grp-own")
    assert named.status == 409
    assert "grp-b" in named.json["detail"]
    actions = [[event for event in events if isinstance(event, ActionTaken)] for events in log_of(plane, "wooly.evt.group.grp-new")]
    assert [(action.actor, action.action, action.target) for (action,) in actions] == [("local", "group.write", "grp-new")] * 3


def test_a_member_that_is_no_node_is_refused_by_field(plane: Plane) -> None:
    answer = plane.controller.ask("POST", "/api/v1/groups", {"id": "nobody", "nodes": ["no-such-node"]})
    assert (answer.status, answer.json["errors"][0]["field"]) == (400, "nodes")
    assert plane.controller.ask("GET", "/api/v1/groups/nobody").status == 404


def test_a_waiting_task_says_why_goes_ahead_and_leaves(plane: Plane) -> None:
    plane.register("wait-a", gib=(2,), groups=("wait",))
    holder = plane.controller.submit(groups=["wait"], required_vram_mb=2048)
    first = plane.controller.submit(id="wait-1", groups=["wait"], required_vram_mb=1500, queue=True, priority=3)
    second = plane.controller.submit(id="wait-2", groups=["wait"], required_vram_mb=1500, queue=True, priority=3)
    assert (first["state"], first["node"], second["node"]) == ("queued", None, None)
    why = plane.controller.get("/api/v1/tasks/wait-2/waiting")
    assert (why["place"], why["queue_length"], why["priority"]) == (2, 2, 3)
    assert holder["id"] in [task for remedy in why["remedies"] for task in remedy["tasks"]]
    moved = plane.controller.ask("PATCH", "/api/v1/tasks/wait-2", {"priority": 1})
    assert (moved.status, moved.json["priority"]) == (200, 1)
    assert plane.controller.ask("PATCH", "/api/v1/tasks/wait-2", {"priority": 0}, revision=second["revision"]).status == 409
    assert plane.controller.get("/api/v1/tasks/wait-2/waiting")["place"] == 1
    cancelled = plane.controller.ask("POST", f"/api/v1/tasks/{holder['id']}/cancel")
    assert (cancelled.status, cancelled.json["state"], cancelled.json["reason"]) == (200, "cancelled", "cancelled by local")
    wait_until(lambda: plane.controller.get("/api/v1/tasks/wait-2")["node"] == "wait-a")
    assert plane.controller.get("/api/v1/tasks/wait-1")["node"] is None
    again = plane.controller.ask("POST", f"/api/v1/tasks/{holder['id']}/cancel")
    assert (again.status, again.json) == (200, cancelled.json)
    assert plane.controller.ask("PATCH", f"/api/v1/tasks/{holder['id']}", {"priority": 0}).status == 409
    assert plane.controller.ask("GET", f"/api/v1/tasks/{holder['id']}/waiting").status == 409
    assert plane.controller.ask("POST", "/api/v1/tasks/wait-1/cancel").json["state"] == "cancelled"
    (_, action), (changed, by) = log_of(plane, f"wooly.evt.task.{holder['id']}")
    assert isinstance(action, ActionTaken)
    assert isinstance(by, ActionTaken)
    assert (action.action, by.action, by.tenant, getattr(changed, "state", "")) == ("task.submit", "task.cancel", "default", "cancelled")


def test_who_waits_too_long_fails_by_its_own_wish(plane: Plane) -> None:
    plane.register("late-a", gib=(1,), groups=("late",))
    plane.controller.submit(groups=["late"])
    body = {"id": "late-1", "groups": ["late"], "required_vram_mb": 1024, "queue_timeout_ms": 1}
    refused = plane.controller.ask("POST", "/api/v1/tasks", body)
    assert (refused.status, refused.json["errors"][0]["field"]) == (400, "queue_timeout_ms")
    plane.controller.submit(**body, queue=True)
    wait_until(lambda: plane.controller.get("/api/v1/tasks/late-1")["state"] == "failed")
    assert "queue timeout" in plane.controller.get("/api/v1/tasks/late-1")["reason"]


def test_a_tier_limits_the_tasks_of_a_tenant(plane: Plane) -> None:
    """Only new ones: the same again is no other task."""
    plane.publish("config", "tier", TierSet(1, "basic", 0, live_tasks=2), TierSet(1, "basic", 0, "crowd"))
    body = {"tenant": "crowd", "required_vram_mb": 1024, "queue": True, "groups": ["nowhere"]}
    for name in ("crowd-1", "crowd-2", "crowd-1"):
        plane.controller.submit(**body, id=name)
    refused = plane.controller.ask("POST", "/api/v1/tasks", {**body, "id": "crowd-3"})
    assert (refused.status, refused.json["errors"][0]["field"]) == (429, "id")
    assert [refused.json[name] for name in ("quota", "limit", "used", "retry_after_ms")] == ["live_tasks", 2, 2, 5_000]
    assert "2 of 2 tasks that are not over" in refused.json["detail"]
    plane.controller.ask("POST", "/api/v1/tasks/crowd-1/cancel")
    alone = plane.controller.ask("POST", "/api/v1/tasks", {**body, "id": "crowd-3", "gpu_mode": "Exclusive"})
    assert (alone.status, alone.json["errors"][0]["field"]) == (400, "gpu_mode")
    plane.controller.submit(**body, id="crowd-3")


def test_tasks_submitted_at_once_are_limited_like_others(plane: Plane) -> None:
    """All requests are on their way before the first is answered."""
    plane.publish("config", "tier", TierSet(1, "basic", 0, live_tasks=5), TierSet(1, "basic", 0, "rush"))
    address = urllib.parse.urlsplit(plane.controller.url)
    connections = [http.client.HTTPConnection(str(address.hostname), address.port, timeout=60) for _ in range(12)]
    for number, connection in enumerate(connections):
        body = {"id": f"rush-{number}", "tenant": "rush", "required_vram_mb": 1024, "queue": True, "groups": ["nowhere"]}
        connection.request("POST", "/api/v1/tasks", json.dumps(body), {"Content-Type": "application/json"})
    statuses = [connection.getresponse().status for connection in connections]
    assert sorted(statuses) == [202] * 5 + [429] * 7


@pytest.mark.parametrize("reason", [REASON_NODE_LOST, REASON_TAKEN])
def test_a_reservation_ends_for_a_reason_that_the_controller_gives_too(plane: Plane, reason: str) -> None:
    plane.register("kept")
    name = f"kept-{len(reason)}"
    plane.controller.submit(id=name, reservation=True, start_lease_ms=60_000)
    ended = plane.controller.ask("POST", f"/api/v1/tasks/{name}/release", {"failed": True, "reason": reason})
    assert (ended.status, ended.json["state"], ended.json["reason"]) == (200, "failed", f"released: {reason}")
    assert plane.controller.ask("POST", f"/api/v1/tasks/{name}/resume").status == 409


def test_a_task_is_placed_again_once_and_within_the_quotas(plane: Plane) -> None:
    """Whose node was lost: it is displaced once, however often a client asks; and it counts as one more task of its tenant."""
    plane.publish("config", "tier", TierSet(1, "basic", 0, live_tasks=1), TierSet(1, "basic", 0, "heir"))
    plane.register("res-a", groups=("res",))
    plane.register("res-other")
    body = {"tenant": "heir", "groups": ["res"]}
    again = "/api/v1/tasks/res-1/resume"
    plane.controller.submit(**body, id="res-1")
    assert plane.controller.ask("POST", again).status == 409
    plane.publish("node", "res-a", NodeLost(time.time_ns(), "res-a", 1, "stopped"))
    assert plane.controller.get("/api/v1/tasks/res-1")["reason"] == "node lost"
    plane.controller.submit(**body, id="res-2", queue=True)
    refused = plane.controller.ask("POST", again)
    assert (refused.status, refused.json["quota"], refused.json["used"]) == (429, "live_tasks", 1)
    plane.controller.ask("POST", "/api/v1/tasks/res-2/cancel")
    for _ in range(2):
        placed_again = plane.controller.ask("POST", again)
        assert (placed_again.status, placed_again.json["state"], placed_again.json["node"]) == (200, "queued", None)
    events = [event for message in log_of(plane, "wooly.evt.task.res-1") for event in message]
    (displaced,) = [event for event in events if isinstance(event, TaskDisplaced)]
    assert (displaced.node, displaced.lost, displaced.to) == ("res-a", True, "")
    assert [event.action for event in events if isinstance(event, ActionTaken)] == ["task.submit", "task.submit"]
    plane.register("res-b", groups=("res",))
    wait_until(lambda: plane.controller.get("/api/v1/tasks/res-1")["node"] == "res-b")
    assert plane.controller.ask("POST", again).status == 409


def test_a_task_of_the_only_node_waits_for_that_one() -> None:
    """Nothing is given up, or repeated, when it comes back."""
    with Plane() as alone:
        for name in ("a", "b"):
            alone.register(name)
        on = {name: alone.controller.submit(id=name, required_vram_mb=8192)["node"] for name in ("one", "other")}
        assert set(on.values()) == {"a", "b"}
        for name, node in on.items():
            alone.publish("session", f"s-{name}", SessionOpenedFact(time.time_ns(), f"s-{name}", "default", name, node, 0, 2, GIB))
        for name in ("a", "b"):
            alone.publish("node", name, NodeLost(time.time_ns(), name, 1, "stopped"))
        refused = alone.controller.ask("POST", "/api/v1/tasks/one/resume")
        assert refused.status == 409 and "no other one is there" in refused.json["detail"]
        alone.publish("node", on["other"], NodeRecovered(time.time_ns(), on["other"], 1))
        assert "has not lost its node" in alone.controller.ask("POST", "/api/v1/tasks/other/resume").json["detail"]
        assert alone.controller.ask("POST", "/api/v1/tasks/one/resume").json["state"] == "queued"


def test_nodes_are_asked_until_their_facts_say_so(plane: Plane) -> None:
    """A cancelled task's session is ended, a changed priority reaches it: asked again while there is no answer."""
    plane.register("verb-a", groups=("verb",))
    for name in ("verb-1", "verb-2"):
        plane.controller.submit(id=name, groups=["verb"], priority=2)
        plane.publish("session", f"s-{name}", SessionOpenedFact(time.time_ns(), f"s-{name}", "default", name, "verb-a", 0, 2, GIB))
    wait_until(lambda: plane.controller.get("/api/v1/tasks/verb-2")["state"] == "started")
    plane.controller.ask("POST", "/api/v1/tasks/verb-1/cancel")
    plane.controller.ask("PATCH", "/api/v1/tasks/verb-2", {"priority": 0})

    async def node() -> list[tuple[str, Any]]:
        """A node that hears the second time only."""
        bus = await connect(plane.nats.url, name="node")
        heard: list[tuple[str, Any]] = []
        enough = asyncio.Event()

        def answers(verb: str, kind: Any) -> Any:
            async def answer(subject: str, data: bytes) -> bytes | None:
                wish = msgspec.msgpack.decode(data, type=kind)
                heard.append((verb, wish))
                if [seen for seen, _ in heard].count(verb) == 2:
                    now_ns, name = time.time_ns(), f"s-{wish.task}"
                    fact: Event = (
                        SessionClosedFact(now_ns, name, "verb-a", "cancelled", 0, 0, 0, 0, "")
                        if verb == "end_task"
                        else SessionPriorityChanged(now_ns, name, "verb-a", wish.priority)
                    )
                    await bus.publish_events("session", name, [fact])
                if min([seen for seen, _ in heard].count(each) for each in ("end_task", "set_priority")) >= 2:
                    enough.set()
                return None

            return answer

        await bus.serve(node_requests("verb-a", "end_task"), answers("end_task", EndTask))
        await bus.serve(node_requests("verb-a", "set_priority"), answers("set_priority", SetPriority))
        async with asyncio.timeout(60):
            await enough.wait()
        await bus.close()
        return heard

    heard = asyncio.run(node())
    assert {(verb, wish.task, getattr(wish, "priority", None)) for verb, wish in heard} == {
        ("end_task", "verb-1", None),
        ("set_priority", "verb-2", 0),
    }
    wait_until(lambda: plane.controller.get("/api/v1/tasks/verb-1")["sessions"] == 0)
    assert plane.controller.get("/api/v1/tasks/verb-1")["state"] == "cancelled"
    (device,) = plane.controller.get("/api/v1/nodes/verb-a")["devices"]
    assert device["tasks"] == ["verb-2"]


def test_drain_and_resume_on_the_revision_seen(plane: Plane) -> None:
    plane.register("dr-a", groups=("dr",))
    seen = plane.controller.get("/api/v1/nodes/dr-a")["revision"]
    drained = plane.controller.ask("POST", "/api/v1/nodes/dr-a/drain", revision=seen)
    assert [item["id"] for item in plane.controller.get("/api/v1/nodes?state=drained&group=dr&q=DR-A")["items"]] == ["dr-a"]
    assert plane.controller.get("/api/v1/nodes?state=ready&group=dr&sort=-name") == {"items": [], "total": 0}
    assert (drained.status, drained.json["state"]) == (200, "drained")
    assert plane.controller.ask("POST", "/api/v1/nodes/dr-a/resume", revision=seen).status == 409
    assert plane.controller.ask("PUT", "/api/v1/nodes/dr-a/config", {"overcommit_vram_percent": 9}, revision=seen).status == 409
    assert plane.controller.ask("POST", "/api/v1/nodes/dr-a/resume", revision=f'"{drained.json["revision"]}"').json["state"] == "ready"
    assert plane.controller.ask("POST", "/api/v1/nodes/dr-a/drain", revision="yesterday").json["errors"][0]["field"] == "If-Match"
    by = [event for events in log_of(plane, "wooly.evt.config.dr-a") for event in events if isinstance(event, ActionTaken)]
    assert [(action.action, action.detail) for action in by] == [("node.configure", "drained=1"), ("node.configure", "drained=unset")]


@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/api/v1/tasks?statee=queued", "statee"),
        ("/api/v1/tasks?state=asleep", "state"),
        ("/api/v1/tasks?sort=colour", "sort"),
        ("/api/v1/tasks?limit=0", "limit"),
        ("/api/v1/tasks?limit=100000", "limit"),
        ("/api/v1/tasks?offset=-1", "offset"),
        ("/api/v1/nodes?limit=x", "limit"),
        ("/api/v1/groups?empty=perhaps", "empty"),
        ("/api/v1/config?why=1", "why"),
    ],
)
def test_a_query_that_cannot_be_meant_is_refused_by_field(plane: Plane, path: str, field: str) -> None:
    answer = plane.controller.ask("GET", path)
    assert (answer.status, answer.media_type, answer.json["errors"][0]["field"]) == (400, "application/problem+json", field)


def test_tasks_are_searched_filtered_sorted_and_paged_on_the_server(plane: Plane) -> None:
    plane.register("page-a", gib=(100,), groups=("page",))
    for number in range(7):
        body = {"id": f"page-{number}", "groups": ["page"], "title": f"Run {number % 2}", "priority": number % 3}
        plane.controller.submit(**body, required_vram_mb=100 + number, tenant="pagers")

    def ids(query: str) -> list[str]:
        return [item["id"] for item in plane.controller.get(f"/api/v1/tasks?tenant=pagers&{query}")["items"]]

    assert ids("") == [f"page-{number}" for number in range(6, -1, -1)]
    assert ids("q=run+1") == ["page-5", "page-3", "page-1"]
    assert ids("sort=vram&limit=2&offset=3") == ["page-3", "page-4"]
    assert ids("sort=-priority&limit=2") == ["page-5", "page-2"]
    assert ids("priority=2&sort=id") == ["page-2", "page-5"]
    assert ids("node=page-a&group=page&state=queued&sort=submitted&limit=1") == ["page-0"]
    assert ids("state=failed") == []
    assert plane.controller.get("/api/v1/tasks?tenant=pagers&limit=2&offset=6")["total"] == 7


def test_a_body_is_read_up_to_a_megabyte(plane: Plane) -> None:
    padding = " " * (1 << 20)
    large = plane.controller.ask("POST", "/api/v1/tasks", ('{"required_vram_mb": 1' + padding + "}").encode())
    assert (large.status, large.media_type, large.json["errors"][0]["field"]) == (413, "application/problem+json", "body")
    huge = plane.controller.ask("PUT", "/api/v1/config", b"[" * (20 << 20))
    assert huge.status == 413
    assert plane.controller.get("/health/ready")["status"] == "ok"


@pytest.mark.parametrize(
    ("kind", "status"),
    [("application/json", 201), ("application/json; charset=utf-8", 201), ("text/plain", 415), ("application/x-www-form-urlencoded", 415)],
)
def test_a_body_says_that_it_is_json(plane: Plane, kind: str, status: int) -> None:
    plane.register("kind-a", groups=("kind",))
    data = json.dumps({"required_vram_mb": 1, "groups": ["kind"]}).encode()
    request = urllib.request.Request(plane.controller.url + "/api/v1/tasks", data=data, headers={"Content-Type": kind})
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            got = answer.status
    except urllib.error.HTTPError as error:
        with error:
            got = error.code
            assert json.loads(error.read())["errors"][0]["field"] == "Content-Type"
    assert got == status


def test_live_and_ready_tell_a_bus_that_is_away_from_a_log_that_cannot_be_read() -> None:
    with Plane() as plane:
        assert plane.controller.ask("GET", "/health/live").status == plane.controller.ask("GET", "/health/ready").status == 200
        plane.nats.kill()
        wait_until(lambda: plane.controller.ask("GET", "/health/ready").status == 503)
        assert plane.controller.ask("GET", "/health/live").status == 200
        plane.nats.start()
        wait_until(lambda: plane.controller.ask("GET", "/health/ready").status == 200)
        plane.publish_raw("node", "n1", b"\x91\x92\xb0node.exploded.v9\x01")
        wait_until(lambda: plane.controller.ask("GET", "/health/live").status == 503)
        assert "node.exploded.v9" in plane.controller.ask("GET", "/health/ready").json["detail"]


def test_the_same_from_the_command_line(plane: Plane) -> None:
    plane.register("cli-a", gib=(1,))
    at = ["--controller", plane.controller.url]

    def wooly(*arguments: str) -> str:
        result = CliRunner().invoke(app, [*arguments, *at], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert wooly("groups", "create", "cli-g", "--title", "By hand", "--node", "cli-a") == "group cli-g: cli-a\n"
    plane.controller.submit(id="cli-1", groups=["cli-g"], queue=True)
    plane.controller.submit(id="cli-2", groups=["cli-g"], queue=True)
    assert wooly("tasks", "priority", "cli-2", "3") == "cli-2 has priority 3\n"
    assert "cli-g" in wooly("groups") and "By hand" in wooly("groups", "list")
    assert wooly("nodes", "drain", "cli-a") == "cli-a takes no new tasks; 1 still on it\n"
    assert wooly("nodes", "resume", "cli-a") == "cli-a takes tasks\n"
    assert wooly("tasks", "cancel", "cli-1", "cli-2") == "cli-1 is cancelled\ncli-2 is cancelled\n"
    plane.controller.submit(id="cli-3", groups=["cli-g"], queue=True)
    several = CliRunner().invoke(app, ["tasks", "cancel", "cli-9", "cli-3", *at], standalone_mode=False)
    assert several.return_value == EXIT_ERROR and "there is no task cli-9" in several.output and "cli-3 is cancelled" in several.output
    assert {"cli-1", "cli-2", "cli-3"} <= set(wooly("tasks", "--state", "cancelled", "--search", "cli").split())
    assert wooly("groups", "edit", "cli-g", "--no-nodes") == "group cli-g: no node yet\n"
    assert wooly("groups", "delete", "cli-g") == "cli-g is deleted\n"
    with pytest.raises(CommandError, match="behind `cancel`"):
        CliRunner().invoke(app, ["tasks", *at, "cancel", "cli-1"], catch_exceptions=False)
