"""The operator as processes, beside an API server, a controller and real nodes: pods wait for a place, get one, and give it back."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import ssl
import urllib.error
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.models.coordination_v1 import LeaseSpec
from lightkube.resources.coordination_v1 import Lease

from services.kit.errors import StartError
from services.kit.process import free_port
from services.operator.admission import FILES
from services.operator.leader import Leader
from tests.support.fork_server import ForkedProcess, start_service
from tests.support.house import House, NodeSpec
from tests.support.kube.access import ADMIN
from tests.support.kube.fake import FakeKube
from tests.support.kube.real import RealKube
from tests.support.node import increment, until, until_async
from tests.support.secure import SecureStack
from tests.support.stack import ROOT, plain_environment
from wooly.api import Client
from wooly.config import Config, load
from wooly.credentials import exchange
from wooly.errors import ConfigError
from wooly.link import Flush
from wooly.session import open_session

Json = dict[str, Any]
SPACE = "wooly-system"
HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/wooly-operator"
GROUP = "/apis/woolyai.com/v1alpha1"


class Kube:
    """Requests as an administrator makes them."""

    def __init__(self, server: FakeKube | RealKube) -> None:
        self.server = server
        self._context = ssl.create_default_context(cafile=str(server.ca))

    def ask(self, method: str, path: str, body: Any = None, kind: str = "application/json") -> Json:
        """Raises HTTPError."""
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}
        request = urllib.request.Request(self.server.url + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=30, context=self._context) as answer:
            found: Json = json.loads(answer.read())
        return found

    def exists(self, path: str) -> bool:
        try:
            self.ask("GET", path)
        except urllib.error.HTTPError as error:
            assert error.code == 404
            return False
        return True

    def trusts(self) -> str:
        """The authority that webhooks are verified with."""
        found: str = self.ask("GET", HOOKS)["webhooks"][0]["clientConfig"].get("caBundle", "")
        return found

    def merge(self, path: str, body: Any) -> Json:
        return self.ask("PATCH", path, body, "application/merge-patch+json")

    def create_pod(self, name: str, **annotations: str) -> Json:
        given = {f"woolyai.com/{key.replace('_', '-')}": value for key, value in annotations.items()}
        meta = {"name": name, "labels": {"gpu-runtime": "woolyai"}, "annotations": given}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "main", "image": "train"}]}}
        return self.ask("POST", "/api/v1/namespaces/research/pods", body)

    def pod(self, name: str) -> Json:
        return self.ask("GET", f"/api/v1/namespaces/research/pods/{name}")

    def gated(self, name: str) -> bool:
        return bool(self.pod(name)["spec"].get("schedulingGates"))

    def end(self, name: str, phase: str) -> None:
        self.merge(f"/api/v1/namespaces/research/pods/{name}/status", {"status": {"phase": phase}})

    def delete(self, name: str) -> None:
        self.ask("DELETE", f"/api/v1/namespaces/research/pods/{name}")

    def events(self, name: str) -> list[str]:
        found = self.ask("GET", "/api/v1/namespaces/research/events")["items"]
        return [one["message"] for one in found if one["involvedObject"]["name"] == name]

    def task(self, name: str) -> Json:
        """Status of its WoolyTask; empty: there is none."""
        path = f"{GROUP}/namespaces/research/woolytasks/{name}"
        found: Json = (self.ask("GET", path).get("status") or {}) if self.exists(path) else {}
        return found


class Cluster:
    """An API server, the addresses of a controller and its bus, and operators, which are started one by one."""

    def __init__(self, folder: Path, kube: Kube, url: str, bus: str) -> None:
        self._folder = folder
        self.kube = kube
        self.url = url
        self.bus = bus
        self.port = free_port()
        self.operators: dict[str, ForkedProcess] = {}
        self.admin = ""  #: key of an administrator of the controller; empty: it needs none

    def start(self, name: str, port: int = 0, **environment: str) -> None:
        given = plain_environment(
            KUBECONFIG=str(self.kube.server.kubeconfig),
            OPERATOR_NAMESPACE=SPACE,
            OPERATOR_NAME=name,
            OPERATOR_START_LEASE_MS="600000",
            WOOLY_HTTP=f"127.0.0.1:{port}",
            WOOLY_DATA_DIR=str(self._folder / name),
            **environment,
        )
        with (self._folder / f"{name}.log").open("ab") as log:
            self.operators[name] = start_service("services.operator", env=given, stderr=log)

    def listening(self, name: str) -> None:
        out = self.operators[name].stdout
        assert out is not None and out.readline(), (self._folder / f"{name}.log").read_text()[-4000:]

    def close(self) -> None:
        for operator in self.operators.values():
            operator.stop(signal.SIGKILL)


class Stack(Cluster):
    """A cluster without authentication, with one real node of 1 GiB, called n1."""

    def __init__(self, folder: Path, kube: Kube, house: House) -> None:
        super().__init__(folder, kube, house.url, house.nats.url)
        self.house = house

    def reservation(self, name: str) -> Json:
        """The controller's task of a pod."""
        task = self.kube.pod(name)["metadata"]["annotations"]["woolyai.com/task"]
        found: Json = self.house.controller.get(f"/api/v1/tasks/{task}")
        return found


def furnish(cluster: Cluster) -> None:
    kube = cluster.kube
    for path in sorted((ROOT / "deploy/helm/wooly/crds").glob("*.yaml")):
        kube.ask("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", yaml.safe_load(path.read_text()))
    for name in (SPACE, "research", "other"):
        kube.ask("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"gpu": "yes"}}, "spec": {}}
    kube.ask("POST", "/api/v1/nodes", node)
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "wooly-operator"}}
    service["spec"] = {"type": "ExternalName", "externalName": "127.0.0.1"}
    kube.ask("POST", f"/api/v1/namespaces/{SPACE}/services", service)
    hook = {
        "name": "pods.woolyai.com",
        "clientConfig": {"service": {"name": "wooly-operator", "namespace": SPACE, "path": "/mutate", "port": cluster.port}},
        "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"]}],
        "objectSelector": {"matchLabels": {"gpu-runtime": "woolyai"}},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    hooks = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration", "webhooks": [hook]}
    kube.ask(
        "POST", "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations", {**hooks, "metadata": {"name": "wooly-operator"}}
    )
    specs = {
        ("WoolyCluster", "woolyclusters"): {
            "controllerURL": cluster.url, "busURLs": [cluster.bus], "defaultPool": "small"
        },
        ("GpuPool", "gpupools"): {"image": "wooly:1", "nodeSelector": {"gpu": "yes"}, "backend": "host", "devices": 1},
        ("TenantPolicy", "tenantpolicies"): {"tenant": "acme", "namespaces": ["research"], "defaultPriority": 3},
    }  # fmt: skip
    for (kind, plural), spec in specs.items():
        body = {"apiVersion": "woolyai.com/v1alpha1", "kind": kind, "metadata": {"name": "small"}, "spec": spec}
        kube.ask("POST", f"{GROUP}/{plural}", body)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    folder = tmp_path_factory.mktemp("operator")
    with FakeKube(folder / "kube") as server, House(folder, nodes=(NodeSpec("n1", 1024),)) as house:
        found = Stack(folder, Kube(server), house)
        furnish(found)
        try:
            found.start("one", found.port)
            found.listening("one")
            until(found.kube.trusts, "the operator's authority is known")
            yield found
        finally:
            found.close()


def test_a_pod_waits_behind_its_gate_uses_its_place_and_gives_it_back(cluster: Stack) -> None:
    kube = cluster.kube
    made = kube.create_pod("train", pod_vram="600Mi", priority="1")
    assert made["spec"]["schedulingGates"] == [{"name": "woolyai.com/placed"}], "the webhook was asked"
    until(lambda: not kube.gated("train"), "the pod has a place")
    task = cluster.reservation("train")
    assert (task["tenant"], task["priority"], task["required_vram_mb"], task["node_name"]) == ("acme", 1, 600, "n1")
    annotations = kube.pod("train")["metadata"]["annotations"]
    assert (annotations["woolyai.com/node"], annotations["woolyai.com/tenant"]) == ("n1", "acme")
    until(lambda: kube.task("train").get("phase") == "Placed", "the mirror says so")
    # What the pod's script does with the variables that it is given.
    config = Config(controller_url=cluster.house.url, nats_urls=(cluster.house.nats.url,), task_id=task["id"], tenant="acme")
    session = open_session(config, title="script of the pod")
    session.wait(session.submit(Flush(allocs=((1, 1 << 20), (2, 512)))))
    session.wait(session.submit(increment(64).flush([2])))
    session.close()
    held = cluster.reservation("train")
    assert (held["state"] in ("queued", "started"), held["node_name"]) == (True, "n1"), "a pod may start one script after the other"
    kube.end("train", "Running")
    until(lambda: kube.task("train")["phase"] == "Running", "the mirror follows the pod")
    kube.end("train", "Succeeded")
    until(lambda: cluster.reservation("train")["state"] == "completed", "it is released")
    assert kube.task("train")["vram"] == "600Mi"
    kube.delete("train")


def test_a_failed_pod_fails_its_reservation(cluster: Stack) -> None:
    cluster.kube.create_pod("broken", pod_vram="100Mi")
    until(lambda: not cluster.kube.gated("broken"), "it has a place")
    cluster.kube.end("broken", "Failed")
    until(lambda: cluster.reservation("broken")["state"] == "failed", "so does its reservation")
    cluster.kube.delete("broken")


def test_what_no_device_has_is_said_and_not_started(cluster: Stack) -> None:
    kube = cluster.kube
    kube.create_pod("huge", pod_vram="500Gi")
    until(lambda: kube.events("huge"), "an event")
    assert "the controller refuses the reservation" in kube.events("huge")[0] and "what helps" in kube.events("huge")[0]
    assert kube.gated("huge") and kube.task("huge")["phase"] == "Refused"
    kube.delete("huge")


def test_a_namespace_without_a_tenant_is_told_what_to_write(cluster: Stack) -> None:
    kube = cluster.kube
    meta = {"name": "lost", "labels": {"gpu-runtime": "woolyai"}, "annotations": {"woolyai.com/pod-vram": "1Gi"}}
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {"containers": [{"name": "main"}]}}
    kube.ask("POST", "/api/v1/namespaces/other/pods", body)
    (event,) = until(lambda: kube.ask("GET", "/api/v1/namespaces/other/events")["items"], "an event")
    assert "TenantPolicy" in event["message"]
    kube.ask("DELETE", "/api/v1/namespaces/other/pods/lost")


def test_a_bad_annotation_is_refused_in_words(cluster: Stack) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        cluster.kube.create_pod("wrong", pod_vram="much")
    assert "write for example annotation woolyai.com/pod-vram: 16Gi" in json.loads(refused.value.read())["message"]


def test_the_second_waits_says_why_and_follows_the_first(cluster: Stack) -> None:
    kube = cluster.kube
    kube.create_pod("first", pod_vram="800Mi")
    until(lambda: not kube.gated("first"), "it has a place")
    kube.create_pod("second", pod_vram="800Mi")
    until(lambda: any("what helps" in text for text in kube.events("second")), "it says why it waits, and what would help")
    assert kube.gated("second") and kube.task("second")["phase"] == "Waiting" and kube.task("second")["remedy"]
    kube.delete("first")
    until(lambda: not kube.gated("second"), "the second follows")
    kube.delete("second")
    until(lambda: cluster.house.controller.get("/api/v1/tasks?state=queued")["total"] == 0, "nothing is held")


def test_a_cordoned_node_is_drained_and_resumed(cluster: Stack) -> None:
    kube, controller = cluster.kube, cluster.house.controller
    kube.merge("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
    until(lambda: controller.get("/api/v1/nodes/n1")["drained"], "the node server is drained")
    assert kube.ask("GET", f"{GROUP}/gpupools/small")["status"]["drainedNodes"] == ["n1"]
    kube.merge("/api/v1/nodes/n1", {"spec": {"unschedulable": False}})
    until(lambda: not controller.get("/api/v1/nodes/n1")["drained"], "and resumed")


def test_pods_wait_while_the_controller_is_away(cluster: Stack) -> None:
    kube, controller = cluster.kube, cluster.house.controller
    address = controller.url.removeprefix("http://")
    controller.stop()
    kube.create_pod("patient", pod_vram="100Mi")
    until(lambda: any("does not answer" in text for text in kube.events("patient")), "an event says so")
    assert kube.gated("patient")
    controller._environment["WOOLY_HTTP"] = address
    controller.start()
    until(lambda: not kube.gated("patient"), "it is placed when the controller is back")
    kube.delete("patient")


def test_the_operator_follows_an_api_server_that_was_away(cluster: Stack) -> None:
    kube = cluster.kube
    assert isinstance(kube.server, FakeKube)
    kube.server.stop()
    kube.server.compact()
    kube.server.start()
    kube.create_pod("after", pod_vram="100Mi")
    until(lambda: not kube.gated("after"), "it has a place")
    kube.delete("after")


def test_a_new_certificate_is_trusted_without_a_restart(cluster: Stack) -> None:
    kube = cluster.kube
    before = kube.trusts()
    kube.ask("DELETE", f"/api/v1/namespaces/{SPACE}/secrets/wooly-operator-tls")
    until(lambda: kube.trusts() != before, "another authority is trusted")

    def admitted() -> bool:
        try:
            kube.create_pod("late", pod_vram="1Mi")
        except urllib.error.HTTPError as error:
            assert "certificate verify failed" in json.loads(error.read())["message"]  # it is about to be replaced
            return False
        return True

    until(admitted, "the operator shows a certificate of it")
    kube.delete("late")


def test_another_operator_takes_over_from_a_killed_one(cluster: Stack) -> None:
    kube = cluster.kube
    kube.create_pod("survivor", pod_vram="100Mi")
    until(lambda: not kube.gated("survivor"), "it has a place")
    before = cluster.reservation("survivor")
    cluster.start("two")
    cluster.listening("two")
    cluster.operators.pop("one").stop(signal.SIGKILL)
    kube.merge(HOOKS, {"webhooks": []})  # its address was the first one's
    made = kube.ask(
        "POST",
        "/api/v1/namespaces/research/pods",
        {
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "next", "labels": {"gpu-runtime": "woolyai"}, "annotations": {"woolyai.com/pod-vram": "100Mi"}},
            "spec": {"containers": [{"name": "main"}], "schedulingGates": [{"name": "woolyai.com/placed"}]},
        },
    )  # fmt: skip
    assert made["spec"]["schedulingGates"]
    kube.delete("survivor")
    until(lambda: not kube.gated("next"), "the other operator places it")
    until(lambda: cluster.house.controller.get(f"/api/v1/tasks/{before['id']}")["state"] == "completed", "and releases what the first held")
    lease = kube.ask("GET", f"/apis/coordination.k8s.io/v1/namespaces/{SPACE}/leases/wooly-operator")["spec"]
    assert (lease["holderIdentity"], lease["leaseTransitions"]) == ("two", 1)


# -- keys ------------------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A stack with authentication and TLS, and an operator that has the key of its administrator."""
    folder = tmp_path_factory.mktemp("secured")
    with FakeKube(folder / "kube") as server, SecureStack(folder, WOOLY_DEVICE_VRAM_MB="1024", WOOLY_DEVICE_THREADS="1") as stack:
        stack.tenant("acme")
        found = Cluster(folder, Kube(server), stack.addresses["controller"], stack.addresses["nats"])
        found.admin = stack.admin
        furnish(found)
        try:
            found.start("one", found.port, WOOLY_API_KEY=stack.admin, WOOLY_TLS_CA=str(stack.ring.ca))
            found.listening("one")
            until(found.kube.trusts, "the operator's authority is known")
            yield found
        finally:
            found.close()


def token(kube: Kube, namespace: str, audience: str) -> str:
    path = f"/api/v1/namespaces/{namespace}/serviceaccounts"
    with contextlib.suppress(urllib.error.HTTPError):
        kube.ask("POST", path, {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "trainer"}})
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"audiences": [audience]}}
    made: str = kube.ask("POST", f"{path}/trainer/token", request)["status"]["token"]
    return made


def files(kube: Kube, folder: Path, namespace: str, audience: str = "wooly") -> None:
    """What the kubelet makes of the volume that a pod is given."""
    trusted = "/api/v1/namespaces/research/configmaps/wooly-ca"
    until(lambda: kube.exists(trusted) and kube.ask("GET", trusted)["data"]["ca.pem"].count("BEGIN") == 2, "both authorities are there")
    (folder / "ca.pem").write_text(kube.ask("GET", trusted)["data"]["ca.pem"])
    (folder / "token").write_text(token(kube, namespace, audience))


def test_a_pod_exchanges_its_token_for_a_key_and_runs_on_its_reservation(secured: Cluster, tmp_path: Path) -> None:
    kube = secured.kube
    kube.create_pod("train", pod_vram="600Mi")
    until(lambda: not kube.gated("train"), "it has a place")
    pod = kube.pod("train")
    files(kube, tmp_path, "research")
    environ = variables_of(pod, {FILES: str(tmp_path), f"https://wooly-operator.{SPACE}.svc": f"https://localhost:{secured.port}"})
    config = load(environ=environ)
    identity = Client(config.controller_url, api_key=config.api_key, ca=config.tls_ca).identity()
    assert (identity.tenant, identity.role, set(identity.scopes)) == ("acme", "member", {"submit", "bus"})
    session = open_session(config, title="script of the pod")
    assert (session.info.task, session.info.tenant) == (pod["metadata"]["annotations"]["woolyai.com/task"], "acme")
    session.wait(session.submit(Flush(allocs=((1, 1 << 20), (2, 512)))))
    session.wait(session.submit(increment(64).flush([2])))
    session.close()
    (tmp_path / "again").write_text(token(kube, "research", "wooly"))
    again = load(environ={**environ, "WOOLY_TOKEN_FILE": str(tmp_path / "again")})
    assert again.api_key == config.api_key, "pods of a namespace share a key"
    admin = Client(secured.url, api_key=secured.admin, ca=config.tls_ca)
    admin.revoke_key(config.api_key.split("_")[1])
    (tmp_path / "later").write_text(token(kube, "research", "wooly"))
    later = load(environ={**environ, "WOOLY_TOKEN_FILE": str(tmp_path / "later")})
    assert later.api_key != config.api_key, "a revoked key is given to no pod"
    assert Client(config.controller_url, api_key=later.api_key, ca=config.tls_ca).identity().tenant == "acme"


def variables_of(pod: Json, replaced: dict[str, str]) -> dict[str, str]:
    """The environment of its container, with addresses and folders of this machine."""
    out = {}
    for one in pod["spec"]["containers"][0]["env"]:
        path = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
        out[one["name"]] = pod["metadata"]["annotations"][path.split("'")[1]] if path else one["value"]
    for old, new in replaced.items():
        out = {name: value.replace(old, new) for name, value in out.items()}
    return out


@pytest.mark.parametrize(
    ("namespace", "audience", "says"),
    [("research", "another", "for audience wooly"), ("other", "wooly", "no TenantPolicy names namespace other")],
)
def test_no_key_for_other_tokens(secured: Cluster, tmp_path: Path, namespace: str, audience: str, says: str) -> None:
    files(secured.kube, tmp_path, namespace, audience)
    with pytest.raises(ConfigError, match=says):
        exchange(f"https://localhost:{secured.port}/v1/key", str(tmp_path / "token"), str(tmp_path / "ca.pem"))


# -- the lease -------------------------------------------------------------------------------------------------------------------------

TERM_S = 0.6


def test_one_leads_and_another_follows_when_it_ends_in_silence(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        first, second = (Leader(client, "default", name, TERM_S) for name in ("one", "two"))
        leading = asyncio.create_task(first.run())
        await first.leading.wait()
        waiting = asyncio.create_task(second.run())
        seen: set[object] = set()

        async def renewed() -> bool:
            seen.add((await lease(client)).renewTime)
            return len(seen) > 6

        await until_async(renewed, "two terms have passed")
        assert not second.leading.is_set()
        leading.cancel()
        await second.leading.wait()
        assert (await lease(client)).holderIdentity == "two"
        waiting.cancel()

    with FakeKube(tmp_path) as server:
        asyncio.run(connected(server, play))


def test_a_leader_that_stops_gives_the_lease_back_and_one_that_cannot_renew_it_ends(tmp_path: Path) -> None:
    async def play(client: AsyncClient) -> None:
        first, second = (Leader(client, "default", name, TERM_S) for name in ("one", "two"))
        leading = asyncio.create_task(first.run())
        await first.leading.wait()
        leading.cancel()
        await first.release()
        assert (await lease(client)).holderIdentity == "", "another one need not wait for the end of the term"
        running = asyncio.create_task(second.run())
        await second.leading.wait()
        server.stop()
        with pytest.raises(StartError, match="was not renewed"):
            await running

    server = FakeKube(tmp_path)
    server.start()
    asyncio.run(connected(server, play))


async def connected(server: FakeKube, play: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async with AsyncClient(config=KubeConfig.from_file(server.kubeconfig), field_manager="tests", trust_env=False) as client:
        await play(client)


async def lease(client: AsyncClient) -> LeaseSpec:
    found = (await client.get(Lease, "wooly-operator", namespace="default")).spec
    assert found is not None
    return found


# -- the real API server ---------------------------------------------------------------------------------------------------------------


@pytest.mark.soak
def test_the_real_api_server_takes_what_the_operator_writes(tmp_path: Path) -> None:
    """Kubernetes 1.20: it drops the gate, so the pod starts without a reservation, and the operator says so."""
    with RealKube(tmp_path / "kube") as server, House(tmp_path, nodes=(NodeSpec("n1", 1024),)) as house:
        cluster = Stack(tmp_path, Kube(server), house)
        kube = cluster.kube
        furnish(cluster)
        try:
            cluster.start("one", cluster.port, WOOLY_TLS_CA=str(server.ca))
            cluster.listening("one")
            trusted = "/api/v1/namespaces/research/configmaps/wooly-ca"
            until(lambda: kube.exists(trusted), "tenants have the authorities")
            pool = kube.ask("GET", f"{GROUP}/gpupools/small")
            servers = kube.ask("GET", f"/apis/apps/v1/namespaces/{SPACE}/daemonsets/wooly-node-small")
            assert servers["metadata"]["ownerReferences"][0]["uid"] == pool["metadata"]["uid"]
            until(kube.trusts, "the operator's authority is known")
            made = kube.create_pod("train", pod_vram="600Mi")
            assert "WOOLY_TASK_ID" in {one["name"] for one in made["spec"]["containers"][0]["env"]}, "the webhook was asked"
            with pytest.raises(urllib.error.HTTPError) as refused:
                kube.create_pod("wrong", pod_vram="much")
            assert "write for example" in json.loads(refused.value.read())["message"]
            until(lambda: any("started without a reservation" in text for text in kube.events("train")), "an event")
            until(lambda: kube.task("train").get("reason"), "and a mirror")
            kube.end("train", "Running")
            until(lambda: kube.task("train")["phase"] == "Running", "which follows the pod")
            kube.merge("/api/v1/nodes/n1", {"spec": {"unschedulable": True}})
            until(lambda: house.controller.get("/api/v1/nodes/n1")["drained"], "the node server is drained")
            assert kube.ask("GET", f"{GROUP}/gpupools/small")["status"]["drainedNodes"] == ["n1"]
            cluster.start("two")
            cluster.listening("two")
            cluster.operators.pop("one").stop(signal.SIGKILL)
            kube.merge("/api/v1/nodes/n1", {"spec": {"unschedulable": False}})
            until(lambda: not house.controller.get("/api/v1/nodes/n1")["drained"], "the other operator resumes it")
        finally:
            cluster.close()
