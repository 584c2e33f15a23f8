"""``WOOLY_RECORD`` and ``wooly debug`` on a real stack: the state after a batch, and the first NaN with its line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.support.fork_server import run_script
from tests.support.stack import EmbeddedStack

TRAINING = """
import torch
torch.manual_seed(3)
w = torch.randn(40, 30, device="cuda", requires_grad=True)
data = torch.rand(64, 40)
for step in range(6):
    x = data[step * 8 : step * 8 + 8].cuda()
    y = x @ w
    if step == 4:
        y = CHANGED
    loss = y.square().mean()
    loss.backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
        w.grad = None
    print(loss.item(), flush=True)
    if step == 2:
        torch.save(w.detach().cpu(), "w.pt")
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack() as running:
        yield running


def wooly(stack: EmbeddedStack, folder: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "wooly.cli", *arguments]
    environment = stack.client_environment(**variables)
    return subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, timeout=240)


def record(stack: EmbeddedStack, folder: Path, changed: str) -> list[str]:
    """The lines that the training prints."""
    (folder / "train.py").write_text(TRAINING.replace("CHANGED", changed).lstrip())
    done = run_script(folder / "train.py", env=stack.client_environment(WOOLY_RECORD="recording"), cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.slow
def test_the_memory_after_a_batch_is_what_the_script_had(stack: EmbeddedStack, tmp_path: Path) -> None:
    losses = record(stack, tmp_path, "y * 2")
    batches = json.loads(wooly(stack, tmp_path, "debug", "recording", "--batches", "--json").stdout)
    [*_, third] = [one for one in batches if one["reads"]][:3]
    assert third["lines"] == f"{tmp_path.name}/train.py:15" and "aten::mm" in third["operations"]
    at = ("--at", str(third["batch"]))
    held = json.loads(wooly(stack, tmp_path, "debug", "recording", *at, "--json").stdout)
    assert held["batch"] == third["batch"]
    [loss] = [one for one in held["buffers"] if one["type"] == "f32[]"]
    assert (loss["operation"], loss["batch"], loss["bytes"]) == ("aten::mean", third["batch"], 4)
    shown = json.loads(wooly(stack, tmp_path, "debug", "recording", *at, "--buffer", str(loss["buffer"]), "--json").stdout)
    assert np.float32(shown["values"]) == np.float32(losses[2])
    [weights] = [one for one in held["buffers"] if one["type"] == "f32[40,30]" and one["operation"] == "aten::sub_.Tensor"]
    done = wooly(stack, tmp_path, "debug", "recording", *at, "--buffer", str(weights["buffer"]), "--output", "w")
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(tmp_path / "w"), torch.load(tmp_path / "w.pt").numpy())
    listed = wooly(stack, tmp_path, "debug", "recording")
    assert listed.stdout.startswith(f"after batch {len(batches)}: ") and "aten::sub_.Tensor" in listed.stdout
    assert wooly(stack, tmp_path, "debug", "recording", "--find-nan").stdout == "no batch gave NaN\n"
    for arguments, line in (
        (("--at", "999"), f"wooly: the recording ends with batch {len(batches)}"),
        (("--buffer", "123456"), f"wooly: there is no buffer 123456 after batch {len(batches)}"),
    ):
        done = wooly(stack, tmp_path, "debug", "recording", *arguments)
        assert done.returncode == 2 and line in done.stderr and "Traceback" not in done.stderr, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "operation", "text"),
    [
        ("(y / 0 * 0).tanh()", "aten::mul.Tensor", "gave the first NaN"),
        ("y + torch.tensor([float('nan')]).cuda()", "aten::add.Tensor", "takes NaN that was uploaded"),
        ("torch.view_as_real(torch.complex(y, y) * complex(float('inf'), float('inf')))", "aten::mul.Tensor", "gave the first NaN"),
    ],
)
def test_the_first_nan_is_found(stack: EmbeddedStack, tmp_path: Path, changed: str, operation: str, text: str) -> None:
    losses = record(stack, tmp_path, changed)
    assert [loss == "nan" for loss in losses] == [False] * 4 + [True] * 2
    done = wooly(stack, tmp_path, "debug", "recording", "--find-nan")
    assert re.match(rf"batch 6, {tmp_path.name}/train.py:15: {operation} {text}\n  instruction \d+: %", done.stdout), (
        done.stdout + done.stderr
    )


@pytest.mark.slow
def test_it_is_found_with_its_line_and_what_it_was_made_of(stack: EmbeddedStack, tmp_path: Path) -> None:
    """Where every operation is a batch of its own."""
    (tmp_path / "train.py").write_text(TRAINING.replace("CHANGED", "(y - y.max()).log().mul(2)").lstrip())
    done = wooly(stack, tmp_path, "run", "--record", "recording", "train.py", CUDA_LAUNCH_BLOCKING="1")
    assert done.returncode == 0, done.stderr
    found = json.loads(wooly(stack, tmp_path, "debug", "recording", "--find-nan", "--json").stdout)
    assert (found["operation"], found["lines"]) == ("aten::log", "train.py:9")
    [taken], [given] = found["inputs"], found["outputs"]
    assert (taken["values"], taken["nan"], taken["greatest"]) == (240, 0, 0.0) and taken["least"] < 0
    assert (given["nan"], given["infinite"]) == (239, 1)
    before = wooly(stack, tmp_path, "debug", "recording", "--find-nan", "--at", str(found["batch"] - 1), "--json")
    assert json.loads(before.stdout) == {"batch": None}
