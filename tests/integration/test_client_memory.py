"""What torch.cuda says of memory is what the node counts: free of the device with what other tasks hold, or of the task's quota."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.support.node import Node, until
from tests.support.stack import ROOT, plain_environment

SCRIPT = ROOT / "tests" / "integration" / "scripts" / "memory_truth.py"


class Script:
    """A script that holds so many MiB and tells what it sees, in MiB, when asked."""

    def __init__(self, node: Node, held: int, **variables: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, str(SCRIPT), str(held)],
            env=plain_environment(WOOLY_NATS_URL=node.nats.url, **variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, what: str = "tell") -> dict[str, int]:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(what + "\n")
        self.process.stdin.flush()
        values = self.process.stdout.readline().split()
        return dict(zip(("free", "total", "allocated", "peak"), map(int, values), strict=True))

    def tells(self, wanted: dict[str, int]) -> None:
        """It sees this, at once or when the node, on a busy machine, has answered within the second that a client gives it."""
        until(lambda: self.ask() == wanted, str(wanted))

    def close(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0
        self.process.stdout.close()


def test_free_memory_is_what_the_node_has_free(tmp_path: Path) -> None:
    with Node(tmp_path, WOOLY_DEVICE_VRAM_MB="64") as node:
        one = Script(node, 10)
        one.tells({"free": 54, "total": 64, "allocated": 10, "peak": 10})
        two = Script(node, 20)
        two.tells({"free": 34, "total": 64, "allocated": 20, "peak": 20})
        one.ask("drop")
        one.tells({"free": 35, "total": 64, "allocated": 9, "peak": 10})
        limited = Script(node, 3, REQUIRED_VRAM="8")
        limited.tells({"free": 5, "total": 8, "allocated": 3, "peak": 3})
        assert sorted(session.resident_bytes >> 20 for session in node.stats().sessions) == [3, 9, 20]
        for script in (limited, two, one):
            script.close()


def test_a_script_that_catches_out_of_memory_goes_on(tmp_path: Path) -> None:
    script = SCRIPT.with_name("crowded.py")
    with Node(tmp_path, WOOLY_DEVICE_VRAM_MB="64", WOOLY_VRAM_RESERVE_MB="0", WOOLY_BACKEND="host") as node:
        done = subprocess.run(
            [sys.executable, str(script)], env=plain_environment(WOOLY_NATS_URL=node.nats.url), capture_output=True, text=True, timeout=300
        )
    assert done.stdout == "survived\n", done.stderr[-3000:]
