"""Readers of request headers: address, scheme, credentials, origin. Every reader is strict: repeated headers are not trusted, and forwarded
ones only from configured proxies.
"""

from __future__ import annotations

import contextlib
import ipaddress
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import urlsplit

from services.kit.access.access import Network
from services.kit.access.errors import CrossSite, Unauthenticated
from wooly.shared.tls import is_loopback

__all__ = ["FLOW", "SAFE_METHODS", "SESSION", "address_of", "bearer", "check_same_site", "cookie_name", "is_secure", "read_cookie"]

Scope = Any
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
SESSION: Final = "wooly_session"
FLOW: Final = "wooly_login"
"""The cookie of a login at an OpenID Connect provider."""


def address_of(scope: Scope, proxies: Iterable[Network]) -> str:
    """The address of the client; behind trusted proxies the one that the outermost of them forwards. Empty: unknown."""
    client = scope.get("client")
    address = str(client[0]) if client else ""
    networks = tuple(proxies)
    if not networks or not _inside(address, networks):
        return address
    hops = [hop.strip() for value in _all(scope, b"x-forwarded-for") for hop in value.split(",")]
    for hop in reversed(hops):
        with contextlib.suppress(ValueError):
            address = str(ipaddress.ip_address(hop))
            if _inside(address, networks):
                continue
        break
    return address


def is_secure(scope: Scope, proxies: Iterable[Network]) -> bool:
    """Whether the browser speaks TLS, to us or to a trusted proxy."""
    if scope.get("scheme") in ("https", "wss"):
        return True
    client = scope.get("client")
    return bool(client) and _inside(str(client[0]), tuple(proxies)) and _all(scope, b"x-forwarded-proto")[-1:] == ["https"]


def bearer(scope: Scope) -> str:
    """The token of the Authorization header, empty when there is none. Raises Unauthenticated for any other kind, and for two."""
    found = _all(scope, b"authorization")
    if not found:
        return ""
    kind, _, text = found[0].strip().partition(" ")
    if len(found) > 1 or kind.lower() != "bearer" or not text.strip():
        raise Unauthenticated("send one header `Authorization: Bearer <API key>`")
    return text.strip()


def cookie_name(cookie: str, secure: bool) -> str:
    """Under TLS the prefix binds the cookie to this very host: no sibling domain and no plain-text page can plant one."""
    return f"__Host-{cookie}" if secure else cookie


def read_cookie(scope: Scope, cookie: str, secure: bool) -> str:
    """The cookie's value; empty when there is none, or more than one (one of them may be planted by another site)."""
    name = cookie_name(cookie, secure)
    found = [
        value
        for header in _all(scope, b"cookie")
        for part in header.split(";")
        for key, _, value in [part.strip().partition("=")]
        if key == name
    ]
    return found[0] if len(found) == 1 else ""


def check_same_site(scope: Scope) -> None:
    """Raises CrossSite when the browser marks the request as one of another site. Requests of programs carry no such headers, and pass."""
    site = _all(scope, b"sec-fetch-site")
    origin = _all(scope, b"origin")
    host = _all(scope, b"host")
    if site:
        if any(value not in ("same-origin", "none") for value in site):
            raise CrossSite("this request comes from a page of another site")
    elif origin and (len(host) != 1 or any(_split(value)[0] != host[0].lower() for value in origin)):
        raise CrossSite("this request comes from a page of another site")


def check_local_host(scope: Scope) -> None:
    """Raises CrossSite unless the browser was sent to a name of this machine: another name may have been made to point here."""
    host = _all(scope, b"host")
    name = _split(f"//{host[0]}")[1] if len(host) == 1 else ""
    if host and not is_loopback(name):
        raise CrossSite("without authentication this service answers to 127.0.0.1 and localhost only; set WOOLY_AUTH=on for other names")


def _split(url: str) -> tuple[str, str]:
    """(host and port, host) of a URL; empty for what is none."""
    try:
        parts = urlsplit(url)
        return parts.netloc.lower(), parts.hostname or ""
    except ValueError:
        return "", ""


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope.get("headers", ()) if key.lower() == name]


def _inside(address: str, networks: tuple[Network, ...]) -> bool:
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in networks)
