"""The chart installed by helm on a real API server, and operators in their pods' place, with the rights that the chart gives them.

The server is of 2020 (``tests.support.kube.real``): it drops scheduling gates silently, so that a pod is never held here; the fake covers
that (``test_operator.py``). It has no PodDisruptionBudget of today, which one replica of each part does without.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import signal
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import ApiError, Client, KubeConfig
from lightkube.codecs import from_dict
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration
from lightkube.resources.apps_v1 import DaemonSet, Deployment
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Namespace, Node, Pod, Secret, Service, ServiceAccount
from lightkube.types import PatchType

from services.kit.process import free_port
from tests.support.fork_server import ForkedProcess, start_service
from tests.support.house import House, NodeSpec
from tests.support.kube.access import write_kubeconfig
from tests.support.kube.helm import CHART, binary, rendered
from tests.support.kube.real import RealKube
from tests.support.node import DEADLINE_S, until
from tests.support.stack import plain_environment
from wooly_server import SERVICES, module_command

pytestmark = pytest.mark.soak

SPACE = "wooly-system"
GROUP = ("woolyai.com", "v1alpha1")
WoolyCluster = create_global_resource(*GROUP, "WoolyCluster", "woolyclusters")
GpuPool = create_global_resource(*GROUP, "GpuPool", "gpupools")
TenantPolicy = create_global_resource(*GROUP, "TenantPolicy", "tenantpolicies")
WoolyTask = create_namespaced_resource(*GROUP, "WoolyTask", "woolytasks")
RELEASE = "app.kubernetes.io/instance=wooly"


def values(house: House) -> list[str]:
    given: dict[str, Any] = {
        "controller.replicas": 1,
        "operator.replicas": 1,
        "cluster.controllerURL": house.url,
        "cluster.busURLs": [house.nats.url],
        "cluster.defaultPool": "small",
        "pools": {"small": {"nodeSelector": {"gpu": "yes"}, "backend": "host", "vramMb": 1024, "resources": {"limits": {"memory": "4Gi"}}}},
        "tenants": {"acme": {"tenant": "acme", "namespaces": ["research"], "maxVRAM": "2Gi"}},
        "keyring.nodeSelector": {"gpu": "yes"},
    }
    return [word for key, value in given.items() for word in ("--set-json", f"{key}={json.dumps(value)}")]


class Installed:
    def __init__(self, folder: Path, kube: RealKube, house: House) -> None:
        self.folder = folder
        self.kube = kube
        self.house = house
        self.client = Client(config=KubeConfig.from_file(kube.kubeconfig).get(), field_manager="tests", trust_env=False)
        self.operators: dict[str, ForkedProcess] = {}
        self.chart = folder / "chart"
        shutil.copytree(CHART, self.chart)
        chart = self.chart / "Chart.yaml"
        chart.write_text(chart.read_text().replace('">=1.29.0-0"', '">=1.20.0-0"'))

    def helm(self, *words: str) -> str:
        environment = {**os.environ, "KUBECONFIG": str(self.kube.kubeconfig), "HOME": str(self.folder)}
        # hooks: no controller runs jobs here
        command = [binary("helm")[0], *words, "--namespace", SPACE, "--no-hooks"]
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def as_account(self, name: str, kind: str) -> Path:
        """A kubeconfig with the token that a pod of the service account gets."""
        request = ServiceAccount.Token.from_dict({"metadata": {}, "spec": {}})
        token = self.client.create(request, name, namespace=SPACE).status.token
        return write_kubeconfig(self.folder / f"{kind}.kubeconfig", self.kube.url, self.kube.ca, token)

    def start(self, name: str, port: int = 0) -> int:
        """An operator with the variables of the chart's Deployment, but for addresses and files. Its port."""
        [container] = self.client.get(Deployment, "wooly-operator", namespace=SPACE).spec.template.spec.containers
        given = {one.name: one.value for one in container.env if one.value}
        here = {
            "KUBECONFIG": str(self.as_account("wooly-operator", name)),
            "OPERATOR_NAMESPACE": SPACE,
            "OPERATOR_NAME": name,
            "CONTROLLER_URL": self.house.url,
            "WOOLY_HTTP": f"127.0.0.1:{port or free_port()}",
            "WOOLY_DATA_DIR": str(self.folder / name),
            "WOOLY_TLS_CA": str(self.kube.ca),
        }
        environment = plain_environment(**{**given, **here})
        environment.pop("WOOLY_API_KEY_FILE")  # the controller of this test wants none
        with (self.folder / f"{name}.log").open("ab") as log:
            self.operators[name] = start_service("services.operator", env=environment, stderr=log)
        out = self.operators[name].stdout
        assert out is not None
        ready, _, _ = select.select([out], [], [], DEADLINE_S)
        line = out.readline() if ready else b""
        assert line, self.log(name)
        return int(json.loads(line)["http"].rpartition(":")[2])

    def lead_webhook_to(self, port: int) -> None:
        """What cluster IP and endpoints do: the service's name leads to this operator."""
        spec = {"type": "ExternalName", "externalName": "127.0.0.1", "clusterIP": None, "selector": None}
        self.client.patch(Service, "wooly-operator", {"spec": spec}, namespace=SPACE, patch_type=PatchType.MERGE)
        steps = [{"op": "replace", "path": "/webhooks/0/clientConfig/service/port", "value": port}]
        self.client.patch(MutatingWebhookConfiguration, "wooly-operator", steps, patch_type=PatchType.JSON)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    def forbidden(self) -> list[str]:
        """What operators were not allowed to do."""
        return [line for name in self.operators for line in self.log(name).splitlines() if "is forbidden" in line]

    def close(self) -> None:
        for operator in self.operators.values():
            operator.stop(signal.SIGKILL)


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Installed]:
    folder = tmp_path_factory.mktemp("install")
    with RealKube(folder / "kube") as kube, House(folder, nodes=(NodeSpec("n1", 1024),)) as house:
        found = Installed(folder, kube, house)
        for name in (SPACE, "research", "other"):
            found.client.create(Namespace(metadata=ObjectMeta(name=name, labels={"kubernetes.io/metadata.name": name})))
        found.client.create(Node(metadata=ObjectMeta(name="n1", labels={"gpu": "yes"})))
        address = {"addresses": [{"type": "InternalIP", "address": "10.0.0.1"}]}
        found.client.patch(Node.Status, "n1", {"status": address}, patch_type=PatchType.MERGE)
        try:
            found.helm("install", "wooly", str(found.chart), *values(house))
            yield found
        finally:
            found.close()


def refusal(call: Any) -> str:
    with pytest.raises(ApiError) as caught:
        call()
    return str(caught.value.status.message)


def own(name: str, **annotations: str) -> Pod:
    given = {f"woolyai.com/{key.replace('_', '-')}": value for key, value in annotations.items()}
    meta = {"name": name, "namespace": "research", "labels": {"gpu-runtime": "woolyai"}, "annotations": given}
    spec = {"containers": [{"name": "main", "image": "train"}]}
    return Pod.from_dict({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})


def test_every_object_is_accepted_as_it_is(installed: Installed) -> None:
    """By server-side apply, for the values with the most objects; what the server lacks is left out by name."""
    values = ["--set-json", 'nats={"replicas":3}', "--set", "etcd.mode=embedded"]
    lacks = {"PodDisruptionBudget"}
    applied = set()
    for one in rendered(*values, release="other", namespace="other"):
        if one["kind"] not in lacks and not one["apiVersion"].startswith("woolyai.com"):
            found = installed.client.apply(from_dict(one), field_manager="other", force=True)
            applied.add(one["kind"])
            installed.client.delete(
                type(found), found.metadata.name, **({"namespace": "other"} if one["metadata"].get("namespace") else {})
            )
    assert {"StatefulSet", "Deployment", "Job", "NetworkPolicy", "MutatingWebhookConfiguration", "ClusterRole", "Role"} <= applied


@pytest.mark.parametrize(
    ("kind", "spec", "says"),
    [
        (WoolyCluster, {"controllerURL": "wooly", "busURLs": ["tls://b"]},
         'WoolyCluster.woolyai.com "x" is invalid: spec.controllerURL: Invalid value: "wooly": spec.controllerURL in body should match '
         "'^https?://[^ /]+$'"),
        (GpuPool, {"image": "i", "devices": 65},
         'GpuPool.woolyai.com "x" is invalid: spec.devices: Invalid value: 65: spec.devices in body should be less than or equal to 64'),
        (GpuPool, {"devices": 1}, 'GpuPool.woolyai.com "x" is invalid: spec.image: Required value'),
        (GpuPool, {"image": "i", "backend": "rocm"},
         'GpuPool.woolyai.com "x" is invalid: spec.backend: Unsupported value: "rocm": supported values: "cuda", "opencl", "host"'),
        (TenantPolicy, {"tenant": "t", "namespaces": ["n"], "defaultPriority": -1},
         'TenantPolicy.woolyai.com "x" is invalid: spec.defaultPriority: Invalid value: -1: spec.defaultPriority in body should be greater '
         "than or equal to 0"),
    ],
)  # fmt: skip
def test_schema_refuses_in_these_words(installed: Installed, kind: Any, spec: dict[str, Any], says: str) -> None:
    name = kind.__name__
    assert refusal(lambda: installed.client.create(kind({"kind": name, "metadata": {"name": "x"}, "spec": spec}))) == says


def test_schema_completes_and_prunes(installed: Installed) -> None:
    pool = installed.client.create(GpuPool({"kind": "GpuPool", "metadata": {"name": "plain"}, "spec": {"image": "i", "unknown": 1}}))
    assert pool["spec"] == {"image": "i", "backend": "cuda", "devices": 1}
    installed.client.delete(GpuPool, "plain")


def test_keyring_is_made_with_the_rights_of_its_job(installed: Installed) -> None:
    hooks = [one for one in rendered(*values(installed.house)) if "helm.sh/hook" in one["metadata"].get("annotations", {})]
    [job] = [one for one in hooks if one["kind"] == "Job"]
    for one in hooks:
        if one is not job:
            installed.client.apply(from_dict(one), field_manager="hooks", force=True)
    [container] = job["spec"]["template"]["spec"]["containers"]
    environment = plain_environment(KUBECONFIG=str(installed.as_account("wooly-keyring", "keyring")))
    program, service = container["command"]
    assert program == "wooly-server"
    command = [*module_command(SERVICES[service]), *container["args"]]
    for said in ("written: ca", "nothing, all was there"):
        result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
        assert result.returncode == 0, result.stderr
        assert said in result.stdout
    made = {one.metadata.name for one in installed.client.list(Secret, namespace=SPACE) if one.metadata.name.startswith("wooly-keyring-")}
    assert made == {f"wooly-keyring-{part}" for part in ("billing", "bus", "ca", "controller", "etcd", "nodes", "runner", "watch")}
    nodes = installed.client.get(Secret, "wooly-keyring-nodes", namespace=SPACE).data
    assert {"n1.api.key", "n1.cert.pem", "n1.key.pem", "ca.pem"} <= nodes.keys()
    denied = Client(config=KubeConfig.from_file(installed.folder / "keyring.kubeconfig").get(), trust_env=False)
    assert "forbidden" in refusal(lambda: denied.get(Secret, "wooly-operator-tls", namespace=SPACE))
    assert "forbidden" in refusal(lambda: list(denied.list(Secret, namespace=SPACE)))
    for one in hooks:  # as helm does when the job is done
        with contextlib.suppress(ApiError):
            where = {"namespace": SPACE} if one["metadata"].get("namespace") else {}
            installed.client.delete(type(from_dict(one)), one["metadata"]["name"], **where)


def test_webhook_changes_pods_over_tls(installed: Installed) -> None:
    port = installed.start("one")
    installed.lead_webhook_to(port)
    until(
        lambda: installed.client.get(MutatingWebhookConfiguration, "wooly-operator").webhooks[0].clientConfig.caBundle,
        "the operator's authority is known",
    )

    def admitted() -> Pod | None:
        try:
            return installed.client.create(own("train", pod_vram="600Mi"))
        except ApiError as error:
            assert error.status.code == 500, error  # the server does not know the authority yet
            return None

    made = until(admitted, "the webhook is called")
    variables = {one.name: one.value for one in made.spec.containers[0].env}
    assert variables["CONTROLLER_URL"] == installed.house.url
    assert any(mount.mountPath == "/var/run/secrets/woolyai.com" for mount in made.spec.containers[0].volumeMounts)
    # This server drops the gate; one of today holds the pod by it.
    assert "woolyai.com/placed" in str(made.to_dict()) or not made.spec.schedulingGates


def test_pod_is_refused_in_words(installed: Installed) -> None:
    says = refusal(lambda: installed.client.create(own("wrong", pod_vram="much")))
    assert says.startswith('admission webhook "pods.woolyai.com" denied the request: annotation woolyai.com/pod-vram is ')
    assert "write for example annotation woolyai.com/pod-vram: 16Gi" in says


def test_pods_that_do_not_ask_are_left_alone(installed: Installed) -> None:
    plain = own("plain", pod_vram="much")
    plain.metadata.labels = {}
    assert not installed.client.create(plain).spec.containers[0].env
    system = own("system", pod_vram="much")
    system.metadata.namespace = SPACE
    assert not installed.client.create(system).spec.containers[0].env


def test_operator_writes_mirrors_node_servers_and_authorities(installed: Installed) -> None:
    client = installed.client
    until(lambda: _has(lambda: client.get(WoolyTask, "train", namespace="research")["status"]["phase"]), "the pod's mirror")
    until(lambda: _has(lambda: client.get(ConfigMap, "wooly-ca", namespace="research").data["ca.pem"]), "authorities for pods")
    servers = until(lambda: _has(lambda: client.get(DaemonSet, "wooly-node-small", namespace=SPACE)), "the pool's node servers")
    [container] = servers.spec.template.spec.containers
    assert {one.name: one.value for one in container.env}["WOOLY_DEVICE_VRAM_MB"] == "1024"
    assert container.resources.limits["memory"] == "4Gi"
    assert servers.metadata.ownerReferences[0].kind == "GpuPool"
    assert not installed.forbidden()


def test_cordoned_node_is_drained(installed: Installed) -> None:
    installed.client.patch(Node, "n1", {"spec": {"unschedulable": True}}, patch_type=PatchType.MERGE)
    until(lambda: installed.house.controller.get("/api/v1/nodes/n1")["drained"], "the node server is drained")
    assert installed.client.get(GpuPool, "small")["status"]["drainedNodes"] == ["n1"]
    installed.client.patch(Node, "n1", {"spec": {"unschedulable": None}}, patch_type=PatchType.MERGE)
    until(lambda: not installed.house.controller.get("/api/v1/nodes/n1")["drained"], "and resumed")
    assert not installed.forbidden()


def test_token_is_reviewed(installed: Installed) -> None:
    """The tenant of another namespace is asked for: the token was good, the namespace is not."""
    with contextlib.suppress(ApiError):
        installed.client.create(ServiceAccount(metadata=ObjectMeta(name="trainer", namespace="other")))
    request = ServiceAccount.Token.from_dict({"metadata": {}, "spec": {"audiences": ["wooly"]}})
    token = installed.client.create(request, "trainer", namespace="other").status.token
    url = installed.client.get(MutatingWebhookConfiguration, "wooly-operator").webhooks[0].clientConfig
    context = ssl.create_default_context(cadata=base64.b64decode(url.caBundle).decode())
    asked = urllib.request.Request(f"https://localhost:{url.service.port}/v1/key", b"", {"Authorization": f"Bearer {token}"}, method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(asked, timeout=30, context=context)
    assert "no TenantPolicy names namespace other" in refused.value.read().decode()


def test_another_operator_leads_within_ten_seconds_of_a_kill(installed: Installed) -> None:
    port = installed.start("two")
    held = installed.client.get(Lease, "wooly-operator", namespace=SPACE).spec.holderIdentity
    assert held == "one"
    installed.operators["one"].stop(signal.SIGKILL)
    killed_s = time.monotonic()
    until(lambda: installed.client.get(Lease, "wooly-operator", namespace=SPACE).spec.holderIdentity == "two", "the other one leads")
    taken_s = time.monotonic() - killed_s
    print(f"the lease was taken over {taken_s:.1f} s after the kill")
    assert taken_s < 10
    installed.lead_webhook_to(port)

    def admitted() -> bool:
        with contextlib.suppress(ApiError):
            installed.client.create(own("after", pod_vram="100Mi"))
            return True
        return False

    until(admitted, "the webhook of the other one is called")
    until(lambda: _has(lambda: installed.client.get(WoolyTask, "after", namespace="research")), "and it reconciles")
    assert not installed.forbidden()


def test_api_server_may_be_away(installed: Installed) -> None:
    """A leader that cannot renew its lease for a term ends; the kubelet's part, to start it again, is played here."""
    installed.kube.kill()
    installed.kube.start()

    def admitted() -> bool:
        ended = installed.operators["two"].poll()
        if ended is not None:
            assert ended == 2 and "was not renewed" in installed.log("two")
            installed.lead_webhook_to(installed.start("two"))
        return _has(lambda: installed.client.create(own("later", pod_vram="100Mi")))

    until(admitted, "pods are admitted again")
    until(lambda: _has(lambda: installed.client.get(WoolyTask, "later", namespace="research")), "and followed")


def test_upgrade_keeps_what_is_there(installed: Installed) -> None:
    before = installed.client.get(MutatingWebhookConfiguration, "wooly-operator").webhooks[0].clientConfig.caBundle
    installed.helm(
        "upgrade", "wooly", str(installed.chart), *values(installed.house), "--set", "operator.startLeaseMs=60000", "--force-conflicts"
    )
    after = installed.client.get(MutatingWebhookConfiguration, "wooly-operator").webhooks[0].clientConfig.caBundle
    assert before and after == before
    [container] = installed.client.get(Deployment, "wooly-operator", namespace=SPACE).spec.template.spec.containers
    assert {one.name: one.value for one in container.env}["OPERATOR_START_LEASE_MS"] == "60000"


def test_uninstall_leaves_what_holds_data_and_nothing_else(installed: Installed) -> None:
    made = set(_objects(installed))
    assert {("Deployment", "wooly-operator"), ("Lease", "wooly-operator"), ("Secret", "wooly-operator-tls")} <= made
    pool = installed.client.get(GpuPool, "small").metadata.uid
    policy = installed.client.get(TenantPolicy, "acme").metadata.uid
    installed.close()
    installed.helm("uninstall", "wooly")
    left = {name for kind, name in _objects(installed)}
    kept = {f"wooly-keyring-{part}" for part in ("billing", "bus", "ca", "controller", "etcd", "nodes", "runner", "watch")}
    # This server collects nothing; both are owned by objects of the release.
    left_behind = {"wooly-node-small"}
    assert left - kept == left_behind
    [owner] = installed.client.get(DaemonSet, "wooly-node-small", namespace=SPACE).metadata.ownerReferences
    assert (owner.kind, owner.uid) == ("GpuPool", pool)
    [owner] = installed.client.get(ConfigMap, "wooly-ca", namespace="research").metadata.ownerReferences
    assert (owner.kind, owner.uid) == ("TenantPolicy", policy)
    pod = installed.client.create(own("free", pod_vram="much"))
    assert not pod.spec.containers[0].env, "pods start without a webhook"


def _objects(installed: Installed) -> Iterator[tuple[str, str]]:
    """Kind and name of everything of the release and of the operator."""
    kubectl = [binary("kubectl")[0], f"--kubeconfig={installed.kube.kubeconfig}"]
    kinds = (
        "deployments,statefulsets,daemonsets,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies,leases",
        "clusterroles,clusterrolebindings,mutatingwebhookconfigurations,woolyclusters,gpupools,tenantpolicies",
    )
    for names, where in zip(kinds, (["-n", SPACE], []), strict=True):
        result = subprocess.run([*kubectl, "get", names, *where, "-o", "yaml"], capture_output=True, text=True, timeout=60, check=True)
        for one in yaml.safe_load(result.stdout)["items"]:
            if one["metadata"]["name"].startswith("wooly") or one["apiVersion"].startswith("woolyai.com"):
                yield one["kind"], one["metadata"]["name"]


def _has(call: Any) -> Any:
    """Its value, or None where there is no such thing yet."""
    try:
        return call()
    except (ApiError, KeyError, OSError):
        return None
