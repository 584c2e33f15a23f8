"""Starts a whole embedded stack as its users do: its addresses, its end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Self

__all__ = ["ROOT", "EmbeddedStack", "plain_environment"]

ROOT = Path(__file__).resolve().parents[2]
_START_S = 60


def plain_environment(**more: str) -> dict[str, str]:
    """This process's environment without anything of ours, one BLAS thread, and ``more``. A GPU of this machine is not in the way."""
    ours = ("WOOLY", "NODE_", "CONTROLLER_", "REQUIRED_VRAM", "PRIO", "GPU", "TORCH_DEVICE_BACKEND_AUTOLOAD")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(ours)}
    return kept | {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "WOOLY_LOCAL_GPU": "1"} | more


class EmbeddedStack:
    """``python -P -m services.up`` for the time of a ``with`` block. ``addresses``: its ready line."""

    def __init__(self, folder: Path | None = None, *arguments: str, **environment: str) -> None:
        self._arguments = arguments
        self._own = tempfile.TemporaryDirectory() if folder is None else None
        self.folder = folder or Path(self._own.name)  # type: ignore[union-attr]  # one of the two is there
        self._environment = environment
        self.addresses: dict[str, Any] = {}

    def __enter__(self) -> Self:
        self.log = (self.folder / "up.log").open("ab")
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-m", "services.up", "--dir", str(self.folder / "state"), *self._arguments],
            stdout=subprocess.PIPE,
            stderr=self.log,
            cwd=self.folder,
            env=plain_environment(WOOLY_DIE_WITH_PARENT=str(os.getpid()), **self._environment),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # ends at the ready line, or at the process's death
        if not line:
            self.process.wait(_START_S)
            raise RuntimeError("the stack did not start:\n" + (self.folder / "up.log").read_text()[-4000:])
        self.addresses = json.loads(line)
        return self

    def client_environment(self, **more: str) -> dict[str, str]:
        """Without images of sessions: these are batches, and so in launch digests."""
        return plain_environment(**{"WOOLY_NATS_URL": self.addresses["nats"], "WOOLY_RECOVERY_TARGET_S": "86400"} | more)

    def get(self, service: str, path: str, accept: str = "application/json") -> Any:
        """GET from ``controller`` or ``billing``; JSON decoded, anything else as text."""
        request = urllib.request.Request(self.addresses[service] + path, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=30) as answer:
            body = answer.read()
        return json.loads(body) if accept == "application/json" else body.decode()

    def stop(self) -> int:
        """Ask for the end and wait for it; the exit code."""
        self.process.terminate()
        code = self.process.wait(_START_S)
        self.log.close()
        return code

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        if self.process.poll() is None:
            self.stop()
        if self.process.stdout is not None:
            self.process.stdout.close()
        if self._own is not None:
            self._own.cleanup()
