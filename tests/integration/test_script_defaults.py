"""A script with nothing but the exports of `wooly up`: the memory and the priority it gets, and that it never runs without the device."""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.node import until
from tests.support.script import Script, task_called
from tests.support.stack import EmbeddedStack

WOOLY = str(Path(sys.executable).with_name("wooly"))
CODE = "import torch\nprint(torch.cuda.is_available(), torch.ones(3, device='cuda').sum().item())\n"


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack(WOOLY_BACKEND="reference") as running:
        yield running


def put(stack: EmbeddedStack, service: str, path: str, body: dict[str, Any]) -> None:
    data, headers = json.dumps(body).encode(), {"Content-Type": "application/json"}
    urllib.request.urlopen(urllib.request.Request(stack.addresses[service] + path, data, headers, method="PUT"), timeout=30).close()


@contextmanager
def default_vram(stack: EmbeddedStack, mib: int) -> Iterator[None]:
    put(stack, "controller", "/api/v1/config", {"default_vram_overcommit_percent": None, "default_vram_mb": mib})
    try:
        yield
    finally:
        put(stack, "controller", "/api/v1/config", {"default_vram_overcommit_percent": None, "default_vram_mb": None})


def test_the_exports_of_a_stack_are_enough(stack: EmbeddedStack) -> None:
    with Script(stack, "train", CODE, WOOLY_BILLING_URL=stack.addresses["billing"]) as script:
        assert script.end() == 0, script.error
        assert script.output == "True 3.0\n"
    task = task_called(stack, "train.py", lambda task: task["state"] == "completed")
    (device,) = stack.get("controller", "/api/v1/nodes")["items"][0]["devices"]
    assert task["required_vram_mb"] == min(4096, (device["vram_bytes"] // 4) >> 20)
    assert (task["vram_grows"], task["priority"]) == (True, 2)
    assert 'value="2" selected' in stack.get("controller", "/tasks/new", "text/html"), "the page proposes the same priority"


def test_memory_grows_beyond_the_default_and_not_beyond_what_was_named(stack: EmbeddedStack) -> None:
    grow = "import torch\nx = torch.zeros(24 << 20, dtype=torch.uint8, device='cuda')\nx += 1\nprint(x.sum().item())\n"
    with default_vram(stack, 16):
        with Script(stack, "growing", grow) as script:
            assert script.end() == 0, script.error
        assert task_called(stack, "growing.py")["required_vram_mb"] == 16
    with Script(stack, "named", grow, REQUIRED_VRAM="16") as script:
        assert script.end() == 1 and "OutOfMemoryError" in script.error
    assert task_called(stack, "named.py")["vram_grows"] is False


def test_a_cluster_without_a_default_wants_it_named(stack: EmbeddedStack) -> None:
    with default_vram(stack, 0), Script(stack, "silent", CODE, WOOLY, "run") as script:
        assert script.end() == 2
        refused = "the controller refused the task: required_vram_mb: neither tier nor cluster has a default (default_vram_mb)"
        assert script.error == f"wooly: {refused}; set REQUIRED_VRAM to a number of MB\n"


def test_the_default_of_the_tier_comes_before_that_of_the_cluster(stack: EmbeddedStack) -> None:
    """A tenant of another tier has the cluster's; the memory grows beyond the tier's default as beyond the cluster's."""
    put(stack, "billing", "/api/v1/billing/tenants/large/tier", {"tier": "premium"})
    put(stack, "billing", "/api/v1/billing/tiers/premium", {"priority_ceiling": 0, "default_vram_mb": 16})
    grow = "import torch\nx = torch.zeros(24 << 20, dtype=torch.uint8, device='cuda')\nx += 1\nprint(x.sum().item())\n"

    def vram_mb(tenant: str, code: str = CODE) -> int:
        with Script(stack, tenant, code, WOOLY_TENANT=tenant) as script:
            assert script.end() == 0, script.error
        task = stack.get("controller", f"/api/v1/tasks?tenant={tenant}")["items"][0]
        assert task["vram_grows"] is True
        return int(task["required_vram_mb"])

    for cluster_mb in (32, 0):
        with default_vram(stack, cluster_mb):
            until(lambda: vram_mb("large", grow) == 16, "the tier is known to the controller")
            if cluster_mb:
                assert vram_mb("other") == cluster_mb


def test_the_page_of_tiers_sets_and_unsets_the_default(stack: EmbeddedStack) -> None:
    with httpx.Client(base_url=stack.addresses["controller"], follow_redirects=True, timeout=60) as browser:

        def put(text: str) -> httpx.Response:
            page = browser.get("/settings/tiers").text
            found = re.search(
                r'action="/settings/tiers/basic/ceiling".*?name="_csrf_token" value="([^"]*)".*?name="revision" value="(\d+)"', page, re.S
            )
            assert found is not None
            fields = {"_csrf_token": found[1], "revision": found[2], "priority_ceiling": "2", "default_vram_mb": text}
            return browser.post("/settings/tiers/basic/ceiling", data=fields)

        def stored() -> int:
            return int(stack.get("billing", "/api/v1/billing/tiers")["items"][2]["default_vram_mb"])

        assert "A task that names no VRAM gets 640 MiB." in put("640").text and stored() == 640
        wrong = put("<i>many")
        assert wrong.status_code == 400 and "Write an integer of MiB, or nothing." in wrong.text and "&lt;i&gt;many" in wrong.text
        assert put(str(1 << 30)).status_code == 400 and stored() == 640
        assert put("").status_code == 200 and stored() == 0


def test_the_default_priority_is_the_middle_of_the_tier(stack: EmbeddedStack) -> None:
    put(stack, "billing", "/api/v1/billing/tenants/modest/tier", {"tier": "basic"})

    def proposed() -> bool:
        with Script(stack, "modest", CODE, WOOLY_TENANT="modest") as script:
            assert script.end() == 0, script.error
        tasks = stack.get("controller", "/api/v1/tasks?tenant=modest")["items"]
        return bool(tasks[0]["priority"] == 3)

    until(proposed, "the tier is known to the controller")


def test_the_same_submission_again_is_the_same_task_whatever_the_defaults_are_now(stack: EmbeddedStack) -> None:
    def submit() -> dict[str, Any]:
        data, headers = json.dumps({"id": "twice", "queue": True}).encode(), {"Content-Type": "application/json"}
        request = urllib.request.Request(stack.addresses["controller"] + "/api/v1/tasks", data, headers, method="POST")
        with urllib.request.urlopen(request, timeout=30) as answer:
            return dict(json.loads(answer.read()))

    first = submit()
    with default_vram(stack, 32):
        again = submit()
    assert (again["required_vram_mb"], again["submitted_at"]) == (first["required_vram_mb"], first["submitted_at"])


@pytest.mark.parametrize("launcher", [(), (WOOLY, "run")], ids=["python", "wooly-run"])
def test_a_script_never_trains_without_the_device_in_silence(stack: EmbeddedStack, launcher: tuple[str, ...]) -> None:
    code = "import torch\nprint('trained on', torch.ones(1).device)\n"
    with Script(stack, "broken", code, *launcher, PRIO="9") as script:
        assert script.end() != 0 and script.output == "" and "PRIO='9' (from the environment) is not allowed" in script.error
    if not launcher:
        with Script(stack, "allowed", code, PRIO="9", WOOLY_ON_FAILURE="cpu") as script:
            assert script.end() == 0 and script.output == "trained on cpu\n" and "the remote device stays off" in script.error


def test_a_profile_has_every_batch_of_the_script_and_says_what_bounds_it(stack: EmbeddedStack) -> None:
    code = """
import torch, wooly
x = torch.ones(64, device="cuda")
for step in range(20):
    x = x * 2 - x
    assert x.sum().item() == 64
print(wooly.stats()["batches"], wooly.stats()["waits"])
"""
    with Script(stack, "profiled", code, WOOLY, "profile", "--profile", "p.json", REQUIRED_VRAM="64") as script:
        assert script.end() == 0, script.error
        n_batches, n_waits = map(int, script.output.split())
        events = json.loads((script.folder / "p.json").read_text())["traceEvents"]
        said = script.error
    ended = {event["id"] for event in events if event["ph"] == "e"}
    assert ended >= set(range(1, n_batches + 1)), "the answer of each batch is there"
    waits = [event for event in events if event["name"].startswith("wait for")]
    assert n_waits >= 20 and len(waits) >= n_waits
    assert any(event["ph"] == "X" and event["tid"] == 3 for event in events), "the device was at work"
    lines = [line for line in said.splitlines() if line.startswith("wooly: profile: ")]
    assert re.match(r"wooly: profile: [\d.]+ s: \d+ % in the script, \d+ % sending, \d+ % waiting; ", lines[0])
    assert "profiled.py:6" in lines[1] and lines[-1].startswith("wooly: profile: timeline: p.json ")


def test_torchs_profiler_shows_what_the_device_did(stack: EmbeddedStack) -> None:
    """In tables, events and traces; with a session that opens meanwhile, over several cycles, and no longer once it has ended."""
    code = """
import json
import torch, wooly
from torch.profiler import ProfilerActivity, profile, schedule

both = [ProfilerActivity.CPU, ProfilerActivity.CUDA]


def of_device(prof):
    return [event for event in prof.events() if event.device_type == torch.autograd.DeviceType.CUDA]


with profile(activities=both) as first:
    x = torch.ones(64, device="cuda")
    for step in range(3):
        x = x * 2 - x
        x.sum().item()
(x + 1).sum().item()
found = of_device(first)
print(len(found), all(event.device_time_total > 0 and event.time_range.start > 0 for event in found))
print([name for name in ("aten::mul", "aten::sub", "aten::div") if all(name in event.name for event in found)])
print("CUDA total" in first.key_averages().table(sort_by="cuda_time_total", row_limit=2))
of_batches = [row for row in first.key_averages(group_by_stack_n=2) if row.self_device_time_total > 0]
average = max(of_batches, key=lambda row: row.count)
print(average.count, average.key.partition(":")[0])
first.export_chrome_trace("trace.json")
kernels = [event for event in json.load(open("trace.json"))["traceEvents"] if event.get("cat") == "kernel"]
print(len(kernels), kernels[0]["name"] == found[0].name, "profiling.py" in kernels[0]["args"]["line"])

cycles = []
plan = schedule(wait=1, warmup=1, active=2, repeat=2)
with profile(activities=both, schedule=plan, on_trace_ready=lambda prof: cycles.append(len(of_device(prof)))) as second:
    for step in range(8):
        (x * step).sum().item()
        second.step()
print(cycles)
with profile(activities=[ProfilerActivity.CPU]) as third:
    (x * 3).sum().item()
print(len(of_device(third)), wooly.stats()["waits"] > 10)
with profile(activities=[ProfilerActivity.CUDA]) as fourth:
    (x * 3).sum().item()
print(len(of_device(fourth)), len(fourth.events()))
"""
    with Script(stack, "profiling", code, REQUIRED_VRAM="64") as script:
        assert script.end() == 0, script.error
        lines = script.output.splitlines()
    assert lines == ["3 True", "['aten::mul', 'aten::sub']", "True", "2 batch of 3", "3 True True", "[2, 2]", "0 True", "1 1"]
