"""What the operator reads from Kubernetes objects, as values: names of labels and annotations, quantities, pods, nodes, and the kinds of
group woolyai.com. Pure.

Sources: the Kubernetes API reference of Pod and Node (core/v1), and its page on quantities.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec

GROUP: Final = "woolyai.com"
VERSION: Final = "v1alpha1"
FIELD_MANAGER: Final = "wooly-operator"
LABEL, RUNTIME = "gpu-runtime", "woolyai"
"""A pod with this label and value asks for a device."""
GATE: Final = f"{GROUP}/placed"
VRAM, PRIORITY, POOL = f"{GROUP}/pod-vram", f"{GROUP}/priority", f"{GROUP}/pool"
EXCLUSIVE, SWAP = f"{GROUP}/exclusive-gpu-use", f"{GROUP}/swap-from-vram"
ANNOTATED_TASK, ANNOTATED_TENANT, NODE = f"{GROUP}/task", f"{GROUP}/tenant", f"{GROUP}/node"
"""Annotations that the operator writes when the reservation has a place."""

_QUANTITY: Final = re.compile(r"(\d{1,18}(?:\.\d{0,9})?|\.\d{1,9})(?:([kMGTPE]i?|Ki)|[eE](\d{1,2}))?", re.ASCII)
_MIB: Final = 1 << 20
_MIB_MAX: Final = 1 << 30


class Invalid(ValueError):
    """The text says what is wrong and what to write."""


def mib_of(name: str, text: str) -> int:
    """MiB (rounded up) of a Kubernetes quantity of memory, as ``name`` gave it. Raises Invalid."""
    match = _QUANTITY.fullmatch(text.strip())
    if match is None or match[2] == "ki":
        raise Invalid(f"{name} is {text[:40]!r}, which is no quantity of memory; write for example {name}: 16Gi")
    number, suffix, exponent = match.groups()
    scale = 10 ** int(exponent or 0)
    if suffix:
        scale = (1024 if suffix.endswith("i") else 1000) ** (1 + "KMGTPE".index(suffix[0].upper()))
    nbytes = int(Decimal(number) * scale)
    if nbytes < _MIB:
        raise Invalid(f"{name} is {text}: less than 1 MiB (a number without a unit counts bytes); write for example {name}: 16Gi")
    if nbytes > _MIB_MAX * _MIB:
        raise Invalid(f"{name} is {text}: more than any device has; write for example {name}: 16Gi")
    return -(-nbytes // _MIB)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a pod's annotations ask for. ``priority`` None, ``pool`` empty: not given."""

    vram_mib: int
    priority: int | None = None
    exclusive: bool = False
    swap: bool = True
    pool: str = ""


def wish_of(annotations: Mapping[str, str]) -> Wish:
    """Raises Invalid with the annotation and what to write."""
    if VRAM not in annotations:
        raise Invalid(f"annotation {VRAM} is required: the VRAM that the pod needs; write for example {VRAM}: 16Gi")
    priority = annotations.get(PRIORITY)
    if priority is not None and priority not in ("0", "1", "2", "3", "4"):
        raise Invalid(f'annotation {PRIORITY} is {priority[:40]!r}; write "0" (highest) to "4"')
    pool = annotations.get(POOL, "")
    if len(pool) > 253:
        raise Invalid(f"annotation {POOL} is longer than a name can be; write the name of a GpuPool")
    return Wish(
        mib_of(f"annotation {VRAM}", annotations[VRAM]),
        None if priority is None else int(priority),
        _boolean(annotations, EXCLUSIVE, default=False),
        _boolean(annotations, SWAP, default=True),
        pool,
    )


def _boolean(annotations: Mapping[str, str], name: str, *, default: bool) -> bool:
    text = annotations.get(name)
    if text is None:
        return default
    if text not in ("true", "false"):
        raise Invalid(f'annotation {name} is {text[:40]!r}; write "true" or "false"')
    return text == "true"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod that asks for a device. ``gate``: index of our gate in its spec, None when it has none. ``failure``: why it failed."""

    uid: str
    namespace: str
    name: str
    version: str
    phase: str
    annotations: Mapping[str, str]
    gate: int | None
    deleted: bool = False
    failure: str = ""

    @property
    def over(self) -> bool:
        """It needs no device any more: it has ended, or is deleted and never ran."""
        return self.phase in ("Succeeded", "Failed") or (self.deleted and self.gate is not None)


def read_pod(found: Mapping[str, Any]) -> Pod:
    meta, spec, status = found["metadata"], found.get("spec") or {}, found.get("status") or {}
    gates: Sequence[Mapping[str, Any]] = spec.get("schedulingGates") or ()
    return Pod(
        meta["uid"],
        meta["namespace"],
        meta["name"],
        meta["resourceVersion"],
        status.get("phase") or "Pending",
        meta.get("annotations") or {},
        next((index for index, gate in enumerate(gates) if gate["name"] == GATE), None),
        bool(meta.get("deletionTimestamp")),
        _failure(status),
    )


def _failure(status: Mapping[str, Any]) -> str:
    """In a few words, such as ``train: OOMKilled (exit code 137)``; empty: it has not failed."""
    if status.get("phase") != "Failed":
        return ""
    for container in status.get("containerStatuses") or ():
        ended = (container.get("state") or {}).get("terminated")
        if ended and ended.get("exitCode"):
            return f"{container['name']}: {ended.get('reason') or 'Error'} (exit code {ended['exitCode']})"
    return str(status.get("reason") or "the pod failed")[:200]


@dataclass(frozen=True, slots=True)
class KubeNode:
    """A node of Kubernetes; a node server on it has the same name."""

    name: str
    labels: Mapping[str, str]
    cordoned: bool


def read_node(found: Mapping[str, Any]) -> KubeNode:
    meta = found["metadata"]
    return KubeNode(meta["name"], meta.get("labels") or {}, bool((found.get("spec") or {}).get("unschedulable")))


class _Kind(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The spec of an object of our group, with its name and uid."""

    name: str = ""
    uid: str = ""


class SecretRef(msgspec.Struct, frozen=True):
    """A secret of the operator's namespace."""

    name: str = ""


class WoolyCluster(_Kind, frozen=True, kw_only=True):
    """The Wooly cluster that pods use. ``controller_url``, ``bus_urls``: as pods and node servers reach them."""

    controller_url: str = msgspec.field(name="controllerURL")
    bus_urls: tuple[str, ...] = msgspec.field(name="busURLs")
    default_pool: str = ""
    node_secret_ref: SecretRef = SecretRef()


class GpuPool(_Kind, frozen=True, kw_only=True):
    """Node servers on the Kubernetes nodes that ``node_selector`` names. ``groups``: those of Wooly that they join.
    ``overcommit_percent`` None: the controller's."""

    image: str = ""
    node_selector: dict[str, str] = {}
    groups: tuple[str, ...] = ()
    devices: int = 1
    backend: str = "cuda"
    #: of each device; None: what the device has
    vram_mb: int | None = None
    overcommit_percent: int | None = None
    #: as in a pod
    tolerations: tuple[dict[str, Any], ...] = ()
    #: as in a container
    resources: dict[str, dict[str, Any]] = {}
    #: Kubernetes nodes that are cordoned, and whose node servers the operator has drained
    drained: tuple[str, ...] = ()

    def has(self, node: KubeNode) -> bool:
        return all(node.labels.get(key) == value for key, value in self.node_selector.items())


class TenantPolicy(_Kind, frozen=True, kw_only=True):
    """Which tenant pays for the pods of a namespace. ``max_vram``: a quantity, the most that one pod may ask for; empty: no bound."""

    tenant: str
    namespaces: tuple[str, ...]
    default_priority: int | None = None
    max_vram: str = msgspec.field(default="", name="maxVRAM")


def policy_of(policies: Sequence[TenantPolicy], namespace: str) -> TenantPolicy | None:
    """The first that names the namespace: ``policies`` are in the order of their names."""
    return next((one for one in policies if namespace in one.namespaces), None)


def read_object(found: Mapping[str, Any], kind: type[Any]) -> Any:
    """A WoolyCluster, GpuPool or TenantPolicy. Raises msgspec.ValidationError for one that its schema does not allow."""
    drained = (found.get("status") or {}).get("drainedNodes")
    more = {"drained": drained} if drained and kind is GpuPool else {}
    return msgspec.convert({**found["spec"], **more, "name": found["metadata"]["name"], "uid": found["metadata"]["uid"]}, kind)
