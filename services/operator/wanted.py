"""What should be, from what is observed: reservations of pods, their mirrors in Kubernetes, node servers, drained nodes. Pure.

Every call answers from the whole state, so an action that failed, or was lost with its operator, is simply decided again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from services.operator.admission import TRUST
from services.operator.objects import (
    ANNOTATED_TASK,
    ANNOTATED_TENANT,
    GATE,
    GROUP,
    NODE,
    POOL,
    VERSION,
    GpuPool,
    Invalid,
    KubeNode,
    Pod,
    TenantPolicy,
    Wish,
    WoolyCluster,
    mib_of,
    policy_of,
    wish_of,
)  # fmt: skip

__all__ = [
    "AWAY", "Action", "Answers", "Apply", "Drain", "Mirror", "Observed", "Overcommit", "PoolStatus", "Reason", "Release", "Reservation",
    "Resume", "Submit", "Ungate", "WoolyNode", "pod_uid", "prefix_of", "task_ids", "wanted",
]  # fmt: skip

_ATTEMPTS_MAX: Final = 9
_NODE_FILES: Final = "/var/run/secrets/wooly"
_DATA_PORT, _HTTP_PORT = 7070, 7060
"""On the host, of the first device of a node server, and of its health and metrics."""
_USER: Final = 10001
"""Of our images."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a pod is not served, and what would help."""

    text: str = ""
    remedy: str = ""


AWAY: Final = Reason(
    "the Wooly controller does not answer, so no reservation can be made",
    "the pod waits; look at the controller and its address in the WoolyCluster",
)


@dataclass(frozen=True, slots=True)
class Reservation:
    """A task of the controller that is not over. ``node`` empty: it waits."""

    task: str
    tenant: str
    node: str = ""


@dataclass(frozen=True, slots=True)
class WoolyNode:
    """A node server, as the controller has it. ``overcommit_percent`` None: the global value."""

    name: str
    drained: bool = False
    overcommit_percent: int | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """What the controller said. ``reservations``: by task, those of this Kubernetes cluster that are not over; ``why``: of some of them."""

    reservations: Mapping[str, Reservation]
    why: Mapping[str, Reason]
    nodes: Mapping[str, WoolyNode]


@dataclass(frozen=True, slots=True)
class Observed:
    """``answers`` None: the controller does not answer. ``refused``: pods (by uid) whose reservation it has refused; ``again``: those for
    which it is to be asked again. ``mirrors``: spec and status in one of the WoolyTask of each (namespace, pod). ``authorities``: PEM that
    pods trust; empty: plain connections."""

    #: id of the Kubernetes cluster: the uid of its namespace kube-system
    kubernetes: str
    cluster: WoolyCluster
    pools: tuple[GpuPool, ...]
    policies: tuple[TenantPolicy, ...]
    pods: tuple[Pod, ...]
    nodes: tuple[KubeNode, ...]
    mirrors: Mapping[tuple[str, str], Mapping[str, Any]]
    answers: Answers | None
    namespace: str
    refused: Mapping[str, Reason] = field(default_factory=dict)
    again: Collection[str] = ()
    authorities: str = ""


@dataclass(frozen=True, slots=True)
class Apply:
    """An object of Kubernetes that should be so."""

    object: Json


@dataclass(frozen=True, slots=True)
class Submit:
    """Reserve for the pod: the first of ``tasks`` that is not over. ``body``: keyword arguments of ``Client.submit``."""

    pod: Pod
    tasks: tuple[str, ...]
    body: Json


@dataclass(frozen=True, slots=True)
class Ungate:
    """Write the place on the pod and remove its gate, if the pod is still as it was read."""

    pod: Pod
    patch: list[Json]


@dataclass(frozen=True, slots=True)
class Release:
    """End a reservation. ``check``: only after a new look at the pods, of which none has ``uid``."""

    task: str
    uid: str
    failed: bool = False
    reason: str = ""
    check: bool = False


@dataclass(frozen=True, slots=True)
class Mirror:
    """The WoolyTask of a pod. ``event``: the text of an event on the pod; empty: it has not changed."""

    pod: Pod
    spec: Json
    status: Json
    event: str


@dataclass(frozen=True, slots=True)
class PoolStatus:
    pool: str
    drained: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Drain:
    node: str


@dataclass(frozen=True, slots=True)
class Resume:
    node: str


@dataclass(frozen=True, slots=True)
class Overcommit:
    node: str
    percent: int


Action = Apply | Submit | Ungate | Release | Mirror | PoolStatus | Drain | Resume | Overcommit


def wanted(seen: Observed) -> list[Action]:
    """In the order in which they are to be done."""
    out: list[Action] = []
    for pool in seen.pools:
        out.append(Apply(daemon_set(seen, pool)))
        out += _nodes(seen, pool)
    if seen.authorities:
        for policy in seen.policies:
            own = (namespace for namespace in policy.namespaces if policy_of(seen.policies, namespace) is policy)
            out += [Apply(_trust(seen, policy, namespace)) for namespace in own]
    for pod in seen.pods:
        out += _pod(seen, pod)
    return out + list(_orphans(seen))


# -- pods ------------------------------------------------------------------------------------------------------------------------------


def prefix_of(kubernetes: str) -> str:
    """What the ids of reservations of the Kubernetes cluster of this id begin with: others may use the same controller."""
    return f"k{kubernetes[:8]}-"


def task_ids(kubernetes: str, pod_uid: str) -> tuple[str, ...]:
    """Ids of the pod's reservation: the first, and those that follow when one ended before the pod could start."""
    first = prefix_of(kubernetes) + pod_uid
    return (first, *(f"{first}-{attempt}" for attempt in range(2, _ATTEMPTS_MAX + 1)))


def pod_uid(kubernetes: str, task: str) -> str:
    """Of the pod of a reservation; empty: it is none of this Kubernetes cluster."""
    prefix = prefix_of(kubernetes)
    return task[len(prefix) : len(prefix) + 36] if task.startswith(prefix) else ""


@dataclass(frozen=True, slots=True)
class _State:
    """Of one pod: the fields of its mirror's status, and what to do."""

    phase: str
    reason: Reason = Reason()
    node: str = ""
    actions: tuple[Action, ...] = ()


def _pod(seen: Observed, pod: Pod) -> Iterator[Action]:
    policy = policy_of(seen.policies, pod.namespace)
    task, wish = _reservation(seen, pod), Wish(0)
    state = _over(pod, task) if pod.over else _started(seen, pod, task)
    waits = pod.gate is not None and not pod.over
    held = seen.mirrors.get((pod.namespace, pod.name), {})
    if held.get("podUID") != pod.uid:
        held = {}  # of an earlier pod of this name
    try:
        wish = wish_of(pod.annotations)
        if waits:
            state = _gated(seen, pod, policy, wish, task, held)
    except Invalid as error:
        if waits:
            state = _State("Refused", Reason(str(error), "correct it; of a pod: delete the pod and create it anew"))
    status = {
        "phase": state.phase,
        "node": state.node or (held.get("node", "") if pod.gate is None else ""),
        "reason": state.reason.text,
        "remedy": state.reason.remedy,
        "vram": f"{wish.vram_mib}Mi",
    }
    name = task.task if task is not None else pod.annotations.get(ANNOTATED_TASK) or task_ids(seen.kubernetes, pod.uid)[0]
    if status != {key: held.get(key, "") for key in status} or held.get("task") != name:
        text = f"{state.reason.text}{f'; what helps: {state.reason.remedy}' if state.reason.remedy else ''}"
        changed = (state.reason.text, state.reason.remedy) != (held.get("reason", ""), held.get("remedy", ""))
        spec = {"task": name, "podName": pod.name, "podUID": pod.uid, "tenant": policy.tenant if policy is not None else ""}
        # An empty text is left out: Kubernetes 1.20 takes it for null when it is applied.
        yield Mirror(pod, _filled(spec), _filled(status), text if changed else "")
    yield from state.actions


def _filled(fields: Json) -> Json:
    return {name: value for name, value in fields.items() if value}


def _reservation(seen: Observed, pod: Pod) -> Reservation | None:
    """The pod's reservation that is not over."""
    if seen.answers is None:
        return None
    found = [seen.answers.reservations[task] for task in task_ids(seen.kubernetes, pod.uid) if task in seen.answers.reservations]
    return found[-1] if found else None


def _over(pod: Pod, task: Reservation | None) -> _State:
    failed = pod.phase == "Failed"
    release = () if task is None else (Release(task.task, pod.uid, failed, pod.failure),)
    return _State("Failed" if failed else "Completed", Reason(pod.failure), actions=release)


def _started(seen: Observed, pod: Pod, task: Reservation | None) -> _State:
    phase = "Running" if pod.phase == "Running" else "Placed"
    if task is None and ANNOTATED_TASK not in pod.annotations:
        reason = "it has started without a reservation: the webhook did not see it, or its gate was removed or not known here"
        return _State(phase, Reason(reason, "delete the pod and create it again, on Kubernetes 1.27 or later"))
    if task is None and seen.answers is not None:
        reason = "the reservation is over: no script used it within its time, or it was cancelled"
        return _State(phase, Reason(reason, "a script that starts now finds no device; delete the pod and create it again"))
    return _State(phase, node=task.node if task is not None else "")


def _gated(seen: Observed, pod: Pod, policy: TenantPolicy | None, wish: Wish, task: Reservation | None, held: Mapping[str, Any]) -> _State:
    if seen.answers is None:
        return _State("Waiting", AWAY)
    if task is not None and task.node:
        return _State("Placed", Reason(f"it has a place on Wooly node {task.node}"), task.node, (Ungate(pod, _ungate(pod, task)),))
    if task is not None:
        return _State("Waiting", seen.answers.why.get(task.task, Reason()))
    pool = wish.pool or seen.cluster.default_pool
    found = next((one for one in seen.pools if one.name == pool), None)
    refused = _refused(pod, policy, wish, pool, found)
    if refused is not None or policy is None:
        return _State("Refused", refused or Reason())
    body = {
        "required_vram_mb": wish.vram_mib,
        "tenant": policy.tenant,
        "priority": policy.default_priority if wish.priority is None else wish.priority,
        "gpu_mode": "Exclusive" if wish.exclusive else "Shared",
        "groups": found.groups if found is not None else (),
        "noswap": not wish.swap,
        "title": f"{pod.namespace}/{pod.name}",
    }
    submit = (Submit(pod, task_ids(seen.kubernetes, pod.uid), body),)
    if pod.uid in seen.refused:
        return _State("Refused", seen.refused[pod.uid], actions=submit if pod.uid in seen.again else ())
    return _State(held.get("phase") or "Waiting", Reason(held.get("reason", ""), held.get("remedy", "")), actions=submit)


def _refused(pod: Pod, policy: TenantPolicy | None, wish: Wish, pool: str, found: GpuPool | None) -> Reason | None:
    if policy is None:
        return Reason(f"no TenantPolicy names namespace {pod.namespace}", "add the namespace to spec.namespaces of a TenantPolicy")
    if policy.max_vram and wish.vram_mib > mib_of(f"maxVRAM of TenantPolicy {policy.name}", policy.max_vram):
        text = f"it asks for {wish.vram_mib} MiB, and TenantPolicy {policy.name} allows {policy.max_vram} for one pod"
        return Reason(text, "ask for less, or raise spec.maxVRAM of the policy")
    if pool and found is None:
        return Reason(f"there is no GpuPool {pool}", f"create it, or name another one in annotation {POOL}")
    return None


def _ungate(pod: Pod, task: Reservation) -> list[Json]:
    gate = f"/spec/schedulingGates/{pod.gate}"
    written = {ANNOTATED_TASK: task.task, ANNOTATED_TENANT: task.tenant, NODE: task.node}
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": pod.version},
        {"op": "test", "path": f"{gate}/name", "value": GATE},
        *({"op": "add", "path": f"/metadata/annotations/{name.replace('/', '~1')}", "value": text} for name, text in written.items()),
        {"op": "remove", "path": gate},
    ]


def _orphans(seen: Observed) -> Iterator[Action]:
    """Reservations of pods that are not there any more."""
    there = {pod.uid for pod in seen.pods}
    for task in seen.answers.reservations if seen.answers is not None else ():
        uid = pod_uid(seen.kubernetes, task)
        if uid and uid not in there:
            yield Release(task, uid, reason="the pod was deleted", check=True)


# -- node servers ----------------------------------------------------------------------------------------------------------------------


def _nodes(seen: Observed, pool: GpuPool) -> Iterator[Action]:
    """Cordoned Kubernetes nodes are drained, and resumed later if the operator drained them, also when they belong to another pool then.
    The pool's status says so: a node is drained only once that is read from it, and removed from it only once it is seen resumed."""
    if seen.answers is None:
        return
    drained = pool.drained
    for node in seen.nodes:
        server, ours = seen.answers.nodes.get(node.name), node.name in pool.drained
        if server is None or not (ours or pool.has(node)):
            continue
        if pool.has(node) and pool.overcommit_percent is not None and server.overcommit_percent != pool.overcommit_percent:
            yield Overcommit(node.name, pool.overcommit_percent)
        if node.cordoned and not server.drained:
            if ours:
                yield Drain(node.name)
            else:
                drained = (*drained, node.name)
        elif ours and not node.cordoned:
            if server.drained:
                yield Resume(node.name)
            else:
                drained = tuple(name for name in drained if name != node.name)
    if drained != pool.drained:
        yield PoolStatus(pool.name, drained)


def daemon_set(seen: Observed, pool: GpuPool) -> Json:
    """The node servers of a pool, one on each Kubernetes node that its selector names."""
    labels = {"app.kubernetes.io/name": "wooly-node", f"{GROUP}/pool": pool.name}
    secret = seen.cluster.node_secret_ref.name
    plain = {
        "WOOLY_NATS_URL": ",".join(seen.cluster.bus_urls),
        "WOOLY_BACKEND": pool.backend,
        "WOOLY_DEVICES": str(pool.devices),
        "WOOLY_DEVICE_VRAM_MB": str(pool.vram_mb or ""),
        "NODE_GROUPS": ",".join(pool.groups),
        "WOOLY_DATA_HOST": "0.0.0.0",
        "WOOLY_DATA_PORT": str(_DATA_PORT),
        "WOOLY_NODE_HTTP": f"0.0.0.0:{_HTTP_PORT}",
        "WOOLY_DATA_DIR": "/data",
        "WOOLY_CACHE_DIR": "/data/jit",
        "CUPY_CACHE_DIR": "/data/cupy" if pool.backend == "cuda" else "",
        "WOOLY_ON_STOP": "end",  # what sessions need goes with the pod
        "WOOLY_INSECURE": "" if secret else "1",
    }
    mounts: list[Json] = [{"name": "data", "mountPath": "/data"}, {"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Json] = [{"name": "data", "emptyDir": {}}, {"name": "tmp", "emptyDir": {}}]
    if secret:  # of each node its own files alone
        files = {"WOOLY_API_KEY_FILE": "api.key", "WOOLY_TLS_CERT": "cert.pem", "WOOLY_TLS_KEY": "key.pem"}
        plain |= {name: f"{_NODE_FILES}/{file}" for name, file in files.items()} | {"WOOLY_TLS_CA": f"{_NODE_FILES}/ca.pem"}
        volumes.append({"name": "identity", "secret": {"secretName": secret, "defaultMode": 0o440}})
        mounts += [
            {"name": "identity", "mountPath": f"{_NODE_FILES}/{file}", "subPathExpr": f"$(NODE_NAME).{file}", "readOnly": True}
            for file in files.values()
        ]
        mounts.append({"name": "identity", "mountPath": f"{_NODE_FILES}/ca.pem", "subPath": "ca.pem", "readOnly": True})
    shown = {"NODE_NAME": "spec.nodeName", "NODE_ADDRESS": "status.hostIP"}
    container: Json = {
        "name": "node",
        "image": pool.image,
        "command": ["wooly-server", "server"],
        "env": [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in shown.items()),
            *({"name": name, "value": value} for name, value in plain.items() if value),
        ],
        "ports": [
            {"name": name, "containerPort": port, "hostPort": port, "protocol": "TCP"}
            for name, port in (("data", _DATA_PORT), ("http", _HTTP_PORT))
        ],
        "volumeMounts": mounts,
        "resources": _resources(pool),
        "securityContext": {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}},
        "livenessProbe": _probe("live", secret, 15),
        "readinessProbe": _probe("ready", secret, 5),
    }
    pod: Json = {
        # bulk data goes from clients straight to the device's host, without the cost of an overlay network
        "hostNetwork": True,
        "dnsPolicy": "ClusterFirstWithHostNet",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": pool.node_selector,
        "tolerations": list(pool.tolerations),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": _USER,
            "runAsGroup": _USER,
            "fsGroup": _USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        "containers": [container],
        "volumes": volumes,
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": f"wooly-node-{pool.name}", "namespace": seen.namespace, "labels": labels, "ownerReferences": [_owner(pool)]},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}},
    }


def _resources(pool: GpuPool) -> Json:
    if pool.backend != "cuda":
        return pool.resources
    return {**pool.resources, "limits": {**pool.resources.get("limits", {}), "nvidia.com/gpu": str(pool.devices)}}


def _probe(what: str, secret: str, period_s: int) -> Json:
    get = {"path": f"/health/{what}", "port": _HTTP_PORT, "scheme": "HTTPS" if secret else "HTTP"}
    return {"httpGet": get, "initialDelaySeconds": 10, "periodSeconds": period_s, "timeoutSeconds": 5, "failureThreshold": 6}


def _owner(one: GpuPool | TenantPolicy) -> Json:
    """What is made for it goes with it."""
    return {"apiVersion": f"{GROUP}/{VERSION}", "kind": type(one).__name__, "name": one.name, "uid": one.uid}


def _trust(seen: Observed, policy: TenantPolicy, namespace: str) -> Json:
    labels = {"app.kubernetes.io/managed-by": "wooly-operator"}
    meta = {"name": TRUST, "namespace": namespace, "labels": labels, "ownerReferences": [_owner(policy)]}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": {"ca.pem": seen.authorities}}
