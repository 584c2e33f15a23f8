"""Requests of commands to the REST services."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from wooly import config as configuration
from wooly.cli.group import CommandError
from wooly.errors import ServiceError
from wooly.rest import Credentials, ask

_TIMEOUT_S: Final = 10.0


def get_text(base: str, path: str, query: Mapping[str, str] | None = None, *, accept: str, what: str, timeout_s: float = _TIMEOUT_S) -> str:
    """The body of GET ``base + path``. ``what`` names the service in errors. Raises CommandError."""
    url = path + ("?" + urllib.parse.urlencode(query) if query else "")
    return _ask("GET", base, url, None, {"Accept": accept}, what, timeout_s=timeout_s)


def get_json(base: str, path: str, query: Mapping[str, str] | None = None, *, what: str, timeout_s: float = _TIMEOUT_S) -> Any:
    """The JSON answer of GET ``base + path``. Raises CommandError."""
    return _json(base, path, get_text(base, path, query, accept="application/json", what=what, timeout_s=timeout_s), what)


def send_json(
    method: str,
    base: str,
    path: str,
    body: Any = None,
    *,
    what: str,
    headers: Mapping[str, str] | None = None,
    credentials: Credentials | None = None,
) -> Any:
    """The JSON answer of a request that changes something; ``body`` None: none. None when the answer is empty. ``credentials``: instead of
    the configured ones. Raises CommandError."""
    data = None if body is None else json.dumps(body).encode()
    sent = {"Accept": "application/json", **({} if body is None else {"Content-Type": "application/json"}), **(headers or {})}
    text = _ask(method, base, path, data, sent, what, credentials)
    return _json(base, path, text, what) if text else None


def _ask(
    method: str,
    base: str,
    path: str,
    data: bytes | None,
    headers: Mapping[str, str],
    what: str,
    credentials: Credentials | None = None,
    timeout_s: float = _TIMEOUT_S,
) -> str:
    credentials = credentials or Credentials.of(configuration.load(task=False))
    try:
        return ask(base, path, credentials, what=what, method=method, data=data, headers=headers, timeout_s=timeout_s).decode()
    except (ServiceError, ValueError) as error:
        raise CommandError(str(error)) from None


def _json(base: str, path: str, text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(f"what answers at {base} is no {what} of this version: {path} is not JSON; check the address") from None
