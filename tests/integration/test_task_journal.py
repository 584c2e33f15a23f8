"""What became of a task on its device, from the controller: when it ran and waited, and what ran instead."""

from __future__ import annotations

import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.support.command import command_in
from tests.support.node import increment
from tests.support.plane import wait_until
from tests.support.script import Script, task_called
from tests.support.stack import EmbeddedStack
from wooly.api import Client
from wooly.config import load
from wooly.link import Flush, Origin
from wooly.session import Session, open_session

BATCHES = 40


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack(WOOLY_BACKEND="host") as running:
        yield running


@pytest.fixture(scope="module")
def tasks(stack: EmbeddedStack) -> dict[str, str]:
    """Two tasks that shared the device and are over: id by title."""
    sessions = {title: opened(stack, title, prio) for title, prio in (("serve", 0), ("train", 3))}
    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(work, session, title) for title, session in sessions.items()]:
            done.result()
    for session in sessions.values():
        session.close()
    found = {task["title"]: task["id"] for task in stack.get("controller", "/api/v1/tasks")["items"]}
    wait_until(lambda: {task["state"] for task in stack.get("controller", "/api/v1/tasks")["items"]} == {"completed"})
    return found


def opened(stack: EmbeddedStack, title: str, prio: int) -> Session:
    flags = {
        "WOOLY_NATS_URL": stack.addresses["nats"],
        "CONTROLLER_URL": stack.addresses["controller"],
        "REQUIRED_VRAM": "100",
        "PRIO": str(prio),
    }
    return open_session(load(flags, environ={}), title=title)


def work(session: Session, title: str) -> None:
    """Both run the same program, each from lines of its own."""
    program, origin = increment(1_000_000), Origin("loop.py:2", f"/home/anna/<b>\x1b[31m/{title}.py:3")
    session.wait(session.submit(Flush(allocs=[(1, 8_000_000)])))
    tickets = [session.submit(program.flush([1], origin=origin)) for _ in range(BATCHES)]
    session.wait(tickets[-1])


def whole(stack: EmbeddedStack, task: str, what: str) -> Any:
    """The answer once the journals of both cores hold the task's end: nodes publish about once a second."""
    answer: Any = {}

    def is_whole() -> bool:
        nonlocal answer
        try:
            answer = stack.get("controller", f"/api/v1/tasks/{task}/{what}")
        except urllib.error.HTTPError as error:
            assert error.code == 409
            return False
        if what == "waits":
            return bool(answer["finished"] == BATCHES + 1)
        done = sum(sum(lane["batches"]) for lane in answer["lanes"])
        return done == BATCHES + 1 and any(value for lane in answer["lanes"] for value in lane["resident_bytes"])

    wait_until(is_whole, 60)
    return answer


def test_waits_name_the_task_that_ran_instead(stack: EmbeddedStack, tasks: dict[str, str]) -> None:
    story = whole(stack, tasks["train"], "waits")
    assert story["complete"] and story["batches"] == BATCHES + 1
    assert story["waited_ns"] == sum(line["ns"] for line in story["by_rule"]) == sum(line["ns"] for line in story["by_other"])
    first = story["by_other"][0]
    assert (first["task"], first["title"], first["priority"]) == (tasks["serve"], "serve", 0)
    assert first["text"] == f"{tasks['serve']} (serve)"
    (session,) = story["sessions"]
    assert (session["task"], session["title"]) == (tasks["train"], "train")


def test_a_timeline_has_every_batch_and_the_memory(stack: EmbeddedStack, tasks: dict[str, str]) -> None:
    story, shown = whole(stack, tasks["train"], "waits"), whole(stack, tasks["train"], "timeline")
    (lane,) = shown["lanes"]
    assert lane["node_name"] == "local" and lane["gpu"] == 0
    waited = sum(lane["queue_ns"]) + sum(lane["preempted_ns"]) + sum(lane["memory_ns"])
    assert waited == story["waited_ns"] and sum(lane["run_ns"]) > 0
    assert max(value for value in lane["resident_bytes"] if value is not None) >= 8_000_000
    assert 0 < shown["to_ns"] - shown["from_ns"] < 300 * 10**9


def test_programs_have_their_operations_and_the_time_they_ran(stack: EmbeddedStack, tasks: dict[str, str]) -> None:
    story, shown = whole(stack, tasks["train"], "waits"), whole(stack, tasks["train"], "timeline")
    step, rest = story["programs"]
    assert step["operations"] == ["add"] and step["batches"] == BATCHES and len(step["program"]) == 16
    assert (rest["program"], rest["operations"], rest["batches"]) == ("", [], 1)
    assert step["run_ns"] + rest["run_ns"] == sum(sum(lane["run_ns"]) for lane in shown["lanes"])
    assert 0 < step["longest_ns"] <= step["run_ns"] and step["core_ns"] > 0


def test_a_program_names_the_lines_of_the_task_asked_for(stack: EmbeddedStack, tasks: dict[str, str]) -> None:
    for title, task in tasks.items():
        step, rest = whole(stack, task, "waits")["programs"]
        assert step["origin"] == f"loop.py:2 to <b>?[31m/{title}.py:3" and rest["origin"] == ""
        page = stack.get("controller", f"/tasks/{task}/ran", "text/html")
        assert f"loop.py:2 to &lt;b&gt;?[31m/{title}.py:3" in page and "<b>?" not in page


def test_the_client_has_every_field_of_both(stack: EmbeddedStack, tasks: dict[str, str]) -> None:
    client = Client(stack.addresses["controller"])
    task = tasks["train"]
    waits, timeline = whole(stack, task, "waits"), whole(stack, task, "timeline")
    assert msgspec.to_builtins(client.waits(task)) == waits and waits["longest"] and waits["by_other"]
    assert msgspec.to_builtins(client.timeline(task)) == timeline and timeline["lanes"]
    assert [program.origin for program in client.programs(task)] == [one["origin"] for one in waits["programs"]]


def test_a_task_that_has_not_run_has_no_journal(stack: EmbeddedStack) -> None:
    for what in ("waits", "timeline"):
        with pytest.raises(urllib.error.HTTPError) as refused:
            stack.get("controller", f"/api/v1/tasks/nothing/{what}")
        assert refused.value.code == 404


def test_the_page_shows_both(stack: EmbeddedStack, tasks: dict[str, str]) -> None:
    """As text: what htmx puts into the page, and what is shown without scripts."""
    whole(stack, tasks["train"], "timeline")
    page = stack.get("controller", f"/tasks/{tasks['train']}", "text/html")
    assert f'hx-get="/tasks/{tasks["train"]}/ran"' in page
    shown = stack.get("controller", f"/tasks/{tasks['train']}/ran", "text/html")
    assert f'<a href="/tasks/{tasks["serve"]}">serve</a>' in shown
    assert f"{BATCHES + 1} batches waited" in shown
    for said in ('<rect class="gantt-run"', '<path class="vram-resident"', "Timeline on local, GPU 0, as a table"):
        assert said in shown


def test_names_work_wherever_ids_do(stack: EmbeddedStack, tasks: dict[str, str]) -> None:
    train = tasks["train"]
    for asked in (train, train[:8], "train"):
        assert stack.get("controller", f"/api/v1/tasks/{asked}")["id"] == train
        assert stack.get("controller", f"/api/v1/placements/{asked}")["task"] == train
        assert f"story-{train}" in stack.get("controller", f"/tasks/{asked}", "text/html")
    node = stack.addresses["node"]
    assert stack.get("controller", "/api/v1/nodes/local")["id"] == stack.get("controller", f"/api/v1/nodes/{node}")["id"] == node
    assert stack.get("controller", "/api/v1/tasks?node=local")["total"] == 2
    assert f"/live/node.{node}" in stack.get("controller", "/nodes/local", "text/html")


def test_commands_take_names(stack: EmbeddedStack, tasks: dict[str, str], tmp_path: Path) -> None:
    wooly = command_in(tmp_path)
    environment = {"CONTROLLER_URL": stack.addresses["controller"], "WOOLY_NATS_URL": stack.addresses["nats"]}
    for arguments, said in (
        (("nodes", "drain", "local"), "local takes no new tasks"),
        (("nodes", "resume", "local"), "local takes tasks"),
        (("groups", "create", "night", "--node", "local"), f"group night: {stack.addresses['node']}"),
        (("groups", "delete", "night"), "night is deleted"),
        (("tasks", "--node", "local", "--state", "completed"), "train"),
        (("why", "train"), f"{tasks['serve']} (serve) (P0) ran meanwhile"),
        (("why", "train"), "loop.py:2 to <b>?[31m/train.py:3"),
        (("why", tasks["train"][:8]), f"{tasks['serve']} (serve) (P0) ran meanwhile"),
    ):
        done = wooly(*arguments, **environment)
        assert done.returncode == 0 and said in done.stdout, (arguments, done.stdout, done.stderr)
    over = wooly("tasks", "cancel", "train", **environment)
    assert over.returncode == 2 and f"task {tasks['train']} is over" in over.stderr
    done = wooly("why", "train", WOOLY_NATS_URL=stack.addresses["nats"])
    assert done.returncode == 0 and "(serve) (P0) ran meanwhile" in done.stdout, "also without a controller, from the bus"


def test_the_programs_of_a_script_name_its_lines(stack: EmbeddedStack) -> None:
    code = """import torch
x = torch.zeros(1000, device="cuda")
for step in range(5):
    x = (x + 1) * 2
    x.sum().item()
"""
    with Script(stack, "lines", code) as script:
        assert script.end() == 0, script.error
        folder = script.folder.name
    task = task_called(stack, "lines.py", lambda task: task["state"] == "completed")["id"]

    def origins() -> set[str]:
        try:
            return {one["origin"] for one in stack.get("controller", f"/api/v1/tasks/{task}/waits")["programs"]}
        except urllib.error.HTTPError as error:
            assert error.code == 409
            return set()

    wait_until(lambda: f"{folder}/lines.py:5" in origins(), 60)
