"""The controller beside a real node: a client that asks it for a place, and what it says before, during and after."""

from __future__ import annotations

from tests.support.plane import wait_until
from tests.support.stack import EmbeddedStack
from wooly.config import load
from wooly.session import open_session


def test_a_client_goes_where_the_controller_says_and_its_task_completes() -> None:
    with EmbeddedStack(WOOLY_BACKEND="reference") as stack:
        (node,) = stack.get("controller", "/api/v1/nodes")["items"]
        assert node["state"] == "ready"
        flags = {
            "WOOLY_NATS_URL": stack.addresses["nats"],
            "CONTROLLER_URL": stack.addresses["controller"],
            "REQUIRED_VRAM": "100",
            "PRIO": "2",
        }
        session = open_session(load(flags, environ={}), title="story")
        try:
            wait_until(lambda: [item["state"] for item in stack.get("controller", "/api/v1/tasks")["items"]] == ["started"])
            (task,) = stack.get("controller", "/api/v1/tasks")["items"]
            assert (task["node"], task["gpus"], task["sessions"]) == (node["id"], [0], 1)
            assert (task["title"], task["priority"], task["required_vram_mb"]) == ("story", 2, 100)
            placement = stack.get("controller", f"/api/v1/placements/{task['id']}")
            assert [(c["node"], c["gpu"]) for c in placement["candidates"]] == [(node["id"], 0)]
            (device,) = stack.get("controller", f"/api/v1/nodes/{node['id']}")["devices"]
            assert (device["promised_bytes"], len(device["sessions"])) == (100 << 20, 1)
        finally:
            session.close()
        wait_until(lambda: stack.get("controller", f"/api/v1/tasks/{task['id']}")["state"] == "completed")
        (device,) = stack.get("controller", f"/api/v1/nodes/{node['id']}")["devices"]
        assert (device["promised_bytes"], device["sessions"], device["tasks"]) == (0, [], [])
        wait_until(lambda: bool(stack.get("controller", "/api/v1/telemetry")["items"]))
        (seen,) = stack.get("controller", "/api/v1/telemetry")["items"]
        assert (seen["node"], seen["gpu"]) == (node["id"], 0)
