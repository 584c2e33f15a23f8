"""Runs of random programs in tests (tests/programs)."""

from __future__ import annotations

import os
import subprocess
import sys

from tests.support.stack import ROOT, plain_environment

__all__ = ["run"]


def run(programs: int, seed: int | None, *options: str) -> None:
    """In a process of its own: torch is switched to one device, and the programs' processes are forked from it. ``seed`` None: new ones."""
    command = [sys.executable, "-m", "tests.programs", "--programs", str(programs), "--shrink", "5", *options]
    command += [] if seed is None else ["--seed", str(seed)]
    environment = plain_environment() | {k: v for k, v in os.environ.items() if k == "NATS_SERVER_BIN"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
