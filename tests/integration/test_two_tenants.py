"""Two unmodified scripts of different priority on one device: each gets the bits it gets alone, and people can see how they share it."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.stack import EmbeddedStack

SCRIPTS = Path(__file__).parent / "scripts"
_PATIENCE_S = 120


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack() as running:
        yield running


@contextlib.contextmanager
def started(stack: EmbeddedStack, folder: Path, script: str, **keys: str) -> Iterator[Path]:
    """The script works once ``folder / "begin"`` is there; its result is in the file. It ends well with the block."""
    out, stay = folder / f"{script}.pt", folder / f"{script}.stay"
    stay.touch()
    environment = stack.client_environment(CONTROLLER_URL=stack.addresses["controller"], REQUIRED_VRAM="512", **keys)
    files = [str(folder / name) for name in (f"{script}.pt", f"{script}.ready", "begin", f"{script}.stay")]
    process = subprocess.Popen([sys.executable, str(SCRIPTS / f"{script}.py"), *files], env=environment, cwd=folder)
    try:
        yield out
    finally:
        stay.unlink()
        assert process.wait(_PATIENCE_S) == 0


def there(file: Path) -> Path:
    """The file, once it is there."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while not file.exists():
        assert time.monotonic() < deadline_s, f"{file.name} did not come"
        time.sleep(0.02)
    return file


def saved(out: Path) -> Any:
    """What the script saved, once it has."""
    return torch.load(there(out), weights_only=False)


def wooly(stack: EmbeddedStack, *arguments: str) -> str:
    where = stack.addresses
    done = subprocess.run(
        [sys.executable, "-P", "-m", "wooly.cli", *arguments],
        env=stack.client_environment(CONTROLLER_URL=where["controller"], WOOLY_BILLING_URL=where["billing"]),
        capture_output=True,
        text=True,
        timeout=_PATIENCE_S,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def shown(stack: EmbeddedStack) -> dict[str, Any]:
    """The tasks of ``wooly top``, by title."""
    return {task["title"]: task for device in json.loads(wooly(stack, "top", "--json")) for task in device["tasks"]}


def test_two_scripts_share_a_device_and_do_not_notice(stack: EmbeddedStack, tmp_path: Path) -> None:
    (alone := tmp_path / "alone").mkdir()
    (together := tmp_path / "together").mkdir()
    (alone / "begin").touch()
    with started(stack, alone, "serve", PRIO="0") as out:
        serve_alone = saved(out)
    with started(stack, alone, "train", PRIO="3") as out:
        train_alone = saved(out)

    with (
        started(stack, together, "train", PRIO="3", WOOLY_TENANT="lab") as train_out,
        started(stack, together, "serve", PRIO="0", WOOLY_TENANT="shop") as serve_out,
    ):
        there(together / "train.ready")
        there(together / "serve.ready")
        (together / "begin").touch()
        serve, train = saved(serve_out), saved(train_out)
        tasks = shown(stack)
        table = wooly(stack, "top", "--once")

    assert torch.equal(serve, serve_alone)
    assert train["losses"] == train_alone["losses"]
    assert all(torch.equal(value, train_alone["state"][name]) for name, value in train["state"].items())

    assert (tasks["serve.py"]["priority"], tasks["serve.py"]["tenant"]) == (0, "shop")
    assert (tasks["train.py"]["priority"], tasks["train.py"]["tenant"]) == (3, "lab")
    assert tasks["train.py"]["resident_bytes"] >= sum(value.nbytes for value in train["state"].values())
    assert tasks["train.py"]["credits_per_s"] > 0, "its memory costs while it stays"
    assert "serve.py" in table and "train.py" in table


def test_what_was_decided_can_be_run_again_and_explained(stack: EmbeddedStack) -> None:
    """After the test above: every decision of both cores again, and the story of the low task's waits."""
    (node,) = json.loads(wooly(stack, "nodes", "--json"))["items"]
    replayed = json.loads(wooly(stack, "replay", "--json", "--node", node["id"]))
    assert {(segment["lane"], segment["equal"], segment["gap"]) for segment in replayed["segments"]} == {
        ("dispatch", True, ""), ("vram", True, "")
    }  # fmt: skip
    assert all(segment["records"] for segment in replayed["segments"])
    tasks = json.loads(wooly(stack, "tasks", "--json"))["items"]
    low = next(task["id"] for task in tasks if task["title"] == "train.py" and task["tenant"] == "lab")
    story = json.loads(wooly(stack, "why", low, "--json"))
    assert story["preempted"] > 0, "its steps are long, and requests came meanwhile"
    assert {other["priority"] for other in story["by_other"]} >= {0}
    assert "serve.py" in wooly(stack, "why", low)
