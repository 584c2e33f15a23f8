"""What a member of another tenant, and a visitor without a key, say to the controller over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import http.client
import json
import re
import socket
import urllib.parse
import urllib.request
from typing import Final

from tests.adversarial.stack.field import Attacker, Attacks
from tests.support.access_table import CONTROLLER
from tests.support.world import DEADLINE_S

ATTACKS: Final = Attacks()

_TASK = {"required_vram_mb": 1, "title": "of an attacker"}


@ATTACKS
async def the_victims_task_read_and_changed(by: Attacker) -> None:
    task = f"/api/v1/tasks/{by.victim.task}"
    for path in ("", "/waiting", "/waits", "/timeline", "/log"):
        by.refused("GET", task + path)
    by.refused("GET", f"/api/v1/placements/{by.victim.task}")
    by.refused("PATCH", task, {"priority": 4})
    for verb in ("cancel", "release", "move", "resume"):
        by.refused("POST", f"{task}/{verb}", {})
    for page in (f"/tasks/{by.victim.task}", f"/tasks/{by.victim.task}/ran"):
        by.refused("GET", page)


@ATTACKS
async def lists_show_nothing_of_the_victim(by: Attacker) -> None:
    for path in (
        "/api/v1/tasks?limit=500",
        "/api/v1/placements",
        "/api/v1/keys",
        "/api/v1/tenants",
        "/api/v1/telemetry",
        "/api/v1/tasks?tenant=best",
        "/api/v1/tasks?search=victim",
        "/api/v1/billing/credits?by=task",
    ):
        status, text = by.rest("GET", path)
        assert status < 500, (path, status)
        for word in (by.victim.name, by.victim.task, "victim", by.world.names.b):
            assert word.encode() not in text, (path, word)


@ATTACKS
async def work_in_the_victims_name(by: Attacker) -> None:
    for path in ("/api/v1/tasks", "/api/v1/placements/query"):
        by.refused("POST", path, _TASK | {"tenant": "best"})
    by.refused("POST", "/api/v1/runs", _TASK | {"tenant": "best", "script": "pass"})
    by.refused("POST", "/api/v1/keys", {"tenant": "best", "role": "member"})
    by.refused("POST", "/api/v1/tasks", _TASK | {"id": by.victim.task})


@ATTACKS
async def rights_that_a_member_has_not(by: Attacker) -> None:
    for method, path, body in (
        ("POST", "/api/v1/keys", {"role": "admin"}),
        ("POST", "/api/v1/keys", {"role": "node", "node": "n9"}),
        ("POST", "/api/v1/tenants", {"id": "evil"}),
        ("PATCH", "/api/v1/tenants/best", {"disabled": True}),
        ("GET", "/api/v1/users", None),
        ("POST", "/api/v1/users", {"id": "evil", "role": "admin", "password": "long enough for it"}),
        ("GET", "/api/v1/audit", None),
        ("PUT", "/api/v1/config", {"default_vram_overcommit_percent": 900}),
        ("POST", f"/api/v1/nodes/{by.node}/drain", None),
        ("PUT", f"/api/v1/nodes/{by.node}/config", {"drained": True}),
        ("POST", "/api/v1/groups", {"id": "vip"}),
        ("DELETE", f"/api/v1/keys/{by.world.names.b}", None),
        ("GET", f"/api/v1/keys/{by.world.names.b}", None),
        ("POST", "/api/v1/billing/grants", {"tenant": "acme", "micro": 10**12}),
        ("GET", "/api/v1/billing/accounts/best", None),
        ("PUT", "/api/v1/billing/budgets/best/day", {"limit_micro": 1, "warn_percent": [], "stop_percent": 100}),
        ("PUT", "/api/v1/billing/tiers/standard", {"priority_ceiling": 4}),
        ("PUT", "/api/v1/billing/tenants/best/tier", {"tier": "basic"}),
        ("PUT", "/api/v1/billing/prices/standard", {"core_second_micro": 1, "gib_second_micro": 1}),
        ("GET", "/api/v1/billing/statements/best?month=2026-01", None),
        ("GET", "/api/v1/billing/verify", None),
    ):
        by.refused(method, path, body)


@ATTACKS
async def bodies_of_every_wrong_kind(by: Attacker) -> None:
    for body in (
        b"",
        b"{",
        b"[]",
        b"null",
        b"1e999",
        b"\xff\xfe",
        b'{"required_vram_mb": 1' + b" " * (5 << 20) + b"}",
        b"[" * 200_000,
        b'{"a":' * 100_000,
        b'{"required_vram_mb": NaN}',
        b'{"required_vram_mb": 1e400}',
        b'{"required_vram_mb": -1}',
        b'{"required_vram_mb": 9' + b"9" * 5000 + b"}",
        b'{"required_vram_mb": true}',
        b'{"required_vram_mb": 1, "unknown": 1}',
        b'{"required_vram_mb": 1, "title": "\\ud800"}',
        b'{"required_vram_mb": 1, "gpu_count": 100000}',
        b'{"required_vram_mb": 1, "priority": 9}',
        b'{"required_vram_mb": 1, "groups": [' + b'"x",' * 5000 + b'"x"]}',
    ):
        by.refused("POST", "/api/v1/tasks", body)


@ATTACKS
async def texts_for_pages_and_terminals(by: Attacker) -> None:
    for title in ("\x1b[2J", "a\x00b", "\u202exe.gnp", "x" * 201, "a\nb"):
        by.refused("POST", "/api/v1/tasks", _TASK | {"title": title})
    status, _ = by.rest("POST", "/api/v1/tasks", _TASK | {"id": "markup", "title": "<script>alert(1)</script>{{7*7}}${7*7}"})
    assert status in (200, 201, 202, 409), status
    status, page = by.rest("GET", "/tasks/markup", key=by.world.stack.admin)
    assert status == 200 and b"<script>alert" not in page and b"{{7*7}}" in page
    by.rest("POST", "/api/v1/tasks/markup/cancel")


@ATTACKS
async def names_that_are_paths_or_wildcards(by: Attacker) -> None:
    for name in (
        "../../etc/passwd",
        "..%2f..%2fetc%2fpasswd",
        "%00",
        "*",
        ">",
        "a.b.c",
        "x" * 5000,
        "%f0%9f%92%a9",
        "' OR 1=1 --",
        "%0d%0aX:%20y",
    ):
        quoted = name if "%" in name else urllib.parse.quote(name, safe="")
        for path in ("/api/v1/tasks/", "/api/v1/nodes/", "/tasks/", "/nodes/", "/api/v1/keys/", "/static/"):
            by.refused("GET", path + quoted)
    for name in ("a/b", "*", ">", "a.b", "x" * 65, "", "\x00", " "):
        by.refused("POST", "/api/v1/tasks", _TASK | {"id": name})


@ATTACKS
async def pages_and_filters_without_end(by: Attacker) -> None:
    for query in (
        "limit=-1",
        "limit=0",
        "limit=1000000000",
        "limit=x",
        "cursor=%00",
        "cursor=" + "A" * 5000,
        "sort=;drop",
        "state=" + "x," * 5000,
        "after=-1",
        "search=" + "(" * 5000,
        "page=1e9",
        "priority=99",
    ):
        for path in ("/api/v1/tasks", "/tasks", "/api/v1/keys"):
            status, text = by.rest("GET", f"{path}?{query}")
            assert status < 500 and len(text) < 4 << 20, (path, query[:30], status)


@ATTACKS
async def notifications_to_what_only_the_controller_reaches(by: Attacker) -> None:
    port = urllib.parse.urlsplit(by.world.stack.addresses["controller"]).port
    for url in (
        f"https://127.0.0.1:{port}/",
        "http://localhost/",
        "http://[::1]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://0.0.0.0/",
        "http://[::ffff:127.0.0.1]/",
        "file:///etc/passwd",
        "gopher://x/",
        "http://user:password@example.org/",
        "http://[fd00::1]/",
        "http://x.localhost/",
        "ftp://example.org/",
        "http://[64:ff9b::7f00:1]/",
        "http://[64:ff9b::a9fe:a9fe]/latest/meta-data/",
        "http://[::127.0.0.1]/",
        "http://[fec0::1]/",
        "http://example.org/\r\nHost: x",
        "javascript:alert(1)",
    ):
        status, text = by.rest("POST", "/api/v1/runs", _TASK | {"script": "pass", "webhook": url})
        assert status == 400 and json.loads(text)["errors"][0]["field"] == "webhook", (url, status, text[:300])


@ATTACKS
async def proofs_of_identity_that_are_none(by: Attacker) -> None:
    key = by.world.b
    head, _, secret = key.rpartition("_")
    forged = "__Host-wooly_session=" + "A" * 200
    for said in (
        {"Authorization": f"Bearer {head}_{'0' * len(secret)}"},
        {"Authorization": f"Bearer {head}_"},
        {"Authorization": "Bearer wk_"},
        {"Authorization": f"Basic {key}"},
        {"Authorization": "Bearer " + "x" * 20_000},
        {"Cookie": forged},
        {"Cookie": "wooly_session=x"},
        {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-User": "admin"},
        {"X-Original-URL": "/api/v1/session"},
        {"Authorization": "Bearer \xff"},
    ):
        for method, path in (("GET", "/api/v1/tasks"), ("POST", "/api/v1/tenants"), ("GET", "/api/v1/audit")):
            by.refused(method, path, {} if method == "POST" else None, key="", **said)


@ATTACKS
async def nothing_without_a_key(by: Attacker) -> None:
    for path in ("tasks", "nodes", "keys", "tenants", "users", "audit", "config", "telemetry", "placements", "billing/credits", "groups"):
        status, text = by.rest("GET", f"/api/v1/{path}", key="")
        assert status == 401 and by.node.encode() not in text, path
    for path in ("/schema/openapi.yaml", "/schema/openapi.yml", "/metrics", "/live/tasks", f"/live/task.{by.victim.task}"):
        by.refused("GET", path, key="")  # the description as YAML took a second to write
    for page in ("/tasks", "/nodes", "/credits", "/settings", "/groups"):
        status, text = by.rest("GET", page, key="")
        assert by.victim.name.encode() not in text and by.node.encode() not in text, page


@ATTACKS
async def tasks_that_nobody_starts(by: Attacker) -> None:
    """They wait or are placed; the victim's tenant is still given a place."""
    made = []
    for number in range(40):
        status, text = by.rest("POST", "/api/v1/tasks", _TASK | {"queue": True, "gpu_mode": "Exclusive"})
        assert status < 500, text[:300]
        made += [json.loads(text)["id"]] if status < 300 else []
        assert number < 1000
    status, text = by.rest("POST", "/api/v1/tasks", {"required_vram_mb": 1, "title": "of the victim"}, key=by.world.b)
    assert status < 300, text[:300]
    found = json.loads(text)
    assert found["placement"]["state"] == "placed", found
    task = f"/api/v1/tasks/{found['id']}"
    by.rest("POST", f"{task}/cancel", key=by.world.b)
    for task in made:
        by.rest("POST", f"/api/v1/tasks/{task}/cancel")


def _controller(by: Attacker) -> tuple[str, int]:
    parts = urllib.parse.urlsplit(by.world.stack.addresses["controller"])
    assert parts.hostname is not None and parts.port is not None
    return parts.hostname, parts.port


@ATTACKS
async def connections_that_say_nothing(by: Attacker) -> None:
    """Plain ones that never begin TLS, and such as send half a request."""
    sockets = [socket.create_connection(_controller(by), DEADLINE_S) for _ in range(150)]
    half = []
    for _ in range(20):
        _, writer = await asyncio.open_connection(*_controller(by), ssl=by.world.stack.context)
        writer.write(b"POST /api/v1/session HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{")
        half.append(writer)
    status, _ = await asyncio.to_thread(by.rest, "GET", "/health", key="")
    assert status == 200
    for writer in half:
        writer.close()
    for connection in sockets:
        connection.close()


@ATTACKS
async def requests_that_are_none(by: Attacker) -> None:
    for data in (
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x00" * 5000,
        b"GET " + b"/" * 100_000 + b" HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\n" + b"A: b\r\n" * 20_000,
        b"POST /api/v1/tasks HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
        b"0\r\n\r\nGET /api/v1/audit HTTP/1.1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        b"CONNECT 127.0.0.1:22 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"TRACE / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ):
        reader, writer = await asyncio.open_connection(*_controller(by), ssl=by.world.stack.context)
        writer.write(data)
        try:
            async with asyncio.timeout(2):
                answer = await reader.read(1 << 16)
        except (ConnectionError, TimeoutError):
            answer = b""
        writer.close()
        assert b" 200 " not in answer.split(b"\r\n")[0] or data.startswith(b"GET"), (data[:60], answer[:200])
        assert b"Traceback" not in answer and b" 500 " not in answer.split(b"\r\n")[0], (data[:60], answer[:200])


@ATTACKS
async def guesses_of_a_password(by: Attacker) -> None:
    """By name and by key: after some tries the address waits, and the victim's key is still good."""
    answers = set()
    for guess in range(60):
        answers.add(by.rest("POST", "/api/v1/session", {"user": "admin", "password": f"guess number {guess}"}, key="")[0])
    assert answers == {401, 429}, answers
    assert by.rest("GET", "/api/v1/tasks", key=by.world.b)[0] == 200


@ATTACKS
async def more_keys_than_a_user_may_have(by: Attacker) -> None:
    status, text = by.rest("POST", "/api/v1/keys", {"days": 1, "scopes": ["read"]})
    assert status in (201, 400, 403, 422), (status, text[:200])
    for scopes in (["admin"], ["operate", "bus"], ["everything"], "admin", [["read"]], {"read": 1}):
        status, text = by.rest("POST", "/api/v1/keys", {"days": 10**9, "scopes": scopes, "role": "member"})
        assert status >= 400 or b'"admin"' not in text, (scopes, text[:200])


@ATTACKS
async def bodies_that_unpack_to_more(by: Attacker) -> None:
    bomb = gzip.compress(bytes(32 << 20))
    for said in ({"Content-Encoding": "gzip"}, {"Content-Encoding": "deflate"}, {"Content-Encoding": "br"}, {"Transfer-Encoding": "gzip"}):
        by.refused("POST", "/api/v1/tasks", bomb, **said)
    for kind in (
        "multipart/form-data; boundary=x",
        "application/x-www-form-urlencoded",
        "application/xml",
        "text/plain",
        "",
        "a/" + "b" * 9000,
    ):
        status, _ = by.rest("POST", "/api/v1/tasks", b"--x\r\n" * 100_000, **{"Content-Type": kind})
        assert 400 <= status < 500, (kind[:20], status)


@ATTACKS
async def headers_of_proxies_and_frameworks(by: Attacker) -> None:
    """None of them gives another method, another path, another address, or more rights."""
    for said in (
        {"X-HTTP-Method-Override": "DELETE"},
        {"X-Original-URL": f"/api/v1/tasks/{by.victim.task}"},
        {"X-Rewrite-URL": "/api/v1/audit"},
        {"X-Forwarded-For": "127.0.0.1", "X-Forwarded-Proto": "https", "Forwarded": "for=127.0.0.1"},
        {"X-Tenant": "best", "X-Wooly-Tenant": "best", "X-Role": "admin"},
        {"Range": "bytes=0-" + ",0-" * 2000},
        {"Accept": "text/html," * 3000},
        {"Accept-Language": "\xff\xfe", "Cookie": "a=b; " * 3000},
        {"If-Match": "*", "If-None-Match": "*"},
    ):
        status, text = by.rest("GET", "/api/v1/tasks", **said)
        assert status < 500 and by.victim.task.encode() not in text, (said, status)
        by.refused("GET", "/api/v1/audit", **said)


@ATTACKS
async def a_cookie_of_ones_own_without_its_token(by: Attacker) -> None:
    """A session of a browser writes nothing without the token of the form, nor for another site."""
    answers = await asyncio.to_thread(_with_cookie, by)
    assert all(status in (401, 403) for status in answers), answers


def _cookie_of(by: Attacker) -> str:
    """Of a new session of the attacker's browser."""
    url = by.world.stack.addresses["controller"] + "/api/v1/session"
    request = urllib.request.Request(url, data=json.dumps({"key": by.key}).encode(), method="POST")
    request.add_header("Content-Type", "application/json")
    with urllib.request.urlopen(request, timeout=60, context=by.world.stack.context) as answer:
        return str(answer.headers["Set-Cookie"].partition(";")[0])


def _with_cookie(by: Attacker) -> list[int]:
    cookie = _cookie_of(by)
    said: tuple[dict[str, str], ...] = (
        {},
        {"X-CSRF-Token": "x"},
        {"X-CSRF-Token": cookie[-64:]},
        {"Origin": "https://evil.example", "X-CSRF-Token": "x"},
        {"Sec-Fetch-Site": "cross-site"},
    )
    return [by.rest("POST", "/api/v1/tasks", _TASK, key="", Cookie=cookie, **more)[0] for more in said]


@ATTACKS
async def a_thousand_requests_on_one_connection(by: Attacker) -> None:
    reader, writer = await asyncio.open_connection(*_controller(by), ssl=by.world.stack.context)
    writer.write(b"GET /api/v1/tasks HTTP/1.1\r\nHost: x\r\n\r\n" * 1000)
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(5):
            await reader.read(1 << 22)
    writer.close()


@ATTACKS
async def streams_and_pages_held_open(by: Attacker) -> None:
    """Connections that ask and read nothing of the answer."""
    held = []
    for path in (b"/api/v1/tasks", b"/tasks", b"/", b"/nodes", b"/api/v1/telemetry") * 8:
        _, writer = await asyncio.open_connection(*_controller(by), ssl=by.world.stack.context)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer " + by.key.encode() + b"\r\n\r\n")
        held.append(writer)
    status, _ = await asyncio.to_thread(by.rest, "GET", "/health", key="")
    assert status == 200
    for writer in held:
        writer.close()


@ATTACKS
async def scripts_that_are_too_much(by: Attacker) -> None:
    for body in (
        {"script": "x" * (2 << 20)},
        {"script": ""},
        {"script": "pass", "env": {"LD_PRELOAD": "x" * 100_000}},
        {"script": "pass", "env": {f"V{at}": "x" for at in range(10_000)}},
        {"script": "pass", "args": ["x"] * 100_000},
        {"script": "pass", "unknown": 1},
        {"script": ["pass"]},
    ):
        by.refused("POST", "/api/v1/runs", _TASK | body)


@ATTACKS
async def tasks_without_end(by: Attacker) -> None:
    """Those that may live at once are limited; the next are refused until some are over, and the victim's is placed."""
    made = []
    for _ in range(150):
        status, text = by.rest("POST", "/api/v1/tasks", _TASK | {"required_vram_mb": 1 << 20, "queue": True})
        assert status < 500, text[:300]
        made += [json.loads(text)["id"]] if status < 300 else []
    status, text = by.rest("POST", "/api/v1/tasks", {"required_vram_mb": 1, "title": "of the victim"}, key=by.world.b)
    assert status < 300 and json.loads(text)["placement"]["state"] == "placed", text[:300]
    by.rest("POST", f"/api/v1/tasks/{json.loads(text)['id']}/cancel", key=by.world.b)
    for task in made:
        by.rest("POST", f"/api/v1/tasks/{task}/cancel")


@ATTACKS
async def pages_asked_for_on_a_hundred_connections(by: Attacker) -> None:
    """Each with twenty requests at once. Requests of another tenant come between them, not behind them."""
    host, port = _controller(by)
    request = f"GET /tasks HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {by.key}\r\n\r\n".encode() * 20
    answered = 0

    async def ask(reader: asyncio.StreamReader) -> None:
        nonlocal answered
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(1 << 16):
                answered += data.count(b"HTTP/1.1 200")

    connections = [await asyncio.open_connection(host, port, ssl=by.world.stack.context) for _ in range(100)]
    reading = [asyncio.create_task(ask(reader)) for reader, _ in connections]
    for _, writer in connections:
        writer.write(request)
    async with asyncio.timeout(DEADLINE_S):
        while not answered:  # noqa: ASYNC110  # the tasks that read only count: the first answer sets no event
            await asyncio.sleep(0.01)
    before = answered
    found = {(await asyncio.to_thread(by.rest, "GET", "/api/v1/tasks?limit=1", key=by.world.b))[0] for _ in range(3)}
    between = answered - before
    for _, writer in connections:
        writer.transport.abort()
    await asyncio.gather(*reading)
    assert found == {200} and between < 150, between  # without turns each of the three waits for a hundred answers or more


@ATTACKS
async def guesses_of_what_the_victims_task_is(by: Attacker) -> None:
    """A taken id is refused with one message, whether or not the rest of the guess is right."""
    body = {"required_vram_mb": 1, "title": "a secret", "queue": True, "id": f"guessed-{by.fresh()}"}
    assert by.rest("POST", "/api/v1/tasks", body, key=by.world.b)[0] in (201, 202)
    answers = {by.rest("POST", "/api/v1/tasks", body | change) for change in ({}, {"title": "another"}, {"priority": 4})}
    assert len(answers) == 1 and {status for status, _ in answers} == {409}, answers
    runs = {by.rest("POST", "/api/v1/runs", body | {"script": script})[0] for script in ("pass", "print(1)")}
    assert runs in ({400}, {409}), runs
    by.rest("POST", f"/api/v1/tasks/{body['id']}/cancel", key=by.world.b)


@ATTACKS
async def a_gang_of_the_victims_name(by: Attacker) -> None:
    """Tasks of two tenants are no gang, whatever they call it: each waits for more of its own."""
    gang = {"required_vram_mb": 1, "title": "x", "queue": True, "gang": f"gang{by.fresh()}", "gang_size": 2}
    made = [(json.loads(by.rest("POST", "/api/v1/tasks", gang, key=key)[1])["id"], key) for key in (by.world.b, by.key)]
    states = [json.loads(by.rest("GET", f"/api/v1/tasks/{task}", key=key)[1])["state"] for task, key in made]
    for task, key in made:
        by.rest("POST", f"/api/v1/tasks/{task}/cancel", key=key)
    assert states == ["queued", "queued"]


@ATTACKS
async def tokens_that_are_widened_or_changed(by: Attacker) -> None:
    """A token does what its scopes say, makes nothing that outlives it, and is refused with a letter changed."""
    status, text = by.rest("POST", "/api/v1/tokens", {"expires_in_s": 60, "scopes": ["read"]})
    assert status == 200, text[:300]
    token = json.loads(text)["token"]
    assert by.rest("GET", "/api/v1/tasks?limit=1", key=token)[0] == 200
    for method, path, body in (
        ("POST", "/api/v1/tasks", _TASK),
        ("POST", "/api/v1/runs", _TASK | {"script": "pass"}),
        ("POST", "/api/v1/keys", {}),
        ("POST", "/api/v1/tokens", {}),
        ("POST", "/api/v1/session", {"key": token}),
        ("GET", "/tasks", None),
        ("GET", "/live/tasks", None),
    ):
        by.refused(method, path, body, key=token)
    for body in ({"expires_in_s": 10**9}, {"expires_in_s": 1}, {"scopes": ["admin", "everything"]}, {"scopes": ["read"] * 9}):
        by.refused("POST", "/api/v1/tokens", body)
    at = len(token) // 2
    for forged in (
        token[:-1] + ("A" if token[-1] != "A" else "B"),
        token[:at] + "~" + token[at + 1 :],
        token + "A",
        token.upper(),
        token[3:],
    ):
        by.refused("GET", "/api/v1/tasks", key=forged)
    by.refused("GET", "/api/v1/tasks", key="", Cookie=f"__Host-wooly_session={token}")


@ATTACKS
async def logins_that_lead_elsewhere(by: Attacker) -> None:
    """What comes after a login, failed or not, is a path of this site."""
    for target in (
        "//evil.example",
        "https://evil.example",
        "/\\evil.example",
        "\t//evil.example",
        "javascript:alert(1)",
        "/\r\nX: y",
        "////x",
    ):
        form = urllib.parse.urlencode({"user": "unknown-user", "password": "x" * 12, "next": target}).encode()
        location = await asyncio.to_thread(_location, by, "POST", "/login", form)
        assert location.startswith("/login?") and "evil" not in location and "javascript" not in location, (target, location)
    for page in ("/tasks/..%2f..%2fevil.example", "/nodes?x=//evil.example"):
        location = await asyncio.to_thread(_location, by, "GET", page, None)
        assert not location or location.startswith("/login?next=%2F"), location


def _location(by: Attacker, method: str, path: str, body: bytes | None) -> str:
    """Where an answer leads to; empty: nowhere."""
    connection = http.client.HTTPSConnection(*_controller(by), context=by.world.stack.context, timeout=60)
    kind = {"Content-Type": "application/x-www-form-urlencoded"} if body is not None else {}
    connection.request(method, path, body, kind | {"Accept": "text/html"})
    answer = connection.getresponse()
    assert answer.status < 500, (path, answer.status)
    answer.read()
    connection.close()
    return answer.headers.get("Location", "")


@ATTACKS
async def forms_of_another_site(by: Attacker) -> None:
    """Every form, sent with the cookie of a session, without its token or with one that is wrong, changes nothing."""
    cookie = await asyncio.to_thread(_cookie_of, by)
    tried = 0
    for (method, pattern), route in CONTROLLER.items():
        if method != "POST" or route.form is None or pattern in ("/login", "/logout"):
            continue
        path = re.sub(r"\{\w+:str\}", "best", pattern)
        for token in ({}, {"_csrf_token": "x"}, {"_csrf_token": cookie[-64:]}):
            fields = {name: str(value).replace("$", by.tenant) for name, value in route.form.items()} | token
            kind = {"Content-Type": "application/x-www-form-urlencoded", "Cookie": cookie}
            status, _ = by.rest("POST", path, urllib.parse.urlencode(fields).encode(), key="", **kind)
            assert status in (403, 404), (path, token, status)
            tried += 1
    assert tried > 30, tried


@ATTACKS
async def private_answers_in_caches(by: Attacker) -> None:
    """No answer to an identity may be kept by a cache between, nor be shown in a frame or as another kind."""
    for path in ("/api/v1/tasks", "/api/v1/session", "/api/v1/keys", "/tasks", "/credits/export.csv", "/api/v1/billing/accounts"):
        headers = await asyncio.to_thread(_headers, by, path)
        assert headers["cache-control"] == "no-store" and "etag" not in headers and "last-modified" not in headers, (path, headers)
        assert headers["x-content-type-options"] == "nosniff" and headers["x-frame-options"] == "DENY", (path, headers)


def _headers(by: Attacker, path: str) -> dict[str, str]:
    """Of the answer, in lower case."""
    connection = http.client.HTTPSConnection(*_controller(by), context=by.world.stack.context, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {by.key}"})
    answer = connection.getresponse()
    assert answer.status == 200, (path, answer.status)
    answer.read()
    connection.close()
    return {name.lower(): value for name, value in answer.getheaders()}
