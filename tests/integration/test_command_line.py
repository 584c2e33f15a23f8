"""The command line against a real stack: run, ping, nodes, tasks, credits, verify, doctor, up, embedded runs."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from bus_schemas.events import NodeLost
from tests.support.command import Wooly, command_in, in_the_end
from tests.support.plane import Plane
from tests.support.stack import EmbeddedStack, plain_environment

SCRIPT = """
import sys, torch
torch.manual_seed(0)
model = torch.nn.Linear(64, 64).cuda()
for _ in range(3):
    model(torch.randn(32, 64, device="cuda")).square().mean().backward()
print(torch.cuda.get_device_name(), round(model.weight.grad.abs().sum().item(), 4), *sys.argv[1:])
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack() as running:
        yield running


@pytest.fixture
def wooly(tmp_path: Path) -> Wooly:
    (tmp_path / "script.py").write_text(SCRIPT)
    return command_in(tmp_path)


def environ(stack: EmbeddedStack) -> dict[str, str]:
    found = stack.addresses
    return {"WOOLY_NATS_URL": found["nats"], "CONTROLLER_URL": found["controller"], "WOOLY_BILLING_URL": found["billing"]}


def team_a_of(credits: subprocess.CompletedProcess[str]) -> object:
    return next(item for item in json.loads(credits.stdout)["items"] if item["key"] == "team-a")


def test_a_run_is_placed_executed_and_billed(stack: EmbeddedStack, wooly: Wooly) -> None:
    where = environ(stack)
    run = wooly("run", "--required-vram", "100", "--tenant", "team-a", "script.py", "argument", **where)
    assert run.returncode == 0, run.stderr
    name, rest = run.stdout.split(" (WOOLY) ")
    assert name and rest.split()[1] == "argument" and float(rest.split()[0]) > 0
    first, last = run.stderr.strip().splitlines()[0], run.stderr.strip().splitlines()[-1]
    assert first == f"wooly: node local, GPU 0 ({name}), tenant team-a"
    assert last.startswith("wooly: ") and "launches" in last and "core-" in last and "GiB-seconds" in last

    tasks = json.loads(wooly("tasks", "--json", **where).stdout)["items"]
    assert len(tasks) == 1
    assert (tasks[0]["tenant"], tasks[0]["title"], tasks[0]["state"], tasks[0]["required_vram_mb"]) == (
        "team-a",
        "script.py",
        "completed",
        100,
    )
    table = wooly("tasks", "--state", "completed", **where).stdout
    assert "script.py" in table and "team-a" in table and tasks[0]["id"] in table
    brief = wooly("tasks", **where, FORCE_COLOR="1").stdout
    assert tasks[0]["id"][:8] in brief and tasks[0]["id"] not in brief  # a terminal gets ids that are short enough to type
    assert wooly("tasks", "--state", "failed", **where).stdout == "no tasks\n"

    for by, key in (("tenant", "team-a"), ("task", tasks[0]["id"])):
        report = json.loads(wooly("credits", "--by", by, "--json", **where).stdout)
        line = next(item for item in report["items"] if item["key"] == key)
        assert line["core_credits_micro"] > 0 and line["launches"] > 0
        assert key in wooly("credits", "--by", by, **where).stdout
    by_task = json.loads(wooly("utilization", "--by", "task", "--json", **where).stdout)
    held = next(item for item in by_task["items"] if item["key"] == tasks[0]["id"])
    assert held["used_core_ns"] > 0 and held["busy_ns"] + held["underused_ns"] > 0
    states = ("busy", "underused", "memory_bound", "cpu_bound", "blocked", "fragmented", "idle")
    assert sum(by_task["total"][f"{state}_ns"] for state in states) == by_task["total"]["wall_ns"]
    device = f"{tasks[0]['node']}/0"
    assert device in wooly("utilization", **where).stdout
    devices = list(csv.DictReader(io.StringIO(wooly("utilization", "--csv", "--tenant", "team-a", **where).stdout)))
    assert [row["device"] for row in devices] == [device, "total"] and devices[0]["used_core_ns"] == str(held["used_core_ns"])
    rows = list(csv.DictReader(io.StringIO(wooly("credits", "--csv", **where).stdout)))
    assert any("team-a" in row.values() for row in rows)

    only_controller = {name: value for name, value in where.items() if name != "WOOLY_BILLING_URL"}
    assert team_a_of(wooly("credits", "--json", **only_controller)) == team_a_of(wooly("credits", "--json", **where))
    assert wooly("credits", "grant", "team-a", "5", **only_controller).returncode == 0
    refused = wooly("credits", "--from", "yesterday", **only_controller)
    assert refused.returncode == 2 and "'yesterday' is neither Unix seconds nor an ISO 8601 time" in refused.stderr

    verified = wooly("billing", "verify", **where)
    assert verified.returncode == 0 and verified.stdout.startswith("the bill is right")
    assert json.loads(wooly("billing", "verify", "--json", **where).stdout)["ok"] is True


def test_bad_questions_name_the_field(stack: EmbeddedStack, wooly: Wooly) -> None:
    found = wooly("credits", "--from", "yesterday", **environ(stack))
    assert found.returncode == 2 and "'yesterday' is neither Unix seconds nor an ISO 8601 time" in found.stderr


def test_ping_and_nodes(stack: EmbeddedStack, wooly: Wooly) -> None:
    where = environ(stack)
    assert "local" in in_the_end(wooly, "ping", **where)
    node = json.loads(in_the_end(wooly, "ping", "--json", **where))[0]
    assert node["name"] == "local" and 0 < node["round_trip_ms"] < 5_000 and node["devices"][0]["vram_bytes"] > 0
    table = wooly("nodes", **where).stdout
    assert "local" in table and "ready" in table and "GiB" in table
    listed = json.loads(wooly("nodes", "--json", **where).stdout)
    assert listed["items"][0]["name"] == "local" and "telemetry" in listed


def test_a_node_without_a_device_is_listed_with_the_reason(wooly: Wooly) -> None:
    with Plane() as plane:
        plane.register("bare", gib=())
        plane.register("refused", groups=("no token",))
        table = wooly("nodes", CONTROLLER_URL=plane.controller.url).stdout
    (bare, refused) = table.splitlines()[1:]
    assert bare.split() == ["bare-name", "ready", "no", "device"]
    assert refused.split()[:2] == ["refused-name", "lost"] and "registration refused: group 'no token' (NODE_GROUPS)" in refused


def test_a_lost_node_is_listed_without_its_last_measurements(wooly: Wooly) -> None:
    with Plane() as plane:
        plane.register("n1")
        plane.measure("n1", utilization=50)
        assert "50 %" in wooly("nodes", CONTROLLER_URL=plane.controller.url).stdout
        plane.publish("node", "n1", NodeLost(1, "n1", 1, "away"))
        table = wooly("nodes", CONTROLLER_URL=plane.controller.url).stdout
        assert "lost" in table and "50 %" not in table


def test_the_doctor_finds_a_healthy_stack(stack: EmbeddedStack, wooly: Wooly) -> None:
    found = in_the_end(wooly, "doctor", "--json", REQUIRED_VRAM="100", **environ(stack))
    states = {finding["name"]: finding["state"] for finding in json.loads(found)}
    assert {states[name] for name in ("bus", "nodes", "controller", "billing", "configuration", "torch", "entry point")} == {"ok"}


def test_more_vram_than_there_is_is_a_plain_refusal(stack: EmbeddedStack, wooly: Wooly) -> None:
    found = wooly("run", "--required-vram", "99999999", "script.py", **environ(stack))
    assert found.returncode == 2 and found.stdout == ""
    assert found.stderr.startswith("wooly: ") and "Traceback" not in found.stderr and "99999999" in found.stderr.replace(",", "")


def test_out_of_memory_is_what_cuda_programs_catch(stack: EmbeddedStack, wooly: Wooly, tmp_path: Path) -> None:
    (tmp_path / "oom.py").write_text(
        "import torch\n"
        "kept = torch.zeros(1 << 18, device='cuda')\n"
        "try:\n"
        "    torch.zeros(1 << 22, device='cuda')\n"
        "except torch.cuda.OutOfMemoryError as error:\n"
        "    print(error)\n"
        "print(kept.sum().item(), torch.cuda.mem_get_info()[1] >> 20)\n"
    )
    found = wooly("run", "--required-vram", "10", "oom.py", WOOLY_NATS_URL=stack.addresses["nats"])
    assert found.returncode == 0, found.stderr
    message, kept = found.stdout.splitlines()
    assert "out of memory" in message and "16.00 MiB" in message and "10.00 MiB" in message and "1.00 MiB" in message
    assert kept == "0.0 10"


def test_debug_tells_of_every_batch(stack: EmbeddedStack, wooly: Wooly) -> None:
    found = wooly("run", "--debug", "1", "script.py", WOOLY_NATS_URL=stack.addresses["nats"])
    assert found.returncode == 0 and "(WOOLY)" in found.stdout
    assert "batch 1: " in found.stderr and "waited " in found.stderr and "closed" in found.stderr


def test_an_embedded_run_prints_its_bill_last(wooly: Wooly) -> None:
    found = wooly("run", "--embedded", "script.py")
    assert found.returncode == 0, found.stderr
    assert "(WOOLY)" in found.stdout and found.stdout.count("\n") == 1, "standard output is the script's own"
    last = found.stderr.strip().splitlines()[-1]
    assert last.startswith("wooly: bill: ") and "core credits" in last and "VRAM credits" in last


def test_an_embedded_run_keeps_the_scripts_exit_code(wooly: Wooly, tmp_path: Path) -> None:
    (tmp_path / "fails.py").write_text("import torch\ntorch.zeros(1, device='cuda').item()\nraise SystemExit(5)\n")
    found = wooly("run", "--embedded", "fails.py")
    assert found.returncode == 5 and "wooly: bill:" in found.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_up_prints_how_to_use_it_and_stops_clean(tmp_path: Path, number: signal.Signals) -> None:
    command = [str(Path(sys.executable).with_name("wooly")), "up", "--dir", str(tmp_path / "state")]
    with subprocess.Popen(
        command, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as up:
        assert up.stdout is not None
        lines = [up.stdout.readline().strip() for _ in range(4)]
        exported = dict(line.removeprefix("export ").split("=", 1) for line in lines[:3])
        assert list(exported) == ["WOOLY_NATS_URL", "CONTROLLER_URL", "WOOLY_BILLING_URL"]
        assert exported["WOOLY_NATS_URL"].startswith("nats://127.0.0.1:") and lines[3].startswith(
            f"# controller: {exported['CONTROLLER_URL']}"
        )
        assert in_the_end(command_in(tmp_path), "ping", **exported)
        stack = next(Path("/proc", pid) for pid in children(up.pid))
        up.send_signal(number)
        assert up.wait(60) == 0
    assert not stack.exists(), "the stack has ended with the command"
    assert command_in(tmp_path)("ping", **exported).returncode == 2


def children(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_a_stack_dies_with_a_killed_command(tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("wooly")), "up"]
    with subprocess.Popen(command, env=plain_environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as up:
        assert up.stdout is not None
        up.stdout.readline()
        (pid,) = children(up.pid)
        gone = os.pidfd_open(int(pid))
        up.kill()
        up.wait()
    import select

    try:
        assert select.select([gone], [], [], 60)[0], "the stack lives on without its command"
    finally:
        os.close(gone)
