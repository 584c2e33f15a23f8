"""The leader's work: look at Kubernetes and at the controller, have ``wanted`` decide, and do it; again after every change, and every
second while pods wait. What fails is logged, and decided again."""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

import msgspec
from lightkube import AsyncClient
from lightkube.generic_resource import create_global_resource, create_namespaced_resource
from lightkube.resources.apps_v1 import DaemonSet
from lightkube.resources.core_v1 import ConfigMap, Event, Namespace, Node
from lightkube.resources.core_v1 import Pod as KubePod
from lightkube.types import PatchType

from services.kit.log import get_logger
from services.operator.objects import (
    FIELD_MANAGER,
    GROUP,
    LABEL,
    RUNTIME,
    VERSION,
    GpuPool,
    Pod,
    TenantPolicy,
    WoolyCluster,
    read_node,
    read_object,
    read_pod,
)
from services.operator.settings import Settings
from services.operator.wanted import (
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
    prefix_of,
    wanted,
)
from services.operator.watching import API_ERRORS, Watched
from wooly.api import Client
from wooly.errors import ApiError, WoolyError

__all__ = ["Kubernetes", "Reconciler"]

_IDLE_S: Final = 10.0
_BUSY_S: Final = 1.0
_PAUSE_S: Final = 0.1
_APPLY_S: Final = 60.0
_REFUSED_S: Final = 10.0
_WHY_S: Final = 5.0
_WHY_MAX: Final = 20
"""Explanations that one look at the controller asks for: each costs it milliseconds."""
_TASKS_MAX: Final = 10_000
"""Of one list of the controller: on one page no task is missed that moves between pages."""
_EVENT_CHARS: Final = 1_000

_CLUSTERS: Final = create_global_resource(GROUP, VERSION, "WoolyCluster", "woolyclusters")
_POOLS: Final = create_global_resource(GROUP, VERSION, "GpuPool", "gpupools")
_POLICIES: Final = create_global_resource(GROUP, VERSION, "TenantPolicy", "tenantpolicies")
_TASKS: Final = create_namespaced_resource(GROUP, VERSION, "WoolyTask", "woolytasks")
_APPLIED: Final[dict[str, Any]] = {"DaemonSet": DaemonSet, "ConfigMap": ConfigMap}

Json = dict[str, Any]


class Kubernetes:
    """What is known of the Kubernetes cluster; ``id``: the uid of its namespace kube-system. ``changed`` is called after every change."""

    def __init__(self, client: AsyncClient, changed: Callable[[], None]) -> None:
        self.client = client
        self.id = ""
        self._clusters = Watched(client, _CLUSTERS, changed)
        self._pools = Watched(client, _POOLS, changed)
        self._policies = Watched(client, _POLICIES, changed)
        self.tasks = Watched(client, _TASKS, changed, namespace="*")
        self.pods = Watched(client, KubePod, changed, namespace="*", labels={LABEL: RUNTIME})
        self._nodes = Watched(client, Node, changed)
        self.all = (self._clusters, self._pools, self._policies, self.tasks, self.pods, self._nodes)

    async def synced(self) -> None:
        """Return once everything was listed."""
        for watched in self.all:
            await watched.synced.wait()
        while not self.id:
            try:
                found = await self.client.get(Namespace, "kube-system")
                self.id = (found.metadata.uid if found.metadata is not None else None) or ""
            except API_ERRORS as error:
                get_logger().warning("namespace kube-system cannot be read", error=str(error))
                await asyncio.sleep(_BUSY_S)

    @property
    def cluster(self) -> WoolyCluster | None:
        """The first; there should be one."""
        return next(iter(_read(self._clusters, WoolyCluster)), None)

    @property
    def policies(self) -> tuple[TenantPolicy, ...]:
        return _read(self._policies, TenantPolicy)

    def observed(self, cluster: WoolyCluster, answers: Answers | None, namespace: str, authorities: str, **refusals: Any) -> Observed:
        mirrors = {
            (one["metadata"]["namespace"], one["metadata"]["name"]): {**(one.get("spec") or {}), **(one.get("status") or {})}
            for one in self.tasks
        }
        return Observed(
            self.id,
            cluster,
            _read(self._pools, GpuPool),
            self.policies,
            tuple(map(read_pod, self.pods)),
            tuple(map(read_node, self._nodes)),
            mirrors,
            answers,
            namespace,
            authorities=authorities,
            **refusals,
        )


def _read(objects: Iterable[Json], kind: type[Any]) -> tuple[Any, ...]:
    """By name, those that are as their schema says; of the others a line is logged."""
    out = []
    for one in sorted(objects, key=lambda one: str(one["metadata"]["name"])):
        try:
            out.append(read_object(one, kind))
        except (msgspec.ValidationError, KeyError) as error:
            get_logger().warning("an object is not as its schema says", kind=kind.__name__, name=one["metadata"]["name"], error=str(error))
    return tuple(out)


class Reconciler:
    def __init__(self, kube: Kubernetes, settings: Settings, poked: asyncio.Event, authorities: Callable[[], str]) -> None:
        """``poked``: set when something has changed. ``authorities()``: PEM that pods trust; empty: there is none."""
        self._kube = kube
        self._settings = settings
        self._authorities = authorities
        self._poked = poked
        #: by pod: why the controller refused, and when it is asked again
        self._refused: dict[str, tuple[Reason, float]] = {}
        #: by task: why it waits, and when that was asked
        self._why: dict[str, tuple[Reason, float]] = {}
        #: by kind, namespace and name: what was applied, and when
        self._applied: dict[tuple[str, str, str], tuple[bytes, float]] = {}

    async def run(self) -> None:
        """For as long as this operator leads."""
        await self._kube.synced()
        clock = asyncio.get_running_loop().time
        while True:
            self._poked.clear()
            began_s, waiting = clock(), True
            try:
                waiting = await self._round()
            except (*API_ERRORS, OSError) as error:
                get_logger().warning("Kubernetes cannot be looked at", error=str(error))
            await asyncio.sleep(max(_PAUSE_S, clock() - began_s))  # changes come in groups, and a large cluster is not asked all the time
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_BUSY_S if waiting else _IDLE_S):
                    await self._poked.wait()

    async def _round(self) -> bool:
        """Whether pods wait, so that the next look should come soon."""
        cluster, client = self._kube.cluster, self.wooly()
        if cluster is None or client is None:
            return False
        now_s = asyncio.get_running_loop().time()
        try:
            answers = await asyncio.to_thread(self._ask, client, now_s)
        except WoolyError as error:
            get_logger().warning("the controller cannot be asked", error=str(error))
            answers = None
        refused = {uid: reason for uid, (reason, _) in self._refused.items()}
        again = {uid for uid, (_, until_s) in self._refused.items() if now_s >= until_s}
        seen = self._kube.observed(cluster, answers, self._settings.namespace, self._authorities(), refused=refused, again=again)
        there = {pod.uid for pod in seen.pods}
        self._refused = {uid: held for uid, held in self._refused.items() if uid in there}
        listed: set[str] | None = None
        for action in wanted(seen):
            if isinstance(action, Release) and action.check and listed is None:
                listed = {one["metadata"]["uid"] for one in await self._kube.pods.listed()}
            try:
                await self._do(action, client, now_s, listed or set())
            except (*API_ERRORS, WoolyError) as error:
                get_logger().warning("not done, and tried again", action=type(action).__name__, error=str(error))
        return any(pod.gate is not None for pod in seen.pods)

    # -- the controller ----------------------------------------------------------------------------------------------------------------

    def wooly(self, key: str = "") -> Client | None:
        """The controller, asked with ``key`` (empty: the operator's); None while its address is not known."""
        settings, cluster = self._settings, self._kube.cluster
        url = settings.controller_url or (cluster.controller_url if cluster is not None else "")
        return Client(url, api_key=key or settings.api_key, ca=settings.tls_ca, insecure=settings.insecure) if url else None

    def _ask(self, client: Client, now_s: float) -> Answers:
        """Blocks. Raises WoolyError."""
        prefix = prefix_of(self._kube.id)
        found: dict[str, Reservation] = {}
        for state in ("started", "queued", "started"):  # one whose session opens or closes meanwhile is in one of them
            offset, total = 0, 1
            while offset < total:
                page = client.tasks(state=state, search=prefix, limit=_TASKS_MAX, offset=offset)
                offset, total = offset + _TASKS_MAX, page.total
                ours = [one for one in page.items if pod_uid(self._kube.id, one.id)]
                found |= {one.id: Reservation(one.id, one.tenant, one.node_name or one.node or "") for one in ours}
        waiting = [task for task, reservation in found.items() if not reservation.node]
        self._why = {task: held for task, held in self._why.items() if task in found}
        due = [task for task in waiting if task not in self._why or now_s - self._why[task][1] >= _WHY_S]
        for task in sorted(due, key=lambda task: self._why[task][1] if task in self._why else 0.0)[:_WHY_MAX]:
            try:
                why = client.waiting(task)
            except ApiError as error:
                if error.status not in (404, 409):
                    raise
                continue  # it waits no more
            reason = ", ".join(one.text for one in why.refused) or why.sentence
            self._why[task] = Reason(f"it waits for a device: {reason}", "; or ".join(one.text for one in why.remedies)), now_s
        nodes = {one.name: WoolyNode(one.name, one.drained, one.overcommit_vram_percent) for one in client.nodes().items}
        return Answers(found, {task: reason for task, (reason, _) in self._why.items()}, nodes)

    def _submit(self, client: Client, action: Submit) -> Reason | None:
        """Why there is no reservation; None: there is one. Blocks. Raises WoolyError when the controller cannot be asked."""
        last = ""
        for task in action.tasks:
            try:
                found = client.submit(id=task, queue=True, reservation=True, start_lease_ms=self._settings.start_lease_ms, **action.body)
            except ApiError as error:
                if error.status >= 500:
                    raise
                if error.status in (401, 403):
                    return Reason(f"the controller refuses the operator: {error.detail}", "give the operator the key of an admin")
                return Reason(f"the controller refuses the reservation: {error.detail}", "change the pod's annotations, or add devices")
            if found.state in ("queued", "started"):
                self._poked.set()
                return None
            last = f"{found.state}{f': {found.reason}' if found.reason else ''}"
            if found.state == "cancelled":
                break
        return Reason(f"its reservation is over before it could start ({last})", "delete the pod and create it again")

    # -- actions -----------------------------------------------------------------------------------------------------------------------

    async def _do(self, action: Action, client: Client, now_s: float, listed: set[str]) -> None:
        call = asyncio.to_thread
        match action:
            case Apply():
                await self._apply(action.object, now_s)
            case Submit():
                refused = await call(self._submit, client, action)
                if refused is None:
                    self._refused.pop(action.pod.uid, None)
                else:
                    self._refused[action.pod.uid] = refused, now_s + _REFUSED_S
                    self._poked.set()
            case Ungate():
                await self._ungate(action)
            case Release():
                if not (action.check and action.uid in listed):
                    await call(lambda: client.release(action.task, failed=action.failed, reason=action.reason))
            case Mirror():
                await self._mirror(action)
            case PoolStatus():
                body = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "GpuPool", "status": {"drainedNodes": list(action.drained)}}
                await self._patch(_POOLS.Status, action.pool, body)
            case Drain():
                await call(client.drain, action.node)
            case Resume():
                await call(client.resume, action.node)
                self._poked.set()
            case Overcommit():
                await call(lambda: client.configure_node(action.node, overcommit_vram_percent=action.percent))

    async def _ungate(self, action: Ungate) -> None:
        found = await self._kube.client.patch(
            KubePod, action.pod.name, action.patch, namespace=action.pod.namespace, patch_type=PatchType.JSON, field_manager=FIELD_MANAGER
        )
        self._kube.pods.put(found)
        get_logger().info("a pod may start", pod=f"{action.pod.namespace}/{action.pod.name}")

    async def _mirror(self, action: Mirror) -> None:
        pod = action.pod
        owner = {"apiVersion": "v1", "kind": "Pod", "name": pod.name, "uid": pod.uid}
        head = {"apiVersion": f"{GROUP}/{VERSION}", "kind": "WoolyTask"}
        body = {**head, "metadata": {"name": pod.name, "ownerReferences": [owner]}, "spec": action.spec}
        await self._patch(_TASKS, pod.name, body, pod.namespace)
        if action.event:
            await self._event(pod, action.event, str(action.status["phase"]))
        self._kube.tasks.put(await self._patch(_TASKS.Status, pod.name, {**head, "status": action.status}, pod.namespace))

    async def _event(self, pod: Pod, text: str, phase: str) -> None:
        """The same text again refreshes the event."""
        at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        digest = hashlib.blake2b(f"{pod.uid} {text}".encode(), digest_size=8).hexdigest()
        name = f"{pod.name[:230]}.{digest}"
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid},
            "type": "Normal" if phase in ("Placed", "Completed") else "Warning",
            "reason": f"Wooly{phase}",
            "message": text[:_EVENT_CHARS],
            "lastTimestamp": at,
            "source": {"component": FIELD_MANAGER},
            "reportingComponent": FIELD_MANAGER,
            "reportingInstance": self._settings.name,
        }
        await self._patch(Event, name, body, pod.namespace)

    async def _apply(self, wanted: Json, now_s: float) -> None:
        """Unless the same was applied in the last minute."""
        meta = wanted["metadata"]
        key, digest = (wanted["kind"], meta["namespace"], meta["name"]), msgspec.json.encode(wanted)
        held, at_s = self._applied.get(key, (b"", 0.0))
        if held == digest and now_s - at_s < _APPLY_S:
            return
        await self._patch(_APPLIED[wanted["kind"]], meta["name"], wanted, meta["namespace"])
        self._applied[key] = digest, now_s

    async def _patch(self, kind: Any, name: str, body: Mapping[str, Any], namespace: str | None = None) -> Any:
        """Server-side apply. Raises API_ERRORS."""
        body = {**body, "metadata": {"name": name, **({"namespace": namespace} if namespace else {}), **body.get("metadata", {})}}
        return await self._kube.client.patch(
            kind, name, body, namespace=namespace, patch_type=PatchType.APPLY, field_manager=FIELD_MANAGER, force=True
        )
