"""The real kube-apiserver with an etcd, on free ports, as ``build.sh`` has made it: Kubernetes 1.20 without controllers and scheduler.

Beyond the fake: RBAC, validation and defaults of Kubernetes' own kinds, structural schemas of custom resources, the words of its errors. It
drops scheduling gates and other fields that are newer than it is, and does not collect what has lost its owner.
"""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from services.kit.keyring import Authority
from services.kit.process import free_port, spawn, stop_process
from tests.support.etcd import Etcd, etcd_binary
from tests.support.kube.access import ADMIN, write_kubeconfig
from tests.support.node import until

__all__ = ["RealKube", "apiserver_binary"]

_BUILD: Final = Path(__file__).with_name("build.sh")
_BUILD_S: Final = 3600
_START_S: Final = 180


def apiserver_binary() -> str:
    """Built where that has not been done yet: a quarter of an hour. Raises RuntimeError."""
    result = subprocess.run(["bash", str(_BUILD)], capture_output=True, text=True, timeout=_BUILD_S, check=False)
    if result.returncode:
        raise RuntimeError(f"kube-apiserver could not be built; see tests/support/kube/build.sh\n{result.stderr[-2000:]}")
    return result.stdout.strip().splitlines()[-1]


class RealKube:
    """``kubeconfig``: a file for clients, of an administrator. ``stop`` and ``start`` are an outage: objects stay, and so does the port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._binary = apiserver_binary()
        folder.mkdir(parents=True, exist_ok=True)
        etcd, why = etcd_binary()
        if not etcd:
            raise RuntimeError(why)
        self._etcd = Etcd(etcd, folder / "etcd")
        self._etcd.start()
        authority = Authority.load_or_make(folder / "ca")
        authority.issue(folder / "server", ["127.0.0.1", "localhost"])
        self.ca = authority.certificate_file
        (folder / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\n")
        self._port = free_port()
        self.url = f"https://127.0.0.1:{self._port}"
        self.kubeconfig = write_kubeconfig(folder / "kubeconfig", self.url, self.ca)

    def start(self) -> None:
        pair = self._folder / "server"
        options = {
            "etcd-servers": self._etcd.url,
            "secure-port": self._port,
            "bind-address": "127.0.0.1",
            "tls-cert-file": pair / "cert.pem",
            "tls-private-key-file": pair / "key.pem",
            "client-ca-file": self.ca,
            "token-auth-file": self._folder / "tokens.csv",
            "service-account-key-file": pair / "cert.pem",
            "service-account-signing-key-file": pair / "key.pem",
            "service-account-issuer": "https://kubernetes.default.svc",
            "authorization-mode": "RBAC",
            "service-cluster-ip-range": "10.99.0.0/24",
            "disable-admission-plugins": "ServiceAccount",
            # config maps are watched in etcd itself, so that a compaction has its effect
            "watch-cache-sizes": "configmaps#0",
            "etcd-compaction-interval": "0",
            "cert-dir": self._folder / "certificates",
        }
        with (self._folder / "log").open("ab") as log:
            command = [self._binary, *(f"--{name}={value}" for name, value in options.items())]
            self._process = spawn(command, stdout=log, stderr=log)
        until(self._ready, "the API server is ready", _START_S)

    def stop(self) -> None:
        stop_process(self._process)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def compact(self) -> None:
        """Forget the history of config maps: a watch from an earlier resource version is answered with 410."""
        revision = self._asked("range", {"key": "AA=="})["header"]["revision"]
        self._asked("compaction", {"revision": revision})

    def _asked(self, what: str, body: dict[str, str]) -> Any:
        with urllib.request.urlopen(f"{self._etcd.url}/v3/kv/{what}", json.dumps(body).encode(), timeout=30) as answer:
            return json.load(answer)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self._etcd.stop()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()
        self._etcd.stop()

    def _ready(self) -> bool:
        if self._process.poll() is not None:
            raise RuntimeError("kube-apiserver did not start:\n" + (self._folder / "log").read_text()[-3000:])
        request = urllib.request.Request(f"{self.url}/readyz", headers={"Authorization": f"Bearer {ADMIN}"})
        with contextlib.suppress(urllib.error.URLError, OSError):
            context = ssl.create_default_context(cafile=str(self.ca))
            with urllib.request.urlopen(request, timeout=2, context=context) as answer:
                return bool(answer.status == 200)
        return False
