"""The embedded stack as its users start it: one ready line, state that survives, children that come back, a clean end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.support.node import DEADLINE_S, increment, until
from tests.support.stack import EmbeddedStack, plain_environment
from wooly.config import Config
from wooly.link import Flush
from wooly.session import Session, open_session


def connect(stack: EmbeddedStack, **keys: object) -> Session:
    return open_session(Config(nats_urls=(stack.addresses["nats"],), **keys))  # type: ignore[arg-type]  # keys of Config


def work(session: Session) -> None:
    session.submit(Flush(uploads=[(1, memoryview(np.zeros(16)).cast("B"))]))
    session.submit(increment().flush([1]))
    session.wait(session.submit(Flush(reads=[(1, 0, 128)])))


def alive(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def descendants(pid: int) -> set[int]:
    """Every process below ``pid`` now."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                continue
    found = {pid}
    while True:
        more = {child for child, parent in parents.items() if parent in found} - found
        if not more:
            return found - {pid}
        found |= more


def test_state_survives_a_restart(tmp_path: Path) -> None:
    """A folder given with --dir: same addresses, the log goes on, the node's epoch grows."""
    with EmbeddedStack(tmp_path, WOOLY_BACKEND="reference") as stack:
        first = dict(stack.addresses)
        session = connect(stack)
        work(session)
        session.close()
        assert session.totals is not None
        assert session.totals.launches == 1
        assert stack.stop() == 0
    with EmbeddedStack(tmp_path, WOOLY_BACKEND="reference") as stack:
        assert {key: stack.addresses[key] for key in ("nats", "controller", "billing", "node")} == {
            key: first[key] for key in ("nats", "controller", "billing", "node")
        }
        (node,) = stack.get("controller", "/api/v1/nodes")["items"]
        assert (node["state"], node["epoch"]) == ("ready", 2)
        session = connect(stack)
        work(session)
        session.close()


@pytest.mark.parametrize("planted", ["written by other users", "another user"])
def test_a_folder_in_which_others_could_have_planted_something_is_refused(tmp_path: Path, planted: str) -> None:
    """Keys and a configuration of the bus that another user put there would be used."""
    folder = tmp_path / "state"
    (folder / "keyring").mkdir(parents=True)
    if planted == "another user":
        if os.getuid():
            pytest.skip("only root makes files of others")
        os.chown(folder / "keyring", 61999, 61999)
    else:
        folder.chmod(0o777)
    command = [sys.executable, "-P", "-m", "services.up", "--secure", "--dir", str(folder)]
    done = subprocess.run(command, env=plain_environment(WOOLY_BACKEND="reference"), capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout) == (2, "") and planted in done.stderr, done.stderr
    assert [path.name for path in folder.rglob("*")] == ["keyring"]


def test_a_folder_in_use_is_refused_before_its_store_is_opened(tmp_path: Path) -> None:
    with EmbeddedStack(tmp_path, WOOLY_BACKEND="reference") as stack:
        log = tmp_path / "state" / "nats" / "nats.log"
        before = log.read_bytes()
        command = [sys.executable, "-P", "-m", "services.up", "--dir", str(tmp_path / "state")]
        done = subprocess.run(command, env=plain_environment(WOOLY_BACKEND="reference"), capture_output=True, text=True, timeout=DEADLINE_S)
        assert (done.returncode, done.stdout) == (2, "")
        (line,) = done.stderr.splitlines()
        assert line.startswith(f"wooly up: {tmp_path / 'state'} is in use by process {stack.process.pid}")
        assert log.read_bytes() == before
        assert stack.get("controller", "/api/v1/nodes")["items"][0]["state"] == "ready"


@pytest.mark.parametrize("arguments", [(), ("--secure",)])
def test_a_key_of_the_person_who_starts_it_is_not_that_of_its_services(tmp_path: Path, arguments: tuple[str, ...]) -> None:
    key = f"wk_{'a' * 16}_{'b' * 52}"
    with EmbeddedStack(tmp_path, *arguments, WOOLY_BACKEND="reference", WOOLY_API_KEY=key) as stack:
        assert stack.addresses["node"]


def test_a_placed_task_runs_where_the_controller_says(tmp_path: Path) -> None:
    with EmbeddedStack(tmp_path, WOOLY_BACKEND="reference") as stack:
        session = connect(stack, controller_url=stack.addresses["controller"], required_vram_mb=64, tenant="team")
        work(session)

        def tasks() -> list[tuple[str, str, str]]:
            return [(task["tenant"], task["state"], task["node"]) for task in stack.get("controller", "/api/v1/tasks")["items"]]

        until(lambda: tasks() == [("team", "started", stack.addresses["node"])], "the task to start")
        session.close()
        until(lambda: tasks() == [("team", "completed", stack.addresses["node"])], "the task to complete")


def test_children_that_die_come_back(tmp_path: Path) -> None:
    with EmbeddedStack(tmp_path, WOOLY_BACKEND="reference", WOOLY_ORPHAN_MS="60000") as stack:
        session = connect(stack)
        work(session)
        for name in ("server", "billing", "controller"):
            os.kill(stack.addresses["pids"][name], signal.SIGKILL)
        session.wait(session.submit(increment().flush([1])))  # its memory lived on in the executor
        session.close()
        until(lambda: _answers(stack, "controller", "/health"), "the controller")
        until(lambda: _answers(stack, "billing", "/health"), "billing")


def _answers(stack: EmbeddedStack, service: str, path: str) -> bool:
    try:
        stack.get(service, path)
    except OSError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_nothing_is_left_when_it_ends(tmp_path: Path, number: int) -> None:
    with EmbeddedStack(tmp_path, WOOLY_BACKEND="reference") as stack:
        below = descendants(stack.process.pid)
        assert len(below) >= 5  # nats-server, controller, billing, server, executor
        stack.process.send_signal(number)
        assert stack.process.wait(DEADLINE_S) == 0
        until(lambda: not any(alive(pid) for pid in below), "the end of every child")


def test_it_ends_with_its_parent(tmp_path: Path) -> None:
    """A script that was killed must not leave a stack behind."""
    script = (
        "import os, subprocess, sys\n"
        "os.environ['WOOLY_DIE_WITH_PARENT'] = str(os.getpid())\n"
        f"p = subprocess.Popen([sys.executable, '-P', '-m', 'services.up', '--dir', {str(tmp_path / 'state')!r}], stdout=subprocess.PIPE)\n"
        "print(p.pid, p.stdout.readline().decode(), flush=True)\nsys.stdin.read()\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env=plain_environment(WOOLY_BACKEND="reference"),
    )
    assert parent.stdout is not None
    pid, line = parent.stdout.readline().decode().split(" ", 1)
    assert json.loads(line)["nats"]
    below = descendants(int(pid)) | {int(pid)}
    parent.kill()
    parent.communicate()
    until(lambda: not any(alive(process) for process in below), "the end of the stack")


def test_a_stack_that_cannot_start_says_why(tmp_path: Path) -> None:
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "services.up", "--dir", str(tmp_path), "--backend", "abacus"],
        capture_output=True,
        text=True,
        env=plain_environment(),
        timeout=60,
    )
    assert done.returncode == 2
    assert "there is no backend 'abacus'" in done.stderr
    assert time.monotonic() - started < 30
