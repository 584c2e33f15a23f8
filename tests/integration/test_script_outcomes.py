"""What became of a script: its exit code, the exception that ended it, the signal that killed it, in REST, the command line and the log."""

from __future__ import annotations

import html
import re
import signal
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.command import command_in
from tests.support.script import PYTHON, Script, task_called
from tests.support.stack import EmbeddedStack

WOOLY = str(Path(sys.executable).with_name("wooly"))
START = "import sys, time, torch\nfrom sys import exit\nx = torch.ones(4, device='cuda') + 1\nprint(x.sum().item(), flush=True)\n"
OVER = ("completed", "failed", "cancelled", "lost")


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack(WOOLY_BACKEND="reference", WOOLY_LEASE_MS="3000") as running:
        yield running


def ended(stack: EmbeddedStack, title: str) -> tuple[str, str, dict[str, Any] | None]:
    """State, reason and outcome as REST has them; the task's page must show the same state and reason."""
    task = task_called(stack, title, lambda task: task["state"] in OVER)
    with urllib.request.urlopen(f"{stack.addresses['controller']}/tasks/{task['id']}", timeout=30) as page:
        shown = " ".join(re.sub(r"<[^>]*>", " ", html.unescape(page.read().decode())).split())
    reason = f"{task['state'].capitalize()}: {task['reason']}" if task["reason"] else f" {task['state']} "
    assert reason in shown, (reason, shown[:2000])
    return task["state"], task["reason"], task["outcome"]


OOM = "torch.empty(1 << 40, device='cuda').sum().item()"
ENDINGS = {
    "normal": ("", 0, "completed", "", {"exit_code": 0, "error": None, "signal": None}),
    "exit0": ("sys.exit(0)", 0, "completed", "", {"exit_code": 0, "error": None, "signal": None}),
    "exit3": ("sys.exit(3)", 3, "failed", "exit code 3", {"exit_code": 3, "error": None, "signal": None}),
    "imported": ("exit(4)", 4, "failed", "exit code 4", {"exit_code": 4, "error": None, "signal": None}),
    "raised": ("raise SystemExit((lambda: 5)())", 5, "failed", "exit code 5", {"exit_code": 5, "error": None, "signal": None}),
    "words": ("sys.exit('no data')", 1, "failed", "exit code 1", {"exit_code": 1, "error": None, "signal": None}),
    "caught": ("try: sys.exit(9)\nexcept SystemExit: pass", 0, "completed", "", {"exit_code": 0, "error": None, "signal": None}),
    "error": ("raise KeyError('secret')", 1, "failed", "KeyError, exit code 1", {"exit_code": 1, "error": "KeyError", "signal": None}),
    "memory": (OOM, 1, "failed", "OutOfMemoryError, exit code 1", {"exit_code": 1, "error": "OutOfMemoryError", "signal": None}),
}


LAUNCHED = [pytest.param(name, (), id=name) for name in ENDINGS]
for way, launcher in {"python": (PYTHON,), "wooly-run": (WOOLY, "run")}.items():
    for ending in ENDINGS:
        marks = () if ending in ("exit3", "error") else pytest.mark.variant
        LAUNCHED.append(pytest.param(ending, launcher, id=f"{ending}-{way}", marks=marks))


@pytest.mark.parametrize(("name", "launcher"), LAUNCHED)
def test_how_a_script_ended_is_its_tasks_state(stack: EmbeddedStack, name: str, launcher: tuple[str, ...]) -> None:
    code, exit_code, state, reason, outcome = ENDINGS[name]
    title = f"{name}{len(launcher)}"
    with Script(stack, title, START + code + "\n", *launcher, REQUIRED_VRAM="64") as script:
        assert script.end() == exit_code, script.error
        assert script.output.startswith("8.0\n")
    assert ended(stack, f"{title}.py") == (state, reason, outcome)


@pytest.mark.parametrize(
    ("number", "launcher"),
    [
        *((number, ()) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)),
        *((signal.SIGINT, launcher) for launcher in ((PYTHON,), (WOOLY, "run"))),
        *(pytest.param(number, (WOOLY, "run"), marks=pytest.mark.variant) for number in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_signal_is_reported_and_kills_as_ever(stack: EmbeddedStack, number: signal.Signals, launcher: tuple[str, ...]) -> None:
    title = f"{number.name}{len(launcher)}"
    with Script(stack, title, START + "time.sleep(300)\n", *launcher, REQUIRED_VRAM="64") as script:
        script.prints("8.0\n")
        script.signal(number)
        assert script.end() in (-number, 128 + number)
    assert ended(stack, f"{title}.py")[:2] == ("failed", f"killed by signal {int(number)} ({number.name})")


def test_a_client_that_vanishes_is_lost(stack: EmbeddedStack) -> None:
    with Script(stack, "vanished", START + "time.sleep(300)\n", REQUIRED_VRAM="64") as script:
        script.prints("8.0\n")
        script.signal(signal.SIGKILL)
        script.end()
    assert ended(stack, "vanished.py") == ("lost", "the client stopped answering", None)


def test_a_cancelled_script_is_cancelled_by_name_with_its_totals(stack: EmbeddedStack, tmp_path: Path) -> None:
    loop = "while True:\n    x = x + 1\n    x.sum().item()\n    time.sleep(0.01)\n"
    with Script(stack, "unwanted", START + loop, WOOLY, "run", REQUIRED_VRAM="64") as script:
        script.prints("8.0\n")
        task = task_called(stack, "unwanted.py", lambda task: task["state"] == "started")["id"]
        command_in(tmp_path)("tasks", "cancel", task, CONTROLLER_URL=stack.addresses["controller"])
        assert script.end() == 2
        assert f"task {task} was cancelled by local" in script.error
        totals = next(line for line in script.error.splitlines() if " launches, " in line)
        assert int(totals.split(" s, ")[1].split()[0]) > 1 and " 0.0 core" not in totals, totals
    assert ended(stack, "unwanted.py")[:2] == ("cancelled", "cancelled by local")


def test_the_command_line_lists_states_and_reasons(stack: EmbeddedStack, tmp_path: Path) -> None:
    with Script(stack, "listed", START + "sys.exit(6)\n", REQUIRED_VRAM="64") as script:
        assert script.end() == 6
    ended(stack, "listed.py")
    wooly, where = command_in(tmp_path), {"CONTROLLER_URL": stack.addresses["controller"]}
    assert wooly("tasks", "--search", "listed.py", "--state", "failed", **where).stdout.rstrip().endswith("exit code 6")
    assert wooly("tasks", "--search", "listed.py", "--state", "lost", **where).stdout == "no tasks\n"


def test_processes_send_each_other_tensors_of_the_device(stack: EmbeddedStack) -> None:
    body = (
        "import torch, torch.multiprocessing as mp\n"
        "def child(model, given, answers):\n"
        "    x = given.get()\n"
        "    answers.put((model(x).detach(), x.device))\n"
        "    given.get()\n"
        "if __name__ == '__main__':\n"
        "    context = mp.get_context('spawn')\n"
        "    given, answers = context.Queue(), context.Queue()\n"
        "    torch.manual_seed(0)\n"
        "    model, x = torch.nn.Linear(3, 2).cuda(), torch.ones(4, 3, device='cuda')\n"
        "    process = context.Process(target=child, args=(model, given, answers))\n"
        "    process.start(); given.put(x); y, device = answers.get(timeout=60); given.put(None); process.join()\n"
        "    assert y.is_cuda and torch.equal(y, model(x)) and device == x.device, (y, device)\n"
    )
    with Script(stack, "senders", body, sys.executable, REQUIRED_VRAM="64") as script:
        assert script.end() == 0, script.error
        assert script.error.count("is copied") >= 2  # by both processes


@pytest.mark.parametrize(("method", "code"), [("spawn", "completed"), ("fork", "completed"), ("spawn", "failed"), ("fork", "failed")])
def test_a_childs_own_task_has_the_childs_outcome(stack: EmbeddedStack, method: str, code: str) -> None:
    title = f"family-{method}-{code}"
    body = (
        "import multiprocessing, torch\n"
        "def child():\n"
        "    torch.ones(2, device='cuda').sum().item()\n"
        f"    {'1 / 0' if code == 'failed' else 'pass'}\n"
        "if __name__ == '__main__':\n"
        f"    process = multiprocessing.get_context('{method}').Process(target=child)\n"
        "    process.start(); process.join()\n"
    )
    with Script(stack, title, body, REQUIRED_VRAM="64") as script:
        assert script.end() == 0
    state, reason, outcome = ended(stack, f"{title}.py")
    assert (state, reason) == ((code, "ZeroDivisionError, exit code 1") if code == "failed" else (code, "")), outcome


AT_EXIT = """
import atexit, torch

def save():
    for x in held:
        print((x * 2).cpu().sum().item(), flush=True)

atexit.register(save)
held = [torch.ones(4, device="cuda") + 1]
"""


@pytest.mark.parametrize("launcher", [(), ("-m", "wooly.cli", "run")], ids=["python", "run"])
def test_an_exit_handler_that_is_older_than_torch_uses_the_device(stack: EmbeddedStack, launcher: tuple[str, ...]) -> None:
    code = AT_EXIT.replace("import atexit, torch\n", "import atexit\n").replace("held =", "import torch\nheld =")
    title = f"early-{len(launcher)}"
    with Script(stack, title, code, PYTHON, *launcher, REQUIRED_VRAM="64") as script:
        assert script.end() == 0, script.error
        assert script.output == "16.0\n", script.error
        assert script.error.count("wooly: ") == 2, script.error
    assert ended(stack, f"{title}.py")[:2] == ("completed", "")


def test_a_scripts_exit_handler_that_is_older_than_its_session_uses_the_device(stack: EmbeddedStack) -> None:
    with Script(stack, "leaving", AT_EXIT + "sys = held.sys\n", PYTHON, REQUIRED_VRAM="64") as script:
        assert script.end() == 1, script.error
        assert script.output == "16.0\n", script.error
        assert script.error.count("wooly: node ") == 1, script.error
    assert ended(stack, "leaving.py")[:2] == ("failed", "AttributeError, exit code 1")
