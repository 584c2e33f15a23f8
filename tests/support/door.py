"""Requests to a controller that authenticates, each door from an address of its own."""

from __future__ import annotations

import http.client
import itertools
from typing import Any, Final
from urllib.parse import urlsplit

from services.kit.access.tokens import make_key
from tests.support.secured import PASSWORD, Reply, ask

__all__ = ["ADMIN", "Door"]

ADMIN: Final = make_key().text
"""The bootstrap key."""
_addresses: Final = itertools.count(1)


class Door:
    """Asks from an address of its own, so that one test's failures do not count in the next."""

    def __init__(self, url: str, address: str = "") -> None:
        parts = urlsplit(url)
        self.address = address or f"198.51.100.{next(_addresses)}"
        self.connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=60)

    def __call__(self, method: str, path: str, body: Any = None, key: str = "", **headers: str) -> Reply:
        sent = {"X_Forwarded_For": self.address, **({"Authorization": f"Bearer {key}"} if key else {}), **headers}
        return ask(self.connection, method, path, body, **sent)

    def log_in(self, user: str, password: str = PASSWORD) -> dict[str, str]:
        """The headers of a new session."""
        found = self("POST", "/api/v1/session", {"user": user, "password": password})
        assert found.status == 200, found.body
        return {"Cookie": found.headers["Set-Cookie"].partition(";")[0], "X_CSRF_Token": found.json["csrf_token"]}
