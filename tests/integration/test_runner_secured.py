"""Scripts of tenants on a secured stack: they run with a key of their own, for as long as they run, and no tenant sees another's."""

from __future__ import annotations

import os
import urllib.error
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.node import until
from tests.support.secure import SecureStack
from tests.support.stack import ROOT

SCRIPT = """
import os, torch
print("key", os.environ["WOOLY_API_KEY"].split("_")[1], torch.ones(4, device="cuda").sum().item())
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureStack]:
    folder = tmp_path_factory.mktemp("secured")
    with SecureStack(folder, "--runner", RUNNER_TENANTS="blue,red", RUNNER_PYTHONPATH=str(ROOT)) as running:
        for tenant in ("blue", "red", "green"):
            running.tenant(tenant)
        yield running


def ended(stack: SecureStack, task: str, key: str) -> tuple[str, dict[str, Any]]:
    """The log and the run, once it has ended."""
    text, after = "", 0
    while True:
        part = stack.ask("GET", f"/api/v1/tasks/{task}/log?after={after}&wait_s=10", key=key)
        text, after = text + part["text"], part["next"]
        if part["ended"]:
            return text, part["run"]


def status_of(stack: SecureStack, method: str, path: str, body: Any, key: str) -> int:
    with pytest.raises(urllib.error.HTTPError) as refused:
        stack.ask(method, path, body, key=key)
    return refused.value.code


def test_a_script_has_a_key_of_its_tenant_while_it_runs(stack: SecureStack) -> None:
    blue, red = stack.key(tenant="blue", role="member"), stack.key(tenant="red", role="viewer")
    task = stack.ask("POST", "/api/v1/runs", {"script": SCRIPT, "required_vram_mb": 16}, key=blue)["id"]
    text, run = ended(stack, task, blue)
    (line,) = [line for line in text.splitlines() if line.startswith("key ")]
    _, key, total = line.split()
    assert (run["exit_code"], total) == (0, "4.0"), text
    assert stack.ask("GET", f"/api/v1/tasks/{task}", key=blue)["tenant"] == "blue"
    known = stack.ask("GET", f"/api/v1/keys/{key}")
    assert (known["tenant"], known["role"], known["scopes"], known["state"]) == ("blue", "member", ["submit"], "revoked")
    assert status_of(stack, "GET", f"/api/v1/tasks/{task}/log", None, red) == 404
    assert status_of(stack, "POST", "/api/v1/runs", {"script": "1", "required_vram_mb": 16}, red) == 403
    other = {"script": "1", "required_vram_mb": 16, "tenant": "red"}
    assert status_of(stack, "POST", "/api/v1/runs", other, blue) == 403


def test_a_runner_takes_scripts_of_its_tenants_only(stack: SecureStack) -> None:
    for tenant in ("green", "default"):
        body = {"script": "1", "required_vram_mb": 16, "tenant": tenant}
        assert status_of(stack, "POST", "/api/v1/runs", body, stack.admin) == 400


def test_a_script_has_no_secret_of_the_runner(stack: SecureStack) -> None:
    red = stack.key(tenant="red", role="member")
    script = "import os\nprint(sorted(name for name in os.environ if name.startswith(('WOOLY_', 'RUNNER_'))))\n"
    text, _ = ended(stack, stack.ask("POST", "/api/v1/runs", {"script": script, "required_vram_mb": 16}, key=red)["id"], red)
    assert eval(text) == [
        "RUNNER_MARK", "WOOLY_API_KEY", "WOOLY_NATS_URL", "WOOLY_QUEUE", "WOOLY_TASK_ID", "WOOLY_TENANT", "WOOLY_TLS_CA",
    ]  # fmt: skip


def test_a_key_that_is_revoked_while_it_waits_for_output_gets_none(stack: SecureStack, tmp_path: Path) -> None:
    blue, spy, go = stack.key(tenant="blue", role="member"), stack.key(tenant="blue", role="viewer"), tmp_path / "go"
    os.mkfifo(go)
    script = f"print('one', flush=True)\nopen({str(go)!r}).read()\nprint('two')\n"
    task = stack.ask("POST", "/api/v1/runs", {"script": script, "required_vram_mb": 16}, key=blue)["id"]
    log = f"/api/v1/tasks/{task}/log?wait_s=20&after="
    position = until(lambda: stack.ask("GET", f"{log}0", key=spy)["next"], "the first line")
    with ThreadPoolExecutor(1) as threads:
        waits = threads.submit(status_of, stack, "GET", f"{log}{position}", None, spy)
        for _ in range(5):
            assert stack.ask("GET", f"/api/v1/tasks/{task}", key=blue)["state"] == "started"  # the log was asked for before
        stack.ask("DELETE", f"/api/v1/keys/{spy.split('_')[1]}")
        go.write_text("")
        assert waits.result(60) == 401
    assert ended(stack, task, blue)[0] == "one\ntwo\n"


def test_revoking_is_what_a_cancellation_does_too(stack: SecureStack) -> None:
    blue = stack.key(tenant="blue", role="member")
    script = "import os, time\nprint(os.environ['WOOLY_API_KEY'].split('_')[1], flush=True)\ntime.sleep(600)\n"
    task = stack.ask("POST", "/api/v1/runs", {"script": script, "required_vram_mb": 16}, key=blue)["id"]
    key = until(lambda: stack.ask("GET", f"/api/v1/tasks/{task}/log?wait_s=5", key=blue)["text"].strip(), "the script says its key")
    assert stack.ask("GET", f"/api/v1/keys/{key}")["state"] == "active"
    stack.ask("POST", f"/api/v1/tasks/{task}/cancel", key=blue)
    assert ended(stack, task, blue)[1]["reason"].startswith("cancelled by ")
    assert stack.ask("GET", f"/api/v1/keys/{key}")["state"] == "revoked"
