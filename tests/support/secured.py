"""A controller and billing with authentication on, and callers of every kind: each role in the cluster and in two tenants,
keys of nodes and services, narrowed ones, and those that open nothing any more.
"""

from __future__ import annotations

import http.client
import json
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import urlsplit

from bus_schemas.events import SessionOpenedFact
from services.kit.access.tokens import make_key
from services.kit.keyring import make_audit_key
from services.kit.process import free_port
from tests.support.fork_server import start_service
from tests.support.plane import GIB, Plane, wait_until
from tests.support.stack import plain_environment

__all__ = ["HOME", "OTHER", "PASSWORD", "Asker", "Reply", "Secured", "ask"]

HOME: Final = "acme"
OTHER: Final = "zebra"
"""The tenant whose things identities of HOME may not see: everything of it has this word in its name."""
PASSWORD: Final = "correct horse battery staple"


@dataclass(frozen=True, slots=True)
class Asker:
    """A caller. ``good`` False: their key is not valid."""

    name: str
    key: str
    role: str = ""
    tenant: str = ""
    scopes: tuple[str, ...] = ()
    good: bool = True

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: Any = None, **headers: str) -> Reply:
    """One request on a kept connection. ``body``: bytes as they are, anything else as JSON; ``_`` in a header's name stands for ``-``."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    if data is not None and "Content-Type" not in sent:
        sent["Content-Type"] = "application/json"
    connection.request(method, path, body=data, headers=sent)
    answer = connection.getresponse()
    return Reply(answer.status, answer.headers, answer.read())


class Secured:
    """``with Secured() as house``. ``askers``: by name; ``connect("controller" | "billing")`` for requests of one's own."""

    def __init__(self, **environment: str) -> None:
        self._own = tempfile.TemporaryDirectory()
        self.folder = Path(self._own.name)
        self.admin_key = make_key().text
        self.billing_url = f"http://127.0.0.1:{free_port()}"
        make_audit_key(self.folder)
        self._environment = {
            "WOOLY_AUTH": "on",
            "WOOLY_AUDIT_KEY": str(self.folder / "audit.key"),
            "WOOLY_BILLING_URL": self.billing_url,
            **environment,
        }
        self._plane = Plane(self.folder, WOOLY_BOOTSTRAP_KEY=self.admin_key, **self._environment)
        self.askers: dict[str, Asker] = {}
        self.ids: dict[str, dict[str, str]] = {}

    def __enter__(self) -> Self:
        self._plane.__enter__()
        try:
            self._start_billing()
            self._furnish()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        billing = getattr(self, "_billing", None)
        if billing is not None:
            billing.stop()
        self._plane.__exit__(kind, error, trace)
        self._own.cleanup()

    @property
    def plane(self) -> Plane:
        return self._plane

    def connect(self, service: str = "controller") -> http.client.HTTPConnection:
        url = self.billing_url if service == "billing" else self._plane.controller.url
        parts = urlsplit(url)
        return http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def admin(self, method: str, path: str, body: Any = None, service: str = "controller") -> Reply:
        """As the first admin; raises RuntimeError for a refusal."""
        connection = self.connect(service)
        try:
            found = ask(connection, method, path, body, Authorization=f"Bearer {self.admin_key}")
        finally:
            connection.close()
        if found.status >= 400:
            raise RuntimeError(f"{method} {path}: {found.status} {found.body.decode()}")
        return found

    def key(self, **wanted: Any) -> tuple[str, str]:
        """A new key (id, text)."""
        made = self.admin("POST", "/api/v1/keys", wanted).json
        return made["id"], made["key"]

    def _start_billing(self) -> None:
        environment = plain_environment(
            WOOLY_NATS_URL=self._plane.nats.url,
            WOOLY_HTTP=urlsplit(self.billing_url).netloc,
            WOOLY_DATA_DIR=str(self.folder / "billing"),
            **self._environment,
        )
        with (self.folder / "billing.log").open("ab") as log:
            self._billing = start_service("services.billing", env=environment, stderr=log)
        assert self._billing.stdout is not None
        if not self._billing.stdout.readline():
            raise RuntimeError("billing did not start:\n" + (self.folder / "billing.log").read_text()[-4000:])

    def _furnish(self) -> None:
        """Tenants with a task, a user and a key each; then all callers."""
        self._plane.register("node-a", gib=(8,))
        self.admin("POST", "/api/v1/groups", {"id": "team", "title": "Team"})
        for tenant in (HOME, OTHER):
            self.admin("POST", "/api/v1/tenants", {"id": tenant, "title": f"{tenant} limited"})
            self._people_of(tenant)
            self._task_of(tenant)
            self.admin("POST", "/api/v1/billing/grants", {"tenant": tenant, "micro": 5_000_000, "id": f"{tenant}-grant"}, "billing")
            budget = {"limit_micro": 9_000_000}
            self.admin("PUT", f"/api/v1/billing/budgets/{tenant}/month", budget, "billing")
        for role in ("admin", "operator", "viewer"):
            self.admin("POST", "/api/v1/users", {"id": f"root-{role}", "role": role, "tenant": ""})
            self._add(f"cluster {role}", role, "", user=f"root-{role}")
        for scope in ("read", "submit", "operate", "admin", "bus"):
            self._add(f"admin only {scope}", "admin", "", user="root-admin", scopes=[scope])
            self._add(f"{HOME} admin only {scope}", "admin", HOME, user=f"{HOME}-admin", scopes=[scope])
        for role, wanted in (("node", {"node": "node-a"}), ("service", {})):
            _, text = self.key(role=role, **wanted)
            self.askers[role] = Asker(role, text, role)
        self._spoiled()

    def _people_of(self, tenant: str) -> None:
        for role in ("admin", "operator", "member", "viewer"):
            user = f"{tenant}-{role}"
            self.admin("POST", "/api/v1/users", {"id": user, "role": role, "tenant": tenant, "title": f"{role} of {tenant}"})
            self._add(f"{tenant} {role}", role, tenant, user=user)
        key, _ = self.key(user=f"{tenant}-member", title=f"spare of {tenant}")
        self.ids[tenant] = {"tenant": tenant, "user": f"{tenant}-member", "key": key, "task": f"{tenant}-task"}

    def _task_of(self, tenant: str) -> None:
        task = f"{tenant}-task"
        title = f"training of {tenant}"
        self.admin("POST", "/api/v1/tasks", {"id": task, "tenant": tenant, "priority": 2, "required_vram_mb": 1024, "title": title})
        opened = SessionOpenedFact(time.time_ns(), f"{tenant}-session", tenant, task, "node-a", 0, 2, GIB, title=title)
        self._plane.publish("session", f"{tenant}-session", opened)

    def _add(self, name: str, role: str, tenant: str, **wanted: Any) -> None:
        _, text = self.key(title=f"for {name}", **wanted)
        self.askers[name] = Asker(name, text, role, tenant, tuple(wanted.get("scopes", ())))

    def _spoiled(self) -> None:
        """Keys that were good, each in another way no longer."""
        revoked, text = self.key(user="root-admin")
        self.admin("DELETE", f"/api/v1/keys/{revoked}")
        self.askers["revoked"] = Asker("revoked", text, good=False)
        _, text = self.key(user="root-admin", expires_in_s=1)
        self.askers["expired"] = Asker("expired", text, good=False)
        self.admin("POST", "/api/v1/users", {"id": "gone", "role": "admin", "tenant": ""})
        _, text = self.key(user="gone")
        self.admin("PATCH", "/api/v1/users/gone", {"disabled": True})
        self.askers["disabled user"] = Asker("disabled user", text, good=False)
        self.admin("POST", "/api/v1/tenants", {"id": "closed"})
        self.admin("POST", "/api/v1/users", {"id": "closed-admin", "role": "admin", "tenant": "closed"})
        _, text = self.key(user="closed-admin")
        self.admin("PATCH", "/api/v1/tenants/closed", {"disabled": True})
        self.askers["disabled tenant"] = Asker("disabled tenant", text, good=False)
        known, _ = self.key(user="root-admin")
        self.askers["wrong secret"] = Asker("wrong secret", f"wk_{known}_{make_key().secret}", good=False)
        self.askers["no form"] = Asker("no form", "wk_short_secret", good=False)
        self.askers["nobody"] = Asker("nobody", "", good=False)
        wait_until(self._expired)

    def _expired(self) -> bool:
        connection = self.connect()
        try:
            return ask(connection, "GET", "/api/v1/session", **self.headers(self.askers["expired"])).status == 401
        finally:
            connection.close()

    def headers(self, asker: Asker) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {asker.key}"} if asker.key else {}
