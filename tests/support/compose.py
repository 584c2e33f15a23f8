"""docker-compose.yml without Docker: the command, environment and health check of a service, mapped to this machine."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from services.kit.process import free_port, spawn, stop_process

__all__ = ["ROOT", "Compose", "LocalService", "interpolate"]

ROOT: Final = Path(__file__).resolve().parents[2]
_VARIABLE: Final = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")
_SELF: Final = ("0.0.0.0", "127.0.0.1", "localhost")


def interpolate(text: str, environment: Mapping[str, str]) -> str:
    """``${NAME}`` and ``${NAME:-default}`` as compose fills them in."""
    return _VARIABLE.sub(lambda match: environment.get(match[1]) or match[2] or "", text)


class Compose:
    """The file, and a free local port for every (service, port) that it names. ``elsewhere``: services that run already, as ``(name, port):
    local port``; ``without``: services that do not run here, so that variables that name them are left out."""

    def __init__(self, folder: Path, elsewhere: Mapping[tuple[str, int], int], without: frozenset[str] = frozenset()) -> None:
        self.document: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
        self.services: dict[str, Any] = self.document["services"]
        self.folder = folder
        self._ports = dict(elsewhere)
        self._without = without

    def ours(self) -> list[str]:
        """The services built from this repository that need no profile."""
        return [name for name, service in self.services.items() if "build" in service and not service.get("profiles")]

    def local_port(self, service: str, port: int) -> int:
        return self._ports.setdefault((service, port), free_port())

    def local(self, service: str, text: str) -> str:
        """``text`` of a service's definition with every ``host:port`` and volume path mapped."""
        hosts = "|".join(re.escape(host) for host in (*self.services, *_SELF))
        mapped = re.sub(
            rf"\b({hosts}):(\d+)\b",
            lambda match: f"127.0.0.1:{self.local_port(service if match[1] in _SELF else match[1], int(match[2]))}",
            interpolate(text, {}),
        )
        for volume in self.services[service].get("volumes", []):
            source, target = volume.split(":")[:2]
            mapped = mapped.replace(target, str(self.volume(source))) if mapped.startswith(target) else mapped
        return mapped

    def volume(self, source: str) -> Path:
        """The folder that stands for a named volume: the same for all services that mount it."""
        folder = self.folder / "volumes" / source
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    def run_once(self, service: str) -> subprocess.CompletedProcess[bytes]:
        """A service that does its work and ends. Its volumes are mounted below one folder, which its command names."""
        definition = self.services[service]
        targets = {volume.split(":")[1]: volume.split(":")[0] for volume in definition["volumes"]}
        root = os.path.commonpath(list(targets))
        here = self.folder / service
        for target, source in targets.items():
            link = here / os.path.relpath(target, root)
            link.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            if not link.is_symlink():
                link.symlink_to(self.volume(source))
        command = [str(here) if word == root else str(word) for word in definition["command"]]
        return subprocess.run(_here(command), env=self.environment(service), cwd=here, capture_output=True, timeout=120, check=False)

    def environment(self, service: str) -> dict[str, str]:
        """What the service gets: nothing of ours from this process, then the file's variables, mapped."""
        own = {str(port).split(":")[-1] for port in self.services[service].get("ports", [])}
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("WOOLY", "NODE_", "CONTROLLER_", "OTEL_"))}
        kept["PATH"] = f"{Path(sys.executable).parent}:{kept.get('PATH', '')}"
        for key, value in self.services[service].get("environment", {}).items():
            text = str(value)
            if any(f"//{gone}:" in text for gone in self._without):
                continue
            if text in own:
                kept[key] = str(self.local_port(service, int(text)))
            elif text == "0.0.0.0":
                kept[key] = "127.0.0.1"
            else:
                kept[key] = self.local(service, text)
        return kept

    def start(self, service: str) -> LocalService:
        definition = self.services[service]
        command = [self.local(service, str(word)) for word in definition["command"]]
        test = [self.local(service, str(word)) for word in definition["healthcheck"]["test"]]
        if test[0] != "CMD":
            raise ValueError(f"{service}: the health check is {test[0]}; only CMD can be run here")
        (self.folder / service).mkdir(parents=True, exist_ok=True)
        return LocalService(service, command, test[1:], self.environment(service), self.folder / service)


class LocalService:
    """A service of the file as a process of this machine."""

    def __init__(self, name: str, command: list[str], check: list[str], environment: dict[str, str], folder: Path) -> None:
        self.name = name
        self._check = check
        self._environment = environment
        self._folder = folder
        self._log = folder / "log"
        with self._log.open("ab") as log:
            self.process = spawn(_here(command), env=environment, stdout=log, stderr=log, cwd=folder)

    def healthy(self) -> bool:
        """Run the health check once."""
        result = subprocess.run(_here(self._check), env=self._environment, cwd=self._folder, capture_output=True, timeout=60, check=False)
        return result.returncode == 0

    def wait_healthy(self, timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not self.healthy():
            if self.process.poll() is not None:
                raise RuntimeError(f"{self.name} ended with {self.process.returncode}:\n{self.log_tail()}")
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.name} was not healthy within {timeout_s:g} s:\n{self.log_tail()}")
            time.sleep(0.1)

    def stop(self) -> int:
        return stop_process(self.process)

    def log_tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


def _here(command: list[str]) -> list[str]:
    """The image's ``python`` and ``wooly`` are this environment's."""
    program = Path(sys.executable).parent / command[0] if command[0] != "python" else Path(sys.executable)
    return [str(program), *command[1:]]
