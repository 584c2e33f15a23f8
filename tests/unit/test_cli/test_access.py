"""wooly login, logout, keys, tenants, users against a real controller, as a person types them; and where the key may not go."""

from __future__ import annotations

import http.server
import json
import os
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.kit.access.tokens import make_key
from tests.support.command import Wooly
from tests.support.plane import Plane
from wooly import credentials
from wooly.cli.output import print_items
from wooly.config import Config, load
from wooly.errors import ConfigError
from wooly.rest import Credentials, open_url

ADMIN = make_key().text


@pytest.fixture(scope="module")
def controller() -> Iterator[str]:
    with Plane(WOOLY_AUTH="on", WOOLY_BOOTSTRAP_KEY=ADMIN) as plane:
        yield plane.controller.url


def test_a_day_of_an_admin_and_of_a_member(wooly: Wooly, controller: str, tmp_path: Path) -> None:
    at = {"CONTROLLER_URL": controller}
    stored = tmp_path / ".config" / "wooly" / "credentials"
    refused = wooly("nodes", **at)
    assert refused.returncode == 2 and "`wooly login`" in refused.stderr

    assert "admin of the whole cluster" in wooly("login", stdin=ADMIN + "\n", **at).stdout
    assert stored.stat().st_mode & 0o777 == 0o600 and ADMIN in stored.read_text()
    assert wooly("tenants", "create", "acme", **at).returncode == 0
    assert (
        wooly(
            "users", "create", "anna", "--tenant", "acme", "--title", "Anna Example", "--password", stdin="correct horse battery\n", **at
        ).returncode
        == 0
    )
    made = wooly("keys", "create", "--user", "anna", "--scope", "read", "--days", "1", **at)
    key = made.stdout.strip()
    assert re.fullmatch(r"wk_[a-z2-7]{16}_[a-z2-7]{52}", key) and key not in made.stderr
    token = wooly("keys", "token", "--minutes", "5", **at)
    assert re.fullmatch(r"wt_[\w.-]+", token.stdout.strip()) and ADMIN.split("_")[1] in token.stderr
    assert wooly("keys", "revoke", key, **at).returncode == 0
    states = {found["id"]: found["state"] for found in json.loads(wooly("keys", "list", "--json", **at).stdout)["items"]}
    assert states == {key.split("_")[1]: "revoked", ADMIN.split("_")[1]: "active"}
    last = wooly("logout", **at)
    assert last.returncode == 2 and "last way in" in last.stderr and stored.exists()

    assert "member of tenant acme" in wooly("login", "--user", "anna", stdin="correct horse battery\n", **at).stdout
    assert wooly("keys", "create", "--role", "admin", **at).returncode == 2
    doctor = json.loads(wooly("doctor", "--json", **at).stdout)
    assert {"name": "login", "state": "ok", "text": "anna (member of tenant acme)", "fix": ""} in doctor
    assert wooly("logout", **at).returncode == 0 and not stored.exists()
    assert "not logged in" in wooly("logout", **at).stdout

    assert wooly("login", stdin=ADMIN + "\n", **at).returncode == 0
    for state, said in (("disable", "disabled"), ("enable", "enabled")):
        assert said in wooly("tenants", state, "acme", **at).stdout and said in wooly("users", state, "anna", **at).stdout
    assert wooly("users", "set", "anna", "--role", "viewer", **at).stdout == "user anna: viewer of acme\n"
    assert wooly("users", "set", "anna", **at).returncode == 2
    assert wooly("users", "create", "carl", "--tenant", "acme", "--oidc-name", "carl@acme.example", **at).returncode == 0
    assert "another user has the identity" in wooly("users", "set", "anna", "--oidc-name", "carl@acme.example", **at).stderr
    assert wooly("users", "set", "anna", "--oidc-name", "anna@acme.example", **at).returncode == 0
    assert wooly("users", "set", "carl", "--oidc-name", "", **at).returncode == 0
    named = {user["id"]: user["oidc_name"] for user in json.loads(wooly("users", "list", "--json", **at).stdout)["items"]}
    assert named == {"anna": "anna@acme.example", "carl": None}
    assert "no identity provider" in wooly("login", "--oidc", **at).stderr
    assert wooly("users", "erase", "anna", stdin="n\n", **at).returncode == 130
    assert "Anna Example" in wooly("users", "list", **at).stdout
    assert "erased" in wooly("users", "erase", "anna", "--yes", **at).stdout
    assert "erased" in wooly("tenants", "erase", "acme", "--yes", **at).stdout
    listed = json.loads(wooly("users", "list", "--json", **at).stdout)["items"]
    assert [(user["id"], user["title"], user["disabled"]) for user in listed] == [("anna", "", True), ("carl", "", False)]
    wrong = wooly("login", "--user", "anna", stdin="not this\n", **at)
    assert wrong.returncode == 2 and "does not let anna in" in wrong.stderr and ADMIN in stored.read_text()


def test_generated_keys_are_keys_and_differ(wooly: Wooly) -> None:
    keys = {wooly("keys", "generate").stdout.strip() for _ in range(2)}
    assert len(keys) == 2 and all(re.fullmatch(r"wk_[a-z2-7]{16}_[a-z2-7]{52}", key) for key in keys)


def test_what_is_no_key_is_not_stored(wooly: Wooly, controller: str, tmp_path: Path) -> None:
    for text in ("", "hello", ADMIN[:-1], make_key().text):
        found = wooly("login", stdin=text + "\n", CONTROLLER_URL=controller)
        assert found.returncode == 2 and not (tmp_path / ".config").exists()


def test_environment_over_file_over_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    stored, named, given = (make_key().text for _ in range(3))
    credentials.write(credentials.path(), stored)
    assert load(environ={}).api_key == stored
    (tmp_path / ".config" / "wooly" / "config").write_text(f'WOOLY_API_KEY = "{named}"\n')
    assert load(environ={}).api_key == named
    found = load(environ={"WOOLY_API_KEY": given})
    assert found.api_key == given and given not in repr(found)
    with pytest.raises(ConfigError) as error:
        load(environ={"WOOLY_API_KEY": given[:-1]})
    assert given[:-1] not in str(error.value)


def test_credentials_that_others_may_read_are_refused(tmp_path: Path) -> None:
    file = str(tmp_path / "folder" / "credentials")
    credentials.write(file, ADMIN, "anna at http://x")
    assert credentials.read(file) == ADMIN and os.stat(os.path.dirname(file)).st_mode & 0o777 == 0o700
    os.chmod(file, 0o640)
    with pytest.raises(ConfigError, match="chmod 600"):
        credentials.read(file)
    os.chmod(file, 0o600)
    Path(file).write_text("nothing here")
    with pytest.raises(ConfigError, match="delete the file"):
        credentials.read(file)
    assert credentials.forget(file) and not credentials.forget(file) and credentials.read(file) == ""


class _Elsewhere(http.server.BaseHTTPRequestHandler):
    """Answers every request with a redirect to itself, and keeps what it was sent."""

    seen: list[str | None] = []  # noqa: RUF012  # one server, one list

    def do_GET(self) -> None:
        self.seen.append(self.headers["Authorization"])
        self.send_response(302)
        self.send_header("Location", f"http://127.0.0.1:{self.server.server_port}/stolen")  # type: ignore[attr-defined]
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Drop the line."""


def test_the_key_goes_only_where_it_was_asked_to() -> None:
    credentials_ = Credentials.of(Config(api_key=ADMIN))
    assert ADMIN not in repr(credentials_)
    for url in ("http://controller:8080/", "http://127.0.0.1.example.org/", "http://10.0.0.1/"):
        with pytest.raises(ConfigError, match="plain text"):
            open_url(url, credentials_, timeout_s=1)
        with pytest.raises(ConfigError, match="password"):
            open_url(url, Credentials(), timeout_s=1, secret=True)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            with pytest.raises(OSError, match="302"):
                open_url(f"http://127.0.0.1:{server.server_port}/", credentials_, timeout_s=10)
        finally:
            server.shutdown()
    assert _Elsewhere.seen == [f"Bearer {ADMIN}"]


def test_lists_are_whole(wooly: Wooly, controller: str) -> None:
    """Sixty tenants have more than a thousand quotas."""
    asked = Credentials(api_key=ADMIN)
    for number in range(60):
        body = json.dumps({"id": f"one-of-many-{number}"}).encode()
        headers = {"Content-Type": "application/json"}
        open_url(f"{controller}/api/v1/tenants", asked, method="POST", data=body, headers=headers, timeout_s=10).close()
    found = json.loads(wooly("quotas", "--json", CONTROLLER_URL=controller, WOOLY_API_KEY=ADMIN).stdout)
    assert len(found["items"]) == found["total"] > 1000


def test_a_list_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    print_items({"items": [{"id": "a"}], "total": 3}, [{"id": "a"}], {"key": "id"}, as_json=False, empty="no keys", more="; ask for more")
    assert capsys.readouterr().out.splitlines()[-1] == "1 of 3 are shown; ask for more"
