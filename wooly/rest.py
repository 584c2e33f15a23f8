"""Asking our own REST services: with the key, over TLS where it leaves this machine, and nowhere else than asked.

May live here: one request. May not: what answers mean, which service answers where.
"""

from __future__ import annotations

import http.client
import ipaddress
import os
import ssl
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from wooly.config import Config
from wooly.errors import ConfigError

__all__ = ["Credentials", "is_loopback", "open_url"]


@dataclass(frozen=True, slots=True)
class Credentials:
    """What of the configuration a request needs."""

    api_key: str = field(default="", repr=False)
    tls_ca: str = ""
    insecure: bool = False

    @classmethod
    def of(cls, config: Config) -> Credentials:
        return cls(config.api_key, config.tls_ca, config.insecure)


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Our services answer where they are asked; a redirect would carry the key elsewhere."""

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> None:
        return None


def open_url(
    url: str,
    credentials: Credentials,
    *,
    method: str = "GET",
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
    secret: bool = False,
) -> http.client.HTTPResponse:
    """The open answer (its ``headers`` too). ``secret``: the request carries a password or a session beside the key. Raises
    urllib.error.HTTPError and what else urlopen does; ConfigError when a secret would travel in plain text, or the certificates cannot be
    read."""
    sent = {"User-Agent": "wooly", **(headers or {})}
    parts = urlsplit(url)
    plain = parts.scheme != "https" and not is_loopback(parts.hostname or "")
    if (secret or credentials.api_key) and plain and not credentials.insecure:
        raise ConfigError(
            f"the {'password' if secret else 'API key'} is not sent to {parts.hostname} in plain text; use https://, or set "
            "WOOLY_INSECURE=1 in a private network"
        )
    if credentials.api_key:
        sent["Authorization"] = f"Bearer {credentials.api_key}"
    handlers: list[Any] = [_NoRedirect()]
    if parts.scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=_context(credentials.tls_ca)))
    request = urllib.request.Request(url, data=data, method=method, headers=sent)
    opened: http.client.HTTPResponse = urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)
    return opened


_contexts: Final[dict[str, ssl.SSLContext]] = {}


def _context(authorities: str) -> ssl.SSLContext:
    if authorities not in _contexts:
        try:
            _contexts[authorities] = ssl.create_default_context(cafile=os.path.expanduser(authorities) if authorities else None)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"WOOLY_TLS_CA={authorities!r} cannot be read as certificates ({error}); name a PEM file") from None
    return _contexts[authorities]


def is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
