"""A small Kubernetes API server over HTTPS, in a thread of the test: what
``tests/integration/test_kube_contract.py`` asserts of it, it asserts of the real one too (``make test-kube``).

It has resource versions, generations, conflicts, watches (with bookmarks, and 410 after ``compact``), every kind of patch, server-side
apply, status, finalizers, custom resources with their schemas, admission webhooks over TLS, tokens of service accounts. It is also the
controllers that a cluster has beside the API server: objects go with their owners, and with their namespace.

It has no RBAC, no defaults and no validation of Kubernetes' own kinds, but for the scheduling gates of pods.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import datetime
import json
import secrets
import socket
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import yaml

from services.kit.keyring import Authority
from tests.support.kube.access import ADMIN, write_kubeconfig
from tests.support.kube.patches import Conflict, Refused, applied, changed_by, json_patched, merge_patched, strategic_patched
from tests.support.kube.schemas import completed, errors_of

__all__ = ["FakeKube"]

Json = dict[str, Any]
_BUILT_IN: Final = """
v1: Namespace- Node- Pod ConfigMap Secret Service Endpoints ServiceAccount Event PersistentVolumeClaim ResourceQuota
apps/v1: Deployment DaemonSet StatefulSet ReplicaSet
batch/v1: Job CronJob
coordination.k8s.io/v1: Lease
events.k8s.io/v1: Event
rbac.authorization.k8s.io/v1: Role RoleBinding ClusterRole- ClusterRoleBinding-
admissionregistration.k8s.io/v1: MutatingWebhookConfiguration- ValidatingWebhookConfiguration-
apiextensions.k8s.io/v1: CustomResourceDefinition-
policy/v1: PodDisruptionBudget
networking.k8s.io/v1: NetworkPolicy
scheduling.k8s.io/v1: PriorityClass-
"""
"""A dash: not in a namespace."""
_PATCHES: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "application/merge-patch+json": merge_patched,
    "application/json-patch+json": json_patched,
    "application/strategic-merge-patch+json": strategic_patched,
}
_APPLY: Final = "application/apply-patch+yaml"
_REASONS: Final = {
    400: "BadRequest", 401: "Unauthorized", 404: "NotFound", 405: "MethodNotAllowed", 409: "Conflict", 410: "Expired",
    415: "UnsupportedMediaType", 422: "Invalid", 500: "InternalError",
}  # fmt: skip
_BOOKMARK_S: Final = 2.0


@dataclass(frozen=True)
class _Kind:
    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool
    status: bool = field(default=True, compare=False)
    schema: Json | None = field(default=None, compare=False)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def resource(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


class _Failure(Exception):
    def __init__(self, code: int, message: str, reason: str = "", **details: Any) -> None:
        super().__init__(message)
        self.code = code
        self.status = {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message,
            "reason": reason or _REASONS[code], "details": details, "code": code,
        }  # fmt: skip


class _NoKind(Exception):
    """There is no such path."""


@dataclass(frozen=True)
class _Call:
    """A request: ``name`` and ``sub`` empty where it names none; ``namespace`` empty: all, or the kind has none."""

    verb: str
    kind: _Kind
    namespace: str
    name: str
    sub: str
    query: dict[str, str]
    content_type: str
    body: Any
    agent: str

    @property
    def manager(self) -> str:
        return self.query.get("fieldManager") or self.agent.split("/")[0] or "unknown"

    @property
    def dry(self) -> bool:
        return "dryRun" in self.query


@dataclass
class _Stored:
    kinds: dict[tuple[str, str], _Kind] = field(default_factory=dict)
    objects: dict[tuple[_Kind, str, str], Json] = field(default_factory=dict)
    owners: dict[str, Any] = field(default_factory=dict)
    #: (resource version, kind, object before or None, object after or None)
    history: list[tuple[int, _Kind, Json | None, Json | None]] = field(default_factory=list)
    version: int = 1
    compacted: int = 0
    tokens: dict[str, Json] = field(default_factory=dict)


class FakeKube:
    """``kubeconfig``: a file for clients. ``stop`` and ``start`` are an outage: objects stay, and so does the port."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._stored = _Stored()
        self._changed = threading.Condition(threading.RLock())
        self._stopped = threading.Event()
        self._server: _Server | None = None
        for line in _BUILT_IN.strip().splitlines():
            api, names = line.split(": ")
            group, _, version = api.rpartition("/")
            for name in names.split():
                kind = name.rstrip("-")
                plural = kind.lower() + (
                    "ies" if kind.endswith("y") else "es" if kind.endswith("ss") else "" if kind.endswith("s") else "s"
                )
                plural = plural.replace("yies", "ies")
                known = _Kind(group, version, plural, kind, namespaced=not name.endswith("-"))
                self._stored.kinds[group, plural] = known
        for name in ("default", "kube-system"):
            self._commit(
                self._kind("", "namespaces"), "", name, None, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
            )
        authority = Authority.load_or_make(folder / "ca")
        authority.issue(folder / "server", ["127.0.0.1", "localhost"])
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._tls.load_cert_chain(folder / "server" / "cert.pem", folder / "server" / "key.pem")
        self._tls.set_alpn_protocols(["http/1.1"])
        self.ca = authority.certificate_file
        self.kubeconfig = folder / "kubeconfig"
        self._port = 0

    # -- what tests call ---------------------------------------------------------------------------------------------------------------

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self._port}"

    def start(self) -> None:
        self._stopped.clear()
        self._server = _Server(("127.0.0.1", self._port), self, self._tls)
        self._port = self._server.server_address[1]
        write_kubeconfig(self.kubeconfig, self.url, self.ca)
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        with self._changed:
            self._stopped.set()
            self._changed.notify_all()
        self._server.shutdown()
        self._server.close_all()
        self._server.server_close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    def compact(self) -> None:
        """Forget the history: a watch from an earlier resource version is answered with 410."""
        with self._changed:
            self._stored.compacted = self._stored.version
            self._stored.history.clear()

    # -- requests ----------------------------------------------------------------------------------------------------------------------

    def answer(self, call: _Call) -> tuple[int, Any]:
        """Status and body; the body of a watch is an iterator of events."""
        if call.verb == "POST" and call.name and call.sub == "token":
            return 201, self._token(call)
        match call.verb, bool(call.name):
            case "GET", True:
                with self._changed:
                    return 200, self._found(call)
            case "GET", False:
                return 200, self._watch(call) if call.query.get("watch") in ("1", "true") else self._list(call)
            case "POST", False:
                return 201, self._create(call)
            case "PUT", True:
                return 200, self._write(call, lambda old: self._put(call, old))
            case "PATCH", True:
                return self._patch(call)
            case "DELETE", True:
                return 200, self._delete(call)
            case "DELETE", False:
                with self._changed:
                    found = self._list(call)["items"]
                for one in found:
                    meta = one["metadata"]
                    self._delete(replace(call, name=meta["name"], namespace=meta.get("namespace", "")))
                return 200, {"kind": "Status", "apiVersion": "v1", "status": "Success"}
        raise _Failure(405, "the server does not allow this method on the requested resource")

    def call_of(self, verb: str, path: str, content_type: str, body: bytes, agent: str) -> _Call:
        url = urllib.parse.urlsplit(path)
        steps = [urllib.parse.unquote(step) for step in url.path.strip("/").split("/")]
        group, rest = ("", steps[2:]) if steps[0] == "api" else (steps[1] if len(steps) > 1 else "", steps[3:])
        namespace = ""
        if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
            namespace, rest = rest[1], rest[2:]
        if not rest:
            raise _NoKind
        plural, name, sub = [*rest, "", ""][:3]
        parsed = json.loads(body) if body and content_type != _APPLY else yaml.safe_load(body) if body else None
        query = dict(urllib.parse.parse_qsl(url.query, keep_blank_values=True))
        return _Call(verb, self._kind(group, plural), namespace, name, sub, query, content_type, parsed, agent)

    def reviewed(self, body: Json) -> Json:
        """A TokenReview with its answer."""
        spec = body["spec"]
        found = self._stored.tokens.get(spec["token"])
        wanted = spec.get("audiences") or ["api"]
        both = [one for one in wanted if found and one in found["audiences"]]
        if found is None or not both or found["expires"] < time.time():
            return {**body, "status": {"user": {}, "error": "invalid bearer token"}}
        namespace, name = found["namespace"], found["name"]
        groups = ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"]
        user: Json = {"username": f"system:serviceaccount:{namespace}:{name}", "uid": found["uid"], "groups": groups}
        if found["pod"]:
            user["extra"] = {
                "authentication.kubernetes.io/pod-name": [found["pod"]["name"]],
                "authentication.kubernetes.io/pod-uid": [found["pod"]["uid"]],
            }
        return {**body, "status": {"authenticated": True, "user": user, "audiences": both}}

    def knows(self, token: str) -> bool:
        return token == ADMIN or token in self._stored.tokens

    def _token(self, call: _Call) -> Json:
        with self._changed:
            account = self._found(replace(call, sub=""))
            spec = call.body.get("spec") or {}
            bound = spec.get("boundObjectRef")
            if bound:
                pod = self._stored.objects.get((self._kind("", "pods"), call.namespace, bound["name"]))
                if pod is None or pod["metadata"]["uid"] != bound.get("uid", pod["metadata"]["uid"]):
                    raise _Failure(404, f'pods "{bound["name"]}" not found')
                bound = {"name": bound["name"], "uid": pod["metadata"]["uid"]}
            token = "fake." + secrets.token_urlsafe(24)
            life_s = spec.get("expirationSeconds", 3600)
            self._stored.tokens[token] = {
                "namespace": call.namespace, "name": call.name, "uid": account["metadata"]["uid"], "pod": bound,
                "audiences": spec.get("audiences") or ["api"], "expires": time.time() + life_s,
            }  # fmt: skip
            ends = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=life_s)
            return {**call.body, "status": {"token": token, "expirationTimestamp": f"{ends:%Y-%m-%dT%H:%M:%SZ}"}}

    def _kind(self, group: str, plural: str) -> _Kind:
        try:
            return self._stored.kinds[group, plural]
        except KeyError:
            raise _NoKind from None

    def _found(self, call: _Call) -> Json:
        found = self._stored.objects.get((call.kind, call.namespace, call.name))
        if found is None or call.sub not in ("", "status"):
            raise _Failure(404, f'{call.kind.resource} "{call.name}" not found', name=call.name, kind=call.kind.plural)
        return found

    # -- reading -----------------------------------------------------------------------------------------------------------------------

    def _matching(self, call: _Call) -> list[Json]:
        return [
            one for (kind, namespace, _), one in sorted(self._stored.objects.items(), key=lambda item: item[0][1:])
            if kind == call.kind and call.namespace in ("", namespace) and _selected(one, call.query)
        ]  # fmt: skip

    def _list(self, call: _Call) -> Json:
        with self._changed:
            items, version = self._matching(call), str(self._stored.version)
            meta: Json = {"resourceVersion": version}
            if call.query.get("continue"):
                version, after = json.loads(base64.b64decode(call.query["continue"]))
                if int(version) < self._stored.compacted:
                    raise _Failure(410, "The provided continue parameter is too old to display a consistent list result.")
                meta["resourceVersion"] = version
                items = [one for one in items if _place(one) > after]
            limit = int(call.query.get("limit") or 0)
            if limit and len(items) > limit:
                meta["remainingItemCount"] = len(items) - limit
                items = items[:limit]
                meta["continue"] = base64.b64encode(json.dumps([version, _place(items[-1])]).encode()).decode()
            return {"kind": call.kind.kind + "List", "apiVersion": call.kind.api_version, "metadata": meta, "items": items}

    def _watch(self, call: _Call) -> Iterator[Json]:
        deadline = time.monotonic() + float(call.query.get("timeoutSeconds") or 1800)
        with self._changed:
            first: list[Json] = []
            if call.query.get("resourceVersion") in (None, "", "0"):
                first = [{"type": "ADDED", "object": one} for one in self._matching(call)]
                seen = self._stored.version
            else:
                seen = int(call.query["resourceVersion"])
        return self._events(call, first, seen, deadline)

    def _events(self, call: _Call, first: list[Json], seen: int, deadline: float) -> Iterator[Json]:
        yield from first
        marked = time.monotonic()
        while not self._stopped.is_set():
            with self._changed:
                if seen < self._stored.compacted:
                    failure = _Failure(410, f"too old resource version: {seen} ({self._stored.compacted})")
                    yield {"type": "ERROR", "object": failure.status}
                    return
                news = [one for one in self._stored.history if one[0] > seen]
                seen = self._stored.version
                left = deadline - time.monotonic()
                if not news and left > 0:
                    self._changed.wait(min(left, _BOOKMARK_S))
            for _, kind, old, new in news:
                event = _event(call, old, new) if kind == call.kind else None
                if event is not None:
                    yield event
            if call.query.get("allowWatchBookmarks") == "true" and (left <= 0 or time.monotonic() - marked > _BOOKMARK_S):
                marked = time.monotonic()
                meta = {"resourceVersion": str(seen)}
                yield {"type": "BOOKMARK", "object": {"kind": call.kind.kind, "apiVersion": call.kind.api_version, "metadata": meta}}
            if left <= 0:
                return

    # -- writing -----------------------------------------------------------------------------------------------------------------------

    def _create(self, call: _Call) -> Json:
        new = copy.deepcopy(call.body)
        meta = new.setdefault("metadata", {})
        if not meta.get("name"):
            if not meta.get("generateName"):
                raise _Failure(422, f'{call.kind.kind} "" is invalid: metadata.name: Required value: name or generateName is required')
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        if call.kind.namespaced:
            if not call.namespace or meta.setdefault("namespace", call.namespace) != call.namespace:
                raise _Failure(400, "the namespace of the provided object does not match the namespace sent on the request")
        if meta.get("resourceVersion"):
            raise _Failure(500, "resourceVersion should not be set on objects to be created")
        if call.kind.status:
            new.pop("status", None)
        new = self._admitted(call, "CREATE", None, new)
        new = self._valid(call.kind, None, new)
        with self._changed:
            if call.kind.namespaced and (self._kind("", "namespaces"), "", call.namespace) not in self._stored.objects:
                raise _Failure(404, f'namespaces "{call.namespace}" not found')
            if (call.kind, call.namespace, meta["name"]) in self._stored.objects:
                raise _Failure(409, f'{call.kind.resource} "{meta["name"]}" already exists', "AlreadyExists")
            if call.dry:
                return _born(new)
            operation = "Apply" if call.content_type == _APPLY else "Update"
            return self._commit(call.kind, call.namespace, meta["name"], None, new, (call.manager, operation, ""))

    def _put(self, call: _Call, old: Json) -> Json:
        new = copy.deepcopy(call.body)
        version = new.get("metadata", {}).get("resourceVersion")
        if not version and (call.kind.schema is not None or call.kind.plural in ("leases", "customresourcedefinitions")):
            text = "metadata.resourceVersion: Invalid value: 0x0: must be specified for an update"
            raise _Failure(422, f'{call.kind.resource} "{call.name}" is invalid: {text}')
        if version and version != old["metadata"]["resourceVersion"]:
            raise self._outdated(call)
        return new

    def _outdated(self, call: _Call) -> _Failure:
        changed = "the object has been modified; please apply your changes to the latest version and try again"
        return _Failure(409, f'Operation cannot be fulfilled on {call.kind.resource} "{call.name}": {changed}')

    def _patch(self, call: _Call) -> tuple[int, Json]:
        if call.content_type == _APPLY:
            with self._changed:
                there = (call.kind, call.namespace, call.name) in self._stored.objects
            if not call.query.get("fieldManager"):
                raise _Failure(400, "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value: is required for apply patch")
            if not there:
                body = {**call.body, "metadata": {**call.body.get("metadata", {}), "name": call.name}}
                return 201, self._create(replace(call, name="", body=body))
            return 200, self._write(call, lambda old: self._apply(call, old))
        change = _PATCHES.get(call.content_type)
        if change is None or (change is strategic_patched and call.kind.schema is not None):
            raise _Failure(415, f"the body of the request was in an unknown format: {call.content_type}")

        def patched(old: Json) -> Json:
            try:
                new: Json = change(old, call.body)
            except Refused as error:
                raise _Failure(422, f"the server rejected our request due to an error in our request: {error}") from None
            if new["metadata"].get("resourceVersion") != old["metadata"]["resourceVersion"]:
                raise self._outdated(call)
            return new

        return 200, self._write(call, patched)

    def _apply(self, call: _Call, old: Json) -> Json:
        version = call.body.get("metadata", {}).get("resourceVersion")
        if version and version != old["metadata"]["resourceVersion"]:
            raise self._outdated(call)
        uid = old["metadata"]["uid"]
        owner = (call.manager, "Apply", call.sub)
        try:
            new, owners = applied(old, call.body, self._stored.owners.get(uid, {}), owner, force=call.query.get("force") in ("true", "1"))
        except Conflict as error:
            fields = "\n".join(f'conflict with "{manager}": {path}' for manager, path in error.fields)
            count = f"{len(error.fields)} conflict{'s' if len(error.fields) > 1 else ''}"
            raise _Failure(409, f"Apply failed with {count}: {fields}") from None
        if not call.dry:
            self._stored.owners[uid] = owners
        return new

    def _write(self, call: _Call, change: Callable[[Json], Json]) -> Json:
        """Change an object: ``change`` is called again where another request was faster."""
        while True:
            with self._changed:
                old = self._found(call)
                new = self._kept(call, old, change(old))
            new = self._admitted(call, "UPDATE", old, new)
            new = self._valid(call.kind, old, new, status=call.sub == "status")
            with self._changed:
                if self._stored.objects.get((call.kind, call.namespace, call.name)) is not old:
                    continue
                if call.dry or old == new:
                    return new if call.dry else old
                owner = None if call.content_type == _APPLY else (call.manager, "Update", call.sub)
                return self._commit(call.kind, call.namespace, call.name, old, new, owner)

    def _kept(self, call: _Call, old: Json, new: Json) -> Json:
        """``new`` with what a request cannot change."""
        meta = {**new.get("metadata", {})}
        if meta.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
            raise _Failure(
                409, f'Operation cannot be fulfilled on {call.kind.resource} "{call.name}": Precondition failed: UID in precondition'
            )
        for name in ("uid", "resourceVersion", "generation", "creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "name",
                     "namespace", "managedFields"):  # fmt: skip
            meta.pop(name, None)
            if name in old["metadata"]:
                meta[name] = old["metadata"][name]
        if call.kind.status and call.sub == "status":
            return {**old, "metadata": old["metadata"], "status": new.get("status", {})}
        new = {**new, "apiVersion": old["apiVersion"], "kind": old["kind"], "metadata": meta}
        if call.kind.status:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
        return new

    def _valid(self, kind: _Kind, old: Json | None, new: Json, *, status: bool = False) -> Json:
        name = new["metadata"]["name"]
        if kind.schema is not None:
            new = completed(new, kind.schema)
            found = errors_of(new, kind.schema)
            if found:
                shown = found[0] if len(found) == 1 else f"[{', '.join(found)}]"
                raise _Failure(422, f'{kind.kind}.{kind.group} "{name}" is invalid: {shown}')
        if kind.plural == "secrets" and "stringData" in new:
            texts = {key: base64.b64encode(value.encode()).decode() for key, value in new.pop("stringData").items()}
            new["data"] = {**new.get("data", {}), **texts}
        if kind.plural == "pods" and not status:
            new = _pod(old, new)
        return new

    def _commit(self, kind: _Kind, namespace: str, name: str, old: Json | None, new: Json, owner: Any = None) -> Json:
        """Store ``new`` in place of ``old``; what is being deleted and has no finalizer any more is removed."""
        with self._changed:
            new = copy.deepcopy(new)
            new.setdefault("apiVersion", kind.api_version)
            new.setdefault("kind", kind.kind)
            meta = new["metadata"]
            if old is None:
                new = _born(new)
                meta = new["metadata"]
            elif {**old, "metadata": 0, "status": 0} != {**new, "metadata": 0, "status": 0} and "generation" in meta:
                meta["generation"] += 1
            if owner is not None:
                before = old or {}
                self._stored.owners[meta["uid"]] = changed_by(before, new, self._stored.owners.get(meta["uid"], {}), owner)
            owners = self._stored.owners.get(meta["uid"], {})
            meta["managedFields"] = [
                {"manager": one[0], "operation": one[1], "apiVersion": kind.api_version} | ({"subresource": one[2]} if one[2] else {})
                for one in owners
            ]
            self._stored.version += 1
            meta["resourceVersion"] = str(self._stored.version)
            if meta.get("deletionTimestamp") and not meta.get("finalizers") and not meta.get("deletionGracePeriodSeconds"):
                self._remove(kind, namespace, name, old, new)
            else:
                if kind.plural == "customresourcedefinitions":
                    self._define(new)
                self._stored.objects[kind, namespace, name] = new
                self._stored.history.append((self._stored.version, kind, old, new))
            self._changed.notify_all()
            return new

    def _define(self, crd: Json) -> None:
        spec = crd["spec"]
        served = next(one for one in spec["versions"] if one["served"])
        schema = served["schema"]["openAPIV3Schema"]
        status = "status" in (served.get("subresources") or {})
        names = spec["names"]
        known = _Kind(spec["group"], served["name"], names["plural"], names["kind"], spec["scope"] == "Namespaced", status, schema)
        self._stored.kinds[spec["group"], names["plural"]] = known
        conditions = [{"type": name, "status": "True", "reason": "fake", "message": ""} for name in ("NamesAccepted", "Established")]
        crd["status"] = {"conditions": conditions, "acceptedNames": names, "storedVersions": [served["name"]]}

    def _delete(self, call: _Call) -> Json:
        with self._changed:
            old = self._found(call)
            wanted = (call.body or {}).get("preconditions") or {}
            for name in ("uid", "resourceVersion"):
                if wanted.get(name) not in (None, old["metadata"][name]):
                    text = f"Precondition failed: {name} in precondition: {wanted[name]}, {name} in object meta: {old['metadata'][name]}"
                    raise _Failure(409, f'Operation cannot be fulfilled on {call.kind.resource} "{call.name}": {text}')
        self._admitted(call, "DELETE", old, None)
        with self._changed:
            old = self._found(call)
            if call.dry:
                return old
            new = copy.deepcopy(old)
            grace_s = (call.body or {}).get("gracePeriodSeconds", call.query.get("gracePeriodSeconds"))
            running = (
                call.kind.plural == "pods" and (old.get("spec") or {}).get("nodeName") and old["status"]["phase"] in ("Pending", "Running")
            )
            new["metadata"].setdefault("deletionTimestamp", _now())
            new["metadata"]["deletionGracePeriodSeconds"] = int(grace_s if grace_s is not None else 30) if running else 0
            if old["metadata"].get("deletionTimestamp") and new == old:
                return old
            return self._commit(call.kind, call.namespace, call.name, old, new)

    def _remove(self, kind: _Kind, namespace: str, name: str, old: Json | None, last: Json) -> None:
        """With what it owns, or holds."""
        self._stored.objects.pop((kind, namespace, name), None)
        self._stored.owners.pop(last["metadata"]["uid"], None)
        self._stored.history.append((self._stored.version, kind, {**(old or last), "metadata": last["metadata"]}, None))
        uid = last["metadata"]["uid"]
        for (other, space, called), one in list(self._stored.objects.items()):
            owners = one["metadata"].get("ownerReferences") or []
            uids = {thing["metadata"]["uid"] for thing in self._stored.objects.values()}
            owned = any(owner["uid"] == uid for owner in owners) and not any(owner["uid"] in uids for owner in owners)
            inside = kind.plural == "namespaces" and not kind.group and space == name
            custom = kind.plural == "customresourcedefinitions" and other.resource == name
            if (owned or inside or custom) and (other, space, called) in self._stored.objects:
                gone = copy.deepcopy(one)
                gone["metadata"].setdefault("deletionTimestamp", _now())
                self._commit(other, space, called, one, gone)
        if kind.plural == "customresourcedefinitions":
            self._stored.kinds.pop((last["spec"]["group"], last["spec"]["names"]["plural"]), None)

    # -- admission ---------------------------------------------------------------------------------------------------------------------

    def _admitted(self, call: _Call, operation: str, old: Json | None, new: Json | None) -> Any:
        """``new`` as the webhooks want it. Called without the lock: a webhook may ask this server."""
        if call.kind.group == "admissionregistration.k8s.io":
            return new
        again: list[Json] = []
        for hook in self._hooks("mutatingwebhookconfigurations", call, operation, old, new):
            changed = self._asked(hook, call, operation, old, new, mutates=True)
            if changed != new:
                earlier, again, new = again, [], changed
                for one in earlier:
                    new = self._asked(one, call, operation, old, new, mutates=True)
            if hook.get("reinvocationPolicy") == "IfNeeded":
                again.append(hook)
        for hook in self._hooks("validatingwebhookconfigurations", call, operation, old, new):
            self._asked(hook, call, operation, old, new, mutates=False)
        return new

    def _hooks(self, plural: str, call: _Call, operation: str, old: Json | None, new: Json | None) -> list[Json]:
        with self._changed:
            found = [
                one for (kind, _, name), one in sorted(self._stored.objects.items(), key=lambda item: item[0][2]) if kind.plural == plural
            ]
            space = self._stored.objects.get((self._kind("", "namespaces"), "", call.namespace), {"metadata": {}})
        labels = {"kubernetes.io/metadata.name": call.namespace, **(space["metadata"].get("labels") or {})}
        out = []
        for hook in (one for configuration in found for one in configuration.get("webhooks") or []):
            ruled = any(
                _in(operation, rule["operations"]) and _in(call.kind.group, rule["apiGroups"])
                and _in(call.kind.version, rule["apiVersions"]) and _in(f"{call.kind.plural}/{call.sub}".rstrip("/"), rule["resources"])
                for rule in hook["rules"]
            )  # fmt: skip
            objects = [one["metadata"].get("labels") or {} for one in (old, new) if one is not None]
            chosen = any(_meets(hook.get("objectSelector"), one) for one in objects)
            if ruled and chosen and (not call.kind.namespaced or _meets(hook.get("namespaceSelector"), labels)):
                out.append(hook)
        return out

    def _asked(self, hook: Json, call: _Call, operation: str, old: Json | None, new: Json | None, *, mutates: bool) -> Any:
        name = hook["name"]
        shown = {"group": call.kind.group, "version": call.kind.version}
        request = {
            "uid": secrets.token_hex(16), "kind": {**shown, "kind": call.kind.kind}, "resource": {**shown, "resource": call.kind.plural},
            "name": call.name or (new or {}).get("metadata", {}).get("name", ""), "namespace": call.namespace, "operation": operation,
            "userInfo": {"username": "kubernetes-admin"}, "object": new, "oldObject": old, "dryRun": call.dry,
            **({"subResource": call.sub} if call.sub else {}),
        }  # fmt: skip
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
        try:
            answer = self._posted(hook, review)["response"]
            if answer["uid"] != request["uid"]:
                raise ValueError(f"expected response.uid={request['uid']}, got {answer['uid']}")
        except (OSError, ValueError, KeyError, TypeError) as error:
            if hook.get("failurePolicy", "Fail") == "Ignore":
                return new
            raise _Failure(500, f'Internal error occurred: failed calling webhook "{name}": {error}') from None
        if not answer["allowed"]:
            status = answer.get("status") or {}
            why = status.get("message") or status.get("reason")
            text = f'admission webhook "{name}" denied the request' + (f": {why}" if why else " without explanation")
            failure = _Failure(400, text, status.get("reason") or "BadRequest")
            failure.code = failure.status["code"] = max(status.get("code") or 400, 400)
            raise failure
        if not mutates or not answer.get("patch"):
            return new
        try:
            return json_patched(new, json.loads(base64.b64decode(answer["patch"])))
        except Refused as error:
            raise _Failure(500, f'Internal error occurred: failed applying the patch of webhook "{name}": {error}') from None

    def _posted(self, hook: Json, review: Json) -> Any:
        config = hook["clientConfig"]
        context = ssl.create_default_context(cadata=base64.b64decode(config.get("caBundle", "")).decode() or None)
        url, host = config.get("url", ""), ""
        if not url:
            # as the real server does: the address of the service, and its name for the certificate; tests give an external name
            ref = config["service"]
            host = f"{ref['name']}.{ref['namespace']}.svc"
            with self._changed:
                service = self._stored.objects.get((self._kind("", "services"), ref["namespace"], ref["name"]))
            if service is None:
                raise ValueError(f'service "{ref["name"]}" not found')
            at = service["spec"].get("externalName") or service["spec"].get("clusterIP") or "127.0.0.1"
            url = f"https://{at}:{ref.get('port', 443)}{ref.get('path', '')}"
        separator = "&" if "?" in url else "?"
        timeout_s = hook.get("timeoutSeconds", 10)
        request = urllib.request.Request(
            f"{url}{separator}timeout={timeout_s}s", json.dumps(review).encode(), {"Content-Type": "application/json"}
        )
        handler = _NamedTls(context, host) if host else urllib.request.HTTPSHandler(context=context)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), handler)
        with opener.open(request, timeout=timeout_s) as reply:
            return json.load(reply)


class _NamedTls(urllib.request.HTTPSHandler):
    """HTTPS to an address whose certificate bears another name."""

    def __init__(self, context: ssl.SSLContext, host: str) -> None:
        wrap = context.wrap_socket
        context.wrap_socket = lambda sock, **options: wrap(sock, **{**options, "server_hostname": host})  # type: ignore[method-assign]
        super().__init__(context=context)


# -- rules of objects ------------------------------------------------------------------------------------------------------------------


def _now() -> str:
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}"


def _born(new: Json) -> Json:
    h = secrets.token_hex(16)
    uid = f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}"
    meta = {**new["metadata"], "uid": uid, "creationTimestamp": _now()}
    if "spec" in new and new["kind"] != "Pod":
        meta["generation"] = 1
    return {**new, "metadata": meta}


def _pod(old: Json | None, new: Json) -> Json:
    gates = [one["name"] for one in new["spec"].get("schedulingGates") or []]
    name = new["metadata"]["name"]
    if old is None:
        if gates and new["spec"].get("nodeName"):
            raise _Failure(
                422, f'Pod "{name}" is invalid: spec.nodeName: Forbidden: cannot be set until all schedulingGates have been cleared'
            )
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
        return {**new, "status": {"phase": "Pending", **({"conditions": [condition]} if gates else {})}}
    held = [one["name"] for one in old["spec"].get("schedulingGates") or []]
    if set(gates) - set(held):
        text = "Forbidden: only deletion is allowed, but found new scheduling gate"
        raise _Failure(422, f"Pod \"{name}\" is invalid: spec.schedulingGates: {text} '{min(set(gates) - set(held))}'")
    if _fixed(old["spec"]) != _fixed(new["spec"]):
        raise _Failure(
            422, f'Pod "{name}" is invalid: spec: Forbidden: pod updates may not change fields other than `spec.containers[*].image`'
        )
    return new


def _fixed(spec: Json) -> Json:
    """What of a pod stays as it was made."""
    out = {key: value for key, value in spec.items() if key not in ("schedulingGates", "tolerations", "activeDeadlineSeconds", "nodeName")}
    for kind in ("containers", "initContainers"):
        if kind in out:
            out[kind] = [{**one, "image": ""} for one in out[kind]]
    return out


def _place(one: Json) -> list[str]:
    return [one["metadata"].get("namespace", ""), one["metadata"]["name"]]


def _event(call: _Call, old: Json | None, new: Json | None) -> Json | None:
    """As this watch sees it: what comes into its selection is added, what leaves it is deleted."""
    was, is_ = (
        one is not None and call.namespace in ("", one["metadata"].get("namespace", "")) and _selected(one, call.query)
        for one in (old, new)
    )
    if not was and not is_:
        return None
    what = "MODIFIED" if was and is_ else "ADDED" if is_ else "DELETED"
    return {"type": what, "object": new if is_ or new is not None else old}


def _selected(one: Json, query: dict[str, str]) -> bool:
    labels = one["metadata"].get("labels") or {}
    for term in filter(None, _terms(query.get("labelSelector", ""))):
        if not _term(term, labels):
            return False
    for term in filter(None, query.get("fieldSelector", "").split(",")):
        path, _, value = term.replace("==", "=").partition("=")
        negated = path.endswith("!")
        found: Any = one
        for step in path.rstrip("!").split("."):
            found = found.get(step, "") if isinstance(found, dict) else ""
        if (str(found) == value) == negated:
            return False
    return True


def _terms(selector: str) -> list[str]:
    """Split at commas that are not in parentheses."""
    out, depth = [""], 0
    for letter in selector:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            out.append("")
        else:
            out[-1] += letter
    return [term.strip() for term in out]


def _term(term: str, labels: dict[str, str]) -> bool:
    for word, wanted in ((" notin ", False), (" in ", True)):
        if word in term:
            key, _, values = term.partition(word)
            return (labels.get(key.strip()) in [one.strip() for one in values.strip(" ()").split(",")]) == wanted
    if "=" not in term:
        return (term.lstrip("!") in labels) != term.startswith("!")
    key, _, value = term.replace("==", "=").partition("=")
    return (labels.get(key.rstrip("!").strip()) == value.strip()) != key.endswith("!")


def _in(value: str, patterns: list[str]) -> bool:
    return value in patterns or "*" in patterns or ("*/*" in patterns)


def _meets(selector: Json | None, labels: dict[str, str]) -> bool:
    """A selector of labels; an empty one takes everything."""
    for rule in (selector or {}).get("matchExpressions") or []:
        held, values = labels.get(rule["key"]), rule.get("values") or []
        fits = {"In": held in values, "NotIn": held not in values, "Exists": held is not None, "DoesNotExist": held is None}
        if not fits[rule["operator"]]:
            return False
    return all(labels.get(key) == value for key, value in ((selector or {}).get("matchLabels") or {}).items())


# -- HTTP ------------------------------------------------------------------------------------------------------------------------------


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    request_queue_size = 128

    def __init__(self, address: tuple[str, int], kube: FakeKube, tls: ssl.SSLContext) -> None:
        self.kube = kube
        self._tls = tls
        self._open: set[socket.socket] = set()
        super().__init__(address, _Handler)

    def get_request(self) -> tuple[socket.socket, Any]:
        plain, address = super().get_request()
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        wrapped = self._tls.wrap_socket(plain, server_side=True, do_handshake_on_connect=False)
        self._open.add(wrapped)
        return wrapped, address

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away, or did not trust us: nothing to say."""

    def close_all(self) -> None:
        for one in list(self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def _do(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        kube = self.server.kube
        try:
            scheme, _, token = self.headers.get("Authorization", "").partition(" ")
            if scheme != "Bearer" or not kube.knows(token):
                raise _Failure(401, "Unauthorized")
            path = self.path.partition("?")[0]
            if path in ("/healthz", "/readyz", "/livez"):
                return self._send(200, "ok")
            if path == "/version":
                return self._send(200, {"major": "1", "minor": "37", "gitVersion": "v1.37.0-fake"})
            if path == "/apis/authentication.k8s.io/v1/tokenreviews" and self.command == "POST":
                return self._send(201, kube.reviewed(json.loads(body)))
            call = kube.call_of(
                self.command, self.path, self.headers.get("Content-Type", "").split(";")[0], body, self.headers.get("User-Agent", "")
            )
            code, answer = kube.answer(call)
        except _NoKind:
            return self._send(404, "404 page not found\n")
        except _Failure as failure:
            return self._send(failure.code, failure.status)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            return self._send(400, _Failure(400, f"the request cannot be read: {error!r}").status)
        return self._send(code, answer) if isinstance(answer, dict) else self._stream(answer)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _do

    def _send(self, code: int, body: Any) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _stream(self, events: Iterator[Json]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        for event in events:
            line = json.dumps(event).encode() + b"\n"
            self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")
