"""Slow and greedy callers of a service that speaks HTTP: their connections end, the others' answers come."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from services.kit import http
from services.kit.http import Listener, parse_address, serve
from services.kit.keyring import Authority
from tests.support.node import until

BIG = 32 << 20


@asynccontextmanager
async def served() -> AsyncIterator[tuple[str, int]]:
    """An application that answers with the length of the body, or with 32 MiB."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            for kind in ("startup", "shutdown"):
                await receive()
                await send({"type": f"lifespan.{kind}.complete"})
            return
        got, more = 0, True
        while more:
            message = await receive()
            got, more = got + len(message.get("body", b"")), message.get("more_body", False)
        big = scope["path"] == "/big"
        headers = [] if big else [(b"content-length", b"%d" % len(str(got)))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        if big:
            for _ in range(BIG >> 16):
                await send({"type": "http.response.body", "body": b"x" * (1 << 16), "more_body": True})
        await send({"type": "http.response.body", "body": str(got).encode()})

    async with serve(app, parse_address("127.0.0.1:0")) as url:
        where = urlsplit(url)
        assert where.hostname is not None
        assert where.port is not None
        yield where.hostname, where.port


async def ask(address: tuple[str, int], request: bytes) -> bytes:
    """Everything that comes back until the connection ends."""
    reader, writer = await asyncio.open_connection(*address)
    writer.write(request)
    async with asyncio.timeout(60):
        answer = await reader.read()
    writer.close()
    return answer


HEAD = b"POST / HTTP/1.1\r\nhost: a\r\nconnection: close\r\n"


def test_bodies_of_every_kind_up_to_the_limit() -> None:
    async def go() -> list[bytes]:
        full = b"x" * http.BODY_BYTES_MAX
        async with served() as address:
            return [
                await ask(address, HEAD + b"content-length: 3\r\n\r\nabc"),
                await ask(address, HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"),
                await ask(address, HEAD + b"content-length: %d\r\n\r\n" % len(full) + full),
                await ask(address, HEAD + b"content-length: %d\r\n\r\nx" % (len(full) + 1) + full),
                await ask(address, HEAD + b"transfer-encoding: chunked\r\n\r\n%x\r\n" % (len(full) + 1) + full + b"x\r\n0\r\n\r\n"),
            ]

    small, chunked, full, declared, undeclared = asyncio.run(go())
    assert small.endswith(b"\r\n\r\n3")
    assert chunked.endswith(b"\r\n\r\n2")
    assert full.endswith(b"\r\n\r\n%d" % http.BODY_BYTES_MAX)
    assert declared.startswith(b"HTTP/1.1 413") and b"application/problem+json" in declared
    assert undeclared.startswith(b"HTTP/1.1 413")


@pytest.mark.parametrize("sent", [b"", b"POST / HTT", HEAD])
def test_a_head_that_does_not_come_ends_the_connection(sent: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    async def go() -> tuple[bytes, bytes]:
        async with served() as address:
            with monkeypatch.context() as impatient:
                impatient.setattr(http.SlowClientProtocol, "head_s", 0.2)
                try:
                    slow = await ask(address, sent)
                except ConnectionResetError:
                    slow = b""
            return slow, await ask(address, HEAD + b"content-length: 1\r\n\r\na")

    slow, other = asyncio.run(go())
    assert slow == b""
    assert other.endswith(b"\r\n\r\n1")


def certified(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Authority.load_or_make(folder / "ca").issue(folder, ["127.0.0.1"])
    monkeypatch.setenv("WOOLY_TLS_CERT", str(folder / "cert.pem"))
    monkeypatch.setenv("WOOLY_TLS_KEY", str(folder / "key.pem"))


def test_a_connection_that_does_not_begin_tls_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    certified(tmp_path, monkeypatch)
    monkeypatch.setattr(Listener, "handshake_s", 0.2)

    async def go() -> list[bytes]:
        async with served() as address:
            return [await said(*await asyncio.open_connection(*address), sent) for sent in (b"", b"\x16\x03\x01")]

    assert asyncio.run(go()) == [b"", b""]


async def said(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: bytes) -> bytes:
    """What is answered until the other side ends the connection."""
    writer.write(sent)
    try:
        async with asyncio.timeout(60):
            return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize("tls", [False, True])
def test_one_address_has_a_part_of_the_connections(tls: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that say nothing before TLS among them; another address is served, and the first again once they have ended."""
    monkeypatch.setattr(http, "_CONNECTIONS_MAX", 40)
    if tls:
        certified(tmp_path, monkeypatch)
    trusted = ssl.create_default_context(cafile=str(tmp_path / "ca" / "ca.pem")) if tls else None

    async def asked(address: tuple[str, int], source: str) -> bytes:
        reader, writer = await asyncio.open_connection(*address, ssl=trusted, local_addr=(source, 0))
        return await said(reader, writer, HEAD + b"content-length: 1\r\n\r\na")

    async def go() -> tuple[int, bytes, bytes]:
        async with served() as address:
            silent = [await asyncio.open_connection(*address) for _ in range(60)]
            ends = [asyncio.create_task(reader.read()) for reader, _ in silent]
            while sum(end.done() for end in ends) < 50:
                await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
            other = await asked(address, "127.0.0.2")
            held = sum(not end.done() for end in ends)
            for _, writer in silent:
                writer.close()
            again = b""
            while not again:
                with contextlib.suppress(OSError):
                    again = await asked(address, "127.0.0.1")
            await asyncio.gather(*ends, return_exceptions=True)
            return held, other, again

    held, other, again = asyncio.run(asyncio.wait_for(go(), 60))
    assert held == 10
    assert other.endswith(b"\r\n\r\n1") and again.endswith(b"\r\n\r\n1")


def test_the_addresses_of_one_ipv6_network_have_a_part_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host has 2^64 of them."""
    monkeypatch.setattr(http, "_CONNECTIONS_MAX", 40)
    addresses = [f"fd00:77::{number:x}" for number in range(1, 41)]

    def change(verb: str) -> int:
        # Without nodad an address is tentative, and refused by bind, until the kernel's detection of duplicates has run.
        lines = "".join(f"addr {verb} {address}/128 dev lo nodad\n" for address in addresses)
        return subprocess.run(["ip", "-6", "-batch", "-"], input=lines, text=True, capture_output=True).returncode

    if shutil.which("ip") is None or change("replace"):
        pytest.skip("this user can add no address")

    def routed(address: str) -> bool:
        """The kernel makes the route to a new address a moment after the address."""
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind((address, 0))
                probe.connect((addresses[0], 9))  # nothing is sent
            except OSError:
                return False
            return True

    async def go() -> int:
        """How many are left when thirty are closed."""
        bound = socket.create_server(("::", 0), family=socket.AF_INET6)
        held: list[asyncio.BaseTransport] = []

        class Held(asyncio.Protocol):
            on_lost = staticmethod(lambda: None)

            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                held.append(transport)

        listener = Listener(bound, Held, None)
        at = "fd00:77::1", bound.getsockname()[1]
        opened = [await asyncio.open_connection(*at, local_addr=(address, 0)) for address in addresses]
        ends = [asyncio.create_task(reader.read()) for reader, _ in opened]
        while sum(end.done() for end in ends) < 30:
            await asyncio.wait([end for end in ends if not end.done()], return_when=asyncio.FIRST_COMPLETED)
        left = sum(not end.done() for end in ends)
        listener.close()
        for _, writer in opened:
            writer.close()
        for transport in held:
            transport.close()
        await asyncio.gather(*ends, return_exceptions=True)
        bound.close()
        return left

    try:
        until(lambda: all(map(routed, addresses)), "routes to the addresses")
        assert asyncio.run(asyncio.wait_for(go(), 60)) == 10
    finally:
        change("del")


def test_a_service_takes_as_many_files_as_it_may() -> None:
    program = (
        "import resource; from wooly.shared.files import more_files; print(more_files(1 << 16), resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = ["prlimit", "--nofile=100:700", sys.executable, "-c", program]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")[0] == "700 (700, 700)"


def test_a_body_that_does_not_come_is_408() -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("the application must not see it")

    async def go() -> list[Any]:
        sent: list[Any] = []

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {"type": "http", "headers": [(b"content-length", b"10")]}
        await http.buffer_bodies(app, body_s=0.05)(scope, receive, send)
        return sent

    start, body = asyncio.run(go())
    assert start["status"] == 408
    assert b"the body did not come" in body["body"]


def test_an_unread_answer_ends_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http.SlowClientProtocol, "unread_s", 0.3)

    async def go() -> int:
        async with served() as address:
            reader, writer = await asyncio.open_connection(*address, limit=1 << 10)
            writer.write(b"GET /big HTTP/1.1\r\nhost: a\r\n\r\n")
            await asyncio.wait_for(ended(writer), 60)
            got = 0
            try:
                while part := await reader.read(1 << 20):
                    got += len(part)
            except ConnectionError:
                pass
            return got

    async def ended(writer: asyncio.StreamWriter) -> None:
        """The other side has given up: what we write now fails. We read nothing."""
        while True:
            try:
                writer.write(b"\r\n")
                await writer.drain()
            except ConnectionError:
                return
            await asyncio.sleep(0.05)

    assert asyncio.run(go()) < BIG


def test_a_request_for_a_websocket_gets_an_ordinary_answer() -> None:
    """No service has any: the request must not reach the application as another kind of connection."""
    upgrade = b"Connection: Upgrade, close\r\nUpgrade: websocket\r\nSec-WebSocket-Key: eA==\r\nSec-WebSocket-Version: 13\r\n"

    async def go() -> bytes:
        async with served() as address:
            return await ask(address, b"GET / HTTP/1.1\r\nHost: x\r\n" + upgrade + b"\r\n")

    answer = asyncio.run(go())
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n") and answer.endswith(b"\r\n\r\n0")
