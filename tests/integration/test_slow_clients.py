"""Slow and greedy callers of a service that speaks HTTP: their connections end, the others' answers come."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

import pytest

from services.kit import http
from services.kit.http import parse_address, serve

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
