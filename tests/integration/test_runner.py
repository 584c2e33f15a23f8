"""Scripts that a runner executes: submitted over REST and by the command, their logs, limits, ends and notifications."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.command import command_in
from tests.support.node import until
from tests.support.stack import ROOT, EmbeddedStack

ENVIRONMENT = {"WOOLY_BACKEND": "reference", "WOOLY_WEBHOOK_PRIVATE": "1", "RUNNER_PYTHONPATH": str(ROOT)}
"""Scripts import the client that is tested, wherever the installed one is."""
GPU_SCRIPT = """
import os, sys, torch
print("arguments", sys.argv[1:], os.environ["SIZE"])
print("sum", torch.ones(int(os.environ["SIZE"]), device="cuda").sum().item())
print("to stderr", file=sys.stderr)
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack(None, "--runner", **ENVIRONMENT) as running:
        yield running


def ask(stack: EmbeddedStack, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Accept": "application/json", **({"Content-Type": "application/json"} if data else {})}
    request = urllib.request.Request(stack.addresses["controller"] + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return answer.status, json.loads(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, json.loads(error.read())


def submit(stack: EmbeddedStack, script: str, **more: Any) -> str:
    status, answer = ask(stack, "POST", "/api/v1/runs", {"script": script, "required_vram_mb": 16, **more})
    assert status in (201, 202), answer
    return str(answer["id"])


def log_of(stack: EmbeddedStack, task: str) -> tuple[str, dict[str, Any]]:
    """The whole log and the run, once it has ended."""
    text, after = "", 0
    while True:
        status, part = ask(stack, "GET", f"/api/v1/tasks/{task}/log?after={after}&wait_s=10")
        assert status == 200, part
        text, after = text + part["text"], part["next"]
        if part["ended"]:
            return text, part["run"]


def log_says(stack: EmbeddedStack, task: str, text: str) -> None:
    until(lambda: text in ask(stack, "GET", f"/api/v1/tasks/{task}/log")[1]["text"], f"the log of {task} says {text!r}")


def task_of(stack: EmbeddedStack, task: str) -> dict[str, Any]:
    return dict(ask(stack, "GET", f"/api/v1/tasks/{task}")[1])


def alive(pid: int) -> bool:
    """Whether a process runs (one that has ended and is not reaped does not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def answers(stack: EmbeddedStack) -> bool:
    try:
        return ask(stack, "GET", "/health")[0] == 200
    except OSError:
        return False


def test_a_script_runs_on_the_device_and_ends_with_0(stack: EmbeddedStack) -> None:
    task = submit(stack, GPU_SCRIPT, name="sum.py", arguments=["--n", "a b"], environment={"SIZE": "5"})
    text, run = log_of(stack, task)
    assert [line for line in text.splitlines() if not line.startswith("wooly: ")] == ["arguments ['--n', 'a b'] 5", "sum 5.0", "to stderr"]
    assert (run["state"], run["exit_code"], run["signal"], run["reason"], run["runner"]) == ("ended", 0, None, "", "local")
    found = task_of(stack, task)
    assert (found["state"], found["title"], found["reason"]) == ("completed", "sum.py", "")


def test_an_exception_fails_the_task_and_is_in_the_log(stack: EmbeddedStack) -> None:
    task = submit(stack, "import torch\nx = torch.ones(2, device='cuda')\nraise ValueError('no such thing')\n", name="bad.py")
    text, run = log_of(stack, task)
    assert "ValueError: no such thing" in text and "Traceback" in text
    assert run["exit_code"] == 1
    found = task_of(stack, task)
    assert (found["state"], found["reason"]) == ("failed", "ValueError, exit code 1")


def test_a_script_without_a_device_has_its_exit_code_as_outcome(stack: EmbeddedStack) -> None:
    good, bad = submit(stack, "print('plain')"), submit(stack, "import sys; sys.exit(3)")
    assert log_of(stack, good)[1]["exit_code"] == 0 and log_of(stack, bad)[1]["exit_code"] == 3
    assert task_of(stack, good)["state"] == "completed"
    assert (task_of(stack, bad)["state"], task_of(stack, bad)["reason"]) == ("failed", "exit code 3")


def test_a_script_sees_nothing_of_the_runner_and_leaves_nothing(stack: EmbeddedStack) -> None:
    script = """
import os, resource, subprocess, sys
print(sorted(os.environ))
print(os.getcwd() == os.environ["HOME"], resource.getrlimit(resource.RLIMIT_CORE))
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True, env={**os.environ, "A": "b"})
print("child", child.pid, os.getcwd())
"""
    text, run = log_of(stack, submit(stack, script, environment={"MY_OWN": "1"}))
    names, limits, child = text.splitlines()
    allowed = {
        "CONTROLLER_URL", "HOME", "LANG", "MY_OWN", "PATH", "PYTHONPATH", "TMPDIR",
        "WOOLY_NATS_URL", "WOOLY_QUEUE", "RUNNER_MARK", "WOOLY_TASK_ID",
        "WOOLY_TENANT", "LC_CTYPE",
    }  # fmt: skip
    assert run["exit_code"] == 0 and set(eval(names)) <= allowed and "MY_OWN" in names
    assert limits == "True (0, 0)"
    _, pid, folder = child.split()
    until(lambda: not alive(int(pid)), "the process that the script left behind is killed")
    assert not Path(folder).exists()


def test_the_wall_limit_ends_a_script(stack: EmbeddedStack) -> None:
    script = "import signal, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('begins')\ntime.sleep(600)\n"
    task = submit(stack, script, wall_limit_s=2)
    text, run = log_of(stack, task)
    assert text == "begins\n"
    assert (run["exit_code"], run["signal"], run["reason"]) == (None, signal.SIGKILL, "stopped at its limit of 2 s")
    assert (task_of(stack, task)["state"], task_of(stack, task)["reason"]) == ("failed", "stopped at its limit of 2 s")


def test_the_memory_limit_is_the_scripts_own(stack: EmbeddedStack) -> None:
    text, run = log_of(stack, submit(stack, "print('begins')\nbytearray(1 << 30)\n", ram_limit_mb=512))
    assert run["exit_code"] == 1 and text.startswith("begins\n") and text.rstrip().endswith("MemoryError")


def test_cancelling_the_task_kills_the_script(stack: EmbeddedStack) -> None:
    task = submit(stack, "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)\n")
    log_says(stack, task, "pid")
    pid = int(ask(stack, "GET", f"/api/v1/tasks/{task}/log")[1]["text"].split()[1])
    assert task_of(stack, task)["state"] == "started" and alive(pid)
    assert ask(stack, "POST", f"/api/v1/tasks/{task}/cancel")[0] == 200
    _, run = log_of(stack, task)
    assert (run["signal"], run["reason"]) == (signal.SIGTERM, "cancelled by local") and not alive(pid)
    assert task_of(stack, task)["state"] == "cancelled"


def test_a_run_that_waits_for_a_place_can_be_cancelled(stack: EmbeddedStack) -> None:
    holder = submit(stack, "import time; time.sleep(600)", gpu_mode="Exclusive")
    until(lambda: task_of(stack, holder)["state"] == "started", "the holder runs")
    waits = submit(stack, "print('never')")
    assert task_of(stack, waits)["run"]["state"] == "pending"
    for task in (waits, holder):
        ask(stack, "POST", f"/api/v1/tasks/{task}/cancel")
    text, run = log_of(stack, waits)
    assert (text, run["exit_code"], run["reason"], run["runner"]) == ("", None, "cancelled by local", None)
    log_of(stack, holder)


def test_a_long_log_keeps_its_beginning_and_its_end(stack: EmbeddedStack) -> None:
    task = submit(stack, "for at in range(100_000):\n    print('line', at, 'é')\n")
    text, run = log_of(stack, task)
    lines = text.splitlines()
    assert run["exit_code"] == 0
    assert lines[0] == "line 0 é" and lines[-1] == "line 99999 é" and "\ufffd" not in text
    assert any("the log is longer than its limit" in line for line in lines) and any("bytes are left out" in line for line in lines)
    assert len(text.encode()) < (512 << 10) + 300


@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("script", {"script": "x" * ((256 << 10) + 1)}),
        ("script", {"script": ""}),
        ("script", {"script": "a\0b"}),
        ("script", {"script": "é" * (140 << 10)}),
        ("name", {"name": "../evil.py"}),
        ("name", {"name": "a/b.py"}),
        ("name", {"name": ".hidden"}),
        ("environment", {"environment": {"WOOLY_API_KEY": "x"}}),
        ("environment", {"environment": {"CONTROLLER_URL": "x"}}),
        ("environment", {"environment": {"LD_PRELOAD": "x"}}),
        ("environment", {"environment": {"A=B": "x"}}),
        ("environment", {"environment": {f"V{at}": "x" * 8000 for at in range(20)}}),
        ("arguments", {"arguments": ["x\0"]}),
        ("arguments", {"arguments": ["x"] * 257}),
        ("wall_limit_s", {"wall_limit_s": 0}),
        ("runner", {"runner": "no such runner"}),
        ("runner", {"runner": "unheard-of"}),
        ("webhook", {"webhook": "file:///etc/passwd"}),
        ("webhook", {"webhook": "http://user:secret@example.org/"}),
        ("required_vram_mb", {"required_vram_mb": 1 << 30}),
        ("surprise", {"surprise": 1}),
    ],
)
def test_what_cannot_be_run_is_refused_with_its_field(stack: EmbeddedStack, field: str, body: dict[str, Any]) -> None:
    status, answer = ask(stack, "POST", "/api/v1/runs", {"script": "print(1)", "required_vram_mb": 16, **body})
    assert status == 400, answer
    assert field in {one["field"].split(".")[-1].partition("[")[0] for one in answer["errors"]}, answer


def test_an_id_has_one_script(stack: EmbeddedStack) -> None:
    first = {"script": "print('first')", "required_vram_mb": 16, "id": "only-once"}
    assert ask(stack, "POST", "/api/v1/runs", first)[0] in (201, 202)
    assert ask(stack, "POST", "/api/v1/runs", first)[0] in (200, 202)
    status, answer = ask(stack, "POST", "/api/v1/runs", {**first, "script": "print('second')"})
    assert (status, answer["errors"][0]["field"]) == (409, "id")
    assert log_of(stack, "only-once")[0] == "first\n"
    status, again = ask(stack, "POST", "/api/v1/runs", first)  # its script is not stored any more
    assert (status, again["run"]["exit_code"]) == (200, 0)
    assert ask(stack, "POST", "/api/v1/runs", {**first, "script": "print('second')"})[0] == 409
    assert ask(stack, "POST", "/api/v1/tasks", {"required_vram_mb": 16, "id": "without-a-script"})[0] == 201
    assert ask(stack, "POST", "/api/v1/runs", {**first, "id": "without-a-script"})[0] == 409
    assert ask(stack, "GET", "/api/v1/tasks/unknown/log")[0] == 404


class _Hook(http.server.BaseHTTPRequestHandler):
    got: list[Any]

    def do_POST(self) -> None:
        type(self).got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(500 if len(type(self).got) == 1 else 204)
        self.end_headers()

    def log_message(self, *_: Any) -> None: ...


def test_a_webhook_is_notified_again_until_it_takes_it(stack: EmbeddedStack) -> None:
    _Hook.got = []
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/hook?of=mine"
        task = submit(stack, "import sys; sys.exit(4)", title="with a hook", webhook=url)
        until(lambda: task_of(stack, task)["run"]["webhook_result"] == "delivered", "the webhook is notified")
        server.shutdown()
    assert len(_Hook.got) == 2 and _Hook.got[0] == _Hook.got[1]
    seconds = _Hook.got[0].pop("seconds")
    said = {"event": "ended", "task": task, "title": "with a hook", "state": "failed", "reason": "exit code 4", "exit_code": 4, "signal": 0}
    assert _Hook.got[0] == said and 0 < seconds < 60


def test_a_webhook_is_notified_of_a_budget_that_runs_low(stack: EmbeddedStack, tmp_path: Path) -> None:
    """While the script runs; then of its end. The budget had no crossing before the run."""
    gate = tmp_path / "gate"
    budget = {"limit_micro": 10**4, "warn_percent": 50, "stop_percent": 0}
    url = stack.addresses["billing"] + "/api/v1/billing/budgets/thrifty/month"
    put = urllib.request.Request(url, json.dumps(budget).encode(), {"Content-Type": "application/json"}, method="PUT")
    urllib.request.urlopen(put, timeout=30).close()
    code = "import os, time, torch\nprint(torch.ones(1000, device='cuda').sum().item(), flush=True)\n"
    code += f"while not os.path.exists({str(gate)!r}): time.sleep(0.1)\n"
    _Hook.got = [None]  # the first is refused
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Hook) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        task = submit(stack, code, title="spends", tenant="thrifty", webhook=f"http://127.0.0.1:{server.server_port}/hook")
        try:
            log_says(stack, task, "1000.0")
            until(lambda: len(_Hook.got) > 1, "the webhook is notified of the budget")
            assert task_of(stack, task)["state"] == "started"
        finally:
            gate.touch()
        until(lambda: task_of(stack, task)["run"]["webhook_result"] == "delivered", "the webhook is notified of the end")
        server.shutdown()
    _, low, ended = _Hook.got
    used_micro = low.pop("used_micro")
    said = {
        "event": "budget",
        "task": task,
        "title": "spends",
        "tenant": "thrifty",
        "threshold": "warning",
        "period": "month",
        "limit_micro": 10**4,
    }
    assert low == said and used_micro >= 5_000 and (ended["event"], ended["task"], ended["exit_code"]) == ("ended", task, 0)


def test_an_open_page_follows_the_log(stack: EmbeddedStack, tmp_path: Path) -> None:
    """The stream of the task's page sends the end of the log again when it grows, and only to pages of that task."""
    gate = tmp_path / "gate"
    code = f"import os, time\nprint('<first>', flush=True)\nwhile not os.path.exists({str(gate)!r}): time.sleep(0.1)\nprint('second')\n"
    task, other = submit(stack, code), submit(stack, "print('other')")
    log_says(stack, task, "<first>")
    log_of(stack, other)
    logs = []
    with httpx.stream("GET", f"{stack.addresses['controller']}/live/task.{task}.0", timeout=60) as stream:
        for line in stream.iter_lines():
            if not line.startswith("data: {") or "task-log" not in line:
                continue
            logs.append(json.loads(line.removeprefix("data: "))["html"]["task-log"])
            if len(logs) == 1:
                gate.touch()
            if "second" in logs[-1]:
                break
    assert "&lt;first&gt;\n" in logs[0] and "second" not in logs[0] and "&lt;first&gt;\nsecond\n" in logs[-1]
    assert not any("other" in log for log in logs)
    with httpx.stream("GET", f"{stack.addresses['controller']}/live/task.{other}.0", timeout=60) as stream:
        shown = next(line for line in stream.iter_lines() if "task-log" in line)
    assert "other" in shown and "&lt;first&gt;" not in shown


def test_the_command_shows_the_log_and_ends_as_the_script(stack: EmbeddedStack, tmp_path: Path) -> None:
    wooly = command_in(tmp_path)
    (tmp_path / "job.py").write_text("import os, sys\nprint('hello', sys.argv[1], os.environ['SIZE'])\nsys.exit(5)\n")
    where = {"CONTROLLER_URL": stack.addresses["controller"]}
    done = wooly("submit", "--required-vram", "16", "--env", "SIZE=3", "job.py", "--flag", **where)
    assert (done.returncode, done.stdout) == (5, "hello --flag 3\n"), done.stderr
    task = done.stderr.splitlines()[0]
    again = wooly("logs", task, **where)
    assert (again.returncode, again.stdout) == (0, "hello --flag 3\n")
    assert wooly("logs", task, "-f", **where).returncode == 5
    quiet = wooly("submit", "--required-vram", "16", "--no-follow", "--env", "SIZE=3", "job.py", "x", **where)
    assert quiet.returncode == 0 and log_of(stack, quiet.stdout.strip())[1]["exit_code"] == 5
    refused = wooly("submit", "--required-vram", "16", "--runner", "other", "job.py", **where)
    assert refused.returncode == 2 and "no runner called other takes scripts of tenant default at present" in refused.stderr


def test_a_script_goes_on_while_the_controller_is_killed(stack: EmbeddedStack) -> None:
    task = submit(stack, "import time\nprint('begins', flush=True)\ntime.sleep(5)\nprint('ends')\n")
    log_says(stack, task, "begins")
    before = stack.addresses["pids"]["controller"]
    os.kill(before, signal.SIGKILL)
    until(lambda: not alive(before) and answers(stack), "another controller answers")
    assert log_of(stack, submit(stack, "print('at once')"))[0] == "at once\n"  # before a runner was heard: it waits for one
    text, run = log_of(stack, task)
    assert (text, run["exit_code"], run["reason"]) == ("begins\nends\n", 0, "")
    assert task_of(stack, task)["state"] == "completed"


def test_a_runner_that_is_killed_takes_its_scripts_with_it_and_reports_them_lost(stack: EmbeddedStack) -> None:
    task = submit(stack, "import os, time\nprint('pid', os.getpid(), flush=True)\ntime.sleep(600)\n")
    log_says(stack, task, "pid")
    pid = int(ask(stack, "GET", f"/api/v1/tasks/{task}/log")[1]["text"].split()[1])
    os.kill(stack.addresses["pids"]["runner"], signal.SIGKILL)
    _, run = log_of(stack, task)
    assert (run["exit_code"], run["reason"]) == (None, "runner local was restarted") and not alive(pid)
    assert (task_of(stack, task)["state"], task_of(stack, task)["reason"]) == ("lost", "runner local was restarted")
    assert log_of(stack, submit(stack, "print('it goes on')"))[0] == "it goes on\n"


def test_the_pages_submit_a_script_and_show_the_end_of_its_log(stack: EmbeddedStack) -> None:
    with httpx.Client(base_url=stack.addresses["controller"], follow_redirects=True, timeout=60) as browser:
        form = browser.get("/tasks/new").text
        found = re.search(r'name="_csrf_token" value="([^"]*)"', form)
        assert found is not None and 'name="script"' in form
        script = "if True:\r\n    print('<b>from the page</b>')\r\n"
        data = {"_csrf_token": found[1], "required_vram_mb": "16", "queue": "on", "id": "of-the-page", "title": "page", "script": script}
        assert browser.post("/tasks", data=data).url.path == "/tasks/of-the-page"
        assert log_of(stack, "of-the-page")[0] == "<b>from the page</b>\n"
        assert "&lt;b&gt;from the page&lt;/b&gt;" in browser.get("/tasks/of-the-page").text
        refused = browser.post("/tasks", data={**data, "id": "too-long", "script": "#" * ((256 << 10) + 1)})
        assert refused.status_code == 400 and "At most 262144 characters" in refused.text
