"""Requests to our own REST services: with the key, over TLS where it leaves this machine, and to no other address than the given one."""

from __future__ import annotations

import functools
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol
from urllib.parse import urlsplit

from bus_schemas.texts import printable
from wooly.errors import ApiError, ConfigError, NoServerError
from wooly.shared.tls import client_context, is_loopback

__all__ = ["UNANSWERED", "Credentials", "ask", "detail_of", "open_url"]


UNANSWERED: Final = (OSError, ValueError, http.client.HTTPException)
"""What a request raises when there is no answer, or not a whole one."""


class Configured(Protocol):
    """The part of the client's configuration that a request needs."""

    @property
    def api_key(self) -> str: ...
    @property
    def tls_ca(self) -> str: ...
    @property
    def insecure(self) -> bool: ...


@dataclass(frozen=True, slots=True)
class Credentials:
    """As a value."""

    api_key: str = field(default="", repr=False)
    tls_ca: str = ""
    insecure: bool = False

    @classmethod
    def of(cls, config: Configured) -> Credentials:
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
    if parts.scheme != "https" and (secret or credentials.api_key or not plain):
        handlers.append(urllib.request.ProxyHandler({}))  # the environment's proxy cannot reach this machine, and would read the key
    if parts.scheme == "https":
        handlers.append(urllib.request.HTTPSHandler(context=_context(credentials.tls_ca)))
    request = urllib.request.Request(url, data=data, method=method, headers=sent)
    opened: http.client.HTTPResponse = urllib.request.build_opener(*handlers).open(request, timeout=timeout_s)
    return opened


def ask(
    base: str,
    path: str,
    credentials: Credentials,
    *,
    what: str,
    method: str = "GET",
    data: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    timeout_s: float,
) -> bytes:
    """The body of the answer of ``base + path``. ``what`` names the service in errors. Raises NoServerError, ApiError, ConfigError."""
    try:
        with open_url(base + path, credentials, method=method, data=data, headers=headers, timeout_s=timeout_s) as answer:
            return answer.read()
    except urllib.error.HTTPError as error:
        problem = _problem(error)
        advice = (
            ""
            if error.code != 401
            else ("; the stored key is no longer good: `wooly login`" if credentials.api_key else "; `wooly login` tells it who you are")
        )
        fields = [(str(one.get("field")), str(one.get("message"))) for one in problem.get("errors", ()) if isinstance(one, dict)]
        detail = _sentence(problem, error)
        kind = str(problem.get("type", "")).rpartition(":")[2]
        message = f"the {what} at {base} refused {path.partition('?')[0]}: {detail}{advice}"
        excess: dict[str, Any] = {name: problem[name] for name in ("quota", "limit", "used", "retry_after_ms") if name in problem}
        raise ApiError(message, status=error.code, fields=fields, kind=kind, detail=detail, excess=excess) from None
    except UNANSWERED as error:
        reason = getattr(error, "reason", error)
        raise NoServerError(f"the {what} at {base} does not answer ({reason}); is it running, and is the address right?") from None


def detail_of(error: urllib.error.HTTPError) -> str:
    """The sentence for people in a problem document, or the status."""
    return _sentence(_problem(error), error)


def _problem(error: urllib.error.HTTPError) -> dict[str, Any]:
    """The problem document (RFC 9457) of an answer; empty where it has none."""
    try:
        found = json.loads(error.read())
    except (ValueError, OSError):
        return {}
    return found if isinstance(found, dict) else {}


def _sentence(problem: Mapping[str, Any], error: urllib.error.HTTPError) -> str:
    return printable(str(problem.get("detail") or problem.get("title") or f"HTTP {error.code} {error.reason}"))


@functools.cache
def _context(authorities: str) -> ssl.SSLContext:
    try:
        return client_context(authorities, ssl.TLSVersion.TLSv1_2)
    except ValueError as error:
        raise ConfigError(str(error)) from None
