"""Notifications of ended runs and of budgets that run low: one POST of a small JSON document to an address that a tenant chose.

The address must not reach what the controller can reach and the tenant cannot. So it is resolved once, every address it resolves to must be
public, the connection goes to one of these very addresses, and redirects are not followed. WOOLY_WEBHOOK_PRIVATE=1 permits private,
link-local and loopback addresses.

The receiver may be slow on purpose. So an attempt has a deadline, no thread waits for its answer, names are resolved by threads that do
nothing else, and a tenant has few attempts under way at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import os
import re
import socket
import ssl
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import Final
from urllib.parse import SplitResult, urlsplit

import msgspec

from services.kit.log import get_logger

URL_CHARS_MAX: Final = 2000
_PRIVATE_VARIABLE: Final = "WOOLY_WEBHOOK_PRIVATE"
_ATTEMPT_S: Final = 10.0
_PAUSES_S: Final = (1.0, 5.0, 30.0, 120.0)
"""Between attempts; after the last one there is no further."""
_AT_ONCE_MAX: Final = 64
_OF_TENANT_MAX: Final = 4
"""Attempts under way of one tenant."""
_RESOLVERS: Final = 8
_STATUS_BYTES_MAX: Final = 4096
_STATUS: Final = re.compile(rb"HTTP/1\.[01] (\d{3})\b")


class _NotPublic(Exception):
    """The name leads to an address that may not be notified: trying again is of no use."""


@dataclass(slots=True)
class _Due:
    """A notification under way."""

    tenant: str
    tries: int = 0  #: attempts made
    at_s: float = 0.0  #: when the next is due (monotonic)
    outcome: str = ""  #: how it ended; empty: not yet
    under_way: asyncio.Task[None] | None = None


class Webhooks:
    def __init__(self, *, private: bool) -> None:
        self._private = private
        self._due: dict[str, _Due] = {}
        self._resolvers = ThreadPoolExecutor(_RESOLVERS, "webhook name")

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

    def step(self, task: str, tenant: str, url: str, body: Callable[[], Mapping[str, object]]) -> str:
        """Continue the notification that ``task`` names: begins an attempt if one is due. How it ended, once it has, until it is forgotten:
        ``delivered`` or the problem."""
        due = self._due.setdefault(task, _Due(tenant))
        if not due.outcome and due.under_way is None and due.at_s <= time.monotonic() and self._free(tenant):
            data = msgspec.json.encode(dict(body()))
            due.under_way = asyncio.create_task(self._attempt(task, url, data, due), name=f"webhook of {task}")
        return due.outcome

    def forget_except(self, names: Collection[str]) -> None:
        """Forget the notifications that are not in ``names`` and not under way: how they ended is noted."""
        self._due = {name: due for name, due in self._due.items() if name in names or due.under_way is not None}

    @property
    def busy(self) -> int:
        """Attempts under way."""
        return sum(1 for due in self._due.values() if due.under_way is not None)

    def _free(self, tenant: str) -> bool:
        """Whether the tenant may have one more attempt under way."""
        of_tenant = sum(1 for due in self._due.values() if due.under_way is not None and due.tenant == tenant)
        return self.busy < _AT_ONCE_MAX and of_tenant < _OF_TENANT_MAX

    async def close(self) -> None:
        self._resolvers.shutdown(wait=False, cancel_futures=True)
        under_way = [due.under_way for due in self._due.values() if due.under_way is not None]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)

    async def _attempt(self, task: str, url: str, data: bytes, due: _Due) -> None:
        due.tries += 1
        try:
            async with asyncio.timeout(_ATTEMPT_S):
                await self._post(url, data)
            due.outcome = "delivered"
        except _NotPublic as error:
            due.outcome = f"not delivered: {error}"
        except (OSError, ValueError) as error:
            problem = str(error) or type(error).__name__
            get_logger().warning("a webhook could not be notified", task=task, tries=due.tries, problem=problem)
            if due.tries > len(_PAUSES_S):
                due.outcome = f"not delivered: {problem}"[:300]
            else:
                due.at_s = time.monotonic() + _PAUSES_S[due.tries - 1]
        finally:
            due.under_way = None

    async def _post(self, url: str, data: bytes) -> None:
        """Raises OSError, ValueError, _NotPublic. Of the answer only the first line is read."""
        parts = _parts(url)
        if parts is None or parts.hostname is None:
            raise ValueError("this is no URL")
        secure = parts.scheme == "https"
        port = parts.port or (443 if secure else 80)
        address = await asyncio.get_running_loop().run_in_executor(self._resolvers, self._address, parts.hostname, port)
        reader, writer = await asyncio.open_connection(
            address, port, ssl=self._tls if secure else None, server_hostname=parts.hostname if secure else None, limit=_STATUS_BYTES_MAX
        )
        try:
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            head = f"POST {target} HTTP/1.1\r\nHost: {parts.netloc}\r\nUser-Agent: wooly\r\nConnection: close\r\n"
            writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            await writer.drain()
            status = _STATUS.match(await reader.readline())
        finally:
            writer.transport.abort()
        if status is None:
            raise ValueError("its answer is not HTTP")
        if not status[1].startswith(b"2"):
            raise ValueError(f"it answered with status {status[1].decode()}")

    @cached_property
    def _tls(self) -> ssl.SSLContext:
        return ssl.create_default_context()

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


_GLOBAL_UNICAST: Final = ipaddress.ip_network("2000::/3")
_NAT64: Final = ipaddress.ip_network("64:ff9b::/96")
_DOCUMENTATION: Final = ipaddress.ip_network("3fff::/20")
"""Newer than the tables of Python 3.11."""


def _is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """An IPv6 address that stands for an IPv4 one is as public as that; any other is of the global unicast range."""
    if isinstance(address, ipaddress.IPv6Address):
        inner = ipaddress.IPv4Address(address.packed[-4:]) if address in _NAT64 else address.ipv4_mapped or address.sixtofour
        if inner is not None:
            return _is_public(inner)
        if address not in _GLOBAL_UNICAST or address in _DOCUMENTATION:
            return False
    return address.is_global and not address.is_multicast


def _not_public(what: str) -> str:
    return f"{what} is not a public address, and this controller notifies only those ({_PRIVATE_VARIABLE}=1 permits others)"
