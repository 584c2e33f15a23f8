"""``wooly keys``, ``wooly tenants``, ``wooly users``: identities and their roles; ``wooly quotas``."""

from __future__ import annotations

import base64
import secrets
import sys
from typing import Any, Final
from urllib.parse import quote, urlsplit

import click

from wooly.cli.group import CommandError, echo
from wooly.cli.http import get_json, send_json
from wooly.cli.login import asked
from wooly.cli.options import controller_flag, json_flag
from wooly.cli.output import Columns, print_items, print_json
from wooly.shared.credentials import totp_secret, totp_uri

__all__ = ["keys", "quotas", "tenants", "users"]

_WHAT: Final = "controller"
_PATH: Final = "/api/v1"
_PEOPLE: Final = ("admin", "operator", "member", "viewer")
_PROGRAMS: Final = ("node", "service")
_SCOPES: Final = ("read", "submit", "operate", "admin", "bus")
_DAY_S: Final = 86_400


@click.group()
def keys() -> None:
    """API keys: list, create, revoke; generate one for a first start."""


@keys.command("list")
@controller_flag
@click.option("--user", default=None, metavar="NAME", help="Only keys of this user.")
@click.option("--tenant", default=None, metavar="NAME", help="Only keys of this tenant.")
@json_flag
def list_keys(controller: str, user: str | None, tenant: str | None, as_json: bool) -> None:
    """Your keys; for admins also those of others."""
    query = {name: value for name, value in (("user", user), ("tenant", tenant)) if value}
    found = get_json(controller, f"{_PATH}/keys", query, what=_WHAT)
    columns: Columns = {
        "key": "id",
        "title": "title",
        "whose": lambda key: key["user"] or key["node"],
        "tenant": "tenant",
        "role": "role",
        "scopes": lambda key: " ".join(key["scopes"]),
        "state": "state",
        "expires": "expires_at",
    }
    print_items(found, found["items"], columns, as_json=as_json, empty="no keys")


@keys.command("create")
@controller_flag
@click.option("--title", default="", help="What it is for.")
@click.option("--user", default=None, metavar="NAME", help="The user that it belongs to (admins; default: you).")
@click.option("--tenant", default=None, metavar="NAME", help="Where it is good (default: where its user is).")
@click.option("--role", type=click.Choice((*_PEOPLE, *_PROGRAMS)), default=None, help="At most this (default: as its user).")
@click.option("--scope", "scopes", type=click.Choice(_SCOPES), multiple=True, help="Only this of the role; may be given more than once.")
@click.option("--days", type=click.IntRange(1, 3650), default=None, help="How long it is good (default: until revoked).")
@click.option("--node", default=None, metavar="NAME", help="With --role node: the only node it may be.")
@click.option("--group", "groups", multiple=True, metavar="GROUP", help="With --role node: a group that the node may name; several times.")
@click.option("--device-cores", type=click.IntRange(1), default=None, help="With --role node: the most cores of a device of it.")
@click.option("--device-mb", type=click.IntRange(1), default=None, help="With --role node: the most memory of a device of it, in MiB.")
@json_flag
def create_key(
    controller: str,
    *,
    title: str,
    user: str | None,
    tenant: str | None,
    role: str | None,
    scopes: tuple[str, ...],
    days: int | None,
    node: str | None,
    groups: tuple[str, ...],
    device_cores: int | None,
    device_mb: int | None,
    as_json: bool,
) -> None:
    """Make a key and print it: the only time it is shown."""
    given = {"user": user, "tenant": tenant, "role": role, "node": node, "expires_in_s": None if days is None else days * _DAY_S}
    body: dict[str, Any] = {"title": title, **{name: value for name, value in given.items() if value is not None}}
    bounds = {"scopes": list(scopes), "groups": list(groups), "device_cores": device_cores, "device_mb": device_mb}
    body.update({name: value for name, value in bounds.items() if value})
    made = send_json("POST", controller, f"{_PATH}/keys", body, what=_WHAT)
    if as_json:
        print_json(made)
        return
    echo(made["key"])
    whose = f"user {made['user']}" if made["user"] else f"node {made['node']}" if made["node"] else "no user or node"
    expires = f", good until {made['expires_at']}" if made["expires_at"] else ""
    echo(f"key {made['id']} for {whose}: {made['role']}{expires}; it is not shown again", err=True)


@keys.command("revoke")
@controller_flag
@click.argument("key")
def revoke_key(controller: str, key: str) -> None:
    """Revoke a key, by its id or whole. It is refused from now on, and its connections end."""
    name = key.split("_")[1] if key.startswith("wk_") and key.count("_") == 2 else key
    revoked = send_json("DELETE", controller, f"{_PATH}/keys/{quote(name, safe='')}", what=_WHAT)
    echo(f"key {revoked['id']} is revoked")


@keys.command("token")
@controller_flag
@click.option("--minutes", type=click.IntRange(1, 720), default=60, show_default=True, help="How long it is good.")
@click.option("--scope", "scopes", multiple=True, type=click.Choice(_SCOPES), help="Narrow it; may be given several times.")
def issue_token(controller: str, minutes: int, scopes: tuple[str, ...]) -> None:
    """Print a short-lived token of your key, for programs (WOOLY_API_KEY). It ends with the key, and creates no keys and users."""
    made = send_json("POST", controller, f"{_PATH}/tokens", {"expires_in_s": minutes * 60, "scopes": scopes}, what=_WHAT)
    echo(made["token"])
    echo(f"token {made['id']} of key {made['key']}, good until {made['expires_at']}", err=True)


@keys.command("generate")
def generate_key() -> None:
    """Print a new key without a request: for WOOLY_BOOTSTRAP_KEY, the key of the first admin."""
    echo(f"wk_{_base32(10)}_{_base32(32)}")


def _base32(count: int) -> str:
    return base64.b32encode(secrets.token_bytes(count)).decode().rstrip("=").lower()


_sure: Final = click.confirmation_option(prompt="This cannot be undone. Erase?")


@click.group()
def tenants() -> None:
    """Tenants: list, create, disable, enable, erase."""


@tenants.command("list")
@controller_flag
@json_flag
def list_tenants(controller: str, as_json: bool) -> None:
    """The tenants you may know of."""
    found = get_json(controller, f"{_PATH}/tenants", what=_WHAT)
    columns: Columns = {"tenant": "id", "title": "title", "state": _disabled, "changed": "updated_at"}
    print_items(found, found["items"], columns, as_json=as_json, empty="no tenants; make one with: wooly tenants create NAME")


def _disabled(item: dict[str, Any]) -> str:
    return "disabled" if item["disabled"] else ""


@tenants.command("create")
@controller_flag
@click.argument("name")
@click.option("--title", default="", help="Its name for people.")
def create_tenant(controller: str, name: str, title: str) -> None:
    """Make a tenant."""
    made = send_json("POST", controller, f"{_PATH}/tenants", {"id": name, "title": title}, what=_WHAT)
    echo(f"tenant {made['id']} is there; `wooly users create --tenant {made['id']}` adds a user to it")


def _tenant_state(controller: str, name: str, disabled: bool) -> None:
    changed = send_json("PATCH", controller, f"{_PATH}/tenants/{quote(name, safe='')}", {"disabled": disabled}, what=_WHAT)
    echo(f"tenant {changed['id']} is {'disabled: its keys and users are refused' if disabled else 'enabled'}")


@tenants.command("disable")
@controller_flag
@click.argument("name")
def disable_tenant(controller: str, name: str) -> None:
    """Its keys and users open nothing from now on; what it did stays on the bill."""
    _tenant_state(controller, name, True)


@tenants.command("enable")
@controller_flag
@click.argument("name")
def enable_tenant(controller: str, name: str) -> None:
    """Let a disabled tenant in again."""
    _tenant_state(controller, name, False)


@tenants.command("erase")
@controller_flag
@click.argument("name")
@_sure
def erase_tenant(controller: str, name: str) -> None:
    """Disable it, and make its title and its users' names and identities unreadable for good; what it used stays on the bill."""
    erased = send_json("POST", controller, f"{_PATH}/tenants/{quote(name, safe='')}/erase", what=_WHAT)
    echo(f"tenant {erased['id']} is disabled, its title and its users' names and identities are erased")


@click.group()
def users() -> None:
    """Users: list, create, set, totp, disable, enable, erase."""


@users.command("list")
@controller_flag
@click.option("--tenant", default=None, metavar="NAME", help="Only users of this tenant.")
@json_flag
def list_users(controller: str, tenant: str | None, as_json: bool) -> None:
    """The users you may know of."""
    found = get_json(controller, f"{_PATH}/users", {"tenant": tenant} if tenant else None, what=_WHAT)
    columns: Columns = {
        "user": "id",
        "name": "title",
        "tenant": lambda user: user["tenant"] or "(cluster)",
        "role": "role",
        "password": lambda user: "yes" if user["has_password"] else "",
        "state": _disabled,
    }
    print_items(found, found["items"], columns, as_json=as_json, empty="no users; make one with: wooly users create NAME")


@users.command("create")
@controller_flag
@click.argument("name")
@click.option("--role", type=click.Choice(_PEOPLE), default="member", show_default=True)
@click.option("--tenant", default=None, metavar="NAME", help="Where they belong (default: where you do).")
@click.option("--title", default="", help="Their name for people.")
@click.option("--password", "with_password", is_flag=True, help="Ask for a password (or read it from standard input), for the web pages.")
@click.option("--oidc-name", default="", metavar="CLAIM", help="Their name at the identity provider (e-mail address).")
def create_user(controller: str, name: str, role: str, tenant: str | None, title: str, with_password: bool, oidc_name: str) -> None:
    """Make a user. Without --password they can authenticate by API keys only."""
    body: dict[str, Any] = {"id": name, "role": role, "title": title, "password": _password() if with_password else ""}
    if oidc_name:
        body["oidc_name"] = oidc_name
    if tenant is not None:
        body["tenant"] = tenant
    made = send_json("POST", controller, f"{_PATH}/users", body, what=_WHAT)
    echo(f"user {made['id']} is there: {made['role']} of {made['tenant'] or 'the whole cluster'}")


@users.command("set")
@controller_flag
@click.argument("name")
@click.option("--role", type=click.Choice(_PEOPLE), default=None)
@click.option("--tenant", default=None, metavar="NAME", help="Where they belong; '' for the whole cluster.")
@click.option("--title", default=None, help="Their name for people.")
@click.option("--password", "with_password", is_flag=True, help="Ask for a new password (or read it from standard input).")
@click.option("--oidc-name", default=None, metavar="CLAIM", help="Their name at the identity provider; '' ends logins through it.")
def set_user(
    controller: str, name: str, role: str | None, tenant: str | None, title: str | None, with_password: bool, oidc_name: str | None
) -> None:
    """Change a user. A new password, and another name at the identity provider, end their sessions."""
    password = _password() if with_password else None
    given = {"role": role, "tenant": tenant, "title": title, "password": password, "oidc_name": oidc_name}
    body = {field: value for field, value in given.items() if value is not None}
    if not body:
        raise CommandError("nothing to change: give --role, --tenant, --title, --password or --oidc-name")
    changed = send_json("PATCH", controller, f"{_PATH}/users/{quote(name, safe='')}", body, what=_WHAT)
    echo(f"user {changed['id']}: {changed['role']} of {changed['tenant'] or 'the whole cluster'}")


def _user_state(controller: str, name: str, disabled: bool) -> None:
    changed = send_json("PATCH", controller, f"{_PATH}/users/{quote(name, safe='')}", {"disabled": disabled}, what=_WHAT)
    echo(f"user {changed['id']} is {'disabled: their keys and sessions open nothing' if disabled else 'enabled'}")


@users.command("totp")
@controller_flag
@click.option("--off", is_flag=True, help="Remove your own, with one of its codes.")
@click.option("--remove", metavar="NAME", default="", help="Remove the second factor of this user (administrators).")
def second_factor(controller: str, off: bool, remove: str) -> None:
    """Set up a second factor (TOTP) for logins with your own password."""
    if off:
        body = {"password": asked("Password: "), "code": asked("Code that the app shows, or a recovery code: ", hide=False)}
        send_json("POST", controller, f"{_PATH}/session/totp/removal", body, what=_WHAT)
        echo("your second factor is removed; your other sessions have ended")
        return
    if remove:
        send_json("DELETE", controller, f"{_PATH}/users/{quote(remove, safe='')}/totp", what=_WHAT)
        echo(f"the second factor of user {remove} is removed; their sessions have ended")
        return
    who = get_json(controller, f"{_PATH}/session", what=_WHAT)
    password, secret = asked("Password: "), totp_secret(secrets.token_bytes(20))
    address = totp_uri(secret, who["name"], f"Wooly at {urlsplit(controller).netloc}")
    echo(f"enter this secret in your authenticator app, or open the address on its device\n\n  {secret}\n  {address}\n", err=True)
    body = {"password": password, "secret": secret, "code": asked("Code that the app shows: ", hide=False)}
    made = send_json("PUT", controller, f"{_PATH}/session/totp", body, what=_WHAT)
    echo("recovery codes, each good for one login without the app; they are not shown again", err=True)
    echo("\n".join(made["recovery_codes"]))


@users.command("disable")
@controller_flag
@click.argument("name")
def disable_user(controller: str, name: str) -> None:
    """Their keys and sessions open nothing from now on."""
    _user_state(controller, name, True)


@users.command("enable")
@controller_flag
@click.argument("name")
def enable_user(controller: str, name: str) -> None:
    """Let a disabled user in again."""
    _user_state(controller, name, False)


@users.command("erase")
@controller_flag
@click.argument("name")
@_sure
def erase_user(controller: str, name: str) -> None:
    """Disable the user, and make name and identity unreadable for good."""
    erased = send_json("POST", controller, f"{_PATH}/users/{quote(name, safe='')}/erase", what=_WHAT)
    echo(f"user {erased['id']} is disabled, name and identity are erased")


def _password() -> str:
    if sys.stdin.isatty():
        return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))
    return sys.stdin.readline().rstrip("\n")


@click.command()
@controller_flag
@click.option("--tenant", default=None, metavar="NAME", help="Only quotas of this tenant.")
@json_flag
def quotas(controller: str, tenant: str | None, as_json: bool) -> None:
    """What tenants have used of their quotas, in the unit of each."""
    found = get_json(controller, f"{_PATH}/quotas", {"tenant": tenant} if tenant else {}, what=_WHAT)
    columns: Columns = {name: name.replace(" ", "_") for name in ("tenant", "quota", "used", "limit", "unit", "set by")}
    print_items(found, found["items"], columns, as_json=as_json, numbers=("used", "limit"), empty="no tenants")
