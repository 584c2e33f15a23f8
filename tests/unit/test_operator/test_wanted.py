"""What the operator decides from what it sees."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, TypeVar

import msgspec
import pytest

from services.operator.objects import GpuPool, KubeNode, Pod, SecretRef, TenantPolicy, WoolyCluster
from services.operator.wanted import (
    AWAY,
    Action,
    Answers,
    Apply,
    Drain,
    Mirror,
    Observed,
    Overcommit,
    PoolStatus,
    Reason,
    Release,
    Reservation,
    Resume,
    Submit,
    Ungate,
    WoolyNode,
    pod_uid,
    task_ids,
    wanted,
)

A = TypeVar("A")
KUBERNETES = "abcdef01-0000-0000-0000-000000000000"
UID = "11111111-2222-3333-4444-555555555555"
CLUSTER = WoolyCluster(name="main", uid="c", controller_url="http://c", bus_urls=("nats://b",), default_pool="a100")
POOL = GpuPool(
    name="a100",
    uid="p",
    image="wooly:1",
    node_selector={"gpu": "a100"},
    groups=("big",),
    devices=2,
    tolerations=({"key": "gpu", "operator": "Exists"},),
    resources={"limits": {"memory": "8Gi"}},
)
POLICY = TenantPolicy(name="research", tenant="acme", namespaces=("research",), default_priority=3, max_vram="40Gi")
POD = Pod(UID, "research", "train", "41", "Pending", {"woolyai.com/pod-vram": "16Gi"}, 0)
NOTHING = Answers({}, {}, {})
SEEN = Observed(KUBERNETES, CLUSTER, (POOL,), (POLICY,), (POD,), (), {}, NOTHING, "wooly-system")
TASK = task_ids(KUBERNETES, UID)[0]


def of(kind: type[A], actions: Iterable[Action]) -> list[A]:
    return [one for one in actions if isinstance(one, kind)]


def answers(*reservations: Reservation, **why: Reason) -> Answers:
    return Answers(
        {one.task: one for one in reservations}, dict.fromkeys((one.task for one in reservations), *why.values()) if why else {}, {}
    )


def mirrored(seen: Observed) -> Observed:
    """After the mirrors were written."""
    written = {(one.pod.namespace, one.pod.name): {**one.spec, **one.status} for one in of(Mirror, wanted(seen))}
    return replace(seen, mirrors={**seen.mirrors, **written})


def test_a_gated_pod_asks_for_a_reservation() -> None:
    (submit,) = of(Submit, wanted(SEEN))
    assert submit.body == {
        "required_vram_mb": 16384,
        "tenant": "acme",
        "priority": 3,
        "gpu_mode": "Shared",
        "groups": ("big",),
        "noswap": False,
        "title": "research/train",
    }
    assert submit.tasks[0] == TASK and len(set(submit.tasks)) == len(submit.tasks)
    assert all(len(task) <= 64 and pod_uid(KUBERNETES, task) == UID for task in submit.tasks)
    assert not of(Ungate, wanted(SEEN))


def test_annotations_come_before_the_policy() -> None:
    more = {"woolyai.com/priority": "0", "woolyai.com/exclusive-gpu-use": "true", "woolyai.com/swap-from-vram": "false"}
    (submit,) = of(Submit, wanted(replace(SEEN, pods=(replace(POD, annotations={**POD.annotations, **more}),))))
    assert (submit.body["priority"], submit.body["gpu_mode"], submit.body["noswap"]) == (0, "Exclusive", True)


def test_a_place_opens_the_gate_in_one_patch_that_tests_the_version() -> None:
    seen = replace(SEEN, pods=(replace(POD, gate=1),), answers=answers(Reservation(TASK, "acme", "atlas")))
    (ungate,) = of(Ungate, wanted(seen))
    assert ungate.patch[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "41"}
    assert ungate.patch[-1] == {"op": "remove", "path": "/spec/schedulingGates/1"}
    assert {"op": "add", "path": "/metadata/annotations/woolyai.com~1task", "value": TASK} in ungate.patch
    (mirror,) = of(Mirror, wanted(seen))
    assert (mirror.status["phase"], mirror.status["node"], mirror.status["vram"]) == ("Placed", "atlas", "16384Mi")


def test_waiting_is_explained_once_while_the_text_stays() -> None:
    why = Reason("it waits for a device: 2 devices lack memory", "the end of task x")
    seen = replace(SEEN, answers=answers(Reservation(TASK, "acme"), why=why))
    (mirror,) = of(Mirror, wanted(seen))
    assert mirror.event == f"{why.text}; what helps: {why.remedy}"
    assert not of(Mirror, wanted(mirrored(seen))) and not of(Submit, wanted(seen)) and not of(Ungate, wanted(seen))
    other = replace(mirrored(seen), answers=answers(Reservation(TASK, "acme"), why=Reason("now another")))
    assert [one.event for one in of(Mirror, wanted(other))] == ["now another"]


def test_without_the_controller_pods_wait_and_say_so() -> None:
    seen = replace(SEEN, answers=None, pods=(POD, replace(POD, uid="2" * 36, name="done", phase="Succeeded", gate=None)))
    actions = wanted(seen)
    assert not of(Submit, actions) and not of(Ungate, actions) and not of(Release, actions)
    assert of(Mirror, actions)[0].event.startswith(AWAY.text)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"policies": ()}, "no TenantPolicy names namespace research"),
        ({"policies": (msgspec.structs.replace(POLICY, max_vram="8Gi"),)}, "allows 8Gi for one pod"),
        ({"pools": ()}, "there is no GpuPool a100"),
        ({"refused": {UID: Reason("more than any device has")}}, "more than any device has"),
    ],
)
def test_a_pod_that_cannot_be_served_stays_and_says_why(change: dict[str, Any], says: str) -> None:
    actions = wanted(replace(SEEN, **change))
    assert not of(Ungate, actions) and not of(Submit, actions)
    (mirror,) = of(Mirror, actions)
    assert says in mirror.event and mirror.status["phase"] == "Refused"


def test_a_refused_pod_is_asked_for_again_without_new_words() -> None:
    seen = mirrored(replace(SEEN, refused={UID: Reason("no")}))
    actions = wanted(replace(seen, again={UID}))
    assert len(of(Submit, actions)) == 1 and not of(Mirror, actions)


@pytest.mark.parametrize(("phase", "failed"), [("Succeeded", False), ("Failed", True)])
def test_a_pod_that_has_ended_gives_its_reservation_back(phase: str, failed: bool) -> None:
    pod = replace(POD, phase=phase, gate=None, failure="main: OOMKilled (exit code 137)" if failed else "")
    (release,) = of(Release, wanted(replace(SEEN, pods=(pod,), answers=answers(Reservation(TASK, "acme", "atlas")))))
    assert (release.task, release.failed, release.reason, release.check) == (TASK, failed, pod.failure, False)


def test_annotations_that_were_made_wrong_later_hold_no_reservation_of_a_pod_that_has_ended() -> None:
    wrong = {"woolyai.com/pod-vram": "much"}
    seen = replace(SEEN, answers=answers(Reservation(TASK, "acme", "atlas")))
    for phase in ("Running", "Succeeded"):
        actions = wanted(replace(seen, pods=(replace(POD, phase=phase, gate=None, annotations=wrong),)))
        (mirror,) = of(Mirror, actions)
        assert (mirror.status["phase"], len(of(Release, actions))) == {"Running": ("Running", 0), "Succeeded": ("Completed", 1)}[phase]


def test_a_gated_pod_that_is_deleted_gives_its_reservation_back() -> None:
    seen = replace(SEEN, pods=(replace(POD, deleted=True),), answers=answers(Reservation(TASK, "acme")))
    assert [one.task for one in of(Release, wanted(seen))] == [TASK]


def test_reservations_of_absent_pods_are_released_after_another_look_and_those_of_others_never() -> None:
    other = task_ids("99999999-0000", "3" * 36)[0]
    absent = task_ids(KUBERNETES, "2" * 36)[1]
    seen = replace(SEEN, answers=answers(Reservation(TASK, "acme", "atlas"), Reservation(absent, "acme"), Reservation(other, "acme")))
    assert [(one.task, one.check) for one in of(Release, wanted(seen))] == [(absent, True)]


def test_a_later_reservation_counts_when_the_first_is_over() -> None:
    second = task_ids(KUBERNETES, UID)[1]
    (ungate,) = of(Ungate, wanted(replace(SEEN, answers=answers(Reservation(second, "acme", "atlas")))))
    assert any(step.get("value") == second for step in ungate.patch)


def test_a_running_pod_whose_reservation_is_over_says_so() -> None:
    pod = replace(POD, phase="Running", gate=None, annotations={**POD.annotations, "woolyai.com/task": TASK})
    (mirror,) = of(Mirror, wanted(replace(SEEN, pods=(pod,))))
    assert mirror.status["phase"] == "Running" and "the reservation is over" in mirror.event
    (mirror,) = of(Mirror, wanted(replace(SEEN, pods=(pod,), answers=None)))
    assert not mirror.event, "it is not known"


def test_a_pod_without_a_gate_never_had_a_reservation() -> None:
    (mirror,) = of(Mirror, wanted(replace(SEEN, pods=(replace(POD, gate=None),))))
    assert "started without a reservation" in mirror.event and not of(Submit, wanted(replace(SEEN, pods=(replace(POD, gate=None),))))


def test_each_pool_has_a_daemon_set_that_it_owns() -> None:
    (apply,) = of(Apply, wanted(SEEN))
    found = apply.object
    assert found["metadata"]["ownerReferences"][0]["uid"] == "p"
    template = found["spec"]["template"]
    assert template["metadata"]["labels"] == found["spec"]["selector"]["matchLabels"]
    (container,) = template["spec"]["containers"]
    assert container["image"] == "wooly:1" and {"name": "NODE_GROUPS", "value": "big"} in container["env"]
    assert container["resources"] == {"limits": {"nvidia.com/gpu": "2", "memory": "8Gi"}}
    assert (template["spec"]["nodeSelector"], template["spec"]["tolerations"]) == ({"gpu": "a100"}, [{"key": "gpu", "operator": "Exists"}])


def test_a_node_server_sees_its_own_identity_alone() -> None:
    cluster = msgspec.structs.replace(CLUSTER, node_secret_ref=SecretRef("keyring-nodes"))
    (apply,) = of(Apply, wanted(replace(SEEN, cluster=cluster)))
    (container,) = apply.object["spec"]["template"]["spec"]["containers"]
    mounted = {
        one["mountPath"]: one.get("subPathExpr", one.get("subPath")) for one in container["volumeMounts"] if one["name"] == "identity"
    }
    variables = {one["name"]: one.get("value") for one in container["env"]}
    files = ("WOOLY_API_KEY_FILE", "WOOLY_TLS_CERT", "WOOLY_TLS_KEY", "WOOLY_TLS_CA")
    assert [mounted[variables[name]] for name in files] == [
        "$(NODE_NAME).api.key", "$(NODE_NAME).cert.pem", "$(NODE_NAME).key.pem", "ca.pem",
    ]  # fmt: skip
    assert len(mounted) == len(files)


def node(cordoned: bool) -> KubeNode:
    return KubeNode("n1", {"gpu": "a100"}, cordoned)


@pytest.mark.parametrize(
    ("cordoned", "drained", "recorded", "does"),
    [
        (False, False, (), []),
        (True, False, (), [PoolStatus("a100", ("n1",))]),  # it is drained once it is recorded
        (True, False, ("n1",), [Drain("n1")]),
        (True, True, ("n1",), []),
        (False, True, ("n1",), [Resume("n1")]),  # it stays recorded until it is resumed
        (False, True, (), []),  # a person drained it
        (True, True, (), []),  # likewise; it stays drained when the node is uncordoned
        (False, False, ("n1",), [PoolStatus("a100", ())]),
    ],
)
def test_cordoned_nodes_are_drained_and_only_those_are_resumed(
    cordoned: bool, drained: bool, recorded: tuple[str, ...], does: list[Action]
) -> None:
    pool = msgspec.structs.replace(POOL, drained=recorded)
    seen = replace(SEEN, pods=(), pools=(pool,), nodes=(node(cordoned),), answers=Answers({}, {}, {"n1": WoolyNode("n1", drained)}))
    assert [one for one in wanted(seen) if not isinstance(one, Apply)] == does


def test_a_node_that_moves_to_another_pool_while_it_is_cordoned_is_resumed_by_the_one_that_drained_it() -> None:
    old = msgspec.structs.replace(POOL, node_selector={"gpu": "v100"}, drained=("n1",), overcommit_percent=50)
    new = msgspec.structs.replace(POOL, name="new")
    for cordoned, drained, does in ((True, True, []), (False, True, [Resume("n1")]), (False, False, [PoolStatus("a100", ())])):
        answers = Answers({}, {}, {"n1": WoolyNode("n1", drained)})
        seen = replace(SEEN, pods=(), pools=(old, new), nodes=(node(cordoned),), answers=answers)
        assert [one for one in wanted(seen) if not isinstance(one, Apply)] == does


def test_nodes_get_the_overcommit_of_their_pool() -> None:
    pool = msgspec.structs.replace(POOL, overcommit_percent=50)
    for held, does in ((None, [Overcommit("n1", 50)]), (50, [])):
        seen = replace(SEEN, pods=(), pools=(pool,), nodes=(node(False),), answers=Answers({}, {}, {"n1": WoolyNode("n1", False, held)}))
        assert of(Overcommit, wanted(seen)) == does


def test_namespaces_of_tenants_get_the_authorities() -> None:
    found = [one.object for one in of(Apply, wanted(replace(SEEN, authorities="PEM"))) if one.object["kind"] == "ConfigMap"]
    assert [(one["metadata"]["namespace"], one["data"]) for one in found] == [("research", {"ca.pem": "PEM"})]


def test_a_namespace_in_two_policies_is_of_the_first_by_name() -> None:
    later = TenantPolicy(name="zoo", uid="z", tenant="zoo", namespaces=("research", "cages"))
    seen = replace(SEEN, policies=(msgspec.structs.replace(POLICY, uid="r"), later), authorities="PEM")
    maps = [one.object["metadata"] for one in of(Apply, wanted(seen)) if one.object["kind"] == "ConfigMap"]
    assert {(one["namespace"], one["ownerReferences"][0]["uid"]) for one in maps} == {("research", "r"), ("cages", "z")} and len(maps) == 2
    (reserved,) = of(Submit, wanted(seen))
    assert reserved.body["tenant"] == "acme"
