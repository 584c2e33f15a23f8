"""Questions to the REST services, and requests to change something.

May live here: one request and its errors. May not: what the answers mean.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
from collections.abc import Mapping
from typing import Any, Final

from wooly import config as configuration
from wooly.cli.errors import CommandError
from wooly.rest import Credentials, open_url

__all__ = ["detail_of", "get_json", "get_text", "send_json"]

_TIMEOUT_S: Final = 10.0


def get_text(base: str, path: str, query: Mapping[str, str] | None = None, *, accept: str, what: str) -> str:
    """The body of GET ``base + path``. ``what`` names the service in errors. Raises CommandError."""
    url = path + ("?" + urllib.parse.urlencode(query) if query else "")
    return _ask("GET", base, url, None, {"Accept": accept}, what)


def get_json(base: str, path: str, query: Mapping[str, str] | None = None, *, what: str) -> Any:
    """The JSON answer of GET ``base + path``. Raises CommandError."""
    return _json(base, path, get_text(base, path, query, accept="application/json", what=what), what)


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
    method: str, base: str, path: str, data: bytes | None, headers: Mapping[str, str], what: str, credentials: Credentials | None = None
) -> str:
    credentials = credentials or Credentials.of(configuration.load(task=False))
    try:
        with open_url(base + path, credentials, method=method, data=data, headers=headers, timeout_s=_TIMEOUT_S) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        raise CommandError(f"the {what} at {base} refused {path}: {detail_of(error)}{_advice(error.code, credentials)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"the {what} at {base} does not answer ({reason}); is it running, and is the address right?") from None


def detail_of(error: urllib.error.HTTPError) -> str:
    """The sentence for people in a problem document, with the fields it is about, or the status."""
    try:
        problem = json.loads(error.read())
        return str(problem.get("detail") or problem.get("title") or error.reason)
    except (ValueError, AttributeError, OSError):
        return f"HTTP {error.code} {error.reason}"


def _advice(status: int, credentials: Credentials) -> str:
    if status != 401:
        return ""
    return "; the stored key is no longer good: `wooly login`" if credentials.api_key else "; log in with `wooly login`"


def _json(base: str, path: str, text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(f"what answers at {base} is no {what} of this version: {path} is not JSON; check the address") from None
