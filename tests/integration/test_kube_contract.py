"""What the operator relies on in an API server of Kubernetes. The fake one of other tests is held against it here, and so is the real one
(``make test-kube``)."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx2
import pytest
from lightkube import ApiError, AsyncClient, Client, KubeConfig
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.models.core_v1 import Container, PodSchedulingGate, PodSpec
from lightkube.models.meta_v1 import ObjectMeta, OwnerReference
from lightkube.resources.admissionregistration_v1 import MutatingWebhookConfiguration, ValidatingWebhookConfiguration
from lightkube.resources.apiextensions_v1 import CustomResourceDefinition
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.authentication_v1 import TokenReview
from lightkube.resources.coordination_v1 import Lease
from lightkube.resources.core_v1 import ConfigMap, Event, Namespace, Node, Pod, Secret, Service, ServiceAccount
from lightkube.types import PatchType

from services.kit.keyring import Authority
from tests.support.kube.fake import FakeKube
from tests.support.kube.real import RealKube
from tests.support.node import until

Kube = FakeKube | RealKube
Widget = create_namespaced_resource("tests.woolyai.com", "v1", "Widget", "widgets")
Gadget = create_global_resource("tests.woolyai.com", "v1", "Gadget", "gadgets")
WIDGET = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "widgets.tests.woolyai.com"},
    "spec": {
        "group": "tests.woolyai.com",
        "scope": "Namespaced",
        "names": {"plural": "widgets", "singular": "widget", "kind": "Widget", "listKind": "WidgetList"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "required": ["spec"],
                        "properties": {
                            "spec": {
                                "type": "object",
                                "required": ["size"],
                                "properties": {
                                    "size": {"type": "integer", "minimum": 1, "maximum": 9},
                                    "colour": {"type": "string", "enum": ["red", "green"], "default": "red"},
                                    "name": {"type": "string", "pattern": "^[a-z]+$"},
                                    "tags": {"type": "array", "items": {"type": "string"}},
                                },
                            },
                            "status": {"type": "object", "properties": {"phase": {"type": "string"}}},
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module", params=["fake", pytest.param("real", marks=pytest.mark.soak)])
def kube(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    folder = tmp_path_factory.mktemp("kube")
    with FakeKube(folder) if request.param == "fake" else RealKube(folder) as server:
        client = client_of(server)
        client.create(CustomResourceDefinition.from_dict(WIDGET))
        until(lambda: _served(client), "the new kind is served")
        yield server


def client_of(kube: Kube, **options: Any) -> Client:
    return Client(config=KubeConfig.from_file(kube.kubeconfig).get(), field_manager="tests", trust_env=False, **options)


@pytest.fixture
def client(kube: Kube) -> Client:
    return client_of(kube)


@pytest.fixture
def space(client: Client, request: pytest.FixtureRequest) -> str:
    """A namespace of the test."""
    name = request.node.name.split("[")[0].replace("_", "-").lower()[:60]
    client.create(Namespace(metadata=ObjectMeta(name=name)))
    return name


def _served(client: Client) -> bool:
    try:
        return list(client.list(Widget, namespace="default")) == []
    except httpx2.HTTPStatusError as error:
        assert error.response.status_code == 404
        return False


def config_map(name: str, space: str, **data: str) -> ConfigMap:
    return ConfigMap(metadata=ObjectMeta(name=name, namespace=space), data=data)


def widget(name: str, space: str, /, **spec: Any) -> Any:
    return Widget({"apiVersion": "tests.woolyai.com/v1", "kind": "Widget", "metadata": {"name": name, "namespace": space}, "spec": spec})


def pod(name: str, space: str, **metadata: Any) -> Pod:
    spec = PodSpec(containers=[Container(name="main", image="busybox")])
    return Pod(metadata=ObjectMeta(name=name, namespace=space, **metadata), spec=spec)


@contextlib.contextmanager
def refused(code: int, *words: str) -> Iterator[None]:
    with pytest.raises(ApiError) as caught:
        yield
    assert caught.value.status.code == code, caught.value.status
    for word in words:
        assert word in str(caught.value.status.message)


# -- objects and their versions --------------------------------------------------------------------------------------------------------


def test_object_gets_identity_and_is_found_until_it_is_deleted(client: Client, space: str) -> None:
    made = client.create(config_map("one", space, a="1"))
    assert made.metadata.uid and made.metadata.creationTimestamp
    assert client.get(ConfigMap, "one", namespace=space).metadata.uid == made.metadata.uid
    with refused(409, 'configmaps "one" already exists'):
        client.create(config_map("one", space))
    client.delete(ConfigMap, "one", namespace=space)
    with refused(404, 'configmaps "one" not found'):
        client.get(ConfigMap, "one", namespace=space)
    with refused(404, 'configmaps "one" not found'):
        client.delete(ConfigMap, "one", namespace=space)
    assert client.create(config_map("one", space)).metadata.uid != made.metadata.uid


def test_name_can_be_generated(client: Client, space: str) -> None:
    names = {client.create(ConfigMap(metadata=ObjectMeta(generateName="some-", namespace=space))).metadata.name for _ in range(3)}
    assert len(names) == 3 and all(name.startswith("some-") and len(name) == 10 for name in names)


def test_object_needs_its_namespace(client: Client) -> None:
    with refused(404, 'namespaces "nowhere" not found'):
        client.create(config_map("one", "nowhere"))


def test_versions_grow_over_all_kinds_and_stay_where_nothing_changes(client: Client, space: str) -> None:
    first = client.create(config_map("one", space, a="1"))
    second = client.create(Secret(metadata=ObjectMeta(name="one", namespace=space), stringData={"key": "text"}))
    assert int(first.metadata.resourceVersion) < int(second.metadata.resourceVersion)
    assert base64.b64decode(second.data["key"]) == b"text"
    assert client.replace(first).metadata.resourceVersion == first.metadata.resourceVersion
    first.data["a"] = "2"
    assert int(client.replace(first).metadata.resourceVersion) > int(second.metadata.resourceVersion)


def test_update_of_an_older_version_is_a_conflict(client: Client, space: str) -> None:
    mine = client.create(config_map("one", space, a="1"))
    theirs = client.get(ConfigMap, "one", namespace=space)
    theirs.data["a"] = "2"
    client.replace(theirs)
    mine.data["a"] = "3"
    with refused(409, "the object has been modified; please apply your changes to the latest version and try again"):
        client.replace(mine)
    assert client.get(ConfigMap, "one", namespace=space).data == {"a": "2"}


def test_one_of_many_writers_of_a_lease_wins_each_time(kube: Kube, client: Client, space: str) -> None:
    client.create(Lease.from_dict({"metadata": {"name": "lead", "namespace": space}, "spec": {"leaseTransitions": 0}}))
    won: list[int] = []

    def write() -> None:
        mine = client_of(kube)
        for _ in range(10):
            lease = mine.get(Lease, "lead", namespace=space)
            lease.spec.leaseTransitions += 1
            try:
                won.append(mine.replace(lease).spec.leaseTransitions)
            except ApiError as error:
                assert error.status.code == 409

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(won) == list(range(1, len(won) + 1))
    assert client.get(Lease, "lead", namespace=space).spec.leaseTransitions == len(won)


def test_generation_counts_changes_of_the_spec(client: Client, space: str) -> None:
    made = client.create(widget("one", space, size=1))
    assert made.metadata.generation == 1
    patched = client.patch(Widget, "one", {"spec": {"size": 2}}, namespace=space, patch_type=PatchType.MERGE)
    assert patched.metadata.generation == 2
    labelled = client.patch(Widget, "one", {"metadata": {"labels": {"a": "b"}}}, namespace=space, patch_type=PatchType.MERGE)
    assert labelled.metadata.generation == 2
    status = client.patch(Widget.Status, "one", {"status": {"phase": "Ready"}}, namespace=space, patch_type=PatchType.MERGE)
    assert status.metadata.generation == 2 and status["status"] == {"phase": "Ready"}


def test_status_is_written_by_its_own_path_only(client: Client, space: str) -> None:
    made = client.create(Widget({**widget("one", space, size=1), "status": {"phase": "Made up"}}))
    assert "status" not in made or not made["status"]
    client.patch(Widget.Status, "one", {"status": {"phase": "Ready"}, "spec": {"size": 5}}, namespace=space, patch_type=PatchType.MERGE)
    client.patch(Widget, "one", {"status": {"phase": "Lost"}}, namespace=space, patch_type=PatchType.MERGE)
    found = client.get(Widget, "one", namespace=space)
    assert (found["spec"]["size"], found["status"]["phase"]) == (1, "Ready")


def test_status_of_pod_and_node_is_written_by_tests(client: Client, space: str) -> None:
    client.create(pod("one", space))
    assert client.get(Pod, "one", namespace=space).status.phase == "Pending"
    client.patch(Pod.Status, "one", {"status": {"phase": "Running"}}, namespace=space, patch_type=PatchType.MERGE)
    assert client.get(Pod, "one", namespace=space).status.phase == "Running"
    client.create(Node(metadata=ObjectMeta(name=f"node-{space}", labels={"gpu": "yes"})))
    client.patch(Node, f"node-{space}", {"spec": {"unschedulable": True}}, patch_type=PatchType.MERGE)
    assert [node.spec.unschedulable for node in client.list(Node, labels={"gpu": "yes"})] == [True]


# -- patches ---------------------------------------------------------------------------------------------------------------------------


def test_merge_patch_removes_what_is_null(client: Client, space: str) -> None:
    client.create(config_map("one", space, a="1", b="2"))
    found = client.patch(ConfigMap, "one", {"data": {"a": None, "c": "3"}}, namespace=space, patch_type=PatchType.MERGE)
    assert found.data == {"b": "2", "c": "3"}


def test_json_patch_is_all_or_nothing(client: Client, space: str) -> None:
    client.create(config_map("one", space, a="1"))
    steps = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/metadata/annotations", "value": {"woolyai.com/task": "t1"}},
        {"op": "replace", "path": "/data/a", "value": "2"},
        {"op": "add", "path": "/data/a~1b", "value": "3"},
    ]
    with refused(422):
        client.patch(
            ConfigMap, "one", [*steps, {"op": "test", "path": "/data/a", "value": "1"}], namespace=space, patch_type=PatchType.JSON
        )
    with refused(422):
        client.patch(ConfigMap, "one", [*steps, {"op": "remove", "path": "/data/x"}], namespace=space, patch_type=PatchType.JSON)
    assert client.get(ConfigMap, "one", namespace=space).data == {"a": "1"}
    found = client.patch(ConfigMap, "one", steps[:3], namespace=space, patch_type=PatchType.JSON)
    assert (found.data, found.metadata.annotations) == ({"a": "2"}, {"woolyai.com/task": "t1"})


def test_json_patch_can_require_a_version(client: Client, space: str) -> None:
    made = client.create(config_map("one", space, a="1"))
    client.patch(ConfigMap, "one", {"data": {"b": "2"}}, namespace=space, patch_type=PatchType.MERGE)
    steps = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": made.metadata.resourceVersion},
        {"op": "remove", "path": "/data/a"},
    ]
    with refused(422):
        client.patch(ConfigMap, "one", steps, namespace=space, patch_type=PatchType.JSON)
    assert client.get(ConfigMap, "one", namespace=space).data == {"a": "1", "b": "2"}


def test_strategic_patch_merges_lists_by_their_key(client: Client, space: str) -> None:
    client.create(pod("one", space))
    change = {"spec": {"containers": [{"name": "main", "image": "other"}]}}
    found = client.patch(Pod, "one", change, namespace=space, patch_type=PatchType.STRATEGIC)
    assert [(one.name, one.image) for one in found.spec.containers] == [("main", "other")]
    client.create(widget("one", space, size=1))
    with refused(415):
        client.patch(Widget, "one", {"spec": {"size": 2}}, namespace=space, patch_type=PatchType.STRATEGIC)


def test_apply_makes_changes_and_takes_back(client: Client, space: str) -> None:
    client.apply(config_map("one", space, a="1", b="2"), field_manager="first")
    client.apply(config_map("one", space, b="2", c="3"), field_manager="second")
    assert client.get(ConfigMap, "one", namespace=space).data == {"a": "1", "b": "2", "c": "3"}
    found = client.apply(config_map("one", space, a="1"), field_manager="first")
    assert found.data == {"a": "1", "b": "2", "c": "3"}  # the other one wants b too
    found = client.apply(config_map("one", space, b="2"), field_manager="second")
    assert found.data == {"a": "1", "b": "2"}
    version = found.metadata.resourceVersion
    assert client.apply(config_map("one", space, b="2"), field_manager="second").metadata.resourceVersion == version


def test_apply_of_what_another_one_set_is_a_conflict(client: Client, space: str) -> None:
    client.apply(config_map("one", space, a="1"), field_manager="first")
    with refused(409, 'conflict with "first"', ".data.a"):
        client.apply(config_map("one", space, a="2"), field_manager="second")
    assert client.apply(config_map("one", space, a="2"), field_manager="second", force=True).data == {"a": "2"}
    with refused(409, 'conflict with "second"'):
        client.apply(config_map("one", space, a="1"), field_manager="first")


def test_apply_merges_containers_by_name(client: Client, space: str) -> None:
    def deployment(*images: tuple[str, str]) -> Deployment:
        template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": name, "image": image} for name, image in images]}}
        spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
        return Deployment.from_dict({"metadata": {"name": "one", "namespace": space}, "spec": spec})

    def images(found: Deployment) -> dict[str, str]:
        return {one.name: one.image for one in found.spec.template.spec.containers}

    client.apply(deployment(("main", "a"), ("side", "b")), field_manager="first")
    assert images(client.apply(deployment(("more", "c")), field_manager="second")) == {"main": "a", "side": "b", "more": "c"}
    assert images(client.apply(deployment(("main", "d")), field_manager="first")) == {"main": "d", "more": "c"}


def test_apply_writes_status(client: Client, space: str) -> None:
    client.create(widget("one", space, size=1))
    wanted = {"apiVersion": "tests.woolyai.com/v1", "kind": "Widget", "metadata": {"name": "one"}, "status": {"phase": "Ready"}}
    client.apply(Widget.Status(wanted), name="one", namespace=space, field_manager="first", force=True)
    found = client.get(Widget, "one", namespace=space)
    assert (found["spec"]["size"], found["status"]["phase"]) == (1, "Ready")


def test_dry_run_changes_nothing(kube: Kube, client: Client, space: str) -> None:
    client_of(kube, dry_run=True).create(config_map("one", space))
    with refused(404):
        client.get(ConfigMap, "one", namespace=space)


# -- lists and watches -----------------------------------------------------------------------------------------------------------------


def test_list_selects_by_labels_and_fields_in_chunks(client: Client, space: str) -> None:
    for number in range(7):
        client.create(pod(f"p{number}", space, labels={"n": str(number), "even": str(number % 2 == 0).lower()}))
    listing = client.list(Pod, namespace=space, chunk_size=3)
    assert [one.metadata.name for one in listing] == [f"p{number}" for number in range(7)]
    assert int(listing.resourceVersion) > 0

    def names(**options: Any) -> list[str]:
        return [one.metadata.name for one in client.list(Pod, namespace=space, **options)]

    assert names(labels={"even": "true"}) == ["p0", "p2", "p4", "p6"]
    assert names(labels={"n": ("1", "2")}) == ["p1", "p2"]
    assert names(fields={"metadata.name": "p5"}) == ["p5"]
    assert names(fields={"status.phase": "Running"}) == []
    assert {one.metadata.namespace for one in client.list(Pod, namespace="*", labels={"n": "3"})} == {space}


def test_watch_from_a_list_sees_every_change_once(kube: Kube, client: Client, space: str) -> None:
    client.create(config_map("old", space))
    listing = client.list(ConfigMap, namespace=space)
    assert "old" in [one.metadata.name for one in listing]
    client.create(config_map("one", space, a="1"))
    client.patch(ConfigMap, "one", {"data": {"a": "2"}}, namespace=space, patch_type=PatchType.MERGE)
    client.delete(ConfigMap, "one", namespace=space)
    events = _watched(client, ConfigMap, namespace=space, resource_version=listing.resourceVersion, count=3)
    assert [(what, one.metadata.name) for what, one in events] == [("ADDED", "one"), ("MODIFIED", "one"), ("DELETED", "one")]
    versions = [int(one.metadata.resourceVersion) for _, one in events]
    assert versions == sorted(set(versions)) and versions[0] > int(listing.resourceVersion)


def test_watch_without_a_version_begins_with_what_is_there(client: Client, space: str) -> None:
    client.create(config_map("one", space))
    events = _watched(client, ConfigMap, namespace=space, count=1, fields={"metadata.name": "one"})
    assert [(what, one.metadata.name) for what, one in events] == [("ADDED", "one")]


def test_object_that_leaves_the_selection_is_deleted_for_the_watch(client: Client, space: str) -> None:
    client.create(pod("one", space, labels={"mine": "no"}))
    version = client.get(Pod, "one", namespace=space).metadata.resourceVersion
    for value in ("yes", "no"):
        client.patch(Pod, "one", {"metadata": {"labels": {"mine": value}}}, namespace=space, patch_type=PatchType.MERGE)
    events = _watched(client, Pod, namespace=space, labels={"mine": "yes"}, resource_version=version, count=2)
    assert [what for what, _ in events] == ["ADDED", "DELETED"]


def test_watch_ends_at_its_time(kube: Kube, client: Client, space: str) -> None:
    """With a bookmark, if the server is so kind."""
    version = client.create(pod("one", space)).metadata.resourceVersion
    path = f"/api/v1/namespaces/{space}/pods?watch=1&timeoutSeconds=1&allowWatchBookmarks=true&resourceVersion={version}"
    lines = [json.loads(line) for line in _raw(kube, path).text.splitlines()]
    assert {line["type"] for line in lines} <= {"BOOKMARK"}
    assert all(int(line["object"]["metadata"]["resourceVersion"]) >= int(version) for line in lines)
    assert lines or not isinstance(kube, FakeKube)


def test_watch_from_a_forgotten_version_is_answered_with_410(kube: Kube, client: Client, space: str) -> None:
    version = client.create(config_map("one", space)).metadata.resourceVersion
    for value in ("1", "2"):
        client.patch(ConfigMap, "one", {"data": {"a": value}}, namespace=space, patch_type=PatchType.MERGE)
    kube.compact()
    with refused(410):
        _watched(client, ConfigMap, namespace=space, resource_version=version, count=1)


def test_clients_come_back_after_an_outage(kube: Kube, client: Client, space: str) -> None:
    version = client.create(config_map("one", space)).metadata.resourceVersion
    kube.stop()
    with pytest.raises(httpx2.TransportError):
        client.get(ConfigMap, "one", namespace=space)
    kube.start()
    assert client.get(ConfigMap, "one", namespace=space).metadata.resourceVersion == version
    client.delete(ConfigMap, "one", namespace=space)
    assert [what for what, _ in _watched(client, ConfigMap, namespace=space, resource_version=version, count=1)] == ["DELETED"]


def test_async_client_watches_while_it_writes(kube: Kube, space: str) -> None:
    async def run() -> list[str]:
        client = AsyncClient(config=KubeConfig.from_file(kube.kubeconfig).get(), field_manager="tests", trust_env=False)
        seen: list[str] = []

        async def follow() -> None:
            async for what, one in client.watch(Widget, namespace=space, server_timeout=30):
                seen.append(f"{what} {one.metadata.name}")
                if len(seen) == 3:
                    return

        async with asyncio.timeout(60), asyncio.TaskGroup() as group:
            group.create_task(follow())
            for number in range(3):
                await client.create(widget(f"w{number}", space, size=1))
        await client.close()
        return seen

    assert asyncio.run(run()) == ["ADDED w0", "ADDED w1", "ADDED w2"]


def _watched(client: Client, kind: Any, *, count: int, **options: Any) -> list[tuple[str, Any]]:
    found = []
    for event in client.watch(kind, server_timeout=30, **options):
        found.append(event)
        if len(found) == count:
            break
    return found


def _raw(kube: Kube, path: str) -> Any:
    token = KubeConfig.from_file(kube.kubeconfig).get().user.token
    with httpx2.Client(verify=ssl.create_default_context(cafile=str(kube.ca)), trust_env=False) as client:
        return client.get(kube.url + path, headers={"Authorization": f"Bearer {token}"}, timeout=30)


# -- ends of objects -------------------------------------------------------------------------------------------------------------------


def test_finalizer_holds_the_object(client: Client, space: str) -> None:
    client.create(ConfigMap(metadata=ObjectMeta(name="one", namespace=space, finalizers=["woolyai.com/release"])))
    client.delete(ConfigMap, "one", namespace=space)
    held = client.get(ConfigMap, "one", namespace=space)
    assert held.metadata.deletionTimestamp is not None
    client.patch(ConfigMap, "one", {"metadata": {"finalizers": None}}, namespace=space, patch_type=PatchType.MERGE)
    with refused(404):
        client.get(ConfigMap, "one", namespace=space)


def test_pod_that_runs_stays_until_the_kubelet_has_stopped_it(client: Client, space: str) -> None:
    client.create(pod("waiting", space))
    client.delete(Pod, "waiting", namespace=space)
    with refused(404):
        client.get(Pod, "waiting", namespace=space)
    made = pod("running", space)
    made.spec.nodeName = "node-1"
    client.create(made)
    client.patch(Pod.Status, "running", {"status": {"phase": "Running"}}, namespace=space, patch_type=PatchType.MERGE)
    client.delete(Pod, "running", namespace=space)
    assert client.get(Pod, "running", namespace=space).metadata.deletionTimestamp is not None
    client.delete(Pod, "running", namespace=space, grace_period=0)
    with refused(404):
        client.get(Pod, "running", namespace=space)


def test_owner_of_another_object_is_kept(client: Client, space: str) -> None:
    owner = client.create(config_map("owner", space))
    reference = OwnerReference(apiVersion="v1", kind="ConfigMap", name="owner", uid=owner.metadata.uid, controller=True)
    client.apply(
        ConfigMap(metadata=ObjectMeta(name="owned", namespace=space, ownerReferences=[reference])), field_manager="first", force=True
    )
    assert client.get(ConfigMap, "owned", namespace=space).metadata.ownerReferences[0].uid == owner.metadata.uid


def test_collection_is_deleted(client: Client, space: str) -> None:
    for name in ("a", "b"):
        client.create(config_map(name, space))
    client.deletecollection(ConfigMap, namespace=space)
    assert not list(client.list(ConfigMap, namespace=space))


def test_what_has_lost_its_owner_goes(kube: Kube, client: Client, space: str) -> None:
    if isinstance(kube, RealKube):
        pytest.skip("a controller beside the API server does this")
    owners = [client.create(config_map(name, space)).metadata for name in ("a", "b")]
    references = [OwnerReference(apiVersion="v1", kind="ConfigMap", name=str(one.name), uid=str(one.uid)) for one in owners]
    client.create(ConfigMap(metadata=ObjectMeta(name="owned", namespace=space, ownerReferences=references)))
    client.delete(ConfigMap, "a", namespace=space)
    assert client.get(ConfigMap, "owned", namespace=space)
    client.delete(ConfigMap, "b", namespace=space)
    with refused(404):
        client.get(ConfigMap, "owned", namespace=space)


def test_namespace_takes_its_objects_along(kube: Kube, client: Client, space: str) -> None:
    if isinstance(kube, RealKube):
        pytest.skip("a controller beside the API server does this")
    client.create(config_map("one", space))
    client.delete(Namespace, space)
    assert not [one for one in client.list(ConfigMap, namespace="*") if one.metadata.namespace == space]


def test_gate_can_be_removed_and_not_added(kube: Kube, client: Client, space: str) -> None:
    gated = pod("one", space, annotations={"a": "b"})
    gated.spec.schedulingGates = [PodSchedulingGate(name="woolyai.com/placed")]
    made = client.create(gated)
    if isinstance(kube, RealKube):
        assert made.spec.schedulingGates is None, "this server is older than gates"
        return
    condition = made.status.conditions[0]
    assert (condition.type, condition.status, condition.reason) == ("PodScheduled", "False", "SchedulingGated")
    steps = [
        {"op": "test", "path": "/spec/schedulingGates/0/name", "value": "woolyai.com/placed"},
        {"op": "add", "path": "/metadata/annotations/woolyai.com~1task", "value": "t1"},
        {"op": "remove", "path": "/spec/schedulingGates/0"},
    ]
    found = client.patch(Pod, "one", steps, namespace=space, patch_type=PatchType.JSON)
    assert (found.spec.schedulingGates, found.metadata.annotations["woolyai.com/task"]) == ([], "t1")
    with refused(422, "only deletion is allowed"):
        again = {"spec": {"schedulingGates": [{"name": "woolyai.com/placed"}]}}
        client.patch(Pod, "one", again, namespace=space, patch_type=PatchType.MERGE)
    with refused(422, "pod updates may not change fields other than"):
        client.patch(Pod, "one", {"spec": {"hostNetwork": True}}, namespace=space, patch_type=PatchType.MERGE)


# -- custom resources ------------------------------------------------------------------------------------------------------------------


def test_custom_resource_is_completed_and_pruned(client: Client, space: str) -> None:
    made = client.create(widget("one", space, size=3, unknown="x"))
    assert made["spec"] == {"size": 3, "colour": "red"}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({}, "spec.size: Required value"),
        ({"size": 0}, "spec.size: Invalid value: 0: spec.size in body should be greater than or equal to 1"),
        ({"size": 10}, "spec.size: Invalid value: 10: spec.size in body should be less than or equal to 9"),
        ({"size": "big"}, 'spec.size: Invalid value: "string": spec.size in body must be of type integer: "string"'),
        ({"size": 1, "colour": "blue"}, 'spec.colour: Unsupported value: "blue": supported values: "red", "green"'),
        ({"size": 1, "name": "A"}, "spec.name: Invalid value: \"A\": spec.name in body should match '^[a-z]+$'"),
        ({"size": 1, "tags": ["a", 1]}, "spec.tags"),  # newer servers, and the fake, name the index too
    ],
)
def test_custom_resource_is_held_against_its_schema(client: Client, spec: dict[str, Any], why: str) -> None:
    with refused(422, 'Widget.tests.woolyai.com "one" is invalid: ' + why):
        client.create(widget("one", "default", **spec))


def test_replacement_of_a_custom_resource_names_its_version(client: Client, space: str) -> None:
    client.create(widget("one", space, size=1))
    with refused(422, "metadata.resourceVersion", "must be specified for an update"):
        client.replace(widget("one", space, size=2))


def test_unknown_kind_is_not_found(client: Client) -> None:
    with pytest.raises(httpx2.HTTPStatusError) as caught:
        client.get(Gadget, "one")
    assert caught.value.response.text.strip() == "404 page not found"


# -- webhooks --------------------------------------------------------------------------------------------------------------------------


class _Hooks:
    """A webhook over TLS that answers by a function of the review."""

    def __init__(self, folder: Path) -> None:
        authority = Authority.load_or_make(folder / "ca")
        authority.issue(folder / "hook", ["127.0.0.1", "hook.wooly.svc"])
        self.ca = base64.b64encode(authority.certificate_file.read_bytes()).decode()
        self.answer: Callable[[Any], dict[str, Any]] = lambda review: {"allowed": True}
        self.asked: list[Any] = []
        hooks = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hooks.asked.append(review["request"])
                response = {"uid": review["request"]["uid"], **hooks.answer(review["request"])}
                data = json.dumps({**review, "response": response}).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "hook" / "cert.pem", folder / "hook" / "key.pem")
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_port
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def hooks(client: Client, tmp_path: Path) -> Iterator[_Hooks]:
    found = _Hooks(tmp_path)
    yield found
    found.stop()
    for kind in (MutatingWebhookConfiguration, ValidatingWebhookConfiguration):
        for one in client.list(kind):
            client.delete(kind, one.metadata.name)


def _webhook(hooks: _Hooks, space: str, **more: Any) -> dict[str, Any]:
    return {
        "name": "hook.woolyai.com",
        "clientConfig": {"url": f"https://127.0.0.1:{hooks.port}/mutate", "caBundle": hooks.ca},
        "rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}],
        "objectSelector": {"matchLabels": {"hooked": space}},
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
        **more,
    }


def _configure(client: Client, kind: Any, *webhooks: dict[str, Any]) -> None:
    client.create(kind.from_dict({"metadata": {"name": "hooks"}, "webhooks": list(webhooks)}))


def _patch(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"allowed": True, "patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(list(steps)).encode()).decode()}


def _until_asked(client: Client, hooks: _Hooks, space: str) -> None:
    """The server learns of a configuration by a watch of its own."""

    def asked() -> bool:
        with contextlib.suppress(ApiError):
            client.create(pod("probe", space, labels={"hooked": space}))
            client.delete(Pod, "probe", namespace=space)
        return bool(hooks.asked)

    until(asked, "the webhook is called")
    hooks.asked.clear()


def test_webhook_changes_what_it_selects(client: Client, hooks: _Hooks, space: str) -> None:
    _configure(client, MutatingWebhookConfiguration, _webhook(hooks, space))
    _until_asked(client, hooks, space)
    hooks.answer = lambda request: _patch(
        {"op": "add", "path": "/metadata/annotations", "value": {"seen": request["object"]["metadata"]["name"]}}
    )
    assert client.create(pod("one", space, labels={"hooked": space})).metadata.annotations == {"seen": "one"}
    assert not client.create(pod("two", space)).metadata.annotations
    [request] = hooks.asked
    assert (request["operation"], request["namespace"], request["kind"]["kind"]) == ("CREATE", space, "Pod")
    assert request["object"]["spec"]["containers"][0]["image"] == "busybox"


def test_webhook_refuses_with_its_words(client: Client, hooks: _Hooks, space: str) -> None:
    _configure(client, ValidatingWebhookConfiguration, _webhook(hooks, space))
    _until_asked(client, hooks, space)
    hooks.answer = lambda request: {"allowed": False, "status": {"code": 400, "message": "woolyai.com/pod-vram is required"}}
    with refused(400, 'admission webhook "hook.woolyai.com" denied the request: woolyai.com/pod-vram is required'):
        client.create(pod("one", space, labels={"hooked": space}))
    with refused(404):
        client.get(Pod, "one", namespace=space)


def test_namespace_can_be_excluded(client: Client, hooks: _Hooks, space: str) -> None:
    client.patch(Namespace, space, {"metadata": {"labels": {"plain": "yes"}}}, patch_type=PatchType.MERGE)
    other = f"{space}-2"
    client.create(Namespace(metadata=ObjectMeta(name=other)))
    selector = {"matchExpressions": [{"key": "plain", "operator": "DoesNotExist"}]}
    _configure(client, MutatingWebhookConfiguration, _webhook(hooks, space, namespaceSelector=selector))

    def asked() -> bool:
        client.create(Pod(metadata=ObjectMeta(generateName="p-", namespace=other, labels={"hooked": space}), spec=pod("p", other).spec))
        return bool(hooks.asked)

    until(asked, "the webhook is called")
    client.create(pod("one", space, labels={"hooked": space}))
    assert {request["namespace"] for request in hooks.asked} == {other}


def test_webhook_that_is_down_stops_what_it_must_see_and_nothing_else(client: Client, hooks: _Hooks, space: str) -> None:
    _configure(client, MutatingWebhookConfiguration, _webhook(hooks, space))
    _until_asked(client, hooks, space)
    hooks.stop()
    with refused(500, 'failed calling webhook "hook.woolyai.com"'):
        client.create(pod("one", space, labels={"hooked": space}))
    client.create(pod("two", space))


def test_first_webhook_is_asked_again_after_the_second_changed_the_pod(client: Client, hooks: _Hooks, space: str) -> None:
    first = _webhook(hooks, space, name="a.woolyai.com", reinvocationPolicy="IfNeeded")
    second = _webhook(hooks, space, name="b.woolyai.com")
    second["clientConfig"] = {**second["clientConfig"], "url": second["clientConfig"]["url"] + "/second"}
    _configure(client, MutatingWebhookConfiguration, first, second)
    _until_asked(client, hooks, space)
    turns: list[dict[str, str]] = []

    def answer(request: Any) -> dict[str, Any]:
        labels = request["object"]["metadata"]["labels"]
        turns.append(labels)
        missing = [name for name in ("first", "second") if name not in labels][:1]
        return _patch(*({"op": "add", "path": f"/metadata/labels/{name}", "value": "x"} for name in missing))

    hooks.answer = answer
    client.create(pod("one", space, labels={"hooked": space}))
    assert [sorted(labels.keys() - {"hooked"}) for labels in turns] == [[], ["first"], ["first", "second"]]


def test_webhook_is_reached_by_the_name_of_its_service(client: Client, hooks: _Hooks, space: str) -> None:
    if not _has(client, "wooly"):
        client.create(Namespace(metadata=ObjectMeta(name="wooly")))
    service = {"metadata": {"name": "hook", "namespace": "wooly"}, "spec": {"type": "ExternalName", "externalName": "127.0.0.1"}}
    client.apply(Service.from_dict({"apiVersion": "v1", "kind": "Service", **service}), force=True)
    ref = {"service": {"name": "hook", "namespace": "wooly", "port": hooks.port, "path": "/mutate"}, "caBundle": hooks.ca}
    _configure(client, MutatingWebhookConfiguration, _webhook(hooks, space, clientConfig=ref))
    _until_asked(client, hooks, space)


def _has(client: Client, namespace: str) -> bool:
    return any(one.metadata.name == namespace for one in client.list(Namespace))


# -- identity and events ---------------------------------------------------------------------------------------------------------------


def test_token_of_a_service_account_is_known_by_its_audience(client: Client, space: str) -> None:
    client.create(ServiceAccount(metadata=ObjectMeta(name="trainer", namespace=space)))
    request = {"metadata": {}, "spec": {"audiences": ["wooly"], "expirationSeconds": 3600}}
    token = client.create(ServiceAccount.Token.from_dict(request), "trainer", namespace=space).status.token

    def review(token: str, audience: str) -> Any:
        spec = {"token": token, "audiences": [audience]}
        return client.create(TokenReview.from_dict({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": spec})).status

    found = review(token, "wooly")
    assert found.authenticated and found.user.username == f"system:serviceaccount:{space}:trainer"
    assert f"system:serviceaccounts:{space}" in found.user.groups and found.audiences == ["wooly"]
    assert not review(token, "another-audience").authenticated
    assert not review("nonsense", "wooly").authenticated


def test_client_without_a_token_is_refused(kube: Kube) -> None:
    with httpx2.Client(verify=ssl.create_default_context(cafile=str(kube.ca)), trust_env=False) as client:
        answer = client.get(f"{kube.url}/api/v1/pods", headers={"Authorization": "Bearer nonsense"})
    assert (answer.status_code, answer.json()["reason"]) == (401, "Unauthorized")


def test_events_are_found_by_their_object(client: Client, space: str) -> None:
    about = client.create(pod("one", space)).metadata
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": "one.1", "namespace": space},
        "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "one", "namespace": space, "uid": about.uid},
        "reason": "WoolyWaiting",
        "message": "no device has 16384 MiB free",
        "type": "Normal",
    }
    client.create(Event.from_dict(event))
    [found] = client.list(Event, namespace=space, fields={"involvedObject.uid": about.uid, "reason": "WoolyWaiting"})
    assert found.message == "no device has 16384 MiB free"
