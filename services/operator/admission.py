"""The answer to the admission of a pod: the checks of its annotations, the scheduling gate and the variables of the client. Pure, and
idempotent: a pod that was changed before is not changed again.

Sources: the Kubernetes reference of AdmissionReview (admission.k8s.io/v1), RFC 6902 (JSON patch), RFC 6901 (its pointers).
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from services.operator.objects import ANNOTATED_TASK, ANNOTATED_TENANT, GATE, LABEL, NODE, RUNTIME, Invalid, WoolyCluster, wish_of

__all__ = ["AUDIENCE", "FILES", "KEY_PATH", "TRUST", "Injection", "answer", "changed", "refusal"]

FILES: Final = "/var/run/secrets/woolyai.com"
"""Where a pod finds what the operator gives it: the authorities of the cluster, and its own token."""
TRUST: Final = "wooly-ca"
"""The config map of each tenant's namespace with the authorities of the cluster, and the volume of a pod that shows it."""
KEY_PATH: Final = "/v1/key"
AUDIENCE: Final = "wooly"
_TOKEN_S: Final = 3600
_CONTAINERS: Final = ("initContainers", "containers")

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Injection:
    """What pods are given. ``operator_url``: where they exchange tokens for keys; empty: there is no authentication."""

    cluster: WoolyCluster
    operator_url: str = ""
    #: whether connections are encrypted, so that pods need the authorities
    trust: bool = False


def answer(review: Mapping[str, Any], given: Injection | None) -> Json:
    """The AdmissionReview that answers ``review``. Raises KeyError, TypeError and AttributeError for what is no review of a pod."""
    request = review["request"]
    pod, uid = request["object"], str(request["uid"])
    response: Json = {"uid": uid, "allowed": True}
    if request.get("operation", "CREATE") == "CREATE" and _ours(pod):
        why = refusal(pod)
        if not why and given is None:
            why = "the operator has found no WoolyCluster yet; create one, or repeat this in some seconds"
        if why or given is None:
            response = {"uid": uid, "allowed": False, "status": {"code": 400, "reason": "BadRequest", "message": why}}
        else:
            patch = _patch(pod, changed(pod, given))
            if patch:
                response |= {"patchType": "JSONPatch", "patch": base64.b64encode(msgspec.json.encode(patch)).decode()}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}


def _ours(pod: Mapping[str, Any]) -> bool:
    return (pod["metadata"].get("labels") or {}).get(LABEL) == RUNTIME


def refusal(pod: Mapping[str, Any]) -> str:
    """Why the pod is refused, and what to write instead; empty: it is not."""
    annotations = pod["metadata"].get("annotations") or {}
    try:
        wish_of(annotations)
    except Invalid as error:
        return str(error)
    ours = next((name for name in (ANNOTATED_TASK, ANNOTATED_TENANT, NODE) if name in annotations), None)
    if ours is not None:
        return f"annotation {ours} is written by the operator when the pod has a place; remove it"
    if pod["spec"].get("nodeName"):
        return "spec.nodeName is set, so the pod would start without waiting for its reservation; write a nodeSelector instead"
    return ""


def changed(pod: Mapping[str, Any], given: Injection) -> Json:
    """The pod with gate, variables and files; ``pod`` stays as it is, and is one that is not refused."""
    spec: Json = dict(pod["spec"])
    spec["schedulingGates"] = _with(spec.get("schedulingGates"), {"name": GATE})
    volume, mount = _volume(given)
    if volume is not None:
        spec["volumes"] = _with(spec.get("volumes"), volume)
    variables = _variables(pod, given)
    for kind in _CONTAINERS:
        if spec.get(kind):
            spec[kind] = [_container(one, variables, mount) for one in spec[kind]]
    return {**pod, "spec": spec}


def _container(container: Mapping[str, Any], variables: list[Json], mount: Json | None) -> Json:
    env = container.get("env")
    for variable in variables:
        env = _with(env, variable)
    out = {**container, "env": env}
    if mount is not None:
        out["volumeMounts"] = _with(container.get("volumeMounts"), mount)
    return out


def _with(items: list[Json] | None, item: Json) -> list[Json]:
    """``item`` in place of the one of its name, or at the end."""
    found = list(items or ())
    at = next((index for index, one in enumerate(found) if one["name"] == item["name"]), None)
    if at is None:
        return [*found, item]
    return [*found[:at], item, *found[at + 1 :]]


def _variables(pod: Mapping[str, Any], given: Injection) -> list[Json]:
    wish = wish_of(pod["metadata"]["annotations"])
    plain = {
        "CONTROLLER_URL": given.cluster.controller_url,
        "WOOLY_NATS_URL": ",".join(given.cluster.bus_urls),
        "WOOLYAI_SWAP_FROM_VRAM": "1" if wish.swap else "0",
    }
    if given.trust:
        plain["WOOLY_TLS_CA"] = f"{FILES}/ca.pem"
    if given.operator_url:
        plain |= {"WOOLY_TOKEN_FILE": f"{FILES}/token", "WOOLY_KEY_URL": given.operator_url + KEY_PATH}
    shown = {"WOOLY_TASK_ID": ANNOTATED_TASK, "WOOLY_TENANT": ANNOTATED_TENANT}
    return [
        *({"name": name, "value": value} for name, value in plain.items()),
        *(
            {"name": name, "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{annotation}']"}}}
            for name, annotation in shown.items()
        ),
    ]


def _volume(given: Injection) -> tuple[Json | None, Json | None]:
    """Volume and mount of FILES; None where a pod needs no files."""
    sources: list[Json] = []
    if given.trust:
        sources.append({"configMap": {"name": TRUST, "items": [{"key": "ca.pem", "path": "ca.pem"}]}})
    if given.operator_url:
        sources.append({"serviceAccountToken": {"audience": AUDIENCE, "expirationSeconds": _TOKEN_S, "path": "token"}})
    if not sources:
        return None, None
    return {"name": TRUST, "projected": {"sources": sources}}, {"name": TRUST, "mountPath": FILES, "readOnly": True}


def _patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Json]:
    """JSON patch of the fields of the spec that differ."""
    before, after = old["spec"], new["spec"]
    out: list[Json] = []
    for field in after:
        if field not in before:
            out.append({"op": "add", "path": f"/spec/{field}", "value": after[field]})
        elif before[field] != after[field]:
            out.append({"op": "replace", "path": f"/spec/{field}", "value": after[field]})
    return out
