"""``wooly login`` and ``wooly logout``: stores and removes the API key of this machine's user."""

from __future__ import annotations

import contextlib
import dataclasses
import http.client
import json
import os
import re
import socket
import sys
import time
import urllib.error
from collections.abc import Iterator
from typing import Any, Final

import click

from bus_schemas.texts import printable
from wooly import config as configuration
from wooly import credentials
from wooly.cli.group import CommandError, echo
from wooly.cli.http import send_json
from wooly.cli.options import controller_flag
from wooly.rest import UNANSWERED, Credentials, detail_of, open_url

_WHAT: Final = "controller"
_SESSION: Final = "/api/v1/session"
_KEYS: Final = "/api/v1/keys"
_KEY: Final = re.compile(r"wk_[a-z2-7]{16}_[a-z2-7]{52}")
_CODE_HEADER: Final = "X-Code-Needed"
"""Of the answer to a right password without the code of the second factor."""
_TIMEOUT_S: Final = 10.0
_DAY_S: Final = 86_400
_ASK_AGAIN: Final = (409, 429, 503)
"""The login is not confirmed yet, or cannot be checked now."""
_PASSWORD_DAYS: Final = 90
_OIDC_DAYS: Final = 1
"""Keys do not ask the provider again: one that has to be renewed ends soon after the person's account there."""


@click.command()
@controller_flag
@click.option("--user", default=None, metavar="NAME", help="Log in with a name and a password; a key of your own is made for this machine.")
@click.option("--oidc", is_flag=True, help="Log in at the identity provider, in any browser; a key of your own is made for this machine.")
@click.option("--days", type=click.IntRange(1, 3650), default=None, help="How long that key is good (default: --user 90, --oidc 1).")
def login(controller: str, user: str | None, oidc: bool, days: int | None) -> None:
    """Store an API key for this machine's user. It is asked for, or read from standard input; never given on the command line."""
    if user and oidc:
        raise CommandError("give either --user or --oidc")
    if oidc:
        key = _key_by_provider(controller, days or _OIDC_DAYS)
    elif user:
        key = _key_by_password(controller, user, days or _PASSWORD_DAYS)
    else:
        key = asked("API key: ").strip()
    if not _KEY.fullmatch(key):
        raise CommandError("this is no API key: it looks like wk_<id>_<secret>; an admin makes one, or you do on the page Settings")
    who = _who(controller, key)
    file = credentials.path()
    credentials.write(file, key, f"{who['name']} at {controller}")
    echo(f"logged in as {described(who)}; the key is in {file}")
    if os.environ.get("WOOLY_API_KEY", "").strip():
        echo("wooly: WOOLY_API_KEY is set in this environment and goes before the stored key", err=True)


@click.command()
@controller_flag
@click.option("--keep", is_flag=True, help="Only forget the key here; it stays good for others who have it.")
def logout(controller: str, keep: bool) -> None:
    """Revoke the stored key and forget it."""
    file = credentials.path()
    key = credentials.read(file)
    if not key:
        echo("not logged in")
        return
    said = "forgotten"
    if not keep:
        said = _revoke(controller, key)
    credentials.forget(file)
    echo(f"logged out: the key is {said}")


def _revoke(controller: str, key: str) -> str:
    """What became of it. A key that is no longer good needs no revocation; one that cannot be asked about is kept."""
    name = key.split("_")[1]
    try:
        with open_url(f"{controller}{_KEYS}/{name}", _with(key), method="DELETE", timeout_s=_TIMEOUT_S):
            return "revoked"
    except urllib.error.HTTPError as error:
        if error.code == 401:
            return "forgotten (it was no longer good)"
        if error.code == 403:
            return "forgotten, but still good: it may not revoke itself, ask an admin"
        raise CommandError(f"the key was not revoked: {detail_of(error)}; `wooly logout --keep` only forgets it here") from None
    except UNANSWERED as error:
        reason = getattr(error, "reason", error)
        raise CommandError(
            f"the controller at {controller} does not answer ({reason}); `wooly logout --keep` only forgets the key"
        ) from None


def _who(controller: str, key: str) -> dict[str, Any]:
    with _asking(controller, "take this key"), open_url(f"{controller}{_SESSION}", _with(key), timeout_s=_TIMEOUT_S) as answer:
        found: dict[str, Any] = json.loads(answer.read())
    return found


def _key_by_password(controller: str, user: str, days: int) -> str:
    """A new key of ``user``, made in a session that ends at once."""
    login = {"user": user, "password": asked("Password: ")}
    with _asking(controller, f"let {user} in"):
        try:
            answer = _begun(controller, login)
        except urllib.error.HTTPError as error:
            if error.headers.get(_CODE_HEADER) is None:
                raise
            answer = _begun(controller, {**login, "code": asked("Code: ", hide=False)})
        with answer:
            return _key_of_session(controller, answer, days)


def _key_by_provider(controller: str, days: int) -> str:
    """A new key of the user who confirms the login at the identity provider (RFC 8628), made in a session that ends at once."""
    begun = send_json("POST", controller, f"{_SESSION}/oidc", what=_WHAT, credentials=_with(""))
    page = begun["verification_uri_complete"] or begun["verification_uri"]
    echo(f"open {printable(page)} in a browser and confirm the code {printable(begun['user_code'])}", err=True)
    over_s, wait_s = time.monotonic() + begun["expires_in_s"], int(begun["interval_s"])
    while time.monotonic() + wait_s < over_s:
        time.sleep(wait_s)
        with _asking(controller, "let you in"):
            try:
                with _begun(controller, {"device_code": begun["device_code"]}) as answer:
                    return _key_of_session(controller, answer, days)
            except urllib.error.HTTPError as error:
                if error.code not in _ASK_AGAIN:
                    raise
                wait_s = max(wait_s, int(error.headers.get("Retry-After") or 0))
    raise CommandError("the login was not confirmed in time")


def _begun(controller: str, body: dict[str, str]) -> http.client.HTTPResponse:
    """The answer to a login: a session."""
    headers = {"Content-Type": "application/json"}
    data = json.dumps(body).encode()
    return open_url(controller + _SESSION, _with(""), method="POST", data=data, headers=headers, timeout_s=_TIMEOUT_S, secret=True)


def _key_of_session(controller: str, answer: http.client.HTTPResponse, days: int) -> str:
    """A new key, made in the session that ``answer`` begins and that ends at once."""
    nobody = _with("")
    session = json.loads(answer.read())
    cookie = str(answer.headers.get("Set-Cookie", "")).partition(";")[0]
    headers = {"Cookie": cookie, "X-CSRF-Token": str(session.get("csrf_token") or "")}
    wanted = {"title": f"wooly login on {socket.gethostname()}"[:200], "expires_in_s": days * _DAY_S}
    try:
        made = send_json("POST", controller, _KEYS, wanted, what=_WHAT, headers=headers, credentials=nobody)
    finally:
        send_json("DELETE", controller, _SESSION, what=_WHAT, headers=headers, credentials=nobody)
    return str(made["key"])


@contextlib.contextmanager
def _asking(controller: str, what: str) -> Iterator[None]:
    """Turns refusals and silence into CommandError."""
    try:
        yield
    except urllib.error.HTTPError as error:
        raise CommandError(f"the controller at {controller} does not {what}: {detail_of(error)}") from None
    except UNANSWERED as error:
        raise CommandError(f"the controller at {controller} does not answer ({getattr(error, 'reason', error)})") from None


def _with(key: str) -> Credentials:
    return dataclasses.replace(Credentials.of(configuration.load(task=False)), api_key=key)


def asked(prompt: str, *, hide: bool = True) -> str:
    """From the terminal (``hide``: without an echo), or the next line of standard input."""
    if sys.stdin.isatty():
        return str(click.prompt(prompt.rstrip(": "), hide_input=hide))
    return sys.stdin.readline().rstrip("\n")


def described(who: dict[str, Any]) -> str:
    where = f"tenant {who['tenant']}" if who.get("tenant") else "the whole cluster"
    scopes = f", only {', '.join(who['scopes'])}" if who.get("scopes") else ""
    return f"{who['name']} ({who['role']} of {where}{scopes})"
