"""Each principal requests each resource: role x route x tenant, on a real controller and a real billing service. Every forbidden cell is
tried, and answered with exactly 401, 403 or 404."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
from litestar import Litestar
from litestar.routes import HTTPRoute

from services.billing.parts import Parts as BillingParts
from services.billing.routes import make_app as billing_app
from services.controller.app import make_app as controller_app
from services.controller.web.site import WEB_ROUTES
from services.kit.access.access import Access
from services.kit.access.rules import ACTIONS
from tests.support.access_table import BILLING, CONTROLLER, MAY, ONLY_CLUSTER, SCOPED, Route
from tests.support.secured import HOME, OTHER, Asker, Reply, Secured, ask

RELAYED = {route: entry for route, entry in BILLING.items() if route[1].startswith("/api/v1/billing/")}
"""What the controller relays to billing."""
SERVICES = {"controller": CONTROLLER, "billing": BILLING, "relay": RELAYED}
NONE: Any = None

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # litestar's, about how path parameters are written


@pytest.fixture(scope="module")
def house() -> Iterator[Secured]:
    with Secured() as house:
        yield house


def routes_of(app: Litestar) -> set[tuple[str, str]]:
    """(method, path) of every route but litestar's own (the description of the API, and the answers to OPTIONS) and the relay."""
    return {
        (method, route.path)
        for route in app.routes
        for handler in (route.route_handlers if isinstance(route, HTTPRoute) else [route.route_handler])
        for method in getattr(handler, "http_methods", ["GET"])
        if method != "OPTIONS" and not route.path.startswith("/schema") and not handler.opt.get("relayed")
    }


def test_every_route_has_an_entry_and_every_entry_a_route() -> None:
    off = Access(on=False)
    assert routes_of(controller_app(NONE, off, more_routes=WEB_ROUTES)) == set(CONTROLLER)
    assert routes_of(billing_app(BillingParts(NONE, NONE, off))) == set(BILLING)
    assert set(MAY) == ACTIONS


def may(asker: Asker, action: str) -> bool:
    """By the hand-written tables: may they do this to anything at all?"""
    if action == "anyone":
        return True
    return (
        asker.role in MAY[action]
        and (not asker.scopes or any(action in SCOPED[scope] for scope in asker.scopes))
        and not (asker.tenant and action in ONLY_CLUSTER)
    )


def refusal(asker: Asker, route: Route, tenant: str) -> int:
    """The status that refuses this cell; 0 when it is allowed."""
    if route.needs == "public":
        return 0
    if not asker.good:
        return 401
    if not may(asker, route.needs):
        return 403
    if asker.tenant and route.closed:
        return 403
    if asker.tenant and tenant != asker.tenant:
        if route.of or route.of_form:
            return 404
        if route.names_tenant:
            return 403
    return 0


def fill(value: Any, tenant: str) -> Any:
    if isinstance(value, dict):
        return {name: fill(inner, tenant) for name, inner in value.items()}
    return value.replace("$", tenant) if isinstance(value, str) else value


def send(house: Secured, connection: http.client.HTTPConnection, asker: Asker, method: str, path: str, route: Route, tenant: str) -> Reply:
    values = {**route.path, **({route.of: house.ids[tenant][route.of]} if route.of else {})}
    for name, value in values.items():
        for kind in ("str", "path"):
            path = path.replace(f"{{{name}:{kind}}}", value)
    assert "{" not in path, f"no value for a variable of {path}"
    if path == "/live":
        path = "/live/tasks"
    headers = dict(house.headers(asker))
    if route.form is not None:
        body = urlencode(fill(route.form, tenant)).encode()
        return ask(connection, method, path, body, Content_Type="application/x-www-form-urlencoded", **headers)
    return ask(connection, method, path, fill(route.body, tenant), **headers)


@pytest.mark.parametrize("service", [*SERVICES])
def test_every_forbidden_cell_is_refused(house: Secured, service: str) -> None:
    connection = house.connect(service)
    tried: dict[int, int] = {}
    wrong = []
    for asker in house.askers.values():
        for (method, path), route in SERVICES[service].items():
            for tenant in (HOME, OTHER) if route.of or route.of_form or route.names_tenant else (HOME,):
                expected = refusal(asker, route, tenant)
                if not expected:
                    continue
                found = send(house, connection, asker, method, path, route, tenant)
                tried[expected] = tried.get(expected, 0) + 1
                if found.status != expected:
                    wrong.append(f"{asker} {method} {path} of {tenant}: {found.status} instead of {expected}: {found.body[:160]!r}")
    connection.close()
    assert not wrong, "\n".join(wrong)
    assert set(tried) == {401, 403, 404}, tried


@pytest.mark.parametrize("service", [*SERVICES])
def test_every_allowed_read_is_answered_and_tells_nothing_of_another_tenant(house: Secured, service: str) -> None:
    """Everything of the other tenant has its name in it, so that name is in no answer; the secret is that it exists."""
    connection = house.connect(service)
    hidden = [OTHER.encode(), house.ids[OTHER]["key"].encode()]
    wrong, answered = [], 0
    for asker in house.askers.values():
        for (method, path), route in SERVICES[service].items():
            tenant = asker.tenant or OTHER
            if method != "GET" or path == "/live" or refusal(asker, route, tenant):
                continue
            found = send(house, connection, asker, method, path, route, tenant)
            answered += found.status == 200
            absent_is_fine = route.of in ("user", "key") or path.startswith(
                ("/charts", "/static", "/login/oidc")
            )  # not the asker's own; no such thing
            if found.status in (401, 403, 500) or (found.status == 404 and not absent_is_fine):
                wrong.append(f"{asker} GET {path}: {found.status} {found.body[:160]!r}")
            if asker.tenant == HOME:
                wrong += [f"{asker} GET {path} tells of {word.decode()}" for word in hidden if word in found.body]
    connection.close()
    assert not wrong, "\n".join(wrong)
    assert answered > 100, answered


def test_what_is_not_there_and_what_is_anothers_look_the_same(house: Secured) -> None:
    member = house.askers[f"{HOME} admin"]
    for service, path in (
        ("controller", "/api/v1/tasks/{}"),
        ("controller", "/api/v1/tenants/{}"),
        ("controller", "/api/v1/users/{}"),
        ("billing", "/api/v1/billing/accounts/{}"),
        ("billing", "/api/v1/billing/statements/{}"),
    ):
        connection = house.connect(service)
        kind = path.split("/")[-2]
        theirs = {"tasks": f"{OTHER}-task", "users": f"{OTHER}-member"}.get(kind, OTHER)
        nothing = "q" * len(theirs)
        found = [ask(connection, "GET", path.format(name), **house.headers(member)) for name in (theirs, nothing)]
        connection.close()
        assert [reply.status for reply in found] == [404, 404]
        assert found[0].body.replace(theirs.encode(), b"?") == found[1].body.replace(nothing.encode(), b"?")


def test_billing_takes_a_token_of_a_key_within_the_rights_of_the_key(house: Secured) -> None:
    connection = house.connect("controller")
    made = ask(connection, "POST", "/api/v1/tokens", {}, **house.headers(house.askers[f"{HOME} admin"]))
    connection.close()
    connection = house.connect("billing")
    bearer = {"Authorization": f"Bearer {made.json['token']}"}
    found = [ask(connection, "GET", f"/api/v1/billing/accounts/{tenant}", **bearer).status for tenant in (HOME, OTHER)]
    connection.close()
    assert found == [200, 404]
