"""Runs scripts under WOOLY_CHECK in a process of their own (``tests.support.checked``), because kernels are wrapped once a process."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.support.stack import ROOT, plain_environment

__all__ = ["run"]


def run(cases: list[dict[str, str]], *arguments: str) -> list[dict[str, Any]]:
    """What ``tests.support.checked`` says of each case: error, code, printed, summary."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.checked", *arguments],
        input=json.dumps(cases),
        env=plain_environment(),
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]
