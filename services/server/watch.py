"""The node over HTTP, for those who watch it: is it alive, is it ready, what does it measure. No other way to it leads here.

``/health/live``: restart the process when this is not 200. ``/health/ready``: it does the work it is sent. ``/metrics``: Prometheus.
Reveals nothing about tenants, so it needs no authentication: any client that can reach the port may read it (WOOLY_NODE_HTTP, default:
none).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import msgspec

from services.server.metrics import Standing, metrics_text

__all__ = ["Watch"]

_JSON = b"application/json"
_TEXT = b"text/plain; version=0.0.4; charset=utf-8"

Message = MutableMapping[str, Any]


class Watch:
    """An ASGI application; ``standing()`` is asked at every request."""

    def __init__(self, standing: Callable[[], Standing]) -> None:
        self._standing = standing

    async def __call__(self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]) -> None:
        if scope["type"] == "lifespan":
            while (message := await receive())["type"] != "lifespan.shutdown":
                await send({"type": f"{message['type']}.complete"})
            await send({"type": "lifespan.shutdown.complete"})
            return
        if scope["type"] != "http":
            return
        status, media, body = self._answer(scope["method"], scope["path"])
        headers = [(b"content-type", media), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    def _answer(self, method: str, path: str) -> tuple[int, bytes, bytes]:
        if method not in ("GET", "HEAD"):
            return 405, _JSON, b'{"status":405,"title":"only GET"}'
        standing = self._standing()
        if path == "/metrics":
            return 200, _TEXT, metrics_text(standing).encode()
        if path in ("/health", "/health/ready", "/health/live"):
            well = not standing.failed if path == "/health/live" else not standing.problem
            said: dict[str, Any] = {"status": "ok" if well else "failed" if standing.failed else "waiting", "node": standing.node}
            if standing.problem:
                said["detail"] = standing.problem
            return 200 if well else 503, _JSON, msgspec.json.encode(said)
        return 404, _JSON, b'{"status":404,"title":"there is /health/live, /health/ready and /metrics"}'
