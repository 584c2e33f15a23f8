"""Coming in, staying in and being put out, on a real controller; and what an attacker tries at the door."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from bus_schemas.events import KeyIssued, KeyRevoked, TaskSubmitted, UserChanged
from bus_schemas.quotas import QUOTAS
from services.controller.actions.access import AccessLog, Change, UserActions
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.personal import PersonalKeys
from services.controller.writer import Writer
from services.kit.access import AccessView, Identity
from services.kit.access.access import Access, shared_secrets
from services.kit.access.errors import Unauthenticated
from services.kit.access.tokens import Token, make_key, write_token
from services.kit.bus import Bus, connect
from services.kit.nats_server import NatsServer
from tests.support.door import ADMIN, Door
from tests.support.plane import Controller, Plane, wait_until
from tests.support.secured import PASSWORD

FORM = "application/x-www-form-urlencoded"
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with Plane(WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=ADMIN, WOOLY_TRUSTED_PROXIES="127.0.0.1") as plane:
        door = Door(plane.controller.url)
        for tenant in ("acme", "zebra"):
            assert door("POST", "/api/v1/tenants", {"id": tenant}, ADMIN).status == 201
        for user, role, tenant in (("anna", "member", "acme"), ("carl", "admin", "acme"), ("root", "admin", ""), ("olaf", "operator", "")):
            body = {"id": user, "role": role, "tenant": tenant, "password": PASSWORD}
            assert door("POST", "/api/v1/users", body, ADMIN).status == 201
        yield plane


def new_key(door: Door, maker: str = ADMIN, **wanted: Any) -> tuple[str, str]:
    made = door("POST", "/api/v1/keys", wanted, maker)
    assert made.status == 201, made.body
    return made.json["id"], made.json["key"]


# -- sessions ----------------------------------------------------------------------------------------------------------------------------


def test_a_session_begins_with_a_password_and_ends_for_every_copy(door: Door) -> None:
    found = door("POST", "/api/v1/session", {"user": "anna", "password": PASSWORD})
    cookie = found.headers["Set-Cookie"]
    assert found.json["name"] == "anna" and {"HttpOnly", "SameSite=lax", "Path=/"} <= set(cookie.split("; ")) and "Secure" not in cookie
    copy = {"Cookie": cookie.partition(";")[0], "X_CSRF_Token": found.json["csrf_token"]}
    assert door("GET", "/api/v1/session", **copy).json["name"] == "anna"
    assert "Max-Age=0" in door("DELETE", "/api/v1/session", **copy).headers["Set-Cookie"]
    assert door("GET", "/api/v1/session", **copy).status == 401
    assert door("GET", "/tasks", **copy, Accept="text/html").headers["Location"] == "/login?next=%2Ftasks"


def test_under_tls_the_cookie_is_bound_to_the_host(door: Door) -> None:
    found = door("POST", "/api/v1/session", {"user": "anna", "password": PASSWORD}, X_Forwarded_Proto="https")
    parts = found.headers["Set-Cookie"].split("; ")
    assert parts[0].startswith("__Host-wooly_session=") and {"Secure", "HttpOnly", "Path=/"} <= set(parts)


def test_forwarded_addresses_count_only_from_configured_proxies() -> None:
    """Also not for a caller on this machine: the HTTP server underneath would believe them."""
    with Plane(WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=ADMIN) as plane:
        door = Door(plane.controller.url)
        assert door("POST", "/api/v1/tenants", {"id": "acme"}, ADMIN).status == 201
        assert door("GET", "/api/v1/audit?target=acme", key=ADMIN).json["items"][0]["source"] == "127.0.0.1"
        found = door("POST", "/api/v1/session", {"key": ADMIN}, X_Forwarded_Proto="https")
        assert found.headers["Set-Cookie"].startswith("wooly_session=")
        guesses = [Door(plane.controller.url)("GET", "/api/v1/tasks", key=make_key().text).status for _ in range(25)]
        assert guesses[0] == 401 and guesses[-1] == 429


def test_a_key_opens_a_session_that_ends_with_it(door: Door) -> None:
    name, key = new_key(door, user="anna")
    found = door("POST", "/api/v1/session", {"key": key})
    session = {"Cookie": found.headers["Set-Cookie"].partition(";")[0]}
    assert door("GET", "/api/v1/session", **session).json["key"] == name
    assert door("DELETE", f"/api/v1/keys/{name}", key=ADMIN).status == 200
    assert door("GET", "/api/v1/session", **session).status == 401


def test_a_token_stands_for_its_key_and_makes_nothing_that_lasts(door: Door) -> None:
    key = door("POST", "/api/v1/keys", {"title": "robot", "role": "admin"}, key=ADMIN).json
    made = door("POST", "/api/v1/tokens", {"expires_in_s": 600}, key=key["key"])
    assert made.status == 200 and made.json["key"] == key["id"], made.body
    token = made.json["token"]
    who = door("GET", "/api/v1/session", key=token).json
    assert (who["key"], who["role"]) == (key["id"], "admin") and door("GET", "/api/v1/users", key=token).status == 200
    assert door("POST", "/api/v1/keys", {"title": "lasting"}, key=token).status == 403
    assert door("POST", "/api/v1/users", {"id": "lasting", "role": "admin"}, key=token).status == 403
    assert door("POST", "/api/v1/tokens", {}, key=token).status == 409
    assert door("POST", "/api/v1/session", {"key": token}).status in (400, 401)
    assert door("GET", "/nodes", key=token).status == 401
    assert door("GET", "/api/v1/session", key=token[:-1] + ("A" if token[-1] != "A" else "B")).status == 401
    assert door("POST", "/api/v1/tokens", {"expires_in_s": 43_201}, key=key["key"]).status == 400
    issued = door("GET", f"/api/v1/audit?action=token.issue&target={made.json['id']}", key=ADMIN)
    assert [done["detail"] for done in issued.json["items"]] == [f"key {key['id']}"] and token.encode() not in issued.body
    assert door("DELETE", f"/api/v1/keys/{key['id']}", key=ADMIN).status == 200
    assert door("GET", "/api/v1/session", key=token).status == 401


def test_a_new_password_ends_the_other_sessions(door: Door) -> None:
    body = {"id": "paul", "role": "viewer", "tenant": "acme", "password": PASSWORD}
    assert door("POST", "/api/v1/users", body, ADMIN).status == 201
    here, there = door.log_in("paul"), door.log_in("paul")
    wrong = {"old_password": "not the password", "new_password": "another fine sentence"}
    assert door("POST", "/api/v1/session/password", wrong, **here).status == 401
    found = door("POST", "/api/v1/session/password", {**wrong, "old_password": PASSWORD}, **here)
    assert found.status == 200
    again = {"Cookie": found.headers["Set-Cookie"].partition(";")[0]}
    assert [door("GET", "/api/v1/session", **session).status for session in (again, here, there)] == [200, 401, 401]
    assert door("POST", "/api/v1/session", {"user": "paul", "password": PASSWORD}).status == 401


def test_a_disabled_user_is_out_at_once_and_a_lesser_role_is_less_at_once(door: Door) -> None:
    body = {"id": "rita", "role": "operator", "tenant": "", "password": PASSWORD}
    assert door("POST", "/api/v1/users", body, ADMIN).status == 201
    session = door.log_in("rita")
    _, key = new_key(door, user="rita")
    assert door("GET", "/api/v1/audit", **session).status == door("GET", "/api/v1/audit", key=key).status == 200
    assert door("PATCH", "/api/v1/users/rita", {"role": "viewer"}, ADMIN).status == 200
    assert door("GET", "/api/v1/audit", **session).status == door("GET", "/api/v1/audit", key=key).status == 403
    assert door("PATCH", "/api/v1/users/rita", {"disabled": True}, ADMIN).status == 200
    assert door("GET", "/api/v1/tasks", **session).status == door("GET", "/api/v1/tasks", key=key).status == 401


def test_writes_of_a_session_need_its_token_and_our_own_page(door: Door) -> None:
    session, other = door.log_in("anna"), door.log_in("anna")
    wanted = {"title": "csrf"}
    cookie = {"Cookie": session["Cookie"]}
    assert door("POST", "/api/v1/keys", wanted, **session).status == 201
    refused = [
        door("POST", "/api/v1/keys", wanted, **cookie),
        door("POST", "/api/v1/keys", wanted, **cookie, X_CSRF_Token=""),
        door("POST", "/api/v1/keys", wanted, **cookie, X_CSRF_Token=other["X_CSRF_Token"]),
        door("POST", "/api/v1/keys", wanted, **session, Origin="http://evil.example"),
        door("POST", "/api/v1/keys", wanted, **session, Sec_Fetch_Site="cross-site"),
        door("POST", "/api/v1/session", {"user": "anna", "password": PASSWORD}, Sec_Fetch_Site="cross-site"),
        door("POST", "/login", b"user=anna&password=x", Content_Type=FORM, Origin="http://evil.example"),
        door("POST", "/logout", b"", Content_Type=FORM, **cookie),
        door("POST", "/logout", b"_csrf_token=x", Content_Type=FORM, **cookie),
    ]
    assert [found.status for found in refused] == [403] * len(refused)
    assert door("GET", "/api/v1/session", **cookie).status == 200


def test_every_form_of_a_session_needs_its_token(door: Door, plane: Plane) -> None:
    """Of all routes that look for the token themselves: none forgot."""
    from services.controller.web.site import WEB_ROUTES

    session = door.log_in("root")
    forms = [handler for handler in WEB_ROUTES if getattr(handler, "opt", {}).get("csrf") == "form"]
    assert len(forms) > 10
    for handler in forms:
        path = sorted(handler.paths)[0]
        for kind in ("{task:str}", "{node:str}", "{group:str}", "{user:str}", "{tenant:str}", "{key:str}", "{tier:str}"):
            path = path.replace(kind, "x")
        assert door("POST", path, b"id=x", Content_Type=FORM, Cookie=session["Cookie"]).status == 403, path


@pytest.mark.parametrize(
    ("wanted", "led_to"),
    [
        ("/tasks?state=queued", "/tasks?state=queued"),
        ("", "/"),
        ("//evil.example", "/"),
        ("https://evil.example", "/"),
        ("/\\evil.example", "/"),
        ("/tasks\r\nSet-Cookie: a=b", "/"),
        ("javascript:alert(1)", "/"),
        ("/\u2028", "/"),
    ],
)
def test_a_login_leads_nowhere_but_to_our_pages(door: Door, wanted: str, led_to: str) -> None:
    body = f"user=anna&password={quote(PASSWORD)}&next={quote(wanted)}".encode()
    found = door("POST", "/login", body, Content_Type=FORM)
    assert (found.status, found.headers["Location"]) == (303, led_to) and len(found.headers.get_all("Set-Cookie")) == 1


def test_a_login_that_fails_leads_back_to_its_page(door: Door) -> None:
    for body in (b"", b"user=anna", b"user=anna&password=wrong", b"key=wk_", b"user=anna&key=x", b"user=%ff&password=%00"):
        found = door("POST", "/login", body + b"&next=%2Ftasks", Content_Type=FORM)
        assert (found.status, found.headers["Location"]) == (303, "/login?failed=1&next=%2Ftasks")
        assert found.headers["Set-Cookie"] is None


def test_a_planted_cookie_is_not_taken_over(door: Door) -> None:
    mine = door.log_in("olaf")
    found = door("POST", "/api/v1/session", {"user": "anna", "password": PASSWORD}, Cookie=mine["Cookie"])
    assert found.headers["Set-Cookie"].partition(";")[0] != mine["Cookie"] and found.json["name"] == "anna"
    both = f"{mine['Cookie']}; {found.headers['Set-Cookie'].partition(';')[0]}"
    assert door("GET", "/api/v1/session", Cookie=both).status == 401
    for forged in ("", "x", "wt_.", "wt_" + "A" * 900, "wt_\xff.\xfe"):
        assert door("GET", "/api/v1/session", Cookie=f"wooly_session={forged}").status == 401


# -- keys --------------------------------------------------------------------------------------------------------------------------------


def test_a_revoked_key_is_refused_at_once_and_by_the_other_controller_too(plane: Plane, door: Door) -> None:
    folder = plane.folder / "second"
    folder.mkdir()
    second = Controller(plane.nats.url, folder, WOOLY_AUTH="on", WOOLY_TRUSTED_PROXIES="127.0.0.1")
    second.start()
    try:
        other = Door(second.url)
        name, key = new_key(door, user="anna")
        session = door.log_in("anna")
        wait_until(lambda: other("GET", "/api/v1/tasks", key=key).status == 200)
        assert other("GET", "/api/v1/session", **session).json["name"] == "anna"
        assert door("DELETE", f"/api/v1/keys/{name}", key=ADMIN).json["state"] == "revoked"
        assert door("GET", "/api/v1/tasks", key=key).status == 401
        wait_until(lambda: other("GET", "/api/v1/tasks", key=key).status == 401)
        assert door("DELETE", f"/api/v1/keys/{name}", key=ADMIN).status == 200
    finally:
        second.stop()


def on_a_bus(folder: Path, body: Callable[[Bus], Coroutine[Any, Any, None]]) -> None:
    """Run ``body`` with a connection to a broker of its own that has our streams."""

    async def whole() -> None:
        bus = await connect(nats.url, name="test")
        await bus.ensure_streams()
        await body(bus)
        await bus.close()

    nats = NatsServer(folder / "nats", sync_always=False)
    nats.start()
    try:
        asyncio.run(whole())
    finally:
        nats.stop()


def test_a_key_makes_no_other_in_its_last_moment(tmp_path: Path) -> None:
    """It is revoked between the look at the log and the append: the append loses its race, and the second look ends it."""

    async def race(bus: Bus) -> None:
        async with PersonalKeys(bus, None) as personal, LogProjection(bus, personal) as projection:
            writer = Writer(bus, projection, personal)
            access = Access(on=True, view=lambda: projection.fold(AccessView), secrets=lambda: [b"s" * 32])
            maker, made = make_key().id, make_key().id
            await writer.append_access(maker, [KeyIssued(1, maker, "", "", "admin", "")], 0)
            caller = Caller(Identity(maker, "", "admin", key=maker))
            looks = []

            def decide(view: AccessView) -> Change:
                looks.append(view.position)
                return Change(KeyIssued(2, made, "", "", "admin", ""), "key.write", made, "", "")

            append = writer.append_access

            async def late(entity: str, events: Any, after: int) -> int:
                if entity == made and len(looks) == 1:
                    await append(maker, [KeyRevoked(3, maker)], after)
                return await append(entity, events, after)

            writer.append_access = late  # type: ignore[method-assign]
            with pytest.raises(Unauthenticated):
                await AccessLog(projection, writer, access).change(caller, decide)
            assert len(looks) == 1 and made not in projection.fold(AccessView).keys
            access.close()

    on_a_bus(tmp_path, race)


def test_a_password_that_was_changed_meanwhile_is_not_changed_again(tmp_path: Path) -> None:
    """A client with the old password changes it while an admin sets another one: the admin's holds."""

    async def race(bus: Bus) -> None:
        async with PersonalKeys(bus, None) as personal, LogProjection(bus, personal) as projection:
            writer, access = (
                Writer(bus, projection, personal),
                Access(on=True, view=lambda: projection.fold(AccessView), secrets=lambda: [b"s" * 32]),
            )
            old, safe = await access.checker.hash_password(PASSWORD), await access.checker.hash_password(f"safe {PASSWORD}")
            await writer.append_access("anna", [UserChanged(1, "anna", "acme", "member", old)], 0)
            hashing = access.checker.hash_password

            async def slowly(password: str) -> str:
                await writer.append_access("anna", [UserChanged(2, "anna", "acme", "member", safe)], projection.access_position)
                return await hashing(password)

            access.checker.hash_password = slowly  # type: ignore[method-assign]  # hashing takes long: this is where the admin comes between
            anna = projection.fold(AccessView).person("anna")
            assert anna is not None
            with pytest.raises(Unauthenticated):
                await UserActions(AccessLog(projection, writer, access), access).change_own_password(
                    Caller(anna), PASSWORD, "a thief's sentence"
                )
            assert projection.fold(AccessView).users["anna"].fact.password_hash == safe
            access.close()

    on_a_bus(tmp_path, race)


def test_who_may_not_see_users_is_offered_none(door: Door) -> None:
    _, watcher = new_key(door, user="", tenant="", role="viewer")
    _, root = new_key(door, user="root")
    page = {"Accept": "text/html"}
    assert b'value="anna"' in door("GET", "/settings/keys", key=root, **page).body
    assert b'value="anna"' not in door("GET", "/settings/keys", key=watcher, **page).body


def test_callers_cannot_grant_more_than_they_have(door: Door) -> None:
    _, anna = new_key(door, user="anna")
    _, carl = new_key(door, user="carl")
    _, olaf = new_key(door, user="olaf")
    _, narrow = new_key(door, user="root", scopes=["admin"], expires_in_s=600)
    _, reading = new_key(door, user="root", scopes=["read"])
    refused: list[tuple[str, dict[str, Any], int]] = [
        (anna, {"role": "operator"}, 403),
        (anna, {"role": "admin", "scopes": ["read"]}, 403),
        (anna, {"tenant": ""}, 403),
        (anna, {"tenant": "zebra"}, 403),
        (anna, {"tenant": "no-such-tenant"}, 403),
        (anna, {"user": "carl"}, 400),
        (anna, {"user": ""}, 403),
        (anna, {"role": "node", "node": "n"}, 403),
        (anna, {"role": "service"}, 403),
        (carl, {"role": "node", "node": "n"}, 403),
        (carl, {"user": "root"}, 400),
        (carl, {"user": "", "tenant": ""}, 403),
        (olaf, {"role": "admin"}, 403),
        (olaf, {"user": "anna"}, 400),
        (reading, {}, 403),
        (ADMIN, {"role": "node"}, 400),
        (ADMIN, {"user": "anna", "role": "admin"}, 403),
        (ADMIN, {"user": "anna", "tenant": "zebra"}, 400),
        (ADMIN, {"user": "nobody-here"}, 400),
        (ADMIN, {"scopes": ["everything"]}, 400),
        (ADMIN, {"expires_in_s": 0}, 400),
        (ADMIN, {"titel": "x"}, 400),
    ]
    for maker, wanted, status in refused:
        found = door("POST", "/api/v1/keys", wanted, maker)
        assert found.status == status, (wanted, found.body)
    made = door("POST", "/api/v1/keys", {}, narrow).json
    assert made["scopes"] == ["admin"] and made["expires_at"] is not None
    assert door("POST", "/api/v1/keys", {"expires_in_s": 86_400}, narrow).json["expires_at"] < "2" + made["expires_at"]
    users: list[tuple[str, str, dict[str, Any], int]] = [
        (carl, "carl", {"tenant": ""}, 403),
        (carl, "anna", {"role": "admin"}, 200),
        (carl, "anna", {"role": "member"}, 200),
        (carl, "root", {"disabled": True}, 404),
        (olaf, "anna", {"role": "viewer"}, 403),
        (ADMIN, "anna", {"tenant": ""}, 400),
        (ADMIN, "anna", {"password": "short"}, 400),
        (ADMIN, "anna", {"password": "aaaaaaaaaaaaaaaa"}, 400),
    ]
    for maker, user, wanted, status in users:
        found = door("PATCH", f"/api/v1/users/{user}", wanted, maker)
        assert found.status == status, (user, wanted, found.body)


def test_the_last_admin_stays_even_when_two_go_at_once() -> None:
    key = make_key().text
    with Plane(WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=key) as plane:
        door = Door(plane.controller.url)
        assert door("DELETE", f"/api/v1/keys/{key.split('_')[1]}", key=key).status == 409
        names = ["first", "second"]
        for name in names:
            body = {"id": name, "role": "admin", "tenant": "", "password": PASSWORD}
            assert door("POST", "/api/v1/users", body, key).status == 201
        assert door("DELETE", f"/api/v1/keys/{key.split('_')[1]}", key=key).status == 200
        sessions = {name: door.log_in(name) for name in names}
        statuses: dict[str, int] = {}

        def leave(name: str) -> None:
            own = Door(plane.controller.url)
            statuses[name] = own("PATCH", f"/api/v1/users/{name}", {"role": "viewer"}, **sessions[name]).status

        threads = [threading.Thread(target=leave, args=(name,)) for name in names]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(statuses.values()) == [200, 409]
        plane.controller.stop()
        plane.controller.start()  # the environment's key was revoked: a new start does not bring it back
        assert Door(plane.controller.url)("GET", "/api/v1/tasks", key=key).status == 401


def test_actions_are_audited_without_secrets(door: Door) -> None:
    name, key = new_key(door, title="for the audit", user="anna")
    assert door("DELETE", f"/api/v1/keys/{name}", key=key).status == 200
    found = door("GET", f"/api/v1/audit?target={name}", key=ADMIN).json["items"]
    assert [(done["actor"], done["action"], done["tenant"], done["detail"]) for done in found] == [
        ("anna", "key.write", "acme", "revoked"),
        (ADMIN.split("_")[1], "key.write", "acme", "issued: member for anna"),
    ]
    assert found[0]["source"] == door.address
    for path in ("/api/v1/audit?limit=10000", "/api/v1/keys", "/api/v1/users", f"/api/v1/keys/{name}", "/settings/keys", "/settings/audit"):
        body = door("GET", path, key=ADMIN).body
        assert b"argon2" not in body and key.split("_")[2].encode() not in body and ADMIN.split("_")[2].encode() not in body, path


def test_keys_that_have_expired_leave_room_for_new_ones(plane: Plane, door: Door) -> None:
    """A login of the command line makes a key that is good for some days."""
    assert door("POST", "/api/v1/users", {"id": "daily", "role": "member", "tenant": "acme"}, ADMIN).status == 201

    def issue(expires_ns: int) -> None:
        keys = [KeyIssued(1, make_key().id, "acme", "daily", "member", "", expires_ns=expires_ns) for _ in range(QUOTAS["user_keys"].limit)]
        plane.publish("access", "daily", *keys)

    issue(1)
    new_key(door, user="daily")
    issue(0)
    assert door("POST", "/api/v1/keys", {"user": "daily"}, ADMIN).json["quota"] == "user_keys"


def test_a_user_called_as_another_tenants_task_does_not_show_its_title(plane: Plane, door: Door) -> None:
    plane.publish("task", "night-run", TaskSubmitted(time.time_ns(), "night-run", "zebra", 2, 1 << 20, title="plans of zebra", queue=True))
    wait_until(lambda: door("GET", "/api/v1/tasks/night-run", key=ADMIN).status == 200)
    _, carl = new_key(door, user="carl")
    assert door("POST", "/api/v1/users", {"id": "night-run", "role": "viewer"}, carl).status == 201
    page = door("GET", "/settings/audit", key=carl).body
    assert b"night-run" in page and b"plans of zebra" not in page


def test_pages_and_filters_of_the_audit(door: Door) -> None:
    whole = door("GET", "/api/v1/audit?action=user.write&limit=10000", key=ADMIN).json
    part = door("GET", "/api/v1/audit?action=user.write&limit=2&offset=1", key=ADMIN).json
    assert part["items"] == whole["items"][1:3] and part["total"] == whole["total"] >= 4
    at = quote(whole["items"][1]["at"])
    assert door("GET", f"/api/v1/audit?action=user.write&before={at}", key=ADMIN).json["total"] < whole["total"]
    for query in ("action=fly", "after=yesterday", "after=2030-01-01T00:00:00", "limit=0", "colour=red"):
        assert door("GET", f"/api/v1/audit?{query}", key=ADMIN).status == 400, query


# -- at the door -------------------------------------------------------------------------------------------------------------------------


def test_guessing_ends_in_429_for_the_address_and_for_the_name(plane: Plane) -> None:
    guesser = Door(plane.controller.url)
    body = {"user": "olaf", "password": "a wrong guess"}
    statuses = [guesser("POST", "/api/v1/session", body).status for _ in range(12)]
    assert statuses[:10] == [401] * 10 and 429 in statuses
    elsewhere = Door(plane.controller.url)
    refused = elsewhere("POST", "/api/v1/session", {"user": "olaf", "password": PASSWORD})
    assert refused.status == 429 and 1 <= int(refused.headers["Retry-After"]) <= 60
    assert elsewhere("POST", "/api/v1/session", {"user": "root", "password": PASSWORD}).status == 200
    statuses = [guesser("GET", "/api/v1/tasks", key=make_key().text).status for _ in range(24)]
    assert statuses[0] == 401 and statuses[-1] == 429
    assert guesser("GET", "/api/v1/tasks", key=ADMIN).status == 200, "a key that was good before is not locked out by others' failures"
    page = guesser("POST", "/login", b"user=root&password=x", Content_Type=FORM)
    assert page.status == 303 and page.headers["Location"].startswith("/login?wait=")


def test_a_flood_of_wrong_secrets_does_not_stop_the_service(plane: Plane, door: Door) -> None:
    stop = threading.Event()
    seen: list[int] = []

    def guess() -> None:
        while not stop.is_set():
            one = Door(plane.controller.url, address=f"203.0.113.{next(_numbers) % 250}")
            seen.append(one("POST", "/api/v1/session", {"user": f"u{next(_numbers)}", "password": "guess guess guess"}).status)
            one.connection.close()

    threads = [threading.Thread(target=guess) for _ in range(12)]
    for thread in threads:
        thread.start()
    try:
        assert [door("GET", "/api/v1/tasks", key=ADMIN).status for _ in range(20)] == [200] * 20
        assert door("GET", "/health/live").status == 200
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert seen and set(seen) <= {401, 429}


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/v1/tasks/", 401),
        ("/api/v1/%74asks", 401),
        ("/API/v1/tasks", 404),
        ("//api/v1/tasks", 404),
        ("/api/v1/health/../tasks", 404),
        ("/health/%2e%2e/api/v1/tasks", 404),
        ("/static/0/..%2f..%2fapi/v1/tasks", 404),
        ("/api/v1/tasks;x=/health", 404),
        ("/api/v1/tasks%00", 404),
        ("/live/tasks", 401),
        ("/api/v1/tasks?access=/health", 401),
    ],
)
def test_no_spelling_of_a_path_gets_around_the_guard(door: Door, path: str, status: int) -> None:
    found = door("GET", path)
    assert found.status in (status, 401, 404) and found.status != 200, (found.status, found.body)


def test_no_header_gets_around_the_guard(door: Door) -> None:
    for headers in (
        {"X_HTTP_Method_Override": "GET"},
        {"X_Original_URL": "/health"},
        {"X_Rewrite_URL": "/health"},
        {"X_Forwarded_User": "root"},
        {"X_Forwarded_Prefix": "/health"},
        {"Authorization": "Basic cm9vdDpyb290"},
        {"Authorization": f"Bearer {ADMIN.upper()}"},
        {"Authorization": f"Bearer {ADMIN}, Bearer {ADMIN}"},
        {"Authorization": f"Bearer {ADMIN}\t{ADMIN}"},
        {"Authorization": "Bearer " + "a" * 8_000},
        {"Authorization": "Bearer \xff\xfe"},
        {"Cookie": "a" * 8_000},
    ):
        assert door("POST", "/api/v1/keys", {}, **headers).status == 401, headers
    door.connection.putrequest("GET", "/api/v1/tasks")
    for key in (ADMIN, make_key().text):
        door.connection.putheader("Authorization", f"Bearer {key}")
    door.connection.endheaders()
    assert door.connection.getresponse().status == 401


@pytest.mark.parametrize(
    "body",
    [
        {"user": "anna", "password": "x" * 257},
        {"user": "a" * 65, "password": PASSWORD},
        {"user": "", "password": PASSWORD},
        {"user": "anna", "key": "k", "password": ""},
        {"user": "anna", "password": 5},
        {"user": ["anna"], "password": PASSWORD},
        b'{"user": "anna", "password": "\\ud800"}',
        b'{"user": "anna", "password": "' + b"\xff" + b'"}',
        b"[" * 100_000,
    ],
)
def test_odd_logins_are_bad_requests(door: Door, body: Any) -> None:
    assert door("POST", "/api/v1/session", body).status == 400


def test_names_have_one_spelling(door: Door) -> None:
    odd = ("Anna", "ANNA", "anna ", "\u0430nna", "anna\u0000", "\uff41nna", "anna\u200b", "a" * 65, "", "../anna")
    for user in (*odd, "local", "bootstrap", "a" * 16):
        found = door("POST", "/api/v1/users", {"id": user, "role": "member", "tenant": "acme"}, ADMIN)
        assert found.status == 400, (user, found.body)
        if user != "anna ":
            assert door("POST", "/api/v1/session", {"user": user, "password": PASSWORD}).status in (400, 401)
    for tenant in ("ACME", "Acme"):
        assert door("POST", "/api/v1/tenants", {"id": tenant}, ADMIN).status == 409
    for tenant in ("\u0430cme", "ac me", "acme.", "*", ">", "a" * 65, ""):
        assert door("POST", "/api/v1/tenants", {"id": tenant}, ADMIN).status == 400


def test_the_same_letters_are_the_same_password(door: Door) -> None:
    composed, decomposed = "caf\u00e9 cr\u00e8me br\u00fbl\u00e9e", "cafe\u0301 cre\u0300me bru\u0302le\u0301e"
    body = {"id": "zoe", "role": "viewer", "tenant": "acme", "password": composed}
    assert door("POST", "/api/v1/users", body, ADMIN).status == 201
    door.log_in("zoe", decomposed)


def test_a_token_for_another_service_opens_nothing_here(plane: Plane, door: Door) -> None:
    """What the controller shows billing on behalf of a caller, made here with the secret of the bus: good in form, and refused."""
    (secret,) = plane._runner.run(shared_secrets(plane.bus))()
    now_s = int(time.time())
    token = Token("relay", "x", "", ADMIN.split("_")[1], "", now_s, now_s, now_s + 60)
    assert door("GET", "/api/v1/tasks", key=write_token(secret, token)).status == 401
    session = write_token(secret, Token("session", "x", "", ADMIN.split("_")[1], "", now_s, now_s, now_s + 60))
    assert door("GET", "/api/v1/tasks", key=session).status == 401
    assert door("GET", "/api/v1/tasks", Cookie=f"wooly_session={session}").status == 200


def test_the_description_of_the_api_brings_no_script_of_others(door: Door) -> None:
    assert door("GET", "/schema/openapi.json").json["info"]["title"] == "Wooly controller"
    shown = door("GET", "/schema/swagger")
    loaded = re.findall(r"""(?:src|href)=["']([^"']+)["']""", shown.body.decode())
    assert shown.status == 200 and loaded and all(address.startswith("/") and not address.startswith("//") for address in loaded)
    assert [door("GET", f"/schema/{viewer}").status for viewer in ("redoc", "rapidoc", "elements")] == [404] * 3


def test_stale_revisions_are_refused(door: Door) -> None:
    revision = door("GET", "/api/v1/users/olaf", key=ADMIN).json["revision"]
    assert door("PATCH", "/api/v1/users/olaf", {"title": "one"}, ADMIN, If_Match=f'"{revision}"').status == 200
    stale = door("PATCH", "/api/v1/users/olaf", {"title": "two"}, ADMIN, If_Match=f'"{revision}"')
    assert stale.status == 409 and stale.json["revision"] > revision


def test_without_authentication_other_sites_are_kept_out() -> None:
    with Plane() as plane:
        door = Door(plane.controller.url)
        task = {"required_vram_mb": 1, "queue": True}
        assert door("POST", "/api/v1/tasks", task).status in (202, 409, 400)
        assert door("GET", "/api/v1/tasks", Host="evil.example").status == 403
        assert door("GET", "/", Host="evil.example", Accept="text/html").status == 403
        assert door("POST", "/api/v1/tasks", task, Sec_Fetch_Site="cross-site").status == 403
        assert door("POST", "/api/v1/tasks", task, Origin="http://evil.example").status == 403
        assert door("GET", "/api/v1/session", key="whatever").json["name"] == "local"
        who = json.loads(door("POST", "/api/v1/session", {}).body)
        assert who["role"] == "admin" and who["csrf_token"] is None
