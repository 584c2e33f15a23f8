"""Serving HTTP from a process that already has a loop: one socket, bound before anything is promised, and a clean stop.

async with serve(app, parse_address("127.0.0.1:0")) as url: ...
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any, Final

import uvicorn

from services.kit.errors import SettingError, StartError
from services.kit.patience import PatientProtocol, whole_bodies
from services.kit.tls import CERT_VARIABLE, KEY_VARIABLE, plain_allowed, server_context

__all__ = ["parse_address", "serve"]

_START_S: Final = 10.0


def parse_address(text: str, variable: str = "WOOLY_HTTP") -> tuple[str, int]:
    """``host:port`` (port 0: any free one), as ``variable`` gave it. Raises SettingError."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise SettingError(f"{variable} is {text!r}; write host:port, for example 127.0.0.1:8080")
    return host, int(port)


@contextlib.asynccontextmanager
async def serve(app: Any, address: tuple[str, int]) -> AsyncIterator[str]:
    """Serve an ASGI app inside the block; yields its URL, https with this process's certificate (WOOLY_TLS_CERT). Raises StartError when
    the address cannot be had, SettingError for plain text beyond loopback."""
    host, port = address
    context = server_context(os.environ)
    if context is None:
        plain_allowed(os.environ, host, "REST", f"set {CERT_VARIABLE} and {KEY_VARIABLE} to a certificate and its key")
    try:
        bound = socket.create_server((host, port), reuse_port=False)
    except OSError as error:
        raise StartError(f"cannot listen on {host}:{port} ({error.strerror}); set WOOLY_HTTP to another address") from error
    # proxy_headers: uvicorn would accept a forwarded address from any local process; kit.access decides which proxies are trusted.
    config = uvicorn.Config(
        whole_bodies(app),
        http=PatientProtocol,
        log_config=None,
        access_log=False,
        proxy_headers=False,
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    config.load()
    config.ssl = context
    server = uvicorn.Server(config)
    # Signals belong to the process, which stops the server by leaving the block.
    task = asyncio.create_task(server._serve([bound]), name="http")
    try:
        async with asyncio.timeout(_START_S):
            while not server.started:
                if task.done():
                    await task
                    raise StartError("the HTTP server ended while it started")
                await asyncio.sleep(0.005)
        yield f"http{'s' if context is not None else ''}://{host}:{bound.getsockname()[1]}"
    finally:
        server.should_exit = True
        with contextlib.suppress(asyncio.CancelledError):
            await task
        bound.close()
