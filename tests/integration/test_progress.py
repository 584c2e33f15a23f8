"""One line on a terminal, and none in a file, announces a wait for the bus and a large upload."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.command import on_a_terminal
from tests.support.node import Node
from tests.support.stack import plain_environment

UPLOAD = "import torch; x = torch.zeros(80 << 20, dtype=torch.uint8).cuda(); torch.cuda.synchronize()"


def errors_of(command: list[str], *, terminal: bool, **environment: str) -> str:
    """Standard error of ``command``, which is a terminal or a pipe."""
    env = plain_environment(**environment)
    if not terminal:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False).stderr
    return on_a_terminal(command, env, only_errors=True)[1]


@pytest.mark.parametrize("terminal", [True, False])
def test_the_wait_for_a_bus_that_says_nothing(terminal: bool) -> None:
    """Something listens, and does not greet as a NATS server would."""
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"nats://127.0.0.1:{silent.getsockname()[1]}"
        command = [sys.executable, "-c", "import torch; torch.zeros(1, device='cuda')"]
        said = errors_of(command, terminal=terminal, WOOLY_NATS_URL=url, WOOLY_RECOVERY_WAIT_S="0")
    assert f"no NATS server answers at {url} (no answer within 6 s)" in said
    assert (f"wooly: connecting to the bus at {url} ..." in said) == terminal


def test_a_large_upload(tmp_path: Path) -> None:
    with Node(tmp_path) as node:
        for terminal in (True, False):
            said = errors_of([sys.executable, "-c", UPLOAD], terminal=terminal, WOOLY_NATS_URL=node.nats.url)
            assert ("wooly: uploading 80 MiB ..." in said) == terminal
        loud = errors_of([sys.executable, "-c", UPLOAD], terminal=False, WOOLY_NATS_URL=node.nats.url, WOOLY_DEBUG="1")
        assert "wooly: uploading 80 MiB ..." in loud
        assert "uploading" not in errors_of([sys.executable, "-c", UPLOAD.replace("80", "8")], terminal=True, WOOLY_NATS_URL=node.nats.url)
