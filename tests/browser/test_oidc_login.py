"""Login through a real OpenID Connect provider, in a browser and from the command line; what happens while the provider is away, after it
has other keys, to a person whom no user is, and to copies of what a browser was sent."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from services.kit.access.tokens import make_key
from services.kit.process import free_port
from tests.browser.chrome import MISSING, Chrome
from tests.support.oidc import LocalProvider
from tests.support.plane import Plane
from tests.support.stack import plain_environment

KEY = make_key().text
ADDRESS = f"127.0.0.1:{free_port()}"
ACCOUNTS = {
    "248289": {"email": "Anna@acme.example", "email_verified": True, "preferred_username": "anna"},
    "248290": {"email": "carl@acme.example", "email_verified": False},
    "248291": {"email": "stranger@else.example", "email_verified": True},
    "248292": {"email": "dora@acme.example", "email_verified": True},
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
        for user in ("anna", "carl", "dora"):
            body = {"id": user, "role": "member", "tenant": "acme", "oidc_name": f"{user}@acme.example"}
            ask(running, "POST", "/api/v1/users", body)
        running.register("n1")
        yield running


@pytest.fixture
def browser(plane: Plane) -> Iterator[Chrome]:
    if MISSING:
        pytest.skip(MISSING)
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


def log_in(plane: Plane, provider: LocalProvider, subject: str) -> tuple[str, httpx.Cookies]:
    """The address to which the provider sends a browser after the login, and the cookie that it has for that."""
    begun = httpx.get(f"{plane.controller.url}/login/oidc")
    return provider.sign_in(begun.headers["location"], subject), begun.cookies


def test_a_copied_answer_of_the_provider_begins_no_second_session(plane: Plane, provider: LocalProvider) -> None:
    came, cookies = log_in(plane, provider, "248292")
    elsewhere = httpx.get(came)
    assert elsewhere.headers["location"].startswith("/login?oidc=expired") and "wooly_session" not in elsewhere.cookies
    assert "wooly_session" in httpx.get(came, cookies=cookies).cookies
    again = httpx.get(came, cookies=cookies)
    assert again.headers["location"].startswith("/login?oidc=refused") and "wooly_session" not in again.cookies


def test_a_disabled_user_stays_out(plane: Plane, provider: LocalProvider) -> None:
    came, cookies = log_in(plane, provider, "248292")
    assert "wooly_session" in httpx.get(came, cookies=cookies).cookies and ask(plane, "GET", "/api/v1/users/dora")["oidc_linked"]
    ask(plane, "PATCH", "/api/v1/users/dora", {"disabled": True})
    came, cookies = log_in(plane, provider, "248292")
    refused = httpx.get(came, cookies=cookies)
    ask(plane, "PATCH", "/api/v1/users/dora", {"disabled": False})
    assert refused.headers["location"].startswith("/login?oidc=unknown") and "wooly_session" not in refused.cookies


def test_the_command_line_gets_a_key_of_a_day(plane: Plane, provider: LocalProvider, tmp_path: Path) -> None:
    command = [str(Path(sys.executable).with_name("wooly")), "login", "--oidc", "--controller", plane.controller.url]
    environment = plain_environment(HOME=str(tmp_path))
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        assert running.stdout is not None and running.stderr is not None
        address, code = running.stderr.readline().removeprefix("open ").split(" in a browser and confirm the code ")
        assert code.strip() in address
        assert provider.sign_in(address, "248292") == ""
        assert "logged in as dora (member of tenant acme)" in running.stdout.read(), running.stderr.read()
    (key,) = ask(plane, "GET", "/api/v1/keys?user=dora")["items"]
    assert key["id"] in (tmp_path / ".config" / "wooly" / "credentials").read_text()
    assert 86_000 < datetime.fromisoformat(key["expires_at"]).timestamp() - time.time() <= 86_400
    begun, ended = ask(plane, "GET", "/api/v1/audit?actor=dora&limit=3")["items"][::-2]
    assert (begun["action"], begun["detail"], ended["action"]) == ("session.begin", "oidc", "session.end")


def test_a_device_code_logs_in_once_and_only_when_confirmed(plane: Plane, provider: LocalProvider) -> None:
    def log_in_by(code: str) -> httpx.Response:
        return httpx.post(f"{plane.controller.url}/api/v1/session", json={"device_code": code})

    begun = [ask(plane, "POST", "/api/v1/session/oidc") for _ in range(2)]
    waiting = log_in_by(begun[0]["device_code"])
    assert waiting.status_code == 409 and waiting.json()["type"].endswith("login-pending") and waiting.headers["retry-after"] == "5"
    for login, subject in zip(begun, ("248292", "248291"), strict=True):
        assert provider.sign_in(login["verification_uri_complete"], subject) == ""
    opened = log_in_by(begun[0]["device_code"])
    assert opened.status_code == 200 and opened.json()["name"] == "dora" and "wooly_session" in opened.cookies
    for code in (begun[0]["device_code"], begun[1]["device_code"], "nonsense"):
        refused = log_in_by(code)
        assert refused.status_code == 401 and "wooly_session" not in refused.cookies, refused.text


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
