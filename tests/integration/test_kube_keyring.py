"""The keyring of an installation in Kubernetes: made as secrets, added to, never replaced."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography import x509
from lightkube import Client, KubeConfig
from lightkube.models.core_v1 import NodeAddress, NodeStatus
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Node, Secret
from lightkube.types import PatchType

from bus_schemas.subjects import node_id
from services.operator.keyring import main
from tests.support.kube.fake import FakeKube

PARTS = ["--part=bus=wooly-nats.wooly.svc", "--part=controller=wooly-controller.wooly.svc", "--part=billing=b", "--part=etcd=e"]
COMMAND = ["wooly-keyring", "--namespace=default", *PARTS]


@pytest.fixture
def client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    with FakeKube(tmp_path) as kube:
        monkeypatch.setenv("KUBECONFIG", str(kube.kubeconfig))
        yield Client(config=KubeConfig.from_file(kube.kubeconfig).get(), trust_env=False)


def secrets(client: Client) -> dict[str, dict[str, bytes]]:
    return {
        str(one.metadata.name): {key: base64.b64decode(value) for key, value in one.data.items()}
        for one in client.list(Secret, namespace="default")
    }


def add_node(client: Client, name: str, address: str) -> None:
    client.create(Node(metadata=ObjectMeta(name=name, labels={"gpu": "yes"})))
    status = NodeStatus(addresses=[NodeAddress(address=address, type="InternalIP")])
    client.patch(Node.Status, name, {"status": status.to_dict()}, patch_type=PatchType.MERGE)


def names_of(certificate: bytes) -> set[str]:
    found = x509.load_pem_x509_certificate(certificate).extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return {str(one.value) for one in found}


def test_each_part_has_what_its_service_reads(client: Client) -> None:
    assert main(COMMAND) == 0
    made = secrets(client)
    assert sorted(made) == [f"wooly-keyring-{part}" for part in ("billing", "bus", "ca", "controller", "etcd", "nodes", "runner", "watch")]
    controller = made["wooly-keyring-controller"]
    assert {"cert.pem", "key.pem", "ca.pem", "nats.nk", "seal.key", "admin.key", "nodes.json", "guard.nk", "issuer.nk"} <= controller.keys()
    assert b"/etc/nats/keyring/key.pem" in made["wooly-keyring-bus"]["security.conf"]
    assert "wooly-nats.wooly.svc" in names_of(made["wooly-keyring-bus"]["cert.pem"])
    authority = x509.load_pem_x509_certificate(made["wooly-keyring-ca"]["tls.crt"])
    x509.load_pem_x509_certificate(controller["cert.pem"]).verify_directly_issued_by(authority)
    # only the job reads the authority's key
    assert [name for name, data in made.items() if made["wooly-keyring-ca"]["ca.key"] in data.values()] == ["wooly-keyring-ca"]


def test_repetition_changes_nothing(client: Client) -> None:
    assert main(COMMAND) == 0
    before = {str(one.metadata.name): one.metadata.resourceVersion for one in client.list(Secret, namespace="default")}
    assert main(COMMAND) == 0
    assert {str(one.metadata.name): one.metadata.resourceVersion for one in client.list(Secret, namespace="default")} == before


def test_new_node_gets_an_identity_and_old_ones_keep_theirs(client: Client) -> None:
    add_node(client, "gpu-1.example", "10.0.0.1")
    client.create(Node(metadata=ObjectMeta(name="cpu-1")))
    assert main([*COMMAND, "--nodes=gpu=yes"]) == 0
    first = secrets(client)["wooly-keyring-nodes"]
    assert sorted(first) == [
        "ca.pem",
        "gpu-1.example.api.key",
        "gpu-1.example.cert.pem",
        "gpu-1.example.key.pem",
        "gpu-1.example.names.json",
    ]
    assert {"gpu-1.example", "10.0.0.1"} <= names_of(first["gpu-1.example.cert.pem"])
    add_node(client, "gpu-2", "10.0.0.2")
    assert main([*COMMAND, "--nodes=gpu=yes"]) == 0
    second = secrets(client)
    assert {key: second["wooly-keyring-nodes"][key] for key in first} == first
    known = {key["node"] for key in json.loads(second["wooly-keyring-controller"]["nodes.json"])}
    assert {node_id("gpu-1.example"), node_id("gpu-2")} <= known
    assert main(COMMAND) == 0  # a node that is away for a while is still known
    assert secrets(client)["wooly-keyring-nodes"] == second["wooly-keyring-nodes"]


def test_new_host_is_added_to_the_certificate_and_keys_stay(client: Client) -> None:
    assert main(COMMAND) == 0
    before = secrets(client)["wooly-keyring-controller"]
    assert main([*COMMAND, "--part=controller=wooly.example.com"]) == 0
    after = secrets(client)["wooly-keyring-controller"]
    assert "wooly.example.com" in names_of(after["cert.pem"])
    kept = before.keys() - {"cert.pem", "key.pem", "names.json"}
    assert {key: after[key] for key in kept} == {key: before[key] for key in kept}
