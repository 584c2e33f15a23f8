"""Notifications of ended runs and of budgets that run low: one POST of a small JSON document to an address that a tenant chose.

The address must not reach what the controller can reach and the tenant cannot. So it is resolved once, every address it resolves to must be
public, the connection goes to one of these very addresses, and redirects are not followed. WOOLY_WEBHOOK_PRIVATE=1 permits private,
link-local and loopback addresses.
"""

from __future__ import annotations

import asyncio
import http.client
import ipaddress
import os
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from services.kit.log import get_logger

URL_CHARS_MAX: Final = 2000
_PRIVATE_VARIABLE: Final = "WOOLY_WEBHOOK_PRIVATE"
_TIMEOUT_S: Final = 5.0
_ATTEMPT_S: Final = 20.0
_PAUSES_S: Final = (1.0, 5.0, 30.0, 120.0)
"""Between attempts; after the last one there is no further."""
_AT_ONCE_MAX: Final = 8


class _NotPublic(Exception):
    """The name leads to an address that may not be notified: trying again is of no use."""


@dataclass(slots=True)
class _Due:
    """A notification under way."""

    tries: int = 0  #: attempts made
    at_s: float = 0.0  #: when the next is due (monotonic)
    outcome: str = ""  #: how it ended; empty: not yet
    under_way: asyncio.Task[None] | None = None


class Webhooks:
    def __init__(self, *, private: bool) -> None:
        self._private = private
        self._due: dict[str, _Due] = {}

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ) -> Webhooks:
        return cls(private=environment.get(_PRIVATE_VARIABLE, "") == "1")

    def refusal(self, url: str) -> str:
        """Why this cannot be notified, empty: it may be tried. Resolves no name."""
        parts = _parts(url)
        if parts is None:
            return "write a URL such as https://example.org/hook, without a user name or password"
        try:
            address = ipaddress.ip_address(parts.hostname or "")
        except ValueError:
            name = (parts.hostname or "").rstrip(".").lower()
            return _not_public(name) if not self._private and (name == "localhost" or name.endswith(".localhost")) else ""
        return "" if self._private or _is_public(address) else _not_public(str(address))

    def step(self, task: str, url: str, body: Callable[[], Mapping[str, object]]) -> str:
        """Continue the notification that ``task`` names: begins an attempt if one is due. How it ended, once it has: ``delivered`` or the
        problem."""
        due = self._due.setdefault(task, _Due())
        if due.outcome:
            return self._due.pop(task).outcome
        if due.under_way is None and due.at_s <= time.monotonic() and self.busy < _AT_ONCE_MAX:
            data = msgspec.json.encode(dict(body()))
            due.under_way = asyncio.create_task(self._attempt(task, url, data, due), name=f"webhook of {task}")
        return ""

    @property
    def busy(self) -> int:
        """Attempts under way."""
        return sum(1 for due in self._due.values() if due.under_way is not None)

    async def close(self) -> None:
        under_way = [due.under_way for due in self._due.values() if due.under_way is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _attempt(self, task: str, url: str, data: bytes, due: _Due) -> None:
        due.tries += 1
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                await asyncio.to_thread(self._post, url, data)
            due.outcome = "delivered"
        except _NotPublic as error:
            due.outcome = f"not delivered: {error}"
        except (OSError, http.client.HTTPException, ValueError) as error:
            problem = str(error) or type(error).__name__
            get_logger().warning("a webhook could not be notified", task=task, tries=due.tries, problem=problem)
            if due.tries > len(_PAUSES_S):
                due.outcome = f"not delivered: {problem}"[:300]
            else:
                due.at_s = time.monotonic() + _PAUSES_S[due.tries - 1]
        finally:
            due.under_way = None

    def _post(self, url: str, data: bytes) -> None:
        """Raises OSError, HTTPException, ValueError, _NotPublic. The answer's body is not read."""
        parts = _parts(url)
        if parts is None or parts.hostname is None:
            raise ValueError("this is no URL")
        port = parts.port or (443 if parts.scheme == "https" else 80)
        connection = http.client.HTTPConnection(parts.hostname, port, timeout=_TIMEOUT_S)
        plain = socket.create_connection((self._address(parts.hostname, port), port), _TIMEOUT_S)
        try:
            secure = parts.scheme == "https"
            connection.sock = ssl.create_default_context().wrap_socket(plain, server_hostname=parts.hostname) if secure else plain
            headers = {"Content-Type": "application/json", "User-Agent": "wooly", "Connection": "close"}
            connection.request("POST", (parts.path or "/") + (f"?{parts.query}" if parts.query else ""), data, headers)
            status = connection.getresponse().status
        finally:
            connection.close()
            plain.close()
        if not 200 <= status < 300:
            raise ValueError(f"it answered with status {status}")

    def _address(self, host: str, port: int) -> str:
        """An address of ``host``. Raises OSError, and _NotPublic when one of its addresses may not be reached."""
        found = [str(entry[4][0]) for entry in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
        for text in found:
            address = ipaddress.ip_address(text.partition("%")[0])
            if not self._private and not _is_public(address):
                raise _NotPublic(_not_public(str(address)))
        return found[0]


def _parts(url: str) -> SplitResult | None:
    """The parts of a URL that may be notified; None when it is none."""
    if len(url) > URL_CHARS_MAX or not url.isascii() or not url.isprintable() or " " in url:
        return None
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        return None
    return parts if known and "@" not in parts.netloc else None


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    inner = address.ipv4_mapped or address.sixtofour if isinstance(address, ipaddress.IPv6Address) else None
    return address.is_global and not address.is_multicast and (inner is None or inner.is_global)


def _not_public(what: str) -> str:
    return f"{what} is not a public address, and this controller notifies only those ({_PRIVATE_VARIABLE}=1 permits others)"
