"""Questions to the REST services.

May live here: one GET and its errors. May not: what the answers mean.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any, Final

from wooly.cli.errors import CommandError

__all__ = ["get_json", "get_text"]

_TIMEOUT_S: Final = 10.0


def get_text(base: str, path: str, query: Mapping[str, str] | None = None, *, accept: str, what: str) -> str:
    """The body of GET ``base + path``. ``what`` names the service in errors. Raises CommandError."""
    url = base + path
    if query:
        url += "?" + urllib.parse.urlencode(query)
    request = urllib.request.Request(url, headers={"Accept": accept, "User-Agent": "wooly"})
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:
            body: bytes = answer.read()
            return body.decode()
    except urllib.error.HTTPError as error:
        raise CommandError(f"the {what} at {base} refused {path}: {_detail(error)}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise CommandError(f"the {what} at {base} does not answer ({reason}); is it running, and is the address right?") from None


def _detail(error: urllib.error.HTTPError) -> str:
    try:
        problem = json.loads(error.read())
        return str(problem.get("detail") or problem.get("title") or error.reason)
    except (ValueError, AttributeError, OSError):
        return f"HTTP {error.code} {error.reason}"


def get_json(base: str, path: str, query: Mapping[str, str] | None = None, *, what: str) -> Any:
    """The JSON answer of GET ``base + path``. Raises CommandError."""
    text = get_text(base, path, query, accept="application/json", what=what)
    try:
        return json.loads(text)
    except ValueError:
        raise CommandError(f"what answers at {base} is no {what} of this version: {path} is not JSON; check the address") from None
