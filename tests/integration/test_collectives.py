"""``torch.distributed`` on tensors of the device, through bus and node: each rank is a process with a session of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fork_server import start_script
from tests.support.node import Node, until
from tests.support.script import tasks_of
from tests.support.stack import ROOT, EmbeddedStack, plain_environment
from wooly.config import load
from wooly.session import open_session

SCRIPT = ROOT / "tests" / "support" / "ranks.py"


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack() as running:
        yield running


def run_ranks(
    client: Mapping[str, str],
    folder: Path,
    part: str,
    backend: str,
    n_ranks: int,
    *,
    ended: tuple[int, ...] = (),
    meanwhile: Callable[[], None] = lambda: None,
) -> list[Any]:
    """What each rank has saved. ``client``: the environment of a client. ``ended``: ranks that end by SIGKILL, as they should; they save
    nothing. ``meanwhile()`` is called when all have started."""
    (folder / "out.meeting").unlink(missing_ok=True)  # of an earlier run
    logs = [folder / f"{rank}.log" for rank in range(n_ranks)]
    processes = []
    for rank, path in enumerate(logs):
        place = {"RANK": rank, "WORLD_SIZE": n_ranks, "LOCAL_RANK": rank, "LOCAL_WORLD_SIZE": n_ranks, "OMP_NUM_THREADS": 1}
        environment = {**client, **{name: str(value) for name, value in place.items()}}
        with path.open("wb") as log:
            processes.append(start_script(SCRIPT, part, backend, str(folder / "out"), env=environment, cwd=folder, stdout=log, stderr=log))
    meanwhile()
    codes = [process.wait(240) for process in processes]
    for rank, code in enumerate(codes):
        assert code == (-signal.SIGKILL if rank in ended else 0), f"rank {rank}:\n{logs[rank].read_text()[-3000:]}"
    return [torch.load(folder / f"out.{rank}") for rank in range(n_ranks) if rank not in ended]


@pytest.mark.slow
@pytest.mark.parametrize(("backend", "n_ranks"), [("nccl", 3), ("gloo", 2), ("nccl", 1)])
def test_every_collective_gives_the_bits_that_the_order_of_ranks_gives(
    backend: str, n_ranks: int, stack: EmbeddedStack, tmp_path: Path
) -> None:
    run_ranks(stack.client_environment(), tmp_path, "collectives", backend, n_ranks)


@pytest.mark.slow
def test_spread_trainings_are_those_of_the_cpu_and_the_same_twice(stack: EmbeddedStack, tmp_path: Path) -> None:
    first = run_ranks(stack.client_environment(), tmp_path, "trainings", "nccl", 2)
    assert run_ranks(stack.client_environment(), tmp_path, "trainings", "nccl", 2) == first
    assert first[0]["tensor"] == first[1]["tensor"] and first[0]["ddp"] != first[1]["ddp"]


def test_a_rank_means_its_own_device_by_its_number(stack: EmbeddedStack, tmp_path: Path) -> None:
    found = run_ranks(stack.client_environment(), tmp_path, "alone", "nccl", 2)
    assert found == [{"device": f"cuda:{rank}", "current": rank, "names": 2, "sum": 4.0} for rank in range(2)]


def test_a_rank_that_is_killed_ends_the_collectives_of_the_others(stack: EmbeddedStack, tmp_path: Path) -> None:
    for rank, result in zip((0, 2), run_ranks(stack.client_environment(), tmp_path, "killed", "nccl", 3, ended=(1,)), strict=True):
        for what in ("message", "collective"):
            assert f"rank {rank} of 3 could not exchange data with the others; one has ended, or is late" in result[what]
        assert result["s"] < 10


@pytest.mark.slow
def test_a_device_that_is_lost_is_built_again_under_each_rank(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("node", "undisturbed", "disturbed")]
    for folder in folders:
        folder.mkdir()
    with Node(folders[0], WOOLY_BACKEND="host") as node:
        client = plain_environment(WOOLY_LOCAL_GPU="1", WOOLY_NATS_URL=node.nats.url)

        def lose_memory() -> None:
            until(lambda: all((folders[2] / f"half.{rank}").exists() for rank in range(2)), "half of the training")
            node.kill_executor()
            (folders[2] / "continue").touch()

        (folders[1] / "continue").touch()
        want = run_ranks(client, folders[1], "disturbed", "nccl", 2)
        assert run_ranks(client, folders[2], "disturbed", "nccl", 2, meanwhile=lose_memory) == want
        assert all("repeating" in (folders[2] / f"{rank}.log").read_text() for rank in range(2))


@pytest.mark.slow
def test_torchrun_starts_ranks(stack: EmbeddedStack, tmp_path: Path) -> None:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*launcher, str(SCRIPT), "alone", "nccl", str(tmp_path / "out")]
    done = subprocess.run(command, env=stack.client_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [torch.load(tmp_path / f"out.{rank}")["device"] for rank in range(2)] == ["cuda:0", "cuda:1"]


@pytest.mark.slow
def test_torchrun_starts_ranks_again(stack: EmbeddedStack, tmp_path: Path) -> None:
    """The others of the attempt before are in its store, and no more there."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    command = [*launcher, str(SCRIPT), "again", "nccl", str(tmp_path / "out")]
    done = subprocess.run(command, env=stack.client_environment(), cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-3000:]
    assert [torch.load(tmp_path / f"out.{rank}") for rank in range(2)] == [4.0, 4.0]


@pytest.mark.slow
def test_ranks_that_wait_are_placed_together(stack: EmbeddedStack, tmp_path: Path) -> None:
    """Both wait while one of them would fit beside the task that holds half of the device's memory and a little."""
    controller = {"CONTROLLER_URL": stack.addresses["controller"]}
    vram_mb = stack.get("controller", "/api/v1/nodes")["items"][0]["devices"][0]["schedulable_bytes"] >> 20
    held = {"WOOLY_NATS_URL": stack.addresses["nats"], "REQUIRED_VRAM": str(vram_mb // 2 + 8), **controller}
    holder = open_session(load(held, environ={}), title="holder.py")
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = stack.client_environment(**controller, WOOLY_QUEUE="1", REQUIRED_VRAM=str(vram_mb // 4))
    with (tmp_path / "log").open("wb") as log:
        command = [*launcher, str(SCRIPT), "alone", "nccl", str(tmp_path / "out")]
        ranks = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)

        def of_ranks() -> list[dict[str, Any]]:
            return [task for task in tasks_of(stack) if task["title"] == SCRIPT.name]

        until(lambda: len(of_ranks()) == 2 or ranks.poll() is not None, "both ranks have asked for a place")
        waiting = of_ranks()
        holder.close()
        assert ranks.wait(240) == 0, (tmp_path / "log").read_text()[-3000:]
    assert [(task["state"], task["node"], task["gang_size"]) for task in waiting] == [("queued", None, 2)] * 2
    assert len({task["gang"] for task in waiting}) == 1
    until(lambda: [task["state"] for task in of_ranks()] == ["completed"] * 2, "both have run")
