"""One supervised child: its command, its log, its ready line, restarts."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from services.kit.errors import StartError
from services.kit.log import get_logger
from services.kit.process import DIE_WITH_PARENT, child_environment, exited, spawn, stop_process
from wooly_server import module_command

__all__ = ["Child"]

_READY_S: Final = 60.0
_RESTARTS_MAX: Final = 5
_RESTARTS_WITHIN_S: Final = 30.0
_PAUSE_S: Final = 0.2
_STOP_S: Final = 20.0
_TAIL_BYTES: Final = 3000


class Child:
    """``module`` run as a process of its own. Its standard error goes to ``<folder>/<name>.log``."""

    def __init__(self, name: str, module: str, folder: Path, env: Mapping[str, str]) -> None:
        self.name = name
        self._module = module
        self._log_path = folder / f"{name}.log"
        self._env = child_environment(**env, **{DIE_WITH_PARENT: None})
        self._process: subprocess.Popen[bytes] | None = None
        self._starts: deque[float] = deque(maxlen=_RESTARTS_MAX)
        self._log = get_logger()

    async def start(self) -> str:
        """Start it; its ready line. Raises StartError with the end of its log. Call from the main thread."""
        self._starts.append(time.monotonic())
        with self._log_path.open("ab") as log:
            self._process = spawn(module_command(self._module), env=self._env, stdout=subprocess.PIPE, stderr=log)
        stdout = self._process.stdout
        assert stdout is not None
        try:
            line = await asyncio.wait_for(asyncio.to_thread(stdout.readline), _READY_S)
        except TimeoutError:
            self._process.kill()
            raise StartError(f"{self.name} was not ready within {_READY_S:g} s; the end of its log:\n{self.tail()}") from None
        if not line:
            code = await asyncio.to_thread(self._process.wait)
            raise StartError(f"{self.name} ended at start (exit code {code}); the end of its log:\n{self.tail()}")
        return line.decode(errors="replace").strip()

    async def keep(self) -> None:
        """Start it again whenever it ends. Raises StartError when that happens too often."""
        while True:
            assert self._process is not None
            code = await exited(self._process)
            self._log.error("a service ended", name=self.name, code=code)
            if len(self._starts) == _RESTARTS_MAX and time.monotonic() - self._starts[0] < _RESTARTS_WITHIN_S:
                raise StartError(
                    f"{self.name} ended {_RESTARTS_MAX} times within {_RESTARTS_WITHIN_S:g} s; the end of its log:\n{self.tail()}"
                )
            await asyncio.sleep(_PAUSE_S)
            await self.start()

    def stop(self) -> None:
        if self._process is not None:
            stop_process(self._process, grace_s=_STOP_S)
            if self._process.stdout is not None:
                self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid if self._process is not None else 0

    def tail(self) -> str:
        """The end of its log."""
        try:
            return self._log_path.read_text(errors="replace")[-_TAIL_BYTES:]
        except OSError:
            return "(no log)"
