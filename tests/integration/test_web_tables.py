"""Tasks, Groups, Settings and Credits over plain HTTP: what a member sees, what a form without its token does, what is thrown at them."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Iterator

import httpx
import pytest

from bus_schemas.events import TaskPlaced, TaskSubmitted
from services.kit.access.tokens import make_key
from tests.support.plane import GIB, Plane, wait_until

_KEY = make_key().text


def _queue(plane: Plane, task: TaskSubmitted) -> None:
    """Submit it, and return once the controller has refused it and keeps it waiting."""
    plane.publish("task", task.task, task)
    headers = {"authorization": f"Bearer {_KEY}"}
    with httpx.Client(base_url=plane.controller.url, headers=headers, timeout=30) as client:
        wait_until(lambda: bool(client.get(f"/api/v1/tasks/{task.task}").json().get("placement")))


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane(WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=_KEY) as started:
        started.register("alpha")
        # a real shortage, for the controller decides too: "theirs" wants the device empty and has waited since 1970, so it is kept for it
        started.publish("task", "placed", TaskSubmitted(time.time_ns(), "placed", "acme", 1, GIB, title="=cmd()"))
        started.publish("placement", "placed", TaskPlaced(time.time_ns(), "placed", "alpha", (0,), (("alpha", 0, 900),), (), 1))
        _queue(started, TaskSubmitted(3, "theirs", "globex", 2, GIB, title="task of globex", queue=True, exclusive=True))
        _queue(started, TaskSubmitted(3, "ours", "acme", 2, GIB, title="task of acme", queue=True))
        yield started


@pytest.fixture(scope="module")
def admin(plane: Plane) -> Iterator[httpx.Client]:
    headers = {"authorization": f"Bearer {_KEY}", "accept": "text/html"}
    with httpx.Client(base_url=plane.controller.url, headers=headers, timeout=30) as client:
        for path, body in (
            ("tenants", {"id": "acme"}),
            ("tenants", {"id": "globex"}),
            ("users", {"id": "grace", "role": "member", "tenant": "acme", "password": "a bug in the relay"}),
        ):
            assert client.post(f"/api/v1/{path}", json=body, headers={"accept": "application/json"}).status_code == 201
        yield client


@pytest.fixture(scope="module")
def member(plane: Plane, admin: httpx.Client) -> Iterator[httpx.Client]:
    """Grace of acme, logged in as a browser is: with a cookie."""
    with httpx.Client(base_url=plane.controller.url, headers={"accept": "text/html"}, timeout=30) as client:
        answer = client.post("/login", data={"user": "grace", "password": "a bug in the relay"})
        assert answer.status_code == 303, answer.text
        yield client


def token_of(page: str) -> str:
    found = re.search(r'name="_csrf_token" value="([^"]+)"', page)
    assert found is not None
    return found[1]


def test_a_member_sees_what_is_theirs(member: httpx.Client) -> None:
    tasks = member.get("/tasks").text
    assert "task of acme" in tasks and "globex" not in tasks and "theirs" not in tasks
    assert "globex" not in member.get("/tasks?tenant=globex").text.replace('value="globex"', "").replace("tenant=globex", "")
    story = member.get("/tasks/ours").text
    assert "reserved for a task that has waited long" in story and "kept for task theirs" not in story
    for path in ("/tasks/theirs", "/tasks/nobody"):
        answer = member.get(path)
        assert answer.status_code == 404 and "There is nothing here" in answer.text


@pytest.mark.parametrize("path", ["/settings/users", "/settings/audit", "/groups/new"])
def test_what_a_member_may_not_is_neither_offered_nor_given(member: httpx.Client, path: str) -> None:
    assert f'href="{path}"' not in member.get("/settings").text + member.get("/groups").text
    assert member.get(path).status_code == 403


def test_a_member_sees_no_other_tenant_in_settings(member: httpx.Client) -> None:
    for path in ("/settings", "/settings/tenants", "/settings/keys"):
        answer = member.get(path)
        assert answer.status_code in (200, 403) and "globex" not in answer.text, path


def test_a_form_needs_its_token_and_its_owner(member: httpx.Client, admin: httpx.Client) -> None:
    for data in ({}, {"_csrf_token": "0" * 32}):
        assert member.post("/tasks/ours/cancel", data=data).status_code == 403
    token = token_of(member.get("/tasks/ours").text)
    assert member.post("/tasks/theirs/cancel", data={"_csrf_token": token}).status_code == 404
    assert member.post("/groups", data={"_csrf_token": token, "id": "mine"}).status_code == 403
    assert member.post("/settings", data={"_csrf_token": token, "default_vram_overcommit_percent": "900"}).status_code == 403
    stale = member.post("/tasks/ours/priority", data={"_csrf_token": token, "priority": "3", "revision": "1"})
    assert stale.status_code == 303
    assert "Nothing was done" in member.get("/tasks/ours").text
    assert admin.get("/api/v1/tasks/ours", headers={"accept": "application/json"}).json()["state"] == "queued"
    made = member.post("/tasks", data={"_csrf_token": token, "required_vram_mb": "1", "tenant": "globex", "title": "mine after all"})
    assert made.status_code == 303
    mine = admin.get(f"/api/v1{made.headers['location']}", headers={"accept": "application/json"}).json()
    assert (mine["title"], mine["tenant"]) == ("mine after all", "acme")


def test_bodies_that_no_form_of_ours_sends(member: httpx.Client) -> None:
    token = token_of(member.get("/tasks/new").text)
    assert member.post("/tasks", content=b"title=" + b"x" * (2 << 20)).status_code == 413
    base = {"_csrf_token": token, "required_vram_mb": "1"}
    for field, value, word in (
        ("required_vram_mb", "many", "whole number"),
        ("priority", "9", "At most 4"),
        ("groups", "../..", "letters, digits"),
        ("colour", "red", "colour"),
        ("queue_timeout_ms", "5", "does not wait"),
    ):
        answer = member.post("/tasks", data=base | {field: value})
        assert answer.status_code == 400 and word in answer.text, (field, answer.text[:300])
    files = {"title": ("evil.html", b"<script>", "text/html")}
    assert member.post("/tasks", data=base, files=files).status_code == 400
    assert member.post("/tasks/ours/priority", data={"_csrf_token": token, "priority": "3", "revision": "1e9"}).status_code == 400


def test_a_cancel_needs_no_revision_and_minds_none(member: httpx.Client) -> None:
    token = token_of(member.get("/tasks/ours").text)
    made = member.post("/tasks", data={"_csrf_token": token, "required_vram_mb": "1", "title": "to be cancelled", "queue": "on"})
    page = made.headers["location"]
    assert member.post(f"{page}/cancel", data={"_csrf_token": token, "revision": "1"}).status_code == 303
    assert "Cancelled." in member.get(page).text


@pytest.mark.parametrize(
    "path",
    [
        "/static/x/../../site.py",
        "/static/x/..%2f..%2fsite.py",
        "/static/x/%2e%2e/%2e%2e/site.py",
        "/static/x//etc/passwd",
        "/static/x/wooly.css%00",
    ],
)
def test_no_path_leads_out_of_the_static_files(plane: Plane, path: str) -> None:
    host, port = plane.controller.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=30) as raw:  # a client library would tidy the path up
        raw.sendall(f"GET /static/x/{path} HTTP/1.1\r\nHost: {host}:{port}\r\nConnection: close\r\n\r\n".encode())
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert answer.split(b" ", 2)[1] in (b"400", b"404")
    assert b"WEB_ROUTES" not in answer and b"root:" not in answer


def test_a_slow_sender_delays_no_other_client(plane: Plane, member: httpx.Client) -> None:
    host, port = plane.controller.url.removeprefix("http://").split(":")
    slow = [socket.create_connection((host, int(port))) for _ in range(50)]
    try:
        for number, raw in enumerate(slow):
            raw.sendall(b"POST /tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n" + (b"\r\na" if number % 2 else b"X-Slow: "))
        assert member.get("/tasks").status_code == 200
    finally:
        for raw in slow:
            raw.close()


def test_billing_that_is_away_is_said_so(member: httpx.Client) -> None:
    answer = member.get("/credits")
    assert answer.status_code == 503 and "does not know where billing is" in answer.text
    assert "does not know where billing is" in member.get("/tasks/ours").text
