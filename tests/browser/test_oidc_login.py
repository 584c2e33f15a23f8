"""Login through a real OpenID Connect provider, in a browser and from the command line; what happens while the provider is away, after it
has other keys, and to a person whom no user is."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from services.kit.access.tokens import make_key
from services.kit.process import free_port
from tests.browser.chrome import MISSING, Chrome
from tests.support.oidc import LocalProvider
from tests.support.plane import Plane

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

KEY = make_key().text
ADDRESS = f"127.0.0.1:{free_port()}"
ACCOUNTS = {
    "248289": {"email": "Anna@acme.example", "email_verified": True, "preferred_username": "anna"},
    "248290": {"email": "carl@acme.example", "email_verified": False},
    "248291": {"email": "stranger@else.example", "email_verified": True},
}


@pytest.fixture(scope="module")
def provider() -> Iterator[LocalProvider]:
    with LocalProvider(ACCOUNTS, f"http://{ADDRESS}/login/oidc/callback") as running:
        yield running


@pytest.fixture(scope="module")
def plane(provider: LocalProvider, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plane]:
    folder = tmp_path_factory.mktemp("oidc")
    with Plane(folder, WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=KEY, WOOLY_HTTP=ADDRESS, **provider.environment(folder)) as running:
        ask(running, "POST", "/api/v1/tenants", {"id": "acme"})
        for user in ("anna", "carl"):
            body = {"id": user, "role": "member", "tenant": "acme", "oidc_name": f"{user}@acme.example"}
            ask(running, "POST", "/api/v1/users", body)
        running.register("n1")
        yield running


@pytest.fixture
def browser(plane: Plane) -> Iterator[Chrome]:
    with Chrome(plane.controller.url) as running:
        yield running


def ask(plane: Plane, method: str, path: str, body: Any = None) -> Any:
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(plane.controller.url + path, data=data, method=method, headers=headers)
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.loads(answer.read())


def sign_in(browser: Chrome, subject: str) -> None:
    """At the provider, from Wooly's login page, and consent to the scopes."""
    browser.click_text("Sign in with 127.0.0.1")
    browser.fill("[name=login]", subject)
    browser.fill("[name=password]", "any")
    browser.click("[type=submit]")
    browser.click_text("Continue")


def test_a_person_comes_back_from_the_provider_to_the_page_asked_for(plane: Plane, browser: Chrome) -> None:
    browser.open("/nodes?q=n1")
    browser.says("Log in", "h1")
    assert browser.faults() == []
    sign_in(browser, "248289")
    browser.says("Nodes", "h1")
    assert browser.driver.current_url.endswith("/nodes?q=n1")
    assert [cookie["name"] for cookie in browser.driver.get_cookies() if cookie["name"].startswith("wooly")] == ["wooly_session"]
    assert ask(plane, "GET", "/api/v1/users/anna")["oidc_linked"]
    audit = ask(plane, "GET", "/api/v1/audit?actor=anna")["items"]
    assert [(done["action"], done["target"]) for done in audit if done["action"] != "session.begin"] == [("identity.link", "anna")]
    assert [done["detail"] for done in audit if done["action"] == "session.begin"] == ["oidc"]
    browser.click(".account button")
    browser.says("Log in", "h1")


@pytest.mark.parametrize("subject", ["248290", "248291"])
def test_an_unverified_or_unknown_person_stays_out(plane: Plane, browser: Chrome, subject: str) -> None:
    browser.open("/login")
    sign_in(browser, subject)
    browser.says("no user here has your identity", "[role=alert]")
    assert browser.faults() == []
    assert not ask(plane, "GET", "/api/v1/users/carl")["oidc_linked"]


def test_a_provider_that_is_away_leaves_the_other_ways(plane: Plane, provider: LocalProvider, browser: Chrome) -> None:
    plane.controller.stop()
    plane.controller.start()
    provider.stop()
    try:
        browser.open("/login?next=%2Fnodes")
        browser.click_text("Sign in with 127.0.0.1")
        browser.says("127.0.0.1 does not answer", "[role=alert]")
        assert browser.faults() == []
        browser.click("summary")
        browser.fill("#f-key", KEY)
        browser.click_text("Log in", "button")
        browser.says("Nodes", "h1")
    finally:
        provider.start()


@pytest.mark.soak
def test_a_provider_with_new_keys_is_followed(provider: LocalProvider, browser: Chrome) -> None:
    for _ in range(2):
        browser.driver.delete_all_cookies()
        browser.open("/login?next=%2Fnodes")
        sign_in(browser, "248289")
        browser.says("Nodes", "h1")
        provider.stop()
        provider.start()
