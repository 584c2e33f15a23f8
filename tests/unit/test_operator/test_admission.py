"""What a pod becomes on admission."""

from __future__ import annotations

import base64
import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.operator.admission import Injection, answer, changed, refusal
from services.operator.objects import Invalid, WoolyCluster, mib_of, wish_of

CLUSTER = WoolyCluster(
    name="main", uid="0" * 36, controller_url="https://controller:8080", bus_urls=("tls://bus-0:4222", "tls://bus-1:4222")
)
PLAIN = Injection(CLUSTER)
SECURE = Injection(CLUSTER, "https://wooly-operator.wooly-system.svc", trust=True)
Json = dict[str, Any]


def pod(annotations: Json | None = None, **spec: Any) -> Json:
    given = {"woolyai.com/pod-vram": "16Gi"} if annotations is None else annotations
    return {
        "metadata": {"name": "train", "namespace": "research", "labels": {"gpu-runtime": "woolyai"}, "annotations": given},
        "spec": {"containers": [{"name": "main", "image": "train"}], **spec},
    }


def review(found: Json, operation: str = "CREATE") -> Json:
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {"uid": "7", "operation": operation, "object": found},
    }


def patched(found: Json, response: Json) -> Json:
    """The pod after the API server has applied the patch of the answer."""
    out = copy.deepcopy(found)
    for step in json.loads(base64.b64decode(response.get("patch", base64.b64encode(b"[]")))):
        assert step["op"] in ("add", "replace")
        assert (step["path"].removeprefix("/spec/") in out["spec"]) == (step["op"] == "replace")
        out["spec"][step["path"].removeprefix("/spec/")] = step["value"]
    return out


def environment(container: Json) -> Json:
    return {one["name"]: one.get("value", one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath")) for one in container["env"]}


def test_every_container_gets_the_variables_and_the_pod_the_gate() -> None:
    found = pod({"woolyai.com/pod-vram": "8Gi", "woolyai.com/swap-from-vram": "false"}, initContainers=[{"name": "warm", "env": []}])
    after = patched(found, answer(review(found), PLAIN)["response"])
    assert after["spec"]["schedulingGates"] == [{"name": "woolyai.com/placed"}]
    for container in (*after["spec"]["initContainers"], *after["spec"]["containers"]):
        assert environment(container) == {
            "CONTROLLER_URL": "https://controller:8080",
            "WOOLY_NATS_URL": "tls://bus-0:4222,tls://bus-1:4222",
            "WOOLYAI_SWAP_FROM_VRAM": "0",
            "WOOLY_TASK_ID": "metadata.annotations['woolyai.com/task']",
            "WOOLY_TENANT": "metadata.annotations['woolyai.com/tenant']",
        }
    assert "volumes" not in after["spec"]


def test_a_secured_cluster_gives_authorities_and_a_token_of_the_pod() -> None:
    found = pod()
    after = patched(found, answer(review(found), SECURE)["response"])
    (container,) = after["spec"]["containers"]
    variables = environment(container)
    (mount,), (volume,) = container["volumeMounts"], after["spec"]["volumes"]
    files = {f"{mount['mountPath']}/ca.pem", f"{mount['mountPath']}/token"}
    assert {variables["WOOLY_TLS_CA"], variables["WOOLY_TOKEN_FILE"]} == files
    assert variables["WOOLY_KEY_URL"] == "https://wooly-operator.wooly-system.svc/v1/key"
    assert [source.get("serviceAccountToken", {}).get("audience") for source in volume["projected"]["sources"]] == [None, "wooly"]


NAMES = st.sampled_from(["A", "WOOLY_TASK_ID", "CONTROLLER_URL", "WOOLYAI_SWAP_FROM_VRAM", "PATH"])
VARIABLES = st.lists(
    st.builds(lambda name, value: {"name": name, "value": value}, NAMES, st.text(max_size=3)), unique_by=lambda one: one["name"]
)
CONTAINERS = st.lists(
    st.one_of(st.builds(lambda env: {"name": "c", "env": env}, st.none() | VARIABLES), st.just({"name": "c"})), min_size=1, max_size=3
)
GATES = st.lists(st.sampled_from(["example.com/a", "woolyai.com/placed", "example.com/b"]).map(lambda name: {"name": name}), unique_by=str)
PODS = st.builds(
    lambda containers, more, vram: pod({"woolyai.com/pod-vram": vram}, containers=containers, **more),
    CONTAINERS,
    st.fixed_dictionaries(
        {}, optional={"initContainers": CONTAINERS, "schedulingGates": st.none() | GATES, "volumes": st.just([{"name": "data"}])}
    ),
    st.sampled_from(["16Gi", "1.5G", "2e9", "4096Mi"]),
)


@given(PODS, st.sampled_from([PLAIN, SECURE]))
def test_admission_is_idempotent_and_keeps_what_is_the_users(found: Json, injected: Injection) -> None:
    before = copy.deepcopy(found)
    once = patched(found, answer(review(found), injected)["response"])
    assert found == before
    assert "patch" not in answer(review(once), injected)["response"]
    assert changed(once, injected) == once
    assert [gate["name"] for gate in once["spec"]["schedulingGates"]].count("woolyai.com/placed") == 1
    for kind in ("initContainers", "containers"):
        for old, new in zip(found["spec"].get(kind) or (), once["spec"].get(kind) or (), strict=True):
            ours = set(environment(new)) - {"A", "PATH"}
            assert {"WOOLY_TASK_ID", "CONTROLLER_URL"} <= ours
            kept = {one["name"]: one["value"] for one in old.get("env") or () if one["name"] in ("A", "PATH")}
            assert kept.items() <= environment(new).items()
            assert environment(new)["WOOLY_TASK_ID"].startswith("metadata.annotations"), "a pod does not choose its reservation"


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({}, "woolyai.com/pod-vram is required"),
        ({"woolyai.com/pod-vram": "lots"}, "write for example annotation woolyai.com/pod-vram: 16Gi"),
        ({"woolyai.com/pod-vram": "8000"}, "counts bytes"),
        ({"woolyai.com/pod-vram": "-1Gi"}, "no quantity"),
        ({"woolyai.com/pod-vram": "2000Pi"}, "more than any device has"),
        ({"woolyai.com/pod-vram": "1Gi", "woolyai.com/priority": "5"}, 'woolyai.com/priority is \'5\'; write "0" (highest) to "4"'),
        (
            {"woolyai.com/pod-vram": "1Gi", "woolyai.com/exclusive-gpu-use": "yes"},
            'woolyai.com/exclusive-gpu-use is \'yes\'; write "true" or "false"',
        ),
        ({"woolyai.com/pod-vram": "1Gi", "woolyai.com/swap-from-vram": "1"}, "woolyai.com/swap-from-vram"),
        ({"woolyai.com/pod-vram": "1Gi", "woolyai.com/task": "another"}, "woolyai.com/task is written by the operator"),
    ],
)
def test_a_refusal_names_the_annotation_and_what_to_write(annotations: Json, says: str) -> None:
    response = answer(review(pod(annotations)), PLAIN)["response"]
    assert response["allowed"] is False and "patch" not in response
    assert says in response["status"]["message"]


def test_what_is_not_ours_passes_unchanged() -> None:
    other = pod({})
    other["metadata"]["labels"] = {"gpu-runtime": "nvidia"}
    assert answer(review(other), None)["response"] == {"uid": "7", "allowed": True}
    assert answer(review(pod(), "UPDATE"), PLAIN)["response"] == {"uid": "7", "allowed": True}


def test_no_pod_is_let_in_before_the_cluster_is_known() -> None:
    response = answer(review(pod()), None)["response"]
    assert response["allowed"] is False and "WoolyCluster" in response["status"]["message"]


def test_a_pod_that_is_bound_to_a_node_cannot_wait() -> None:
    assert "nodeSelector" in refusal(pod(nodeName="n1"))


@pytest.mark.parametrize(
    ("text", "mib"),
    [("16Gi", 16384), ("1Mi", 1), ("1025Ki", 2), ("1.5Gi", 1536), ("2G", 1908), ("2e9", 1908), ("1048577", 2), (".5Gi", 512)],
)
def test_quantities_are_rounded_up_to_mib(text: str, mib: int) -> None:
    assert mib_of("x", text) == mib


@given(st.text(max_size=12))
def test_a_quantity_is_read_or_refused_in_words(text: str) -> None:
    try:
        assert mib_of("x", text) >= 1
    except Invalid as error:
        assert "write for example x: 16Gi" in str(error)


def test_wishes_have_defaults() -> None:
    wish = wish_of({"woolyai.com/pod-vram": "1Gi", "woolyai.com/priority": "0", "woolyai.com/exclusive-gpu-use": "true"})
    assert (wish.vram_mib, wish.priority, wish.exclusive, wish.swap, wish.pool) == (1024, 0, True, True, "")
