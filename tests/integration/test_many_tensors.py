"""Scripts with more small tensors than one batch may make, fill, read or free."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.node import Node
from tests.support.stack import ROOT, plain_environment


def test_tens_of_thousands_of_small_tensors(tmp_path: Path) -> None:
    with Node(tmp_path, WOOLY_BACKEND="host") as node:
        done = subprocess.run(
            [sys.executable, str(ROOT / "tests" / "integration" / "scripts" / "many_tensors.py")],
            env=plain_environment(WOOLY_NATS_URL=node.nats.url),
            capture_output=True,
            text=True,
            timeout=300,
        )
    assert done.stdout == "2.0 10000.0 True\n", done.stderr
