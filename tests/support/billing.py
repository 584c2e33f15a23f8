"""Starts the billing service as a process, and sends it requests."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.support.fork_server import start_service
from tests.support.stack import plain_environment

__all__ = ["BillingProcess"]


class BillingProcess:
    """``python -P -m services.billing`` with its own folder for the saved view."""

    def __init__(self, nats_url: str, folder: Path, **environment: str) -> None:
        given = plain_environment(WOOLY_NATS_URL=nats_url, WOOLY_HTTP="127.0.0.1:0", WOOLY_DATA_DIR=str(folder))
        self.process = start_service("services.billing", env=given | environment)
        assert self.process.stdout is not None
        self.url = json.loads(self.process.stdout.readline())["http"]

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, str, str]:
        """(status, body, media type); ``body``: bytes as they are, anything else as JSON. ``headers``: ``_`` stands for ``-``."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        given = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self.url + "/api/v1/billing/" + path, data=data, method=method, headers=given)
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode(), answer.headers.get_content_type()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode(), error.headers.get_content_type()

    def do(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The JSON answer. Raises RuntimeError when it is refused."""
        status, text, _ = self.ask(method, path, body, **headers)
        if status >= 300:
            raise RuntimeError(f"{method} {path}: {status} {text}")
        return json.loads(text)

    def end(self, number: int) -> int:
        """Send a signal and wait; the exit code."""
        return self.process.stop(number)
