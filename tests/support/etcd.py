"""A real etcd for the time of a ``with`` block, on free ports, its data in a given folder."""

from __future__ import annotations

import ssl
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Self

from services.kit.process import free_port, spawn, stop_process

__all__ = ["Etcd", "etcd_binary", "tls_options"]

_SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "test-etcd.sh"
_START_S = 60


def etcd_binary() -> tuple[str, str]:
    """(path, ""), or ("", why there is none)."""
    result = subprocess.run(["sh", str(_SCRIPT)], capture_output=True, text=True, timeout=120, check=False)
    return (result.stdout.strip(), "") if result.returncode == 0 else ("", result.stderr.strip())


def tls_options(part: Path) -> list[str]:
    """Options with which etcd serves TLS with the certificate in ``part`` of a keyring, and requires one of its clients."""
    files = {"cert": part / "cert.pem", "key": part / "key.pem", "trusted-ca": part / "ca.pem"}
    return [*(f"--{name}-file={path}" for name, path in files.items()), "--client-cert-auth"]


class Etcd:
    """``url`` stays the same across ``stop`` and ``start``. ``part``: the folder of a keyring with etcd's certificate; None: plain text."""

    def __init__(self, binary: str, folder: Path, part: Path | None = None) -> None:
        self._binary = binary
        self._folder = folder
        self._part = part
        self.url = f"http{'s' if part else ''}://127.0.0.1:{free_port()}"
        self._peer = f"http://127.0.0.1:{free_port()}"

    def start(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        command = [
            self._binary,
            "--data-dir",
            str(self._folder / "data"),
            "--listen-client-urls",
            self.url,
            "--advertise-client-urls",
            self.url,
        ]
        command += [
            "--listen-peer-urls",
            self._peer,
            "--initial-advertise-peer-urls",
            self._peer,
            "--initial-cluster",
            f"default={self._peer}",
        ]
        command += tls_options(self._part) if self._part else []
        with (self._folder / "log").open("ab") as log:
            self.process = spawn(command, stdout=log, stderr=log)
        deadline = time.monotonic() + _START_S
        while not self._healthy():
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("etcd did not start:\n" + (self._folder / "log").read_text()[-2000:])
            time.sleep(0.02)

    def stop(self) -> None:
        stop_process(self.process)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def _healthy(self) -> bool:
        context = None
        if self._part:
            context = ssl.create_default_context(cafile=str(self._part / "ca.pem"))
            context.load_cert_chain(self._part / "cert.pem", self._part / "key.pem")
        try:
            with urllib.request.urlopen(self.url + "/health", timeout=1, context=context) as answer:
                return b'"true"' in answer.read()
        except (urllib.error.URLError, OSError):
            return False
