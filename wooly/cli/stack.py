"""The embedded stack as a child process, and whether the platform is installed."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Final

from wooly.cli.group import CommandError
from wooly.remedies import INSTALL_PLATFORM

__all__ = ["Stack", "missing_server_parts", "require_server", "service_command"]

_READY_S: Final = 120.0
_STOP_S: Final = 30.0
_DIE_WITH_PARENT: Final = "WOOLY_DIE_WITH_PARENT"
_TAIL_LINES: Final = 3
_PLATFORM: Final = "wooly-server"


def missing_server_parts() -> list[str]:
    """Distributions that the platform needs and that are not installed: the platform's own, or what it depends on."""
    try:
        requirements = importlib.metadata.requires(_PLATFORM) or ()
    except importlib.metadata.PackageNotFoundError:
        return [_PLATFORM]
    missing = []
    for requirement in requirements:
        name, _, marker = requirement.partition(";")
        if "extra" in marker:
            continue
        package = re.split(r"[\s<>=!~\[(]", name.strip(), maxsplit=1)[0]
        try:
            importlib.metadata.distribution(package)
        except importlib.metadata.PackageNotFoundError:
            missing.append(package)
    return missing


def require_server() -> None:
    """Raises CommandError when the server's parts are missing."""
    missing = missing_server_parts()
    if missing:
        raise CommandError(f"this command needs the platform (not installed: {', '.join(missing)}); {INSTALL_PLATFORM}")


def service_command(module: str, *arguments: str) -> list[str]:
    """The platform's launcher runs ``module``. ``-P`` keeps the current folder off the path: it may hold a package ``services``."""
    return [sys.executable, "-P", "-m", "wooly_server", module, *arguments]


@dataclass(frozen=True)
class Addresses:
    """Where the parts of a stack answer."""

    nats: str
    controller: str
    billing: str
    ca: str = ""
    admin_key_file: str = ""


class Stack:
    """A running embedded stack; a context manager that stops it. It also dies with this process, however that ends."""

    def __init__(self, arguments: Sequence[str] = (), *, show_log: bool = False) -> None:
        """Start it and wait until it is ready. Raises CommandError."""
        require_server()
        self._log: IO[bytes] | None = None if show_log else tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            service_command("services.up", *arguments),
            env={**os.environ, _DIE_WITH_PARENT: str(os.getpid())},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,  # Ctrl-C is ours to handle
        )
        try:
            self.addresses = self._ready()
        except BaseException:
            self.stop()
            raise

    def _ready(self) -> Addresses:
        """The addresses from its ready line."""
        stdout = self._process.stdout
        assert stdout is not None
        line, deadline = b"", time.monotonic() + _READY_S
        while not line.endswith(b"\n"):
            readable, _, _ = select.select([stdout], [], [], max(deadline - time.monotonic(), 0))
            if not readable:
                raise CommandError(f"the embedded stack was not ready within {_READY_S:g} s{self._tail()}")
            part = os.read(stdout.fileno(), 65536)
            if not part:
                code = self._process.wait()
                raise CommandError(f"the embedded stack ended at its start (exit code {code}){self._tail()}")
            line += part
        try:
            said: Mapping[str, Any] = json.loads(line)
            more = {name: str(said[name]) for name in ("ca", "admin_key_file") if name in said}
            return Addresses(nats=said["nats"], controller=said["controller"], billing=said["billing"], **more)
        except (ValueError, KeyError, TypeError):
            raise CommandError(f"the embedded stack said {line!r} where its addresses should be; are all parts of one version?") from None

    def _tail(self) -> str:
        """The end of its log, for an error."""
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return "; its log ends with: " + " | ".join(lines[-_TAIL_LINES:]) if lines else ""

    def wait(self) -> int:
        """Until it ends by itself; its exit code."""
        return self._process.wait()

    def stop(self) -> None:
        """End it and wait. Safe to call twice."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        if self._log is not None:
            self._log.close()
            self._log = None

    def __enter__(self) -> Stack:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
