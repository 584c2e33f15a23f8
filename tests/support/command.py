"""Runs the ``wooly`` command as a process."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.support.node import until
from tests.support.stack import plain_environment

__all__ = ["Wooly", "command_in", "in_the_end", "on_a_terminal"]

Wooly = Callable[..., subprocess.CompletedProcess[str]]


def on_a_terminal(command: list[str], environment: dict[str, str], *, only_errors: bool = False) -> tuple[int, str]:
    """Exit code, and what the terminal was sent: all three streams, or (``only_errors``) standard error are one."""
    ours, theirs = pty.openpty()
    rest = {"stdout": subprocess.DEVNULL} if only_errors else {"stdin": theirs, "stdout": theirs}
    process = subprocess.Popen(command, stderr=theirs, env=environment, **rest)
    os.close(theirs)
    said = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # the terminal's other end is closed
            break
        if not part:
            break
        said += part
    os.close(ours)
    return process.wait(120), said.decode()


def in_the_end(wooly: Wooly, *arguments: str, **environ: str) -> str:
    """What a command says once it succeeds: some ask nodes for a second only, and a busy machine may be too slow for that."""

    def said() -> str:
        done = wooly(*arguments, **environ)
        return done.stdout if done.returncode == 0 else ""

    return until(said, f"wooly {' '.join(arguments)} succeeds")


def command_in(folder: Path) -> Wooly:
    """``wooly("ping", "--json", WOOLY_NATS_URL=...)`` in a fresh process whose home and working folder is ``folder``."""

    def call(*arguments: str, stdin: str | bytes = "", **environ: str) -> subprocess.CompletedProcess[str]:
        environment = plain_environment(HOME=str(folder), COLUMNS="200", **environ)
        data = stdin.encode() if isinstance(stdin, str) else stdin
        command = [str(Path(sys.executable).with_name("wooly")), *arguments]
        done = subprocess.run(command, input=data, env=environment, cwd=folder, capture_output=True, timeout=120, check=False)
        return subprocess.CompletedProcess(
            command, done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode(errors="replace")
        )

    return call
