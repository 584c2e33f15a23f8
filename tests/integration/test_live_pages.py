"""The stream of changes on a real controller with authentication: whose rows come over it, what a reconnect gets, who is cut off."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any, Self
from urllib.parse import urlsplit

import pytest

from bus_schemas.events import TaskSubmitted
from services.kit.access.tokens import make_key
from tests.support.plane import GIB, Plane

TOPICS = ("dashboard", "nodes", "node.n1", "tasks")
_PATIENCE_S = 30


@pytest.fixture(scope="module")
def admin() -> str:
    return str(make_key().text)


@pytest.fixture(scope="module")
def plane(admin: str) -> Iterator[Plane]:
    with Plane(WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=admin) as running:
        running.register("n1")
        for tenant in ("acme", "globex"):
            call(running, admin, "POST", "/api/v1/tenants", {"id": tenant})
        yield running


def call(plane: Plane, key: str, method: str, path: str, body: Any = None) -> Any:
    """REST as the owner of ``key``; the answer."""
    parts = urlsplit(plane.controller.url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_PATIENCE_S)
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        answer = connection.getresponse()
        data = answer.read()
    finally:
        connection.close()
    assert answer.status < 400, data
    return json.loads(data) if data else None


def member(plane: Plane, admin: str, tenant: str, role: str = "member") -> tuple[str, str]:
    """(id, secret text) of a new key."""
    made = call(plane, admin, "POST", "/api/v1/keys", {"tenant": tenant, "role": role, "user": ""})
    return str(made["id"]), str(made["key"])


class Stream:
    """An open stream, read as a browser reads it."""

    def __init__(self, plane: Plane, topic: str, key: str, **headers: str) -> None:
        parts = urlsplit(plane.controller.url)
        self._connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=_PATIENCE_S)
        sent = {"Authorization": f"Bearer {key}", "Accept": "text/event-stream"} | {k.replace("_", "-"): v for k, v in headers.items()}
        self._connection.request("GET", f"/live/{topic}", headers=sent)
        self.answer = self._connection.getresponse()
        self.status = self.answer.status
        self.text = ""
        self.id = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def message(self) -> dict[str, Any] | None:
        """The next patch; None when the stream ends."""
        data = ""
        while line := self.answer.readline().decode():
            self.text += line
            if line.startswith("id: "):
                self.id = line[4:].strip()
            elif line.startswith("data: "):
                data = line[6:]
            elif line == "\n" and data:
                found = json.loads(data)
                data = ""
                if found:
                    return dict(found)
        return None

    def until(self, wanted: Callable[[str], bool]) -> None:
        """Read on until everything so far is as wanted."""
        deadline = time.monotonic() + _PATIENCE_S
        while not wanted(self.text):
            assert time.monotonic() < deadline and self.message() is not None, self.text[-2_000:]


def submit(plane: Plane, task: str, tenant: str) -> None:
    plane.publish("task", task, TaskSubmitted(time.time_ns(), task, tenant, 1, 99 * GIB, queue=True, title=f"work of {tenant} {task}"))


@pytest.mark.parametrize("topic", TOPICS)
def test_a_member_never_gets_another_tenants_rows(plane: Plane, admin: str, topic: str) -> None:
    _, acme = member(plane, admin, "acme")
    with Stream(plane, topic, acme) as stream, Stream(plane, "tasks", admin) as watch:
        first = stream.message()
        assert first is not None and first["all"] is True
        mark = f"{topic.replace('.', '')}-end"
        submit(plane, f"{topic.replace('.', '')}-secret", "globex")
        submit(plane, mark, "acme")
        watch.until(lambda text: mark in text and "secret" in text)  # an identity that may see both has both
        if topic in ("dashboard", "tasks"):
            stream.until(lambda text: mark in text)
        assert "globex" not in stream.text and "secret" not in stream.text


@pytest.mark.parametrize("topic", ["node", "node.pair", "node.nowhere", "task"])
def test_a_stream_about_no_single_thing_ends(plane: Plane, admin: str, topic: str) -> None:
    for node in ("pair1", "pair2"):
        plane.register(node)
    with Stream(plane, topic, admin) as stream:
        assert stream.message() is None and "event: gone" in stream.text


def test_who_may_not_read_is_refused(plane: Plane, admin: str) -> None:
    with Stream(plane, "dashboard", "wk_" + "a" * 16 + "_" + "b" * 52) as stream:
        assert stream.status == 401
    _, node = member(plane, admin, "acme", "viewer")
    with Stream(plane, "nothing-like-it", node) as stream:
        assert stream.status == 404


def test_a_revoked_key_is_served_no_more(plane: Plane, admin: str) -> None:
    identity, text = member(plane, admin, "acme")
    with Stream(plane, "tasks", text) as stream, Stream(plane, "tasks", admin) as watch:
        assert stream.message() is not None
        call(plane, admin, "DELETE", f"/api/v1/keys/{identity}")
        submit(plane, "after-the-end", "acme")
        watch.until(lambda seen: "after-the-end" in seen)
        while stream.message() is not None:
            pass
        assert "after-the-end" not in stream.text


def test_a_reconnect_gets_what_it_missed_and_an_unknown_reader_everything(plane: Plane, admin: str) -> None:
    with Stream(plane, "tasks", admin) as stream, Stream(plane, "tasks", admin) as other:
        assert stream.message() is not None
        submit(plane, "missed-one", "acme")
        other.until(lambda text: "missed-one" in text)
        with Stream(plane, "tasks", admin, Last_Event_ID=stream.id) as again:
            again.until(lambda text: "missed-one" in text)
            assert '"all"' not in again.text
        with Stream(plane, "tasks", admin, Last_Event_ID="0123456789ab-7") as stranger:
            found = stranger.message()
            assert found is not None and found["all"] is True


def test_a_reader_that_reads_nothing_delays_no_other(plane: Plane, admin: str) -> None:
    """And costs the controller no more than its socket: forty changes of a table it does not read."""
    parts = urlsplit(plane.controller.url)
    with socket.create_connection((parts.hostname or "", parts.port or 0)) as stuck, Stream(plane, "tasks", admin) as reader:
        stuck.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stuck.sendall(f"GET /live/tasks HTTP/1.1\r\nHost: {parts.hostname}\r\nAuthorization: Bearer {admin}\r\n\r\n".encode())
        for number in range(40):
            submit(plane, f"flood-{number}", "acme")
        reader.until(lambda text: "flood-39" in text)


def test_a_controller_that_stops_lets_its_readers_go(plane: Plane, admin: str) -> None:
    with Stream(plane, "dashboard", admin) as stream:
        assert stream.message() is not None
        assert plane.controller.stop() == 0
        while stream.message() is not None:
            pass
    plane.controller.start()
