"""Random torch programs give on the device what they give on the CPU (tests/programs; ``make fuzz-programs`` for many more, and new ones).

A failure prints its seed and a stand-alone script.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.support.stack import ROOT, plain_environment


def run(programs: int, seed: int, *options: str) -> None:
    """In a process of its own: torch is switched to one device, and the programs' processes are forked from it."""
    command = [sys.executable, "-m", "tests.programs", "--programs", str(programs), "--seed", str(seed), "--shrink", "5", *options]
    environment = plain_environment() | {k: v for k, v in os.environ.items() if k == "NATS_SERVER_BIN"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_programs_through_bus_and_node_agree_with_the_cpu() -> None:
    run(850, 0, "--backend", "reference")


@pytest.mark.slow
@pytest.mark.parametrize("seed", [50_000, 150_000])
def test_programs_compiled_for_the_host_agree_with_the_cpu(seed: int) -> None:
    run(100, seed, "--backend", "host")


@pytest.mark.slow
@pytest.mark.parametrize("options", [("--cut",), ("--no-fusion",), ("--backend", "opencl", "--in-process")], ids=lambda o: o[-1].strip("-"))
def test_programs_in_slices_without_fusion_and_on_opencl_agree_with_the_cpu(options: tuple[str, ...]) -> None:
    run(35, 60_000, *options)
