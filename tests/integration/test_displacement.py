"""A session whose node is lost, or that is moved, continues on another node: the same bits, charged once, in the same task."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from billing.projection import BillingView
from bus_schemas.events import ActionTaken, SessionClosedFact, TaskDisplaced, TaskPlaced, UsageRecorded
from tests.support.command import command_in
from tests.support.fork_server import start_service
from tests.support.node import Node, Waiting, executor_pids, floats, increment, until
from tests.support.plane import Controller
from tests.support.secure import SecureStack
from tests.support.stack import ROOT, plain_environment
from wooly import progress
from wooly.config import Config
from wooly.errors import NodeLostError, PlacementError
from wooly.link import Flush
from wooly.session import Session, open_session
from wooly.transport.moving import Move
from wooly.transport.opening import Opening
from wooly.transport.session_state import RemoteSession

N = 16


@dataclass
class Cluster:
    """Two nodes and a controller."""

    nodes: dict[str, Node]
    controller: Controller

    def open(self, **keys: Any) -> Session:
        first = next(iter(self.nodes.values()))
        return first.open(controller_url=self.controller.url, required_vram_mb=64, **keys)

    def of(self, session: Session) -> Node:
        assert session.info.node is not None
        return self.nodes[session.info.node.name]

    def drain_others(self, session: Session) -> None:
        """The session's node is the only one that takes tasks."""
        for name, node in self.nodes.items():
            if node is not self.of(session):
                assert self.controller.ask("POST", f"/api/v1/nodes/{name}/drain").status == 200

    def move(self, session: Session, **body: str) -> None:
        """Order that the session's task be moved."""
        until(lambda: (self.task(session)["state"], self.task(session)["move"]) == ("started", None), "it runs, and no other move is on")
        answer = self.controller.ask("POST", f"/api/v1/tasks/{session.info.task}/move", body)
        assert answer.status == 200, answer.body

    def task(self, session: Session) -> Any:
        return self.controller.get(f"/api/v1/tasks/{session.info.task}")

    def events(self) -> list[Any]:
        return next(iter(self.nodes.values())).events()


@contextlib.contextmanager
def two_nodes(folder: Path, node_lease_ms: int) -> Iterator[Cluster]:
    for name in ("a", "b", "controller"):
        (folder / name).mkdir()
    with Node(folder / "a", NODE_NAME="a") as a, Node(folder / "b", beside=a, NODE_NAME="b") as b:
        controller = Controller(a.nats.url, folder / "controller", CONTROLLER_NODE_LEASE_MS=str(node_lease_ms))
        controller.start()
        until(lambda: len(controller.get("/api/v1/nodes")["items"]) == 2, "two nodes")
        try:
            yield Cluster({"a": a, "b": b}, controller)
        finally:
            controller.stop()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    with two_nodes(tmp_path, 2_000) as found:
        yield found


@pytest.fixture
def patient(tmp_path: Path) -> Iterator[Cluster]:
    """No node is lost while its executor is started again."""
    with two_nodes(tmp_path, 600_000) as found:
        yield found


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    lines: list[str] = []
    monkeypatch.setattr(progress, "say", lines.append)
    return lines


def add_one(session: Session, times: int) -> None:
    for _ in range(times):
        session.wait(session.submit(increment(N).flush([1])))


def begin(session: Session) -> None:
    session.wait(session.submit(Flush(uploads=[(1, memoryview(np.zeros(N)).cast("B"))])))
    add_one(session, 20)


def value(session: Session) -> float:
    (data,) = session.wait(session.submit(Flush(reads=[(1, 0, 8 * N)])))
    (found,) = set(floats(data))
    return found


def billed(events: list[Any]) -> BillingView:
    view = BillingView()
    for position, event in enumerate(events, start=1):
        view.apply(position, [event])
    return view


def closed(cluster: Cluster, session: str) -> Callable[[], bool]:
    return lambda: any(isinstance(event, SessionClosedFact) and event.session == session for event in cluster.events())


def test_a_dead_node_costs_no_batch_and_no_bit(cluster: Cluster, said: list[str]) -> None:
    session = cluster.open()
    begin(session)
    before, lost = cluster.of(session), session.info.session
    used = sum(event.core_ns for event in until_used(cluster, lost))
    before.kill_server()
    before.kill_executor()
    add_one(session, 20)
    assert value(session) == 40
    assert cluster.of(session) is not before
    assert cluster.task(session)["state"] == "started"
    assert any("lost the session's memory" in line for line in said) and any("continuing on node" in line for line in said)
    session.close()
    until(closed(cluster, session.info.session), "the end")
    assert cluster.task(session)["state"] == "completed"
    events = cluster.events()
    repeated = [event for event in events if isinstance(event, UsageRecorded) and event.session == session.info.session]
    assert 0 < sum(event.displaced_ns for event in repeated) < sum(event.core_ns for event in repeated)
    view = billed(events)
    assert not view.findings
    assert sum(row.launches for row in view.rows.values()) == 40
    free = min(used, sum(event.displaced_ns for event in repeated))
    compiled = sum(event.compile_ns for event in events if isinstance(event, UsageRecorded))
    assert sum(row.core_ns for row in view.rows.values()) == used + sum(event.core_ns for event in repeated) - free + compiled
    assert sum(row.recovered_ns for row in view.rows.values()) == free


def until_used(cluster: Cluster, session: str, launches: int = 20) -> list[UsageRecorded]:
    """What the session has used, once so many launches are in the log."""

    def found() -> list[UsageRecorded]:
        of = [event for event in cluster.events() if isinstance(event, UsageRecorded) and event.session == session]
        return of if sum(event.launches for event in of) >= launches else []

    return until(found, "usage in the log")


def test_a_node_that_comes_back_ends_what_it_had_and_charges_nothing_for_it(cluster: Cluster) -> None:
    session = cluster.open()
    begin(session)
    before, lost = cluster.of(session), session.info.session
    used = sum(event.core_ns + event.compile_ns for event in until_used(cluster, lost))
    assert before.server is not None
    before.server.send_signal(signal.SIGSTOP)
    add_one(session, 20)
    assert value(session) == 40 and cluster.of(session) is not before
    before.server.send_signal(signal.SIGCONT)
    until(closed(cluster, lost), "the node ends it")
    add_one(session, 1)
    assert value(session) == 41
    session.close()
    until(closed(cluster, session.info.session), "the end")
    assert cluster.task(session)["state"] == "completed"
    events = cluster.events()
    (end,) = (event for event in events if isinstance(event, SessionClosedFact) and event.session == lost)
    assert end.reason == "displaced"
    at = next(number for number, event in enumerate(events) if isinstance(event, TaskDisplaced))
    late = [event for event in events[at:] if isinstance(event, UsageRecorded) and event.session == lost]
    assert late, "it held memory meanwhile"
    view = billed(events)
    assert not view.findings
    rows = [row for key, row in view.rows.items() if key[3] == late[0].node]
    early = [event for event in events[:at] if isinstance(event, UsageRecorded) and event.session == lost]
    assert sum(row.core_ns for row in rows) == used and sum(row.byte_ms for row in rows) == sum(event.byte_ms for event in early)


def moved_away(cluster: Cluster, session: Session, before: Node, done: int) -> int:
    """Add one until the session has left this node; how many were added by then, ``done`` before."""
    while cluster.of(session) is before:
        add_one(session, 1)
        done += 1
    return done


def test_an_operator_moves_a_running_task(cluster: Cluster, said: list[str]) -> None:
    """While it sends batches, and while it does not; it is shown where it runs until it has moved."""
    session = cluster.open()
    begin(session)
    before = cluster.of(session)
    other = next(name for name, node in cluster.nodes.items() if node is not before)
    with cluster.nodes[other].executor_held():
        cluster.move(session, to=other)
        seen = cluster.task(session)
        assert (seen["node_name"], seen["move"]["node_name"], seen["state"]) == (session.info.node.name, other, "started")
        assert "being moved" in cluster.controller.ask("POST", f"/api/v1/tasks/{session.info.task}/move", {}).body.decode()
        add_one(session, 5)
    done = moved_away(cluster, session, before, 25)
    assert cluster.of(session) is cluster.nodes[other]
    assert any("moves to node" in line for line in said)
    until(lambda: any("moved from node" in line for line in said), "the line that says so")
    add_one(session, 5)
    assert value(session) == done + 5
    until(lambda: (cluster.task(session)["node_name"], cluster.task(session)["move"]) == (other, None), "it is shown there")
    moved = session.info.session
    cluster.move(session)
    until(closed(cluster, moved), "it has left")
    assert cluster.of(session) is before
    add_one(session, 1)
    assert value(session) == done + 6
    session.close()
    assert session.totals is not None and session.totals.launches == done + 6, "the totals are those of the script"
    until(closed(cluster, session.info.session), "the end")
    until(lambda: cluster.task(session)["state"] == "completed", "the end of the task")
    events = cluster.events()
    assert len([event for event in events if isinstance(event, TaskPlaced)]) == 1
    view = billed(events)
    assert not view.findings
    assert sum(row.launches for row in view.rows.values()) == done + 6


def test_a_running_task_makes_room_for_one_that_waits(cluster: Cluster) -> None:
    """Two tasks spread over two devices; one that wants a whole device waits until one of them has moved beside the other."""
    here, there = cluster.open(), cluster.open()
    for session in (here, there):
        begin(session)
    until(lambda: cluster.task(here)["node"] != cluster.task(there)["node"], "one on each node")
    whole_mb = cluster.controller.get("/api/v1/nodes")["items"][0]["devices"][0]["vram_bytes"] >> 20
    asked = {"required_vram_mb": whole_mb, "queue": True, "title": "whole device"}
    answer = cluster.controller.ask("POST", "/api/v1/tasks", asked)
    assert (answer.status, answer.json["state"]) == (202, "queued")
    config = {"default_vram_overcommit_percent": None, "defragment_after_ms": 1}
    assert cluster.controller.ask("PUT", "/api/v1/config", config).status == 200
    done = 20
    while cluster.task(here)["node"] != cluster.task(there)["node"]:
        add_one(here, 1)
        add_one(there, 1)
        done += 1
    until(lambda: cluster.controller.get(f"/api/v1/tasks/{answer.json['id']}")["node"], "the waiting task has its place")
    add_one(here, 1)
    add_one(there, 1)
    assert value(here) == value(there) == done + 1
    (took,) = [event for event in cluster.events() if isinstance(event, ActionTaken) and event.action == "task.move"]
    assert took.target in (here.info.task, there.info.task) and f"to make room for task {answer.json['id']}" in took.detail
    here.close()
    there.close()


STAGES = {"open": (Opening, "open_ahead"), "copy": (RemoteSession, "upload"), "replay": (Move, "_follow"), "switch": (Move, "_switch")}


@pytest.mark.parametrize("stage", STAGES)
def test_a_target_that_dies_leaves_the_script_where_it_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, said: list[str], stage: str
) -> None:
    """Server and executor of the target are killed at a stage of the move. The script continues, is charged once, and moves later."""
    session = cluster.open()
    begin(session)
    before, home = cluster.of(session), session.info.session
    ((other, target),) = ((name, node) for name, node in cluster.nodes.items() if node is not before)
    owner, name = STAGES[stage]
    reached = getattr(owner, name)
    killed = threading.Event()

    def dies(self: Any, *arguments: Any, **keys: Any) -> Any:
        if threading.current_thread().name == "wooly move" and not killed.is_set():
            target.kill_server()
            target.kill_executor()
            killed.set()
        return reached(self, *arguments, **keys)

    monkeypatch.setattr(owner, name, dies)
    cluster.move(session, to=other)
    done = 20
    while not (killed.is_set() and session._move is not None and session._move.over):
        add_one(session, 1)
        done += 1
    add_one(session, 5)
    done += 5
    assert value(session) == done and session.info.session == home, "it is undisturbed"
    until(lambda: cluster.task(session)["move"] is None, "the move is over")
    seen = cluster.task(session)
    assert (seen["state"], seen["node_name"]) == ("started", session.info.node.name) and seen["stayed"]
    assert any("stays on node" in line for line in said)
    target.start_server()
    until(lambda: all(node["state"] == "ready" for node in cluster.controller.get("/api/v1/nodes")["items"]), "two nodes")
    cluster.move(session, to=other)
    done = moved_away(cluster, session, before, done)
    assert cluster.of(session) is target and value(session) == done
    session.close()
    until(lambda: cluster.task(session)["state"] == "completed", "the end")
    until(closed(cluster, session.info.session), "the end")
    view = billed(cluster.events())
    assert not view.findings
    assert sum(row.launches for row in view.rows.values()) == done


@pytest.mark.parametrize("stage", STAGES)
def test_a_home_that_dies_while_the_session_moves_costs_no_batch(patient: Cluster, monkeypatch: pytest.MonkeyPatch, stage: str) -> None:
    """Its executor is killed: the session is built again, and is asked to move again."""
    cluster, session = patient, patient.open()
    begin(session)
    before = cluster.of(session)
    owner, name = STAGES[stage]
    reached = getattr(owner, name)
    killed = threading.Event()

    def dies(self: Any, *arguments: Any, **keys: Any) -> Any:
        if threading.current_thread().name == "wooly move" and not killed.is_set():
            before.kill_executor()
            killed.set()
        return reached(self, *arguments, **keys)

    monkeypatch.setattr(owner, name, dies)
    cluster.move(session)
    done = moved_away(cluster, session, before, 20)
    assert value(session) == done
    session.close()
    until(closed(cluster, session.info.session), "the end")
    view = billed(cluster.events())
    assert not view.findings
    assert sum(row.launches for row in view.rows.values()) == done


def test_a_drained_node_gives_its_tasks_away(cluster: Cluster, tmp_path: Path) -> None:
    session = cluster.open()
    begin(session)
    before, wooly = cluster.of(session), command_in(tmp_path)
    home, away = sorted(cluster.nodes, key=lambda name: cluster.nodes[name] is not before)
    done = wooly("nodes", "drain", home, "--move", CONTROLLER_URL=cluster.controller.url)
    assert (done.returncode, done.stderr) == (0, ""), done
    assert f"{session.info.task} goes to {away}" in done.stdout and "nothing stays on it" in done.stdout
    moved_away(cluster, session, before, 20)
    assert cluster.of(session) is cluster.nodes[away]
    until(lambda: cluster.task(session)["move"] is None, "it has left")
    done = wooly("nodes", "drain", away, "--move", CONTROLLER_URL=cluster.controller.url)
    assert f"{session.info.task} stays: " in done.stderr and "fits on no other node now" in done.stderr
    assert "1 still on it" in done.stdout
    add_one(session, 1)


def test_a_node_that_is_stopped_gives_its_tasks_away_first(cluster: Cluster, said: list[str]) -> None:
    for node in cluster.nodes.values():
        node.stop_server()
        node.change(WOOLY_STOP_GRACE_MS="60000")
        node.start_server()
    until(lambda: all(seen["state"] == "ready" for seen in cluster.controller.get("/api/v1/nodes")["items"]), "two nodes")
    session = cluster.open()
    begin(session)
    before = cluster.of(session)
    stopping = threading.Thread(target=before.stop_server)
    stopping.start()
    done = moved_away(cluster, session, before, 20)
    stopping.join()
    assert value(session) == done
    until(lambda: any("moved from node" in line for line in said), "the line that says so")
    until(lambda: cluster.task(session)["state"] == "started", "the controller has read that the session is open")


def test_a_task_with_two_devices_leaves_its_node_with_both(tmp_path: Path, said: list[str]) -> None:
    """Killed, then moved: each of its sessions is continued on the other node, on a device of its own. One thread uses both: a session that
    is asked to leave takes the other one with it, and its memory."""
    for name in ("a", "b", "controller"):
        (tmp_path / name).mkdir()
    both: dict[str, Any] = {"WOOLY_DEVICES": "2", "WOOLY_BACKEND": "reference"}
    with Node(tmp_path / "a", NODE_NAME="a", **both) as a, Node(tmp_path / "b", beside=a, NODE_NAME="b", **both) as b:
        controller = Controller(a.nats.url, tmp_path / "controller", CONTROLLER_NODE_LEASE_MS="2000")
        controller.start()
        until(lambda: len(controller.get("/api/v1/nodes")["items"]) == 2, "two nodes")
        cluster = Cluster({"a": a, "b": b}, controller)
        try:
            config = a.config(controller_url=controller.url, required_vram_mb=64, gpu_count=2)
            sessions = [open_session(config, device=device) for device in range(2)]
            assert len({session.info.task for session in sessions}) == 1
            for session in sessions:
                begin(session)
            before = cluster.of(sessions[0])
            assert cluster.of(sessions[1]) is before
            before.kill_server()
            before.kill_executor()
            for session in sessions:
                add_one(session, 5)
            assert [value(session) for session in sessions] == [25, 25]
            other = cluster.of(sessions[0])
            assert other is cluster.of(sessions[1]) is not before
            assert {session.info.gpus for session in sessions} == {(0,), (1,)}
            before.start_server()
            until(lambda: all(seen["state"] == "ready" for seen in controller.get("/api/v1/nodes")["items"]), "the node is back")
            until(lambda: cluster.task(sessions[0])["state"] == "started", "its sessions are in the log")
            assert controller.ask("POST", f"/api/v1/tasks/{sessions[0].info.task}/move", {}).status == 200
            while any(cluster.of(session) is other for session in sessions):
                for session in sessions:
                    add_one(session, 1)
            numbers = [value(session) for session in sessions]
            assert numbers[0] == numbers[1] > 25
            until(lambda: len([line for line in said if "moved from node" in line]) == 2, "both have moved")
            task = sessions[0].info.task
            for session in sessions:
                session.close()
            until(lambda: controller.get(f"/api/v1/tasks/{task}")["state"] == "completed", "the end")
            view = billed(cluster.events())
            assert not view.findings
            assert sum(row.launches for row in view.rows.values()) == 2 * numbers[0]
        finally:
            controller.stop()


SCRIPT = """
import time, torch
x = torch.zeros(8, device="cuda")
for step in range(60):
    x += torch.rand(8, device="cuda").mean()
    if step % 10 == 0:
        print("step", step, flush=True)
        time.sleep(1)  # there is time to kill its node
print("sum", x.sum().item(), flush=True)
"""


def ran(cluster: Cluster, *, kill: bool) -> str:
    """What the script prints as its sum. ``kill``: its node is killed while it runs."""
    submitted = cluster.controller.ask("POST", "/api/v1/runs", {"script": SCRIPT, "required_vram_mb": 64})
    task = f"/api/v1/tasks/{submitted.json['id']}"

    def text() -> str:
        return str(cluster.controller.get(f"{task}/log")["text"])

    until(lambda: "step 20" in text(), "the script runs")
    before = cluster.nodes[cluster.controller.get(task)["node_name"]]
    if kill:
        before.kill_server()
        before.kill_executor()
    until(lambda: "sum" in text(), "the script ends")
    until(lambda: cluster.controller.get(task)["run"]["state"] == "ended", "its run ends")
    ended = cluster.controller.get(task)
    assert (ended["state"], ended["run"]["exit_code"], ended["reason"]) == ("completed", 0, "")
    assert (cluster.nodes[ended["node_name"]] is not before) == kill
    return text().split("sum")[1].split()[0]


def test_a_run_survives_its_node(cluster: Cluster, tmp_path: Path) -> None:
    """A script that a runner executes, whose task has no session while it waits for another place."""
    environment = plain_environment(
        WOOLY_NATS_URL=next(iter(cluster.nodes.values())).nats.url,
        CONTROLLER_URL=cluster.controller.url,
        WOOLY_DATA_DIR=str(tmp_path / "runner"),
        RUNNER_PYTHONPATH=str(ROOT),
    )
    with (tmp_path / "runner.log").open("ab") as log:
        runner = start_service("services.runner", env=environment, stderr=log)
    assert runner.stdout is not None and runner.stdout.readline()
    try:
        assert ran(cluster, kill=False) == ran(cluster, kill=True)
    finally:
        runner.stop(signal.SIGTERM)


def test_what_cannot_be_moved_says_why(cluster: Cluster) -> None:
    session = cluster.open()
    begin(session)
    path = f"/api/v1/tasks/{session.info.task}"
    home = cluster.task(session)["node_name"]
    for body, part in (({"to": home}, "runs on that node"), ({"to": "nowhere"}, "nowhere")):
        answer = cluster.controller.ask("POST", f"{path}/move", body)
        assert answer.status in (404, 409) and part in answer.body.decode()
    assert "has not lost its node" in cluster.controller.ask("POST", f"{path}/resume").body.decode()
    session.close()
    until(lambda: cluster.task(session)["state"] == "completed", "its end")
    assert "does not run" in cluster.controller.ask("POST", f"{path}/move", {}).body.decode()


def test_a_session_that_cannot_be_built_again_ends_with_its_node(cluster: Cluster) -> None:
    session = cluster.open(recovery_mb=0, recovery_wait_s=8.0)
    begin(session)
    cluster.of(session).kill_server()
    with pytest.raises(NodeLostError, match="has not answered"):
        add_one(session, 1)
    assert cluster.task(session)["state"] == "failed"


def test_a_task_that_is_placed_again_where_it_was_continues_there(cluster: Cluster) -> None:
    """Its node was silent for a moment, in which it was displaced, and no other one takes it."""
    session = cluster.open(recovery_wait_s=20)
    begin(session)
    cluster.drain_others(session)
    before, path = cluster.of(session), f"/api/v1/tasks/{session.info.task}/resume"
    assert before.server is not None
    before.server.send_signal(signal.SIGSTOP)
    until(lambda: cluster.controller.ask("POST", path).status == 200, "the node is lost, and the task is to be placed again")
    before.server.send_signal(signal.SIGCONT)
    until(closed(cluster, session.info.session), "the node ends what it had")
    add_one(session, 1)
    assert value(session) == 21 and cluster.of(session) is before
    assert cluster.task(session)["state"] == "started"


@contextlib.contextmanager
def all_silent(cluster: Cluster) -> Iterator[None]:
    """Every node is silent, and held for lost."""
    servers = [node.server for node in cluster.nodes.values() if node.server is not None]
    for server in servers:
        server.send_signal(signal.SIGSTOP)
    try:
        until(lambda: all(node["state"] == "lost" for node in cluster.controller.get("/api/v1/nodes")["items"]), "all nodes are lost")
        yield
    finally:
        for server in servers:
            server.send_signal(signal.SIGCONT)


def test_a_script_that_starts_waits_for_nodes_that_are_lost(cluster: Cluster, said: list[str]) -> None:
    with all_silent(cluster):
        opening = Waiting(cluster.open)
        until(lambda: any("which is lost, coming back" in line for line in said), "a line that says what is waited for")
    session = opening.ended()
    begin(session)
    assert value(session) == 20 and cluster.task(session)["state"] == "started"


def test_a_script_that_starts_gives_up_when_the_lost_nodes_stay_away(cluster: Cluster) -> None:
    with all_silent(cluster):
        with pytest.raises(PlacementError, match="the node is lost"):
            cluster.open(recovery_wait_s=1.0)
        reasons = [task["reason"] for task in cluster.controller.get("/api/v1/tasks?state=failed")["items"]]
        assert len(reasons) == 2 and sum("queue timeout" in reason for reason in reasons) == 1
        with pytest.raises(PlacementError, match="the node is lost"):
            cluster.open(recovery_wait_s=0)  # at once
        assert len(cluster.controller.get("/api/v1/tasks")["items"]) == 3


def test_a_task_whose_script_gives_up_waits_for_no_place(cluster: Cluster) -> None:
    session = cluster.open(recovery_wait_s=10)
    begin(session)
    cluster.drain_others(session)
    cluster.of(session).kill_server()
    cluster.of(session).kill_executor()
    with pytest.raises(PlacementError, match="waits for a place on another node"):
        add_one(session, 1)
    assert cluster.task(session)["state"] == "cancelled"


def test_an_answer_that_is_still_on_the_node_is_not_left_there(cluster: Cluster) -> None:
    """A large answer, for which no thread waits yet, comes just before the session leaves: it is taken first."""
    size = 32_000
    session = cluster.open()
    session.wait(session.submit(Flush(uploads=[(1, memoryview(np.ones(size)).cast("B"))])))
    before = cluster.of(session)
    reading = session.submit(Flush(reads=[(1, 0, 8 * size)]))
    cluster.move(session)
    until(lambda: session._move is not None and session._move.caught_up, "the session ahead has caught up")
    session.wait(session.submit(increment(size).flush([1])))
    assert cluster.of(session) is before
    (data,) = session.wait(reading)
    assert set(floats(data)) == {1.0}
    until(lambda: cluster.of(session) is not before, "it moves")
    (data,) = session.wait(session.submit(Flush(reads=[(1, 0, 8 * size)])))
    assert set(floats(data)) == {2.0}


def test_a_session_is_moved_however_often(cluster: Cluster) -> None:
    """Also while it has nothing to do. What comes late of one that was left says nothing about the one that took its place."""
    session = cluster.open()
    begin(session)
    names, done = [session.info.session], 20
    for turn in range(6):
        before = cluster.of(session)
        cluster.move(session)
        if turn % 2:
            done = moved_away(cluster, session, before, done)
        until(lambda: session.info.session != names[-1], "another session takes its place")
        names.append(session.info.session)
    for name in names[:-1]:
        session._rebuild.lose(name, NodeLostError("late"), displaced=True)
        assert not session._state.rebuilding
    add_one(session, 1)
    assert value(session) == done + 1 and session.info.session == names[-1]
    session.close()
    until(closed(cluster, session.info.session), "the end")
    view = billed(cluster.events())
    assert not view.findings
    assert sum(row.launches for row in view.rows.values()) == done + 1


def test_a_session_that_cannot_be_built_again_stays(cluster: Cluster) -> None:
    session = cluster.open(recovery_mb=0)
    begin(session)
    before = cluster.of(session)
    cluster.move(session)
    until(lambda: cluster.task(session)["stayed"], "it stays")
    assert "WOOLY_RECOVERY_MB" in cluster.task(session)["stayed"]
    add_one(session, 1)
    assert value(session) == 21 and cluster.of(session) is before


def test_with_keys_of_clients_and_nodes(tmp_path: Path) -> None:
    """The controller's orders reach a node whose bus authenticates every session, and the bill believes what both nodes say."""
    for name in ("stack", "node"):
        (tmp_path / name).mkdir()
    with SecureStack(tmp_path / "stack") as stack:
        stack.tenant("acme")
        secured = {"WOOLY_NATS_URL": stack.addresses["nats"], "WOOLY_TLS_CA": str(stack.ring.ca), "PYTHONPATH": str(ROOT)}
        folders = {"WOOLY_DATA_DIR": str(tmp_path / "node" / "data"), "WOOLY_CACHE_DIR": str(tmp_path / "node" / "cache")}
        key = stack.key(role="node", tenant="", node="second")
        environment = plain_environment(
            **secured, **folders, WOOLY_API_KEY=key, NODE_ID="second", NODE_NAME="second", WOOLY_BACKEND="host", WOOLY_DEVICE_VRAM_MB="2048"
        )
        with (tmp_path / "node.log").open("ab") as log:
            server = start_service("services.server", env=environment, stderr=log)
        try:
            assert server.stdout is not None and server.stdout.readline()
            until(lambda: len(stack.ask("GET", "/api/v1/nodes")["items"]) == 2, "two nodes")
            session = open_session(
                Config(
                    nats_urls=(stack.addresses["nats"],),
                    controller_url=stack.addresses["controller"],
                    api_key=stack.key(role="member", tenant="acme"),
                    tls_ca=str(stack.ring.ca),
                    required_vram_mb=64,
                    recovery_target_s=86_400,
                )
            )
            begin(session)
            done = 20
            for to in ("local", "second"):  # it was placed on one of them
                if session.info.node is not None and session.info.node.name != to:
                    stack.ask("POST", f"/api/v1/tasks/{session.info.task}/move", {"to": to})
                while session.info.node is not None and session.info.node.name != to:
                    add_one(session, 1)
                    done += 1

            def launches() -> int:
                return int(stack.ask("GET", "/api/v1/billing/credits?by=node", service="billing")["total"]["launches"])

            until(lambda: launches() == done, "every batch is in the bill")
            server.stop(signal.SIGKILL)
            add_one(session, 1)
            assert value(session) == done + 1
            session.close()
            until(lambda: launches() == done + 1, "every batch is in the bill, once")
            assert stack.ask("GET", "/api/v1/billing/verify", service="billing")["ok"]
        finally:
            server.stop(signal.SIGKILL)
            for pid in executor_pids(tmp_path / "node" / "cache"):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
