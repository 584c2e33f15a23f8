"""WOOLY_CHECK=cpu as users switch it on: through client, bus and node."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stack import EmbeddedStack

SOUND = """
import torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 3)).to("cuda")
optimizer = torch.optim.Adam(model.parameters())
x, y = torch.randn(4, 8, device="cuda"), torch.tensor([0, 1, 2, 0], device="cuda")
for _ in range(2):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
print("loss", loss.item())
"""

FAULTY = """
from dataclasses import replace
import torch
from wooly.device.lowering import LOWERINGS
entry = LOWERINGS["aten::tanh"]
LOWERINGS["aten::tanh"] = replace(entry, fn=lambda t, x: t.map("add", entry.fn(t, x), 0.25))
x = torch.linspace(-1, 1, 2000, device="cuda")
y = x * 2
try:
    z = y.tanh()
except RuntimeError:
    pass
print(y.sum().item())
"""

OUT_OF_RANGE = """
import torch
table, index = torch.ones(4, 2, device="cuda"), torch.tensor([1, 9], device="cuda")
rows = torch.nn.functional.embedding(index, table)
later = rows + 1
print(later.sum().item())
"""

MADE_NAN = """
import torch
bias = torch.zeros(4, device="cuda").masked_fill(torch.arange(4, device="cuda") > 1, float("-inf"))
x = torch.tensor([0.0, 1.0, 2.0, 3.0], device="cuda", requires_grad=True)
weights = torch.softmax(x.detach() + bias, 0)
scaled = torch.polar(x.detach(), x.detach()) * weights
y = x.sqrt() * weights
print(y.sum().item(), scaled.abs().sum().item())
y.sum().backward()
later = MADE
print(x.grad.sum().item())
print(later.sum().item())
"""


@pytest.fixture(scope="module")
def stack() -> Iterator[EmbeddedStack]:
    with EmbeddedStack() as running:
        yield running


def checked(stack: EmbeddedStack, folder: Path, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """``wooly run FLAGS script.py`` in ``folder``."""
    (folder / "script.py").write_text(text.lstrip())
    command = [sys.executable, "-P", "-m", "wooly.cli", "run", *flags, "script.py"]
    return subprocess.run(command, env=stack.client_environment(), cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.mark.slow
def test_a_correct_training_is_compared_to_its_end(stack: EmbeddedStack, tmp_path: Path) -> None:
    done = checked(stack, tmp_path, SOUND, "--check", "cpu")
    assert done.returncode == 0 and "loss" in done.stdout, done.stderr
    found = re.search(r"WOOLY_CHECK=cpu: (\d+) operations gave the same on the CPU, (\d+) random ones passed", done.stderr)
    assert found and int(found[1]) > 50 and int(found[2]) >= 3, done.stderr
    off = checked(stack, tmp_path, SOUND)
    assert off.returncode == 0 and "WOOLY_CHECK" not in off.stderr


@pytest.mark.slow
def test_a_difference_stops_the_script_and_leaves_one_that_reproduces_it(stack: EmbeddedStack, tmp_path: Path) -> None:
    """It stops although the script catches RuntimeError; operands of more than 4 KiB lie beside the script that is written."""
    done = checked(stack, tmp_path, FAULTY, "--check", "cpu", "--check-dir", str(tmp_path / "found"))
    assert done.returncode == 1 and done.stdout == ""
    error = done.stderr[done.stderr.index("CheckFailed: ") :]
    assert "aten::tanh" in error and "\n  script.py:9 in <module>: z = y.tanh()\n" in error
    assert "2000 of 2000 elements differ, first at (0,): the device gives -0.71" in error and "the CPU -0.96" in error
    script = tmp_path / "found" / "wooly_check_tanh.py"
    assert str(script) in error and script.with_suffix(".pt").exists()
    again = subprocess.run([sys.executable, str(script)], env=stack.client_environment(WOOLY_CHECK="cpu"), capture_output=True, text=True)
    assert again.returncode == 0 and again.stdout.endswith("agrees\n"), again.stderr  # the fault was in the process that is over


@pytest.mark.slow
def test_what_the_device_refuses_is_raised_at_its_line(stack: EmbeddedStack, tmp_path: Path) -> None:
    """Without the mode a device-side assert is raised where the script next looks at a value."""
    late = checked(stack, tmp_path, OUT_OF_RANGE)
    assert late.returncode == 1 and "DeviceAssertError" in late.stderr and "print(later.sum().item())" in late.stderr
    done = checked(stack, tmp_path, OUT_OF_RANGE, "--check", "cpu")
    assert done.returncode == 1 and "DeviceAssertError" in done.stderr, done.stderr
    assert "line 3, in <module>\n    rows = torch.nn.functional.embedding(index, table)" in done.stderr
    assert "later" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made", "line", "operation"),
    [
        ("x + 1", 9, ""),  # infinities, masks of them and what softmax makes of those are no NaN
        ("(x - 1).log()", 9, "aten::log"),
        ("torch.complex(x, x).mul(float('inf')).detach()", 9, "aten::mul"),
        ("x.detach().clone().sub_(1).sqrt_()", 9, "aten::sqrt"),
        ("torch.stack(torch.aminmax(x.detach() / 0))", 9, "aten::div"),
    ],
)
def test_the_first_operation_that_gives_nan_is_named(stack: EmbeddedStack, tmp_path: Path, made: str, line: int, operation: str) -> None:
    (tmp_path / "script.py").write_text(MADE_NAN.replace("MADE", made).lstrip())
    command = [sys.executable, "-P", "-m", "wooly.cli", "run", "--check", "nan", "script.py"]
    environment = stack.client_environment(CUDA_LAUNCH_BLOCKING="1")
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    if not operation:
        assert (done.returncode, len(done.stdout.splitlines())) == (0, 3), done.stderr
        return
    assert done.returncode == 1 and f"a result is NaN, and WOOLY_CHECK=nan is set ({operation}" in done.stderr, done.stderr
    assert re.search(rf"recorded at \S*script.py:{line} \({operation}", done.stderr), done.stderr
    assert len(done.stdout.splitlines()) == 1, "what came before had none"
