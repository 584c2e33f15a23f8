"""The controller is a projection of its log: rebuilt, raced, cut off and late, it gives the same answers and never promises memory
twice."""

from __future__ import annotations

import asyncio
import json
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from bus_schemas.events import (
    ActionTaken,
    NodeLost,
    NodeRecovered,
    SessionClosedFact,
    SessionOpenedFact,
    TaskPlaced,
    TaskRefused,
    TaskSubmitted,
)
from bus_schemas.telemetry import Telemetry
from scheduler.placement import ClusterView
from services.controller.log_projection import LogProjection
from services.controller.personal import PersonalKeys
from services.controller.placer import Placer
from services.controller.store.etcd import EtcdStore
from services.controller.writer import Writer
from services.kit.bus import connect
from services.kit.errors import BusUnavailable
from services.kit.nats_server import NatsServer
from tests.support.etcd import Etcd, etcd_binary
from tests.support.plane import GIB, Controller, Plane, wait_until
from tests.support.recorded_decisions import check_recorded

PAGES = ("/api/v1/nodes", "/api/v1/tasks", "/api/v1/placements", "/api/v1/config")


def submit(controller: Controller, **body: Any) -> Any:
    answer = controller.ask("POST", "/api/v1/tasks", {"required_vram_mb": 1024, **body})
    return answer.json


def opened(session: str, task: str, node: str, gpu: int = 0, quota: int = GIB) -> SessionOpenedFact:
    return SessionOpenedFact(time.time_ns(), session, "default", task, node, gpu, 0, quota)


def closed(session: str, node: str, *, failed: bool = False) -> SessionClosedFact:
    return SessionClosedFact(time.time_ns(), session, node, "crashed" if failed else "done", 1, 1, 1, 1, "00", failed)


def a_busy_day(plane: Plane) -> None:
    """Nodes come, go and change; tasks of every fate; decisions that used telemetry."""
    plane.register("n1", gib=(10, 20))
    plane.register("n2", gib=(40,), groups=("big",))
    plane.register("n3", gib=(5,))
    plane.measure("n1", 0, utilization=80, starvation=40, used=3 * GIB)
    plane.measure("n1", 1, utilization=20, starvation=10, used=GIB)
    controller = plane.controller
    for number in range(6):
        submit(controller, id=f"t{number}", priority=number % 5, required_vram_mb=1500 + 700 * number)
    submit(controller, id="big", groups=["big"], gpu_mode="Exclusive")
    submit(controller, id="never", groups=["unknown"])
    submit(controller, id="noswap", noswap=True, required_vram_mb=9 * 1024)
    submit(controller, id="patient", queue=True, required_vram_mb=38 * 1024)
    controller.ask("PUT", "/api/v1/config", {"default_vram_overcommit_percent": 25})
    controller.ask("PUT", "/api/v1/nodes/n1/config", {"overcommit_vram_percent": 100})
    for task in ("t0", "t1"):
        node = controller.get(f"/api/v1/tasks/{task}")["node"]
        plane.publish("session", f"s-{task}", opened(f"s-{task}", task, node))
    plane.publish("session", "direct", opened("direct", "", "n1", 1, 2 * GIB))
    plane.publish("session", "s-t1", closed("s-t1", controller.get("/api/v1/tasks/t1")["node"], failed=True))
    plane.publish("node", "n3", NodeLost(time.time_ns(), "n3", 1, "stopped"))


def answers(controller: Controller) -> dict[str, bytes]:
    """The exact bytes of every page and of every single task, placement and node."""
    paths = list(PAGES)
    paths += [f"/api/v1/nodes/{item['id']}" for item in controller.get("/api/v1/nodes")["items"]]
    for item in controller.get("/api/v1/tasks")["items"]:
        paths.append(f"/api/v1/tasks/{item['id']}")
        if item["placement"] is not None:
            paths.append(f"/api/v1/placements/{item['id']}")
    return {path: controller.ask("GET", path).body for path in paths}


@pytest.mark.parametrize("how", ["stop", "kill"])
def test_rebuilt_from_the_log_every_answer_is_byte_equal(how: str) -> None:
    with Plane() as plane:
        a_busy_day(plane)
        before = answers(plane.controller)
        assert len(before) > 20
        if how == "stop":
            assert plane.controller.stop() == 0
        else:
            plane.controller.kill()
        shutil.rmtree(plane.folder / "data", ignore_errors=True)
        plane.controller.start()
        assert answers(plane.controller) == before


def test_every_recorded_decision_can_be_made_again(tmp_path: Path) -> None:
    """The log alone explains each decision: the view at its position and the measurements recorded with it give it again."""
    with Plane(tmp_path) as plane:
        a_busy_day(plane)

        async def history() -> list[tuple[int, list[Any]]]:
            bus = await connect(plane.nats.url, name="auditor")
            replay = bus.replay()
            end = await replay.history_end()
            messages = []
            async for position, events in replay:
                messages.append((position, events))
                if position >= end:
                    break
            await replay.close()
            await bus.close()
            return messages

        messages = asyncio.run(history())
    decisions = [event for _, events in messages for event in events if isinstance(event, TaskPlaced | TaskRefused)]
    assert len(decisions) >= 10
    assert any(seen.utilization_percent for decision in decisions for seen in decision.considered)
    view = ClusterView()
    checked = 0
    for position, events in messages:
        for event in events:
            view.apply(position, event)
        for decision in decisions:
            if decision.position == position:
                check_recorded(view, decision)
                checked += 1
    assert checked == len(decisions)


def test_a_task_goes_through_its_states() -> None:
    with Plane() as plane:
        plane.register("n1", gib=(10,))
        controller = plane.controller
        states = [submit(controller, id="t1")["state"]]
        plane.publish("session", "s1", opened("s1", "t1", "n1"))
        states.append(controller.get("/api/v1/tasks/t1")["state"])
        assert controller.get("/api/v1/nodes/n1")["devices"][0]["promised_bytes"] == GIB  # the session's quota is the task's
        plane.publish("session", "s1", closed("s1", "n1"))
        states.append(controller.get("/api/v1/tasks/t1")["state"])
        assert states == ["queued", "started", "completed"]
        assert controller.get("/api/v1/nodes/n1")["devices"][0]["promised_bytes"] == 0
        submit(controller, id="t2")
        plane.publish("session", "s2", opened("s2", "t2", "n1"))
        plane.publish("session", "s2", closed("s2", "n1", failed=True))
        task = controller.get("/api/v1/tasks/t2")
        assert (task["state"], task["reason"]) == ("failed", "crashed")


def test_a_queued_task_is_placed_when_room_comes() -> None:
    """By priority, then by age: the P1 task that came later goes before the P3 one."""
    with Plane() as plane:
        plane.register("n1", gib=(10,))
        controller = plane.controller
        submit(controller, id="first", required_vram_mb=8 * 1024)
        plane.publish("session", "s1", opened("s1", "first", "n1", quota=8 * GIB))
        low = controller.ask("POST", "/api/v1/tasks", {"id": "low", "required_vram_mb": 6 * 1024, "priority": 3, "queue": True})
        high = controller.ask("POST", "/api/v1/tasks", {"id": "high", "required_vram_mb": 6 * 1024, "priority": 1, "queue": True})
        assert (low.status, high.status) == (202, 202)
        assert (low.json["state"], low.json["node"], low.json["placement"]["state"]) == ("queued", None, "refused")
        plane.publish("session", "s1", closed("s1", "n1"))
        wait_until(lambda: controller.get("/api/v1/tasks/high")["node"] == "n1")
        assert controller.get("/api/v1/tasks/low")["node"] is None
        plane.register("n2", gib=(10,))
        wait_until(lambda: controller.get("/api/v1/tasks/low")["node"] == "n2")


def test_a_placed_task_that_never_starts_gives_its_vram_back() -> None:
    with Plane(CONTROLLER_START_LEASE_MS="1000") as plane:
        plane.register("n1", gib=(10,))
        submit(plane.controller, id="t1", required_vram_mb=8 * 1024)
        wait_until(lambda: plane.controller.get("/api/v1/tasks/t1")["state"] == "failed")
        assert plane.controller.get("/api/v1/tasks/t1")["reason"] == "no session opened in time"
        assert submit(plane.controller, id="t2", required_vram_mb=8 * 1024)["node"] == "n1"


def test_a_silent_node_is_lost_and_comes_back() -> None:
    """A cut cable: telemetry stops, the node's task fails; telemetry of the same epoch resumes, its session was alive all the time."""
    with Plane(CONTROLLER_NODE_LEASE_MS="1500") as plane:
        controller = plane.controller
        plane.register("n1")
        with plane.measuring("n1"):
            submit(controller, id="t1", queue=True)
            wait_until(lambda: controller.get("/api/v1/tasks/t1")["node"] == "n1")
            plane.publish("session", "s1", opened("s1", "t1", "n1"))
            wait_until(lambda: controller.get("/api/v1/tasks/t1")["state"] == "started")
        wait_until(lambda: controller.get("/api/v1/nodes/n1")["state"] == "lost")
        assert controller.get("/api/v1/nodes/n1")["reason"] == "silent"
        assert controller.get("/api/v1/tasks/t1")["state"] == "failed"
        assert "1 node lost" in submit(controller)["detail"]
        with plane.measuring("n1"):
            wait_until(lambda: controller.get("/api/v1/nodes/n1")["state"] == "ready")
            wait_until(lambda: controller.get("/api/v1/tasks/t1")["state"] == "started")


def test_a_task_is_cancelled_while_its_node_is_lost_and_stays_so_when_it_is_back() -> None:
    with Plane() as plane:
        controller = plane.controller
        plane.register("n1")
        submit(controller, id="t1")
        plane.publish("session", "s1", opened("s1", "t1", "n1"))
        plane.publish("node", "n1", NodeLost(time.time_ns(), "n1", 1, "away"))
        assert controller.get("/api/v1/tasks/t1")["reason"] == "node lost"
        answer = controller.ask("POST", "/api/v1/tasks/t1/cancel")
        assert (answer.status, answer.json["state"]) == (200, "cancelled"), answer.body
        plane.publish("node", "n1", NodeRecovered(time.time_ns(), "n1", 1))
        assert controller.get("/api/v1/tasks/t1")["state"] == "cancelled"


def test_submitting_again_a_task_that_waits_as_its_node_was_lost_says_so() -> None:
    """Also one that was not to wait at first."""
    with Plane() as plane:
        controller = plane.controller
        plane.register("n1")
        body = {"id": "t1", "required_vram_mb": 10 * 1024}
        assert controller.ask("POST", "/api/v1/tasks", body).status == 201
        plane.publish("session", "s1", opened("s1", "t1", "n1"))
        plane.register("n2", gib=(1,))
        plane.publish("node", "n1", NodeLost(time.time_ns(), "n1", 1, "away"))
        assert controller.ask("POST", "/api/v1/tasks/t1/resume").json["state"] == "queued"
        wait_until(lambda: controller.get("/api/v1/tasks/t1")["placement"]["state"] == "refused")
        again = controller.ask("POST", "/api/v1/tasks", body)
        assert (again.status, again.json["state"]) == (202, "queued"), again.body


def test_a_restarted_node_says_which_sessions_live_on() -> None:
    """The server process died and came back around a living executor, which still holds one session of two."""
    with Plane(CONTROLLER_START_LEASE_MS="1000") as plane:
        controller = plane.controller
        plane.register("n1", epoch=1)
        for name in ("lives", "gone"):
            submit(controller, id=name)
            plane.publish("session", name, opened(name, name, "n1"))
        plane.register("n1", epoch=2)
        plane.publish("session", "lives", opened("lives", "lives", "n1"))
        (device,) = controller.get("/api/v1/nodes/n1")["devices"]
        assert device["sessions"] == ["lives"]
        wait_until(lambda: controller.get("/api/v1/tasks/gone")["state"] == "failed")
        assert controller.get("/api/v1/tasks/lives")["state"] == "started"


def test_two_controllers_never_promise_the_same_memory(tmp_path: Path) -> None:
    """Both get requests at the same moment; the log's condition lets one placement in at a time, on a view that has all before it."""
    with Plane(tmp_path) as plane:
        (tmp_path / "second").mkdir()
        second = Controller(plane.nats.url, tmp_path / "second", **plane.environment)
        second.start()
        try:
            plane.register("n1", gib=(10, 10))
            statuses: list[int] = []

            def flood(controller: Controller, name: str) -> None:
                for number in range(20):
                    answer = controller.ask("POST", "/api/v1/tasks", {"id": f"{name}{number}", "required_vram_mb": 1024})
                    statuses.append(answer.status)

            threads = [threading.Thread(target=flood, args=(c, n)) for c, n in ((plane.controller, "a"), (second, "b"), (second, "c"))]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(statuses) == [201] * 20 + [409] * 40
            devices = plane.controller.get("/api/v1/nodes/n1")["devices"]
            assert [device["promised_bytes"] for device in devices] == [10 * GIB, 10 * GIB]
            assert answers(second) == answers(plane.controller)
        finally:
            second.stop()


def test_killed_in_the_middle_of_submissions_it_goes_on_where_it_was(tmp_path: Path) -> None:
    """kill -9 under load, twice, then a new one: what was answered stands, what was cut in two is decided, no memory is promised twice."""
    with Plane(tmp_path) as plane:
        plane.register("n1", gib=(10,))
        answered: dict[str, str] = {}
        for life in range(3):

            def flood(life: int = life) -> None:
                for number in range(200):
                    name = f"k{life}-{number}"
                    try:
                        answer = plane.controller.ask("POST", "/api/v1/tasks", {"id": name, "required_vram_mb": 100})
                    except OSError:
                        return  # the controller was killed while it worked on this one
                    answered[name] = str(answer.json.get("node"))

            thread = threading.Thread(target=flood)
            thread.start()
            wait_until(lambda life=life: any(name.startswith(f"k{life}-") for name in answered))  # type: ignore[misc]  # bound now
            if life < 2:
                plane.controller.kill()
                thread.join()
                plane.controller.start()
            else:
                thread.join()
        controller = plane.controller
        wait_until(lambda: not any(item["placement"] is None for item in controller.get("/api/v1/tasks")["items"]))
        tasks = {item["id"]: item for item in controller.get("/api/v1/tasks?limit=10000")["items"]}
        assert {name: str(tasks[name]["node"]) for name in answered} == answered
        assert sum(task["node"] == "n1" for task in tasks.values()) == 102
        (device,) = controller.get("/api/v1/nodes/n1")["devices"]
        assert device["promised_bytes"] == 102 * (100 << 20) <= device["schedulable_bytes"]


def test_the_duty_passes_to_the_other_controller(tmp_path: Path) -> None:
    with Plane(tmp_path, CONTROLLER_NODE_LEASE_MS="1500") as plane:
        wait_until(lambda: plane.controller.get("/health")["sentinel"])
        (tmp_path / "second").mkdir()
        second = Controller(plane.nats.url, tmp_path / "second", **plane.environment)
        second.start()
        try:
            assert second.get("/health")["sentinel"] is False
            plane.controller.stop()
            wait_until(lambda: second.get("/health")["sentinel"])
            plane.register("n1")
            wait_until(lambda: second.get("/api/v1/nodes/n1")["state"] == "lost")
        finally:
            second.stop()


def test_a_task_left_undecided_by_a_crash_is_decided_by_the_next() -> None:
    """The controller died between the two facts of a submission."""
    with Plane() as plane:
        plane.register("n1")
        plane.publish("task", "orphan", TaskSubmitted(time.time_ns(), "orphan", "default", 0, GIB))
        wait_until(lambda: plane.controller.get("/api/v1/tasks/orphan")["node"] == "n1")


def test_a_broker_restart_changes_nothing() -> None:
    with Plane() as plane:
        a_busy_day(plane)
        before = answers(plane.controller)
        plane.nats.kill()
        wait_until(lambda: plane.controller.ask("GET", "/health").json["status"] == "disconnected")
        plane.nats.start()
        wait_until(lambda: "node" in submit(plane.controller, id="after"))
        assert plane.controller.get("/health")["status"] == "ok"
        after = answers(plane.controller)
        assert {path: after[path] for path in before if path.startswith("/api/v1/placements/")} == {
            path: body for path, body in before.items() if path.startswith("/api/v1/placements/")
        }


@pytest.mark.parametrize("junk", [b"not json", b"\xff", b'{"type":"io.nats.jetstream.api.v1.stream_info_response","config":{"name":"X"}}'])
def test_a_stored_document_that_is_none_changes_nothing(junk: bytes) -> None:
    """An invalid document does not put a drained node into service; the next change by the controller makes it valid again."""
    with Plane() as plane:
        for node in ("n1", "n2"):
            plane.register(node)
        plane.controller.ask("PUT", "/api/v1/config", {"default_vram_overcommit_percent": 40})
        plane.controller.ask("POST", "/api/v1/nodes/n1/drain")

        def store(key: str, value: bytes) -> None:
            plane._runner.run(plane.bus.publish_acked(f"$KV.wooly_config.{key}", value))

        def held() -> tuple[Any, ...]:
            n1 = plane.controller.get("/api/v1/nodes/n1")
            return n1["drained"], n1["effective_overcommit_vram_percent"]

        store("config/nodes/n1", junk)
        store("config/global", junk)
        store("config/nodes/n2", b'{"overcommit_vram_percent": 70}')  # behind them: when it holds, they were read
        wait_until(lambda: plane.controller.get("/api/v1/nodes/n2")["overcommit_vram_percent"] == 70)
        assert held() == (True, 40)
        plane.controller.stop()
        plane.controller.start()
        assert held() == (True, 40)
        assert plane.controller.ask("PUT", "/api/v1/nodes/n1/config", {"overcommit_vram_percent": 50}).status == 200
        plane.controller.stop()
        plane.controller.start()
        assert held() == (True, 50)


def test_nodes_are_heard_again_after_a_broker_restart() -> None:
    """Measurements live in the broker's memory: their stream is lost with it. The silence after that must not last."""
    with Plane(CONTROLLER_NODE_LEASE_MS="1500") as plane:
        plane.register("n1")
        plane.measure("n1", utilization=10)
        plane.nats.kill()
        wait_until(lambda: plane.controller.ask("GET", "/health").json["status"] == "disconnected")
        plane.nats.start()
        wait_until(lambda: plane.controller.get("/api/v1/nodes/n1")["state"] == "lost")
        with plane.measuring("n1", utilization=20):
            wait_until(lambda: plane.controller.get("/api/v1/nodes/n1")["state"] == "ready")
            wait_until(lambda: plane.controller.get("/api/v1/nodes/n1")["devices"][0]["observed"]["utilization_percent"] == 20)


def test_a_disconnected_controller_does_not_declare_nodes_lost() -> None:
    """What nodes send goes elsewhere. Time passes: a task that does not begin fails, and its node is not held for lost."""
    with Plane(CONTROLLER_NODE_LEASE_MS="4000", CONTROLLER_START_LEASE_MS="7000") as plane:
        plane.register("n1")
        plane.measure("n1")
        submit(plane.controller, id="t1")
        plane.divert_telemetry()
        wait_until(lambda: plane.controller.get("/api/v1/tasks/t1")["state"] == "failed")
        assert plane.controller.get("/api/v1/tasks/t1")["reason"] == "no session opened in time"
        assert plane.controller.get("/api/v1/nodes/n1")["state"] == "ready"


def test_measurements_count_after_a_nodes_clock_was_set_back() -> None:
    with Plane() as plane:
        plane.register("n1")
        plane.measure("n1", utilization=10)
        plane.publish_telemetry(Telemetry(time.time_ns() - 3600 * 10**9, "n1", 1, 0, 1000, 90, 0, 10 * GIB, 0))
        wait_until(lambda: plane.controller.get("/api/v1/nodes/n1")["devices"][0]["observed"]["utilization_percent"] == 90)


def test_a_log_that_takes_nothing_stops_no_controller() -> None:
    """The broker refuses facts, for want of room or by its limits: periodic work waits until it takes them again."""
    with Plane(CONTROLLER_NODE_LEASE_MS="1500") as plane:
        plane.register("n1")
        with plane.measuring("n1"):
            wait_until(lambda: plane.controller.get("/api/v1/nodes/n1")["state"] == "ready")
            plane.limit_events(max_msg_size=1)
        wait_until(lambda: "sentinel cannot work" in plane.controller.log_tail())
        assert plane.controller.ask("POST", "/api/v1/tasks", {"required_vram_mb": 1}).status == 503
        plane.limit_events(max_msg_size=-1)
        wait_until(lambda: plane.controller.get("/api/v1/nodes/n1")["state"] == "lost")


def test_a_task_that_is_in_the_log_and_cannot_be_read_yet_is_not_answered(tmp_path: Path) -> None:
    """Its fact was refused because another controller wrote it first, and this controller is behind."""
    task = TaskSubmitted(1, "t", "acme", 0, GIB)

    async def submitted(url: str) -> None:
        bus = await connect(url, name="controller")
        await bus.ensure_streams()
        async with PersonalKeys(bus, None) as personal, LogProjection(bus, personal) as projection:
            await projection._follower.stop()
            await bus.publish_events("task", "t", [task])
            with pytest.raises(BusUnavailable, match="try again"):
                await Placer(projection, Writer(bus, projection, personal)).submit(task, ActionTaken(1, "u", "acme", "task.submit", "t"))
        await bus.close()

    nats = NatsServer(tmp_path, sync_always=False)
    nats.start()
    try:
        asyncio.run(submitted(nats.url))
    finally:
        nats.stop()


def test_configuration_in_etcd(tmp_path: Path) -> None:
    """Set through the API it is in etcd; changed in etcd (by another tool) it holds; a rebuilt controller reads it back."""
    binary, why_not = etcd_binary()
    if not binary:
        pytest.skip(f"etcd is not available: {why_not}")
    with Etcd(binary, tmp_path / "etcd") as etcd, Plane(tmp_path, WOOLY_ETCD_URL=etcd.url) as plane:
        plane.register("n1")
        plane.controller.ask("PUT", "/api/v1/config", {"default_vram_overcommit_percent": 40})

        async def change() -> Any:
            store = EtcdStore(etcd.url, {})
            entry = await store.get("config/global")
            await store.put("config/nodes/n1", b'{"overcommit_vram_percent": 70, "bogus": 1}')
            await store.close()
            return json.loads(entry.value) if entry else {}

        stored = asyncio.run(change())
        assert stored["default_vram_overcommit_percent"] == 40
        assert (stored["changed_by"]["took"]["actor"], stored["changed_by"]["took"]["action"]) == ("local", "config.write")
        wait_until(lambda: plane.controller.get("/api/v1/nodes/n1")["overcommit_vram_percent"] == 70)
        before = answers(plane.controller)
        plane.controller.stop()
        plane.controller.start()
        assert answers(plane.controller) == before


def test_a_fact_it_cannot_read_makes_it_unhealthy_not_wrong() -> None:
    """A node newer than the controller writes a kind of event it does not know; every answer after it might be wrong."""
    with Plane() as plane:
        plane.register("n1")
        assert plane.controller.get("/health")["status"] == "ok"
        position = plane.publish_raw("node", "n1", b"\x91\x92\xb0node.exploded.v9\x01")
        wait_until(lambda: plane.controller.ask("GET", "/health").status == 503)
        assert f"position {position}" in plane.controller.ask("GET", "/health").json["detail"]
        assert plane.controller.ask("POST", "/api/v1/tasks", {"required_vram_mb": 1}).status == 503
        assert plane.controller.stop() == 0


def test_a_controller_without_what_it_needs_says_so(tmp_path: Path) -> None:
    for environment, text in [
        ({"WOOLY_NATS_URL": ""}, "WOOLY_NATS_URL is not set"),
        ({"CONTROLLER_DEFAULT_VRAM_OVERCOMMIT_PERCENT": "1001"}, "_VRAM_OVERCOMMIT_PERCENT=1001: must be an integer from 0 to 1000"),
        ({"WOOLY_HTTP": "8080"}, "WOOLY_HTTP is '8080'"),
    ]:
        controller = Controller("nats://127.0.0.1:1", tmp_path, **environment)
        with pytest.raises(RuntimeError, match=text):
            controller.start()
        assert controller.process is not None
        assert controller.process.wait() == 2
        controller.stop()
