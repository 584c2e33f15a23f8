"""Measures the cost of security: connections to the bus plain, with TLS, and with TLS and a key that a controller checks; bytes to the data
port plain, over TLS and over the Unix socket. ``python -m benchmarks.security``. Ratios in one run, on one machine.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import secrets
import ssl
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec
from nats.aio.client import Client

from bus_schemas import subjects
from bus_schemas.session import OpenSession, SessionOpened
from tests.support.secure import SecureStack
from tests.support.stack import EmbeddedStack
from wooly.transport.data_port import DataPort

_CONNECTS: Final = 60
_CHUNK_BYTES: Final = 4 << 20
_CHUNKS: Final = 48
_ROUNDS: Final = 3
_FILLING: Final = bytes(_CHUNK_BYTES - 16)


async def _connect_ms(url: str, options: Callable[[], dict[str, Any]]) -> float:
    """Median time of a connection, from nothing to the first answer."""
    took = []
    for _ in range(_CONNECTS):
        begin = time.perf_counter()
        client = Client()
        await client.connect(url, allow_reconnect=False, **options())
        took.append(time.perf_counter() - begin)
        await client.close()
    return statistics.median(took) * 1e3


async def _open(url: str, node: str, principal: str, options: dict[str, Any]) -> SessionOpened:
    client = Client()
    await client.connect(url, inbox_prefix=subjects.inbox_prefix(principal), **options)
    request = OpenSession(subjects.session_name(principal, secrets.token_hex(8)), "default", "", 2, (0,), 0)
    answer = await client.request(subjects.node_request(node, "open", principal), msgspec.msgpack.encode(request), timeout=20)
    await client.close()
    return msgspec.msgpack.decode(answer.data, type=SessionOpened)


def _gb_per_s(opened: SessionOpened, kind: str, tls: ssl.SSLContext | None) -> float:
    """The best of a few rounds of bytes that the node has not seen."""
    assert opened.node is not None
    addresses = [address for address in opened.node.data_port if address.startswith(kind)]
    best = 0.0
    for _ in range(_ROUNDS):
        port = DataPort(addresses, opened.session, opened.token, tls)
        chunks = [memoryview(os.urandom(16) + _FILLING) for _ in range(_CHUNKS)]
        begin = time.perf_counter()
        port.put(chunks)
        best = max(best, _CHUNKS * _CHUNK_BYTES / (time.perf_counter() - begin) / 1e9)
        port.close()
    return best


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wooly-security-") as name:
        yield Path(name)


def main() -> int:
    logging.getLogger("asyncio").setLevel(logging.ERROR)  # what nats-py answers to the end of a TLS connection
    out: dict[str, float] = {}
    with _folder() as folder, EmbeddedStack(folder, WOOLY_BACKEND="host", WOOLY_LEASE_MS="600000") as plain:
        url, node = plain.addresses["nats"], plain.addresses["node"]
        out["connect plain ms"] = asyncio.run(_connect_ms(url, dict))
        out["data port tcp GB/s"] = _gb_per_s(asyncio.run(_open(url, node, subjects.LOCAL, {})), "tcp:", None)
        out["data port unix GB/s"] = _gb_per_s(asyncio.run(_open(url, node, subjects.LOCAL, {})), "unix:", None)
    with _folder() as folder, SecureStack(folder, WOOLY_LEASE_MS="600000") as stack:
        stack.tenant("t")
        key = stack.key(role="member", tenant="t")
        _, principal, secret = key.split("_")
        seed = (stack.ring.folder / "controller" / "nats.nk").read_text()
        safe: dict[str, Any] = {"tls": stack.context, "tls_handshake_first": True}
        url, node = stack.addresses["nats"], stack.addresses["node"]
        out["connect TLS, nkey ms"] = asyncio.run(_connect_ms(url, lambda: {**safe, "nkeys_seed_str": seed}))
        out["connect TLS, key by callout ms"] = asyncio.run(_connect_ms(url, lambda: {**safe, "user": principal, "password": secret}))
        opened = asyncio.run(_open(url, node, principal, {**safe, "user": principal, "password": secret}))
        out["data port TLS GB/s"] = _gb_per_s(opened, "tls:", stack.context)
    json.dump({name: round(value, 2) for name, value in out.items()}, sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
