"""The second factor of a password on a real controller: enrolling by REST, page and command line, logins, replay, recovery, removal."""

from __future__ import annotations

import html
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from bus_schemas.subjects import EVENTS_STREAM
from services.kit.access.totp import accepted, code_at
from services.kit.bus import connect
from tests.integration.test_access import FORM
from tests.support.door import ADMIN, Door
from tests.support.node import until
from tests.support.plane import Plane
from tests.support.secured import PASSWORD
from tests.support.stack import plain_environment

SECRET = "JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP"
PAGE = {"Accept": "text/html"}


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane(WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=ADMIN, WOOLY_TRUSTED_PROXIES="127.0.0.1") as plane:
        door = Door(plane.controller.url)
        assert door("POST", "/api/v1/tenants", {"id": "acme"}, ADMIN).status == 201
        for user in ("anna", "bert", "cleo", "dora", "fred"):
            body = {"id": user, "role": "member", "tenant": "acme", "password": PASSWORD}
            assert door("POST", "/api/v1/users", body, ADMIN).status == 201
        yield plane


def code_of(secret: str, late_steps: int = 0) -> str:
    return code_at(secret, int(time.time()) // 30 + late_steps)


def next_code(secret: str, door: Door, user: str) -> str:
    """A code that was not used: the next step's when this one's was."""
    used = {item["target"] for item in door("GET", f"/api/v1/audit?action=code.use&actor={user}", key=ADMIN).json["items"]}
    return until(lambda: next((c for late in (0, 1) if accepted(secret, c := code_of(secret, late), int(time.time()), used)), ""), "a code")


def test_a_password_needs_its_code_and_no_code_counts_twice(door: Door) -> None:
    session = door.log_in("anna")
    other = Door(f"http://{door.connection.host}:{door.connection.port}").log_in("anna")
    code = code_of(SECRET)
    for body, status in (
        ({"password": "a wrong password", "secret": SECRET, "code": code}, 401),
        ({"password": PASSWORD, "secret": SECRET, "code": "000000"}, 400),
        ({"password": PASSWORD, "secret": "short", "code": code}, 400),
    ):
        assert door("PUT", "/api/v1/session/totp", body, **session).status == status
    assert door("PUT", "/api/v1/session/totp", {"password": PASSWORD, "secret": SECRET, "code": code}, ADMIN).status == 409
    enrolled = door("PUT", "/api/v1/session/totp", {"password": PASSWORD, "secret": SECRET, "code": code}, **session)
    assert enrolled.status == 200, enrolled.body
    recovery = enrolled.json["recovery_codes"]
    assert len(set(recovery)) == 10
    assert door("GET", "/api/v1/session", **other).status == 401, "sessions that began without a code have ended"
    renewed = {"Cookie": enrolled.headers["Set-Cookie"].partition(";")[0]}
    assert door("GET", "/api/v1/session", **renewed).status == 200
    assert door("GET", "/api/v1/users/anna", key=ADMIN).json["has_totp"] is True

    login = {"user": "anna", "password": PASSWORD}
    needed = door("POST", "/api/v1/session", login)
    assert (needed.status, needed.json["type"]) == (401, "urn:wooly:problem:code-needed") and "Set-Cookie" not in needed.headers
    for wrong in ("000000", code, recovery[0][:-1], "x" * 40):  # the code that enrolled is used, too
        found = door("POST", "/api/v1/session", {**login, "code": wrong})
        assert (found.status, found.json["type"]) == (401, "urn:wooly:problem:unauthenticated"), wrong
    fresh = next_code(SECRET, door, "anna")
    assert door("POST", "/api/v1/session", {**login, "code": fresh}).status == 200
    assert door("POST", "/api/v1/session", {**login, "code": fresh}).status == 401, "a replay"
    assert door("POST", "/api/v1/session", {**login, "code": recovery[0].upper()}).status == 200
    assert door("POST", "/api/v1/session", {**login, "code": recovery[0]}).status == 401, "a replay"
    assert door("POST", "/api/v1/session", {**login, "password": "a wrong password", "code": recovery[1]}).status == 401
    assert door("POST", "/api/v1/session", {**login, "code": recovery[1]}).status == 200, "a wrong password uses no code"

    renewed["X_CSRF_Token"] = door("GET", "/api/v1/session", **renewed).json["csrf_token"]
    again = door("PUT", "/api/v1/session/totp", {"password": PASSWORD, "secret": SECRET, "code": "000000"}, **renewed)
    assert (again.status, again.json["detail"]) == (
        409,
        "there is a second factor already; remove it with one of its codes, or have an administrator remove it",
    )
    records = door("GET", "/api/v1/audit?actor=anna&limit=100", key=ADMIN).json["items"]
    assert {"totp.change", "code.use", "session.begin"} <= {record["action"] for record in records}
    assert not [code for code in (SECRET, *recovery) if code in json.dumps(records)]


def test_a_factor_is_nowhere_in_plain_text_and_survives_a_restart(plane: Plane, door: Door) -> None:
    import asyncio

    async def log() -> bytes:
        bus = await connect(plane.nats.url, name="test")
        end = await bus.last_position(EVENTS_STREAM)
        found = [await bus.message(EVENTS_STREAM, seq=at) for at in range(1, end + 1)]
        await bus.close()
        return b"".join(message[1] for message in found if message is not None)

    session = door.log_in("bert")
    body = {"password": PASSWORD, "secret": SECRET, "code": code_of(SECRET)}
    recovery = door("PUT", "/api/v1/session/totp", body, **session).json["recovery_codes"]
    assert SECRET.encode() not in asyncio.run(log())
    login = {"user": "bert", "password": PASSWORD}
    assert door("POST", "/api/v1/session", {**login, "code": recovery[0]}).status == 200
    plane.controller.stop()
    plane.controller.start()
    again = Door(plane.controller.url)
    assert again("POST", "/api/v1/session", login).status == 401
    assert again("POST", "/api/v1/session", {**login, "code": recovery[0]}).status == 401
    assert again("POST", "/api/v1/session", {**login, "code": recovery[1]}).status == 200


def test_guesses_of_codes_are_counted(door: Door) -> None:
    session = door.log_in("cleo")
    body = {"password": PASSWORD, "secret": SECRET, "code": code_of(SECRET)}
    assert door("PUT", "/api/v1/session/totp", body, **session).status == 200
    guesser = Door(f"http://{door.connection.host}:{door.connection.port}")
    login = {"user": "cleo", "password": PASSWORD}
    for _ in range(30):
        assert guesser("POST", "/api/v1/session", login).json["type"] == "urn:wooly:problem:code-needed"
    guesses = [guesser("POST", "/api/v1/session", {**login, "code": f"{at:06}"}).status for at in range(30)]
    assert guesses[0] == 401 and guesses[-1] == 429
    assert guesser("DELETE", "/api/v1/users/cleo/totp", key=ADMIN).json["has_totp"] is False
    assert guesser("DELETE", "/api/v1/users/cleo/totp", key=ADMIN).status == 409


def test_the_pages(door: Door) -> None:
    session = door.log_in("dora")
    page = door("GET", "/settings/totp", **session, **PAGE).body.decode()
    secret = re.search(r'<code id="secret">([A-Z2-7]{32})</code>', page)
    address = re.search(r'<code id="address">(.*?)</code>', page)
    assert secret is not None and address is not None
    assert html.unescape(address[1]).startswith("otpauth://totp/") and secret[1] in address[1]
    form = {"secret": secret[1], "password": PASSWORD, "code": "123", "_csrf_token": session["X_CSRF_Token"]}
    headers = {"Content_Type": FORM, **session, **PAGE}
    wrong = door("POST", "/settings/totp", urlencode(form).encode(), **headers)
    assert wrong.status == 400 and secret[1] in wrong.body.decode() and "not the code" in wrong.body.decode()
    good = door("POST", "/settings/totp", urlencode({**form, "code": code_of(secret[1])}).encode(), **headers)
    assert good.status == 201, good.body
    codes = re.search(r'<code id="recovery-codes">(.*?)</code>', good.body.decode())
    assert codes is not None and len(codes[1].split()) == 10
    assert "no-store" in good.headers["Cache-Control"]

    form = {"user": "dora", "password": PASSWORD, "next": "/tasks"}
    asked = door("POST", "/login", urlencode(form).encode(), Content_Type=FORM)
    assert asked.headers["Location"] == "/login?code=1&next=%2Ftasks"
    assert "Enter the code" in door("GET", asked.headers["Location"], **PAGE).body.decode()
    let_in = door("POST", "/login", urlencode({**form, "code": codes[1].split()[0]}).encode(), Content_Type=FORM)
    assert let_in.headers["Location"] == "/tasks" and "Set-Cookie" in let_in.headers

    admin = door("POST", "/api/v1/session", {"key": ADMIN})
    root = {"Cookie": admin.headers["Set-Cookie"].partition(";")[0], **PAGE}
    assert b"Remove the second factor" in door("GET", "/settings/users/dora", **root).body
    done = door(
        "POST", "/settings/users/dora/totp", urlencode({"_csrf_token": admin.json["csrf_token"]}).encode(), Content_Type=FORM, **root
    )
    assert done.status == 303
    assert door("POST", "/api/v1/session", {"user": "dora", "password": PASSWORD}).status == 200


def test_a_user_removes_their_own(door: Door) -> None:
    """With password and code; who has taken over a session has neither."""
    session = door.log_in("fred")
    removal, login = "/api/v1/session/totp/removal", {"user": "fred", "password": PASSWORD}
    assert door("POST", removal, {"password": PASSWORD, "code": "000000"}, **session).status == 409
    for by_page in (False, True):
        body = {"password": PASSWORD, "secret": SECRET, "code": next_code(SECRET, door, "fred")}
        enrolled = door("PUT", "/api/v1/session/totp", body, **session)
        assert enrolled.status == 200, enrolled.body
        first, second, third = enrolled.json["recovery_codes"][:3]
        cookie = {"Cookie": enrolled.headers["Set-Cookie"].partition(";")[0]}
        session = {**cookie, "X_CSRF_Token": door("GET", "/api/v1/session", **cookie).json["csrf_token"]}
        other = {"Cookie": door("POST", "/api/v1/session", {**login, "code": first}).headers["Set-Cookie"].partition(";")[0]}
        for password, code in ((PASSWORD, "000000"), (PASSWORD, first), ("a wrong password", second)):
            assert door("POST", removal, {"password": password, "code": code}, **session).status == 401
        if by_page:
            assert b"Remove" in door("GET", "/settings/totp", **session, **PAGE).body
            form = {"password": PASSWORD, "code": third, "_csrf_token": session["X_CSRF_Token"]}
            headers = {"Content_Type": FORM, **session, **PAGE}
            wrong = door("POST", "/settings/totp/removal", urlencode({**form, "code": "000000"}).encode(), **headers)
            assert wrong.status == 400 and b"code is not valid" in wrong.body
            done = door("POST", "/settings/totp/removal", urlencode(form).encode(), **headers)
            assert (done.status, done.headers["Location"].partition("?")[0]) == (303, "/settings/totp")
        else:
            done = door("POST", removal, {"password": PASSWORD, "code": third}, **session)
            assert done.status == 200, done.body
        assert door("GET", "/api/v1/session", **other).status == 401
        cookie = {"Cookie": done.headers["Set-Cookie"].partition(";")[0]}
        session = {**cookie, "X_CSRF_Token": door("GET", "/api/v1/session", **cookie).json["csrf_token"]}
        assert door("POST", "/api/v1/session", login).status == 200


def test_the_command_line(plane: Plane, door: Door, tmp_path: Path) -> None:
    body = {"id": "emil", "role": "member", "tenant": "acme", "password": PASSWORD}
    assert door("POST", "/api/v1/users", body, ADMIN).status == 201
    environment = plain_environment(CONTROLLER_URL=plane.controller.url, HOME=str(tmp_path), XDG_CONFIG_HOME=str(tmp_path))

    def wooly(*arguments: str, lines: str = "") -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "wooly.cli", *arguments]
        return subprocess.run(command, env=environment, input=lines, capture_output=True, text=True, timeout=60)

    assert wooly("login", "--user", "emil", lines=f"{PASSWORD}\n").returncode == 0
    with subprocess.Popen(
        [sys.executable, "-m", "wooly.cli", "users", "totp"], env=environment, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as enrolling:  # fmt: skip
        assert enrolling.stdin is not None and enrolling.stderr is not None and enrolling.stdout is not None
        enrolling.stdin.write(f"{PASSWORD}\n")
        enrolling.stdin.flush()
        secret = next(found[0] for line in enrolling.stderr if (found := re.search(r"[A-Z2-7]{32}", line)))
        enrolling.stdin.write(f"{code_of(secret)}\n")
        enrolling.stdin.close()
        codes = enrolling.stdout.read().split()
    assert enrolling.returncode == 0 and len(codes) == 10
    refused = wooly("login", "--user", "emil", lines=f"{PASSWORD}\n000000\n")
    assert refused.returncode != 0 and "does not let emil in" in refused.stderr
    done = wooly("login", "--user", "emil", lines=f"{PASSWORD}\n{codes[0]}\n")
    assert done.returncode == 0, done.stderr
    assert wooly("users", "totp", "--off", lines=f"{PASSWORD}\n{codes[1]}\n").returncode == 0
    assert wooly("login", "--user", "emil", lines=f"{PASSWORD}\n").returncode == 0
