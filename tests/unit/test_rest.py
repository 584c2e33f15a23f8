"""Requests to our REST services: what the environment must not change, and answers that break off."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from wooly.errors import NoServerError
from wooly.rest import Credentials, ask


class Server(ThreadingHTTPServer):
    """Answers every request with ``body`` and says that it has ``nbytes``. ``heard``: the keys that it was sent."""

    def __init__(self, body: bytes, nbytes: int) -> None:
        self.body, self.nbytes = body, nbytes
        self.heard: list[str | None] = []
        super().__init__(("127.0.0.1", 0), _Handler)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        assert isinstance(self.server, Server)
        self.server.heard.append(self.headers["Authorization"])
        self.send_response(200)
        self.send_header("Content-Length", str(self.server.nbytes))
        self.end_headers()
        self.wfile.write(self.server.body)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture
def servers() -> Iterator[list[Server]]:
    """Two: one with an answer, and one whose answer breaks off."""
    found = [Server(b"ours", 4), Server(b"short", 100)]
    threads = [threading.Thread(target=server.serve_forever) for server in found]
    for thread in threads:
        thread.start()
    yield found
    for server, thread in zip(found, threads, strict=True):
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_proxy_of_the_environment_does_not_get_the_key(servers: list[Server], monkeypatch: pytest.MonkeyPatch) -> None:
    service, proxy = servers
    monkeypatch.setenv("http_proxy", proxy.url)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert ask(service.url, "/", Credentials("the key"), what="controller", timeout_s=10) == b"ours"
    assert (service.heard, proxy.heard) == (["Bearer the key"], [])


def test_an_answer_that_breaks_off_is_none(servers: list[Server]) -> None:
    with pytest.raises(NoServerError, match="does not answer"):
        ask(servers[1].url, "/", Credentials(), what="controller", timeout_s=10)
