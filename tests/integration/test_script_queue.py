"""A script that waits for a place: what it says meanwhile, how it gets in, how it leaves; and one that takes up a submitted task."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command_in
from tests.support.node import until
from tests.support.script import Script, task_called, tasks_of
from tests.support.stack import EmbeddedStack
from wooly.config import load
from wooly.session import open_session

CODE = "import torch\nprint(torch.ones(3, device='cuda').sum().item())\n"
WOOLY = str(Path(sys.executable).with_name("wooly"))


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack(WOOLY_BACKEND="reference") as running:
        yield running


@contextmanager
def device_taken(stack: EmbeddedStack) -> Iterator[None]:
    """Another script holds the only device exclusively."""
    flags = {"WOOLY_NATS_URL": stack.addresses["nats"], "CONTROLLER_URL": stack.addresses["controller"]}
    session = open_session(load({**flags, "REQUIRED_VRAM": "64", "GPU_MODE": "Exclusive"}, environ={}), title="holder.py")
    try:
        yield
    finally:
        session.close()
        until(lambda: not [task for task in tasks_of(stack) if task["state"] == "started"], "the holder is over")


def post(stack: EmbeddedStack, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    data = b"" if body is None else json.dumps(body).encode()
    request = urllib.request.Request(stack.addresses["controller"] + path, data, {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=30) as answer:
        return dict(json.loads(answer.read()))


def test_without_the_queue_a_full_cluster_refuses_in_words(stack: EmbeddedStack) -> None:
    with device_taken(stack), Script(stack, "refused", CODE, WOOLY, "run", REQUIRED_VRAM="64") as script:
        assert script.end() == 2
        (line,) = script.error.splitlines()
    says = "wooly: the controller refused the task: no device fits: 1 device held exclusively by another task (local, GPU 0: "
    assert line.startswith(says)
    assert line.endswith("; WOOLY_QUEUE=1, or `wooly run --queue`, waits for a place")


def test_a_refusal_shows_the_scripts_lines_and_none_of_ours(stack: EmbeddedStack) -> None:
    with device_taken(stack), Script(stack, "plain", CODE, REQUIRED_VRAM="64") as script:
        assert script.end() == 1
        error = script.error
    assert "plain.py" in error and "session.py" not in error and "opening.py" not in error
    assert error.splitlines()[-1].startswith("wooly.errors.PlacementError: the controller refused the task: no device fits: ")


def test_a_script_waits_for_its_place_and_says_why(stack: EmbeddedStack) -> None:
    with device_taken(stack):
        script = Script(stack, "patient", CODE, WOOLY_QUEUE="1", REQUIRED_VRAM="64")
        script.says("waiting for a place: number 1 of 1; 1 device held exclusively by another task; would let it in: the end of holder.py")
        waiting = task_called(stack, "patient.py")
        assert (waiting["state"], waiting["node"], waiting["queue"]) == ("queued", None, True)
    with script:
        assert script.end() == 0, script.error
        assert script.output == "3.0\n"
        lines = [line for line in script.error.splitlines() if "waiting" in line]
        assert len(lines) == len(set(lines)), "a line is written only when something changed"
    assert task_called(stack, "patient.py", lambda task: task["state"] == "completed")["id"] == waiting["id"]


def test_on_a_terminal_one_line_is_rewritten(stack: EmbeddedStack) -> None:
    ours, theirs = pty.openpty()
    try:
        with device_taken(stack):
            script = Script(stack, "terminal", CODE, WOOLY, "run", "--queue", terminal=theirs, REQUIRED_VRAM="64")
            shown = b""
            while shown.count(b"waiting for a place for") < 2:
                shown += os.read(ours, 4096)
        with script:
            assert script.end() == 0
            while b"GiB-seconds" not in shown:
                shown += os.read(ours, 4096)
    finally:
        os.close(ours)
        os.close(theirs)
    text = shown.decode()
    waits = re.findall(r"\r\x1b\[Kwooly: waiting for a place for \d+ s: number 1 of 1[^\r\n]*", text)
    assert len(waits) >= 2 and all(len(line.split("\x1b[K")[1]) < 80 for line in waits)
    assert "\n" not in text[: text.rindex(waits[-1])], "the line is rewritten in place"


@pytest.mark.parametrize(
    ("number", "launcher"),
    [(signal.SIGINT, ()), (signal.SIGINT, (WOOLY, "run")), (signal.SIGTERM, ())],
    ids=["Ctrl-C", "wooly-run", "SIGTERM"],
)
def test_a_script_that_is_stopped_leaves_the_queue(stack: EmbeddedStack, number: signal.Signals, launcher: tuple[str, ...]) -> None:
    name = f"impatient{number}{len(launcher)}"
    with device_taken(stack), Script(stack, name, CODE, *launcher, WOOLY_QUEUE="1", REQUIRED_VRAM="64") as script:
        script.says("waiting for a place: number 1 of 1")
        script.signal(number)
        assert script.end() in (128 + number, -number)
        task = task_called(stack, f"{name}.py")
        assert (task["state"], task["node"]) == ("cancelled", None)
        assert f"wooly: task {task['id']} is withdrawn from the queue" in script.error


def test_a_cancelled_wait_ends_the_script_by_name(stack: EmbeddedStack) -> None:
    with device_taken(stack), Script(stack, "unwanted", CODE, WOOLY, "run", WOOLY_QUEUE="1", REQUIRED_VRAM="64") as script:
        script.says("waiting for a place: number 1 of 1")
        name = task_called(stack, "unwanted.py")["id"]
        post(stack, f"/api/v1/tasks/{name}/cancel")
        assert script.end() == 2
        assert script.error.splitlines()[-1] == f"wooly: task {name} was cancelled by local"


def test_a_script_takes_up_a_task_that_waits(stack: EmbeddedStack) -> None:
    with device_taken(stack):
        body = {"id": "from-the-page", "required_vram_mb": 96, "queue": True, "priority": 3, "title": "page"}
        post(stack, "/api/v1/tasks", body)
        with Script(stack, "leaver", CODE, WOOLY_TASK_ID="from-the-page") as leaver:
            leaver.says("waiting for a place: number 1 of 1")
            leaver.signal(signal.SIGINT)
            leaver.end()
            assert "wooly: task from-the-page stays in the queue" in leaver.error
        script = Script(stack, "taker", CODE, WOOLY_TASK_ID="from-the-page")
        script.says("waiting for a place: number 1 of 1")
    with script:
        assert script.end() == 0, script.error
    task = task_called(stack, "page", lambda task: task["state"] == "completed")
    assert (task["id"], task["priority"]) == ("from-the-page", 3)
    assert not [task for task in tasks_of(stack) if task["title"] in ("taker.py", "leaver.py")], "no second task was submitted"


@pytest.mark.parametrize(
    ("name", "says"),
    [("never-submitted", "does not show the task: there is no task never-submitted"), ("over", "task over was cancelled by local")],
)
def test_a_task_that_cannot_be_taken_up_is_named(stack: EmbeddedStack, name: str, says: str) -> None:
    if name == "over":
        post(stack, "/api/v1/tasks", {"id": "over", "required_vram_mb": 64, "title": "over"})
        post(stack, "/api/v1/tasks/over/cancel")
    with Script(stack, "late", CODE, WOOLY, "run", WOOLY_TASK_ID=name) as script:
        assert script.end() == 2 and says in script.error


def test_a_reservation_serves_a_jobs_scripts_one_after_another(stack: EmbeddedStack, tmp_path: Path) -> None:
    """``wooly reserve`` waits for the place, each script of the job uses it, and ``wooly release`` ends it with what still runs on it."""
    wooly, where = command_in(tmp_path), {"CONTROLLER_URL": stack.addresses["controller"]}
    reserve = ("reserve", "--id", "job-1", "--required-vram", "64", "--exclusive", "--title", "job", "--term", "600")
    with device_taken(stack):
        waits = wooly(*reserve, **where)
        assert (waits.returncode, waits.stdout) == (75, ""), waits.stderr
        assert waits.stderr.startswith("wooly: waiting for a place: number 1 of 1; 1 device held exclusively by another task")
    held = wooly(*reserve, "--wait", "60", **where)
    assert held.returncode == 0, held.stderr
    printed = dict(line.split("=", 1) for line in held.stdout.splitlines())
    assert printed == {"WOOLY_TASK_ID": "job-1", **where}
    variables = {"WOOLY_TASK_ID": printed["WOOLY_TASK_ID"]}
    for name in ("first", "second"):
        with Script(stack, name, CODE, **variables) as script:
            assert script.end() == 0, script.error
        task = task_called(stack, "job", lambda task: not task["sessions"])
        assert (task["state"], task["reservation"], task["node"] is not None, task["outcome"]) == ("queued", True, True, None)
        with Script(stack, "other", CODE, WOOLY, "run", REQUIRED_VRAM="64") as other:
            assert other.end() == 2 and "held exclusively by another task" in other.error, "the reservation keeps its device"
    with Script(stack, "orphan", CODE + "import time\ntime.sleep(300)\n", **variables) as orphan:
        orphan.prints("3.0")
        assert wooly("release", "job-1", "--failed", "--reason", "node failure", **where).stdout == "job-1 failed\n"
        task = task_called(stack, "job", lambda task: not task["sessions"])
        assert (task["state"], task["reason"]) == ("failed", "node failure")
        orphan.signal(signal.SIGKILL)
        orphan.end()
    again = wooly("release", "job-1", **where)
    assert (again.returncode, again.stdout) == (0, "job-1 failed\n")
    gone = wooly(*reserve, **where)
    assert (gone.returncode, gone.stdout) == (1, "") and "reservation job-1 is failed: node failure" in gone.stderr
    with Script(stack, "late", CODE, WOOLY, "run", **variables) as late:
        assert late.end() == 2 and "task job-1 is failed: node failure; submit a new one" in late.error


def test_a_reservation_that_has_no_session_for_its_term_is_over(stack: EmbeddedStack, tmp_path: Path) -> None:
    wooly, where = command_in(tmp_path), {"CONTROLLER_URL": stack.addresses["controller"]}
    assert (
        wooly("reserve", "--id", "idle", "--required-vram", "64", "--term", "1", "--title", "idle", "--wait", "60", **where).returncode == 0
    )
    task = task_called(stack, "idle", lambda task: task["state"] == "failed")
    assert task["reason"] == "no session opened in time"
    with pytest.raises(urllib.error.HTTPError, match="409"):
        post(stack, "/api/v1/tasks", {"id": "plain", "required_vram_mb": 64, "title": "plain"})
        post(stack, "/api/v1/tasks/plain/release", {})
    post(stack, "/api/v1/tasks/plain/cancel")
