"""The controller as its callers meet it: real bus, real process, nodes that are their facts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.support.plane import Plane, registered


def refused(plane: Plane, **body: Any) -> Any:
    answer = plane.controller.ask("POST", "/api/v1/tasks", {"required_vram_mb": 1024, **body})
    assert (answer.status, answer.media_type) == (409, "application/problem+json"), answer.body
    return answer.json


def test_a_placement_says_why_here_and_why_not_there(plane: Plane) -> None:
    plane.register("why-a", gib=(1,), groups=("why",))
    plane.register("why-b", gib=(10, 10), groups=("why",))
    plane.register("why-c", gib=(10,), groups=("why-other",))
    plane.measure("why-b", 0, utilization=90, starvation=70)
    task = plane.controller.submit(id="why-1", groups=["why"], required_vram_mb=2048)
    assert (task["node"], task["gpus"], task["state"]) == ("why-b", [1], "queued")
    placement = plane.controller.get("/api/v1/placements/why-1")
    assert placement == task["placement"]
    assert [(c["node"], c["gpu"]) for c in placement["candidates"]] == [("why-b", 1), ("why-b", 0)]
    busy = placement["candidates"][1]
    assert busy["measured"]["utilization_percent"] == 90
    assert busy["parts"] == {"utilization": 10, "starvation": 30, "vram": 80, "priority": 100}
    assert busy["score"] == 3 * 10 + 3 * 30 + 2 * 80 + 2 * 100
    reasons = {(r["node"], r["gpu"]): r["reason"] for r in placement["refusals"]}
    assert reasons["why-a", 0] == "vram_short"
    assert reasons["why-c", None] == "not_in_group"


def test_a_task_that_fits_nowhere_gets_every_reason(plane: Plane) -> None:
    plane.register("full-a", gib=(1, 1), groups=("full",))
    body = refused(plane, id="full-1", groups=["full"], required_vram_mb=4096)
    assert {(r["node"], r["gpu"], r["reason"]) for r in body["refusals"] if r["node"] == "full-a"} == {
        ("full-a", 0, "vram_short"),
        ("full-a", 1, "vram_short"),
    }
    assert "needs 4096 MiB, 1024 of 1024 MiB schedulable are free" in body["detail"]
    task = plane.controller.get("/api/v1/tasks/full-1")
    assert (task["state"], task["node"], task["reason"]) == ("failed", None, "no device fits")
    assert plane.controller.get("/api/v1/placements/full-1")["state"] == "refused"


@pytest.mark.parametrize(
    ("body", "field", "text"),
    [
        ({"priority": 5}, "priority", "<= 4"),
        ({"priority": -1}, "priority", ">= 0"),
        ({"weight": 0}, "weight", ">= 1"),
        ({"sla_ms_p99": -5}, "sla_ms_p99", ">= 0"),
        ({"sla_ms_p99": 20, "priority": 1}, "sla_ms_p99", "needs priority 0"),
        ({"sla_ms_p99": 20, "pace_percent": 50}, "sla_ms_p99", "contradicts pace_percent"),
        ({"required_vram_mb": 1 << 29, "queue": True}, "required_vram_mb", "more than any device could ever give"),
    ],
)
def test_what_can_never_be_granted_is_refused_by_field(plane: Plane, body: dict[str, Any], field: str, text: str) -> None:
    before = plane.publish("node", "never-a", registered("never-a", groups=("never",)))
    answer = plane.controller.ask("POST", "/api/v1/tasks", {"required_vram_mb": 1024, "groups": ["never"], "id": "never-1", **body})
    assert (answer.status, answer.media_type) == (400, "application/problem+json")
    (error,) = answer.json["errors"]
    assert error["field"] == field and text in error["message"]
    assert plane.controller.get("/health")["position"] == before


def test_what_no_physical_memory_holds_may_still_be_swapped(plane: Plane) -> None:
    """Overcommit makes a device larger for tasks that may be swapped out, and for no others."""
    plane.register("ever-a", gib=(4096,), groups=("ever",))
    plane.controller.ask("PUT", "/api/v1/nodes/ever-a/config", {"overcommit_vram_percent": 100})
    body = {"required_vram_mb": 6 << 20, "groups": ["ever"]}
    fixed = plane.controller.ask("POST", "/api/v1/tasks", {**body, "noswap": True})
    assert (fixed.status, fixed.json["errors"][0]["field"]) == (400, "required_vram_mb") and "physical" in fixed.json["detail"]
    assert plane.controller.submit(**body)["node"] == "ever-a"
    plane.controller.ask("PUT", "/api/v1/nodes/ever-a/config", {"drained": True})


def test_submitting_again_is_the_same_task(plane: Plane) -> None:
    """A client that got no answer sends its request again."""
    plane.register("again-a", groups=("again",))
    first = plane.controller.ask("POST", "/api/v1/tasks", {"required_vram_mb": 1, "id": "again-1", "groups": ["again"]})
    second = plane.controller.ask("POST", "/api/v1/tasks", {"required_vram_mb": 1, "id": "again-1", "groups": ["again"]})
    other = plane.controller.ask("POST", "/api/v1/tasks", {"required_vram_mb": 2, "id": "again-1", "groups": ["again"]})
    assert (first.status, second.status, other.status) == (201, 200, 409)
    assert first.body == second.body
    assert other.json["errors"][0]["field"] == "id"
    (device,) = plane.controller.get("/api/v1/nodes/again-a")["devices"]
    assert device["promised_bytes"] == 1 << 20


def test_a_dry_run_writes_nothing(plane: Plane) -> None:
    before = plane.publish("node", "dry-a", registered("dry-a", groups=("dry",)))
    body = {"required_vram_mb": 1024, "groups": ["dry"], "id": "dry-1"}
    placed = plane.controller.ask("POST", "/api/v1/placements/query", body)
    nowhere = plane.controller.ask("POST", "/api/v1/placements/query", {**body, "required_vram_mb": 1 << 20})
    assert (placed.status, placed.json["state"], placed.json["node"]) == (200, "placed", "dry-a")
    assert (nowhere.status, nowhere.json["state"]) == (200, "refused")
    assert plane.controller.ask("GET", "/api/v1/tasks/dry-1").status == 404
    assert plane.controller.get("/health")["position"] == before


def test_overcommit_precedence_is_node_then_stored_then_environment(plane: Plane) -> None:
    plane.register("over-a", gib=(10,), groups=("over",))

    def schedulable() -> int:
        return int(plane.controller.get("/api/v1/nodes/over-a")["devices"][0]["schedulable_bytes"]) >> 20

    assert plane.controller.get("/api/v1/config") == {
        "default_vram_overcommit_percent": 0,
        "source": "default",
        "queue_age_ms": 600_000,
        "queue_protect_ms": 300_000,
        "queue_reservations_max": 32,
        "default_vram_mb": 4096,
        "pack": 0,
        "defragment_after_ms": 0,
        "revision": 0,
    }
    assert schedulable() == 10 * 1024
    put = plane.controller.ask("PUT", "/api/v1/config", {"default_vram_overcommit_percent": 50})
    revision = plane.controller.get("/health")["position"]
    assert (put.status, put.json["default_vram_overcommit_percent"], put.json["source"]) == (200, 50, "stored")
    assert put.json["revision"] == revision
    assert schedulable() == 15 * 1024
    node = plane.controller.ask("PUT", "/api/v1/nodes/over-a/config", {"overcommit_vram_percent": 0})
    assert (node.status, node.json["overcommit_vram_percent"], node.json["effective_overcommit_vram_percent"]) == (200, 0, 0)
    assert schedulable() == 10 * 1024
    plane.controller.ask("PUT", "/api/v1/nodes/over-a/config", {"overcommit_vram_percent": None})
    assert schedulable() == 15 * 1024
    assert plane.controller.submit(groups=["over"], required_vram_mb=12 * 1024)["node"] == "over-a"
    noswap = refused(plane, groups=["over"], required_vram_mb=3 * 1024 + 1, noswap=True)
    assert "1 device with too little free VRAM (over-a-name, GPU 0: needs 3073 MiB" in noswap["detail"]
    plane.controller.ask("PUT", "/api/v1/config", {"default_vram_overcommit_percent": None})
    assert plane.controller.get("/api/v1/config")["source"] == "default"


def test_a_drained_node_takes_no_new_task(plane: Plane) -> None:
    plane.register("drain-a", groups=("drain",))
    plane.controller.submit(id="drain-1", groups=["drain"])
    drained = plane.controller.ask("PUT", "/api/v1/nodes/drain-a/config", {"drained": True})
    assert drained.json["state"] == "drained"
    body = refused(plane, groups=["drain"])
    assert "node_drained" in [refusal["reason"] for refusal in body["refusals"]]
    assert "drained (" in body["detail"] and "drain-a-name: the node is drained: it takes no new tasks" in body["detail"]
    assert plane.controller.get("/api/v1/tasks/drain-1")["state"] == "queued"
    plane.controller.ask("PUT", "/api/v1/nodes/drain-a/config", {"drained": False})
    assert plane.controller.submit(groups=["drain"])["node"] == "drain-a"


def test_exclusive_and_several_gpus(plane: Plane) -> None:
    plane.register("multi-a", gib=(10, 10, 10), groups=("multi",))
    plane.register("multi-b", gib=(10,), groups=("multi",))
    two = plane.controller.submit(groups=["multi"], gpu_count=2, gpu_mode="Exclusive")
    assert (two["node"], two["gpus"]) == ("multi-a", [0, 1])
    body = refused(plane, groups=["multi"], gpu_count=2)
    reasons = {(r["node"], r["gpu"]): r["reason"] for r in body["refusals"] if r["node"].startswith("multi-")}
    assert reasons == {
        ("multi-a", 0): "device_exclusive",
        ("multi-a", 1): "device_exclusive",
        ("multi-a", 2): "gpu_count",
        ("multi-b", 0): "gpu_count",
    }
    plane.controller.submit(groups=["multi"], required_vram_mb=1)
    plane.controller.submit(groups=["multi"], required_vram_mb=1)
    body = refused(plane, groups=["multi"], gpu_mode="Exclusive")
    assert "exclusive_conflict" in [refusal["reason"] for refusal in body["refusals"]]
    assert "in use, while the task wants one for itself" in body["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body", "field"),
    [
        ("POST", "/api/v1/tasks", {"required_vram_mb": 0}, "required_vram_mb"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": "4G"}, "required_vram_mb"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": True}, "required_vram_mb"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": 1, "priority": 5}, "priority"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": 1, "priority": -1}, "priority"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": 1, "gpu_count": 0}, "gpu_count"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": 1, "gpu_mode": "shared"}, "gpu_mode"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": 1, "groups": ["a b"]}, "groups[0]"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": 1, "id": "a.b"}, "id"),
        ("POST", "/api/v1/tasks", {"required_vram_mb": 1, "prioritiy": 1}, "prioritiy"),
        ("POST", "/api/v1/tasks", [], "body"),
        ("POST", "/api/v1/tasks", b"{", "body"),
        ("POST", "/api/v1/tasks", b"", "body"),
        ("POST", "/api/v1/tasks", b"[" * 100_000, "body"),
        ("PUT", "/api/v1/config", b'{"default_vram_overcommit_percent":' * 20_000, "body"),
        ("POST", "/api/v1/placements/query", {"required_vram_mb": 1, "tenant": ""}, "tenant"),
        ("PUT", "/api/v1/config", {}, "default_vram_overcommit_percent"),
        ("PUT", "/api/v1/config", {"default_vram_overcommit_percent": 1001}, "default_vram_overcommit_percent"),
        ("PUT", "/api/v1/config", {"default_vram_overcommit_percent": 1.5}, "default_vram_overcommit_percent"),
        ("PUT", "/api/v1/nodes/bad-a/config", {"overcommit_vram_percent": -1}, "overcommit_vram_percent"),
        ("PUT", "/api/v1/nodes/bad-a/config", {"drained": "yes"}, "drained"),
        ("GET", "/api/v1/tasks?state=running", None, "state"),
        ("GET", "/api/v1/nodes?limit=many", None, "limit"),
    ],
)
def test_bad_input_is_400_with_the_field(plane: Plane, method: str, path: str, body: Any, field: str) -> None:
    answer = plane.controller.ask(method, path, body)
    assert (answer.status, answer.media_type) == (400, "application/problem+json"), answer.body
    assert [error["field"] for error in answer.json["errors"]] == [field]
    assert answer.json["detail"]


@pytest.mark.parametrize("path", ["/api/v1/nodes/nobody", "/api/v1/tasks/nobody", "/api/v1/placements/nobody", "/api/v2"])
def test_what_is_not_there_is_404(plane: Plane, path: str) -> None:
    answer = plane.controller.ask("GET", path)
    assert (answer.status, answer.media_type) == (404, "application/problem+json")


def test_lists_have_pages_and_filters(plane: Plane) -> None:
    plane.register("page-a", groups=("page",))
    for number in range(5):
        plane.controller.submit(id=f"page-{number}", groups=["page"], required_vram_mb=1, tenant="page-tenant")
    page = plane.controller.get("/api/v1/tasks?tenant=page-tenant&limit=2&offset=1")
    assert ([item["id"] for item in page["items"]], page["total"]) == (["page-3", "page-2"], 5)
    assert plane.controller.get("/api/v1/tasks?node=page-a&state=completed")["total"] == 0
    assert plane.controller.get("/api/v1/tasks?node=page-a&state=queued")["total"] == 5


def test_openapi_describes_every_route_and_the_body_limits(plane: Plane) -> None:
    document = plane.controller.get("/schema/openapi.json")
    routes = {(path, method) for path, item in document["paths"].items() for method in item}
    assert {
        ("/api/v1/nodes", "get"),
        ("/api/v1/tasks", "get"),
        ("/api/v1/tasks", "post"),
        ("/api/v1/placements", "get"),
        ("/api/v1/placements/{task}", "get"),
        ("/api/v1/placements/query", "post"),
        ("/api/v1/config", "get"),
        ("/api/v1/config", "put"),
        ("/api/v1/nodes/{node}/config", "put"),
    } <= routes
    assert '"maximum": 1000' in json.dumps(document)


def test_metrics_are_prometheus_text(plane: Plane) -> None:
    plane.register("metric-a", gib=(10,), groups=("metric",))
    plane.measure("metric-a", utilization=37)
    plane.controller.submit(groups=["metric"], required_vram_mb=1024)
    text = plane.controller.ask("GET", "/metrics").body.decode()
    assert 'wooly_device_utilization_percent{gpu="0",node="metric-a"} 37.0' in text
    assert 'wooly_device_vram_promised_bytes{gpu="0",node="metric-a"} 1.073741824e+09' in text
    assert 'wooly_node_up{node="metric-a"} 1.0' in text
    assert 'wooly_device_vram_swapped_bytes{gpu="0",node="metric-a"}' in text
