"""Random torch scripts give on the device what they give on the CPU (fuzz_torch.py; run that for longer)."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 100_000])
def test_random_scripts_agree_with_the_cpu(seed: int) -> None:
    """In a process of its own, because torch is switched to one device, and here it is the host engine's."""
    command = [sys.executable, "-m", "tests.property.fuzz_torch", "--seed", str(seed), "--rounds", "60"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
