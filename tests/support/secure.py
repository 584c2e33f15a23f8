"""Starts a stack with authentication and TLS, as ``wooly up --secure`` does, with users and services that connect to it."""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nats.aio.client import Client

from bus_schemas.subjects import inbox_prefix
from services.kit.keyring import Keyring
from tests.support.stack import EmbeddedStack

__all__ = ["Line", "SecureStack", "line"]


class SecureStack(EmbeddedStack):
    """``admin``: its first key."""

    def __init__(self, folder: Path, *arguments: str, **environment: str) -> None:
        super().__init__(folder, "--secure", *arguments, WOOLY_BACKEND="host", **environment)

    @property
    def ring(self) -> Keyring:
        return Keyring(self.folder / "state" / "keyring")

    @property
    def admin(self) -> str:
        return self.ring.admin_key

    @property
    def context(self) -> ssl.SSLContext:
        return ssl.create_default_context(cafile=str(self.ring.ca))

    def ask(self, method: str, path: str, body: Any = None, *, key: str | None = None, service: str = "controller") -> Any:
        """The JSON answer. Raises urllib.error.HTTPError."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.admin if key is None else key}"}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.addresses[service] + path, data=data, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=60, context=self.context) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def tenant(self, name: str) -> None:
        self.ask("POST", "/api/v1/tenants", {"id": name})

    def key(self, **body: Any) -> str:
        """A new key's text."""
        made = self.ask("POST", "/api/v1/keys", body)
        return next(value for value in made.values() if isinstance(value, str) and value.startswith("wk_"))

    def client_environment(self, key: str = "", **more: str) -> dict[str, str]:
        own = {"WOOLY_API_KEY": key, "WOOLY_TLS_CA": str(self.ring.ca), "HOME": str(self.folder)}
        return super().client_environment(**own | more)


@dataclass
class Line:
    """A raw connection. ``refused``: what the bus said it may not."""

    client: Client
    refused: list[str] = field(default_factory=list)
    ended: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def line(stack: SecureStack, key: str = "", *, seed: str = "", inbox: str = "", at: str = "") -> AsyncIterator[Line]:
    """Connect with a key's text, with the seed of a service, or with nothing. ``at``: the address of one server of several. Raises
    nats.errors.Error."""
    client = Client()
    made = Line(client)

    async def heard(error: Exception) -> None:
        made.refused.append(str(error))

    async def gone() -> None:
        made.ended.set()

    _, _, rest = key.partition("_")
    principal, _, secret = rest.partition("_")
    who: dict[str, Any] = {"user": principal, "password": secret} if key else {}
    if seed:
        who = {"nkeys_seed_str": seed}
    await client.connect(
        at or stack.addresses["nats"],
        tls=stack.context,
        tls_handshake_first=True,
        allow_reconnect=False,
        max_reconnect_attempts=0,
        connect_timeout=20,
        error_cb=heard,
        disconnected_cb=gone,
        inbox_prefix=inbox or inbox_prefix(principal or "local"),
        **who,
    )
    try:
        yield made
    finally:
        await client.close()
