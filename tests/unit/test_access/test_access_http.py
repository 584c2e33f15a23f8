"""Access over HTTP in one process: an application with every kind of route, asked with and without sessions, relays and tokens."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from litestar import Litestar, Request, get, post
from litestar.params import QueryParameter
from litestar.testing import TestClient

from bus_schemas.events import ActionTaken, Event, UserChanged
from services.kit.access.access import Access
from services.kit.access.rules import Identity
from services.kit.access.tokens import RENEW_AFTER_S, SESSION_MAX_S, Token
from services.kit.access.view import AccessView
from services.kit.access.web import AccessPlugin, audit_record, check_form_token, identity_of, permit, relay_authorization, tenant_filter

SECRET = b"s" * 32
COOKIE = "wooly_session"
EVENTS: list[Event] = [
    UserChanged(1, "anna", "acme", "member", "hash"), UserChanged(2, "root", "", "admin", "hash"),
    UserChanged(3, "eve", "shop", "member", "hash"),
]  # fmt: skip


@get("/api/open", action=None)
async def public() -> dict[str, str]:
    return {}


@get("/api/mine", action="anyone")
async def mine(request: Request[Any, Any, Any]) -> dict[str, str]:
    return {"name": request.user.name, "proof": request.auth.kind, "relay": relay_authorization(request)}


@get("/api/tasks", action="task.read")
async def tasks(request: Request[Any, Any, Any], tenant: Annotated[str | None, QueryParameter()] = None) -> dict[str, str | None]:
    return {"tenant": tenant_filter(request, "task.read", tenant)}


@get("/api/task", action="task.read")
async def task(request: Request[Any, Any, Any], of: Annotated[str, QueryParameter()]) -> dict[str, str]:
    return {"by": permit(request, "task.read", of, hidden="no such task", field="task").name}


@post("/api/tasks", action="task.submit")
async def submit(request: Request[Any, Any, Any], tenant: Annotated[str | None, QueryParameter()] = None) -> dict[str, Any]:
    of = tenant if tenant is not None else (identity_of(request).tenant or "default")
    permit(request, "task.submit", of, field="tenant")
    fact = audit_record(request, "submit", "t1", "detail", tenant=of)
    assert isinstance(fact, ActionTaken) and fact.at_ns > 10**18
    return {"of": of, "by": fact.actor, "tenant": fact.tenant, "source": fact.source}


@post("/form", action="task.submit", csrf="form")
async def form(request: Request[Any, Any, Any]) -> dict[str, str]:
    check_form_token(request, request.query_params.get("token", ""))
    return {}


@get("/page", action="task.read")
async def page() -> dict[str, str]:
    return {}


class Door:
    """The application and what a client shows it."""

    def __init__(self, *, on: bool = True, pages: bool = True, heard: bool = True) -> None:
        view = AccessView()
        for position, event in enumerate(EVENTS, start=1):
            view.apply(position, event)
        self.view = view
        self.access = Access(on=on, view=lambda: view, follows_log=lambda: heard, secrets=lambda: [SECRET] if on else [], pages=pages)
        handlers = [public, mine, tasks, task, submit, form, page]
        self.client = TestClient(Litestar(handlers, plugins=[AccessPlugin(self.access)]), base_url="http://localhost")

    def session(self, name: str, *, age_s: int = 0) -> Token:
        token = self.access.begin_session(self.view.person(name) or Identity("", "", ""))
        return Token(
            token.kind, token.id, token.user, token.key, token.stamp, token.began_s - age_s, token.issued_s - age_s, token.expires_s
        )

    def ask(self, method: str, path: str, token: Token | None = None, **headers: str) -> Any:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["cookie"] = f"{COOKIE}={self.access.write(token)}"
        return self.client.request(method, path, headers=given, follow_redirects=False)


@pytest.fixture
def door() -> Iterator[Door]:
    made = Door()
    with made.client:
        yield made
    made.access.close()


def test_who_shows_nothing_gets_what_is_public(door: Door) -> None:
    assert door.ask("GET", "/api/open").status_code == 200
    refused = door.ask("GET", "/api/mine")
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, "Bearer")
    assert refused.headers["content-type"] == "application/problem+json"
    body = refused.json()
    assert body["type"] == "urn:wooly:problem:unauthenticated" and body["status"] == 401 and "log in" in body["detail"]
    assert "errors" not in body


@pytest.mark.parametrize(
    ("method", "path", "headers", "status", "leads"),
    [
        ("GET", "/page?a=1&b=2", {"accept": "text/html"}, 303, "/login?next=%2Fpage%3Fa%3D1%26b%3D2"),
        ("GET", "/page", {"accept": "text/html"}, 303, "/login?next=%2Fpage"),
        ("GET", "/page", {"accept": "application/json"}, 401, None),
        ("GET", "/api/tasks", {"accept": "text/html"}, 401, None),
        ("POST", "/form", {"accept": "text/html"}, 401, None),
    ],
)
def test_browsers_are_led_to_the_login_page(
    door: Door, method: str, path: str, headers: dict[str, str], status: int, leads: str | None
) -> None:
    answer = door.ask(method, path, **headers)
    assert (answer.status_code, answer.headers.get("location")) == (status, leads)


def test_parts_of_pages_are_led_there_by_htmx(door: Door) -> None:
    answer = door.ask("GET", "/page", hx_request="true", accept="text/html")
    assert (answer.status_code, answer.headers["hx-redirect"], answer.headers["www-authenticate"]) == (401, "/login", "Bearer")
    without = Door(pages=False)
    with without.client:
        answer = without.ask("GET", "/page", hx_request="true", accept="text/html")
    assert answer.status_code == 401 and "hx-redirect" not in answer.headers


def test_answers_stay_out_of_caches_and_frames(door: Door) -> None:
    token = door.session("anna")
    for path, given, store in (("/api/open", None, None), ("/api/mine", token, "no-store"), ("/api/mine", None, "no-store")):
        headers = door.ask("GET", path, given).headers
        assert headers.get("cache-control") == store
        assert (headers["x-content-type-options"], headers["x-frame-options"], headers["referrer-policy"]) == (
            "nosniff",
            "DENY",
            "same-origin",
        )


def test_a_session_reads_and_a_relay_passes_it_on(door: Door) -> None:
    body = door.ask("GET", "/api/mine", door.session("anna")).json()
    assert (body["name"], body["proof"]) == ("anna", "session")
    assert door.ask("GET", "/api/mine", authorization=body["relay"]).status_code == 401, "a service with pages takes no relay"
    inner = Door(pages=False)
    with inner.client:
        passed = inner.ask("GET", "/api/mine", authorization=body["relay"]).json()
        assert (passed["name"], passed["proof"]) == ("anna", "relay")
        assert inner.ask("GET", "/api/mine", authorization="Bearer nonsense").status_code == 401
        assert inner.ask("GET", "/api/open", authorization="Bearer nonsense").status_code == 200
        assert inner.ask("GET", "/api/mine", authorization=f"Bearer {door.access.write(door.session('anna'))}").status_code == 401


@pytest.mark.parametrize(
    ("given", "site", "status"),
    [
        ("right", "same-origin", 201),
        ("right", "cross-site", 403),
        ("wrong", "same-origin", 403),
        ("", "same-origin", 403),
        ("other", "same-origin", 403),
    ],
)
def test_writes_of_a_session_carry_its_token_from_our_own_page(door: Door, given: str, site: str, status: int) -> None:
    token, other = door.session("anna"), door.session("anna")
    csrf = {"right": door.access.csrf(token.id), "other": door.access.csrf(other.id), "wrong": "x" * 43, "": ""}[given]
    headers = {"sec_fetch_site": site} | ({"x_csrf_token": csrf} if csrf else {})
    answer = door.ask("POST", "/api/tasks", token, **headers)
    assert answer.status_code == status, answer.text
    if status == 403:
        assert answer.json()["type"] == "urn:wooly:problem:cross-site"
    field = door.ask("POST", f"/form?token={csrf}", token, sec_fetch_site=site)
    assert field.status_code == status


@pytest.mark.parametrize(("age_s", "renewed"), [(0, False), (RENEW_AFTER_S - 2, False), (RENEW_AFTER_S, True), (RENEW_AFTER_S + 2, True)])
def test_a_session_is_renewed_after_five_minutes(door: Door, age_s: int, renewed: bool) -> None:
    cookie = door.ask("GET", "/api/mine", door.session("anna", age_s=age_s)).headers.get("set-cookie", "")
    assert bool(cookie) == renewed
    if renewed:
        assert cookie.startswith(f"{COOKIE}=wt_")
        parts = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"path=/", "httponly", "samesite=lax", "max-age=900"} <= parts and "secure" not in parts
    assert SESSION_MAX_S > age_s


@pytest.mark.parametrize(
    ("name", "wanted", "seen"),
    [
        ("anna", None, "acme"),
        ("anna", "acme", "acme"),
        ("anna", "shop", 403),
        ("root", None, None),
        ("root", "shop", "shop"),
        ("eve", None, "shop"),
    ],
)
def test_lists_are_of_ones_own_tenant_or_of_all(door: Door, name: str, wanted: str | None, seen: str | int | None) -> None:
    answer = door.ask("GET", "/api/tasks" + (f"?tenant={wanted}" if wanted else ""), door.session(name))
    if seen == 403:
        assert answer.status_code == 403
        assert answer.json()["errors"] == [{"field": "tenant", "message": answer.json()["detail"]}]
        assert answer.json()["type"] == "urn:wooly:problem:forbidden"
    else:
        assert answer.json() == {"tenant": seen}


@pytest.mark.parametrize(("name", "of", "status"), [("anna", "acme", 200), ("anna", "shop", 404), ("root", "shop", 200)])
def test_what_is_anothers_looks_like_what_does_not_exist(door: Door, name: str, of: str, status: int) -> None:
    answer = door.ask("GET", f"/api/task?of={of}", door.session(name))
    assert answer.status_code == status
    assert answer.json() == ({"by": name} if status == 200 else {
        "type": "urn:wooly:problem:not-found", "title": "Not found", "status": 404, "detail": "no such task",
    })  # fmt: skip


@pytest.mark.parametrize(
    ("name", "given", "of"),
    [("anna", None, "acme"), ("anna", "acme", "acme"), ("anna", "shop", 403), ("root", None, "default"), ("root", "shop", "shop")],
)
def test_new_things_are_of_the_given_tenant_of_ones_own_or_of_the_default(door: Door, name: str, given: str | None, of: str | int) -> None:
    token = door.session(name)
    path = "/api/tasks" + (f"?tenant={given}" if given else "")
    answer = door.ask("POST", path, token, x_csrf_token=door.access.csrf(token.id))
    if of == 403:
        assert answer.status_code == 403 and answer.json()["errors"][0]["field"] == "tenant"
    else:
        assert answer.json() == {"of": of, "by": name, "tenant": of, "source": answer.json()["source"]}


def test_without_authentication_everybody_may_from_this_machine() -> None:
    door = Door(on=False)
    with door.client:
        assert door.ask("GET", "/api/mine").json() == {"name": door.ask("GET", "/api/mine").json()["name"], "proof": "off", "relay": ""}
        assert door.ask("POST", "/api/tasks").status_code == 201
        assert door.ask("POST", "/api/tasks", sec_fetch_site="cross-site").status_code == 403
        assert "cache-control" not in door.ask("GET", "/api/mine").headers


def test_a_route_that_does_not_say_what_it_needs_stops_the_service() -> None:
    @get("/silent")
    async def silent() -> None: ...

    app = Litestar([silent], plugins=[AccessPlugin(Access(on=False))])
    with pytest.raises(BaseExceptionGroup) as caught, TestClient(app):
        pass
    found = caught.value.subgroup(RuntimeError)
    assert found is not None and "routes without action=...: " in str(found.exceptions)


def test_a_secret_has_at_least_32_bytes() -> None:
    Access(on=True, secrets=lambda: [b"s" * 32]).close()
    with pytest.raises(ValueError, match="at least 32"):
        Access(on=True, secrets=lambda: [b"s" * 31])


def test_no_one_is_let_in_while_revocations_cannot_be_heard() -> None:
    made = Door(heard=False)
    token = made.session("anna")
    with made.client:
        answer = made.ask("GET", "/api/mine", token)
    made.access.close()
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["type"].endswith("unavailable") and "event log" in answer.json()["detail"]
