"""The services as the chart starts them: its variables, the bus's configuration and the secrets of its keyring, as processes of this
machine, asked by the chart's own probes."""

from __future__ import annotations

import base64
import contextlib
import re
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lightkube import Client as KubeClient
from lightkube import KubeConfig
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, Secret

from services.kit.nats_server import nats_server_binary
from services.kit.process import free_port, spawn, stop_process
from services.operator.keyring import main as make_keyring
from services.operator.objects import GpuPool, WoolyCluster, read_object
from services.operator.wanted import Apply, Observed, wanted
from tests.support.fork_server import start_service
from tests.support.kube.fake import FakeKube
from tests.support.kube.helm import binary, rendered
from tests.support.node import until
from tests.support.stack import plain_environment
from wooly.api import Client

pytestmark = pytest.mark.skipif(not binary("helm")[0], reason=binary("helm")[1])

SPACE = "wooly-system"
Json = dict[str, Any]


class Here:
    """Addresses and folders of the chart, mapped to this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.objects = rendered(
            "--set-json", 'keyring.nodeSelector={"gpu":"yes"}', "--set-json", 'pools.cpu={"backend":"host","vramMb":256}', namespace=SPACE
        )
        self._ports: dict[tuple[str, str], int] = {}
        self.secrets: dict[str, Path] = {}

    def of(self, kind: str, name: str) -> Json:
        return next(one for one in self.objects if (one["kind"], one["metadata"]["name"]) == (kind, name))

    def port(self, service: str, number: str) -> int:
        return self._ports.setdefault((service, number), free_port())

    def local(self, service: str, text: str, folders: dict[str, Path]) -> str:
        for path in sorted(folders, key=len, reverse=True):
            if text == path or text.startswith(path + "/"):
                return str(folders[path]) + text[len(path) :]
        assert not text.startswith("/"), f"{service}: {text} is in no volume, and the root file system is read-only"
        text = re.sub(rf"\bwooly-(\w+)\.{SPACE}\.svc:(\d+)", lambda match: f"127.0.0.1:{self.port(match[1], match[2])}", text)
        return re.sub(r"\b0\.0\.0\.0:(\d+)", lambda match: f"127.0.0.1:{self.port(service, match[1])}", text)

    def folders(self, service: str, spec: Json) -> dict[str, Path]:
        """What is mounted where."""
        out = {}
        volumes = {volume["name"]: volume for volume in spec.get("volumes", [])}
        for mount in spec["containers"][0]["volumeMounts"]:
            secret = volumes.get(mount["name"], {}).get("secret")
            own = self.folder / service / mount["name"]
            own.mkdir(parents=True, exist_ok=True)
            path = self.secrets[secret["secretName"]] if secret else own
            file = mount.get("subPath") or mount.get("subPathExpr", "").replace("$(NODE_NAME)", "n1")
            out[mount["mountPath"]] = path / file if file else path
        return out

    def environment(self, service: str, spec: Json, **fields: str) -> dict[str, str]:
        folders = self.folders(service, spec)
        out = {}
        for one in spec["containers"][0]["env"]:
            text = one["value"] if "value" in one else fields[one["valueFrom"]["fieldRef"]["fieldPath"]]
            out[one["name"]] = self.local(service, text, folders)
        return plain_environment(**out)

    def keyring(self) -> None:
        """Run the job against an API server, and lay its secrets out as volumes."""
        with FakeKube(self.folder / "kube") as kube, pytest.MonkeyPatch.context() as patch:
            patch.setenv("KUBECONFIG", str(kube.kubeconfig))
            client = KubeClient(config=KubeConfig.from_file(kube.kubeconfig).get(), trust_env=False)
            client.create(Node(metadata=ObjectMeta(name="n1", labels={"gpu": "yes"})))
            [container] = self.of("Job", "wooly-keyring")["spec"]["template"]["spec"]["containers"]
            arguments = [word.replace(SPACE, "default") if word.startswith("--namespace") else word for word in container["args"]]
            assert make_keyring([*arguments, f"--bus-at={self.folder}/nats/configuration/keyring"]) == 0
            for secret in client.list(Secret, namespace="default"):
                path = self.folder / "secrets" / secret.metadata.name
                path.mkdir(parents=True)
                for key, value in secret.data.items():
                    (path / key).write_bytes(base64.b64decode(value))
                self.secrets[secret.metadata.name] = path

    def start_bus(self) -> Any:
        spec = self.of("StatefulSet", "wooly-nats")["spec"]["template"]["spec"]
        configuration = self.folder / "nats" / "configuration"
        (configuration / "keyring").mkdir(parents=True)
        for name, text in self.of("ConfigMap", "wooly-nats")["data"].items():
            (configuration / name).write_text(self.local("nats", text, {}))
        for path in self.secrets["wooly-keyring-bus"].iterdir():
            (configuration / "keyring" / path.name).write_bytes(path.read_bytes())
        folders = {"/etc/nats": configuration, "/data": self.folder / "nats" / "data"}
        words = [self.local("nats", word.replace("$(SERVER_NAME)", "wooly-nats-0"), folders) for word in spec["containers"][0]["args"]]
        with (self.folder / "nats" / "log").open("wb") as log:
            return spawn([nats_server_binary(), *words], stdout=log, stderr=log)

    def ready(self, service: str, spec: Json) -> bool:
        """What the kubelet sees."""
        [container] = spec["containers"]
        get = container["readinessProbe"]["httpGet"]
        number = get["port"]
        if isinstance(number, str):
            number = next(port["containerPort"] for port in container["ports"] if port["name"] == number)
        context = ssl.create_default_context(cafile=str(self.secrets["wooly-keyring-watch"] / "ca.pem"))
        url = f"{get.get('scheme', 'HTTP').lower()}://127.0.0.1:{self.port(service, str(number))}{get['path']}"
        with contextlib.suppress(OSError, urllib.error.URLError), urllib.request.urlopen(url, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
        return False

    def node_server(self) -> Json:
        """The pod that the operator makes for the pool."""
        read = [
            read_object({**self.of(kind, name), "metadata": {"name": name, "uid": "u"}}, shape)
            for kind, name, shape in (("WoolyCluster", "wooly", WoolyCluster), ("GpuPool", "cpu", GpuPool))
        ]
        seen = Observed("k", read[0], (read[1],), (), (), (), {}, None, SPACE)
        [action] = [one for one in wanted(seen) if isinstance(one, Apply)]
        spec: Json = action.object["spec"]["template"]["spec"]
        return spec


@pytest.fixture
def here(tmp_path: Path) -> Iterator[Here]:
    found = Here(tmp_path)
    found.keyring()
    bus = found.start_bus()
    try:
        yield found
    finally:
        stop_process(bus)


def test_services_become_ready_and_a_node_joins(here: Here) -> None:
    specs = {
        "nats": here.of("StatefulSet", "wooly-nats")["spec"]["template"]["spec"],
        "controller": here.of("Deployment", "wooly-controller")["spec"]["template"]["spec"],
        "billing": here.of("StatefulSet", "wooly-billing")["spec"]["template"]["spec"],
        "server": here.node_server(),
    }
    until(lambda: here.ready("nats", specs["nats"]), "the bus is ready")
    processes = []
    try:
        for service in ("controller", "billing", "server"):
            environment = here.environment(service, specs[service], **{"spec.nodeName": "n1", "status.hostIP": "127.0.0.1"})
            if service == "server":
                environment["WOOLY_DATA_PORT"] = "0"
            with (here.folder / f"{service}.log").open("wb") as log:
                processes.append(start_service(f"services.{service}", env=environment, stderr=log))
            until(lambda service=service: here.ready(service, specs[service]), f"{service} is ready, see {here.folder / f'{service}.log'}")
        admin = (here.secrets["wooly-keyring-controller"] / "admin.key").read_text().strip()
        url = f"https://127.0.0.1:{here.port('controller', '8080')}"
        client = Client(url, api_key=admin, ca=str(here.secrets["wooly-keyring-controller"] / "ca.pem"))
        until(lambda: [(node.name, node.state) for node in client.nodes().items] == [("n1", "ready")], "the node is known")
        assert client.identity().role == "admin"
    finally:
        for process in processes:
            process.stop()
