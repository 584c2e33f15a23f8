"""A user's script with the environment that a stack's users export."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.fork_server import ForkedProcess, start_script
from tests.support.node import until
from tests.support.stack import EmbeddedStack

__all__ = ["PYTHON", "Script", "tasks_of", "task_called"]

PYTHON = sys.executable
"""The launcher of a script that runs in a process of its own."""

_END_S = 120
_AS_IN_A_TERMINAL = ("env", "--default-signal=INT")
"""Ctrl-C reaches the script although a shell started the tests in the background, where SIGINT is ignored and that is inherited."""


class Script:
    """``code`` as ``NAME.py``, run in a copy of a Python that has imported torch or, with ``launcher``, by a command; ended when the
    ``with`` block is left.

    ``folder``: where the script lies. ``error``: the standard error so far.
    ``terminal``: the file descriptor of a terminal that standard error goes to."""

    process: ForkedProcess | subprocess.Popen[bytes]

    def __init__(self, stack: EmbeddedStack, name: str, code: str, *launcher: str, terminal: int | None = None, **environ: str) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = self.folder = Path(self._folder.name)
        path = folder / f"{name}.py"
        path.write_text(code)
        self._error = folder / "error"
        self._output = folder / "output"
        environment = stack.client_environment(CONTROLLER_URL=stack.addresses["controller"], HOME=str(folder), **environ)
        environment = {key: value for key, value in environment.items() if value}
        with self._error.open("wb") as error, self._output.open("wb") as output:
            if not launcher:
                self.process = start_script(path, env=environment, cwd=folder, stdout=output, stderr=error)
                return
            self.process = subprocess.Popen(
                [*_AS_IN_A_TERMINAL, *launcher, str(path)],
                env=environment,
                cwd=folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=error if terminal is None else terminal,
            )

    @property
    def error(self) -> str:
        return self._error.read_text(errors="replace")

    @property
    def output(self) -> str:
        return self._output.read_text(errors="replace")

    def says(self, text: str) -> None:
        """Wait until the script has written ``text`` to standard error."""
        until(lambda: text in self.error or self.process.poll() is not None, f"the script says {text!r}")
        if text not in self.error:
            raise AssertionError(f"the script ended with {self.process.returncode} and did not say {text!r}:\n{self.error}")

    def prints(self, text: str) -> None:
        """Wait until the script has written ``text`` to standard output."""
        until(lambda: text in self.output or self.process.poll() is not None, f"the script prints {text!r}")
        if text not in self.output:
            raise AssertionError(f"the script ended with {self.process.returncode} and did not print {text!r}:\n{self.error}")

    def end(self) -> int:
        """Wait for its end; the exit code, negative for a signal."""
        return self.process.wait(_END_S)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._folder.cleanup()


def tasks_of(stack: EmbeddedStack) -> list[dict[str, Any]]:
    return list(stack.get("controller", "/api/v1/tasks")["items"])


def task_called(stack: EmbeddedStack, title: str, so: Callable[[dict[str, Any]], bool] = lambda task: True) -> dict[str, Any]:
    """The only task of this title, once there is one for which ``so`` holds."""

    def found() -> dict[str, Any] | None:
        (task,) = [task for task in tasks_of(stack) if task["title"] == title] or [None]
        return task if task is not None and so(task) else None

    return until(found, f"a task {title} as wanted; there are {[(t['title'], t['state'], t['reason']) for t in tasks_of(stack)]}")
