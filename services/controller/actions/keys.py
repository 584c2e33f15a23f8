"""Actions on API keys: create one (its secret is shown once), read, revoke."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from bus_schemas.events import KeyIssued, KeyRevoked
from services.controller.actions.access_log import AccessLog, Change
from services.controller.errors import Denied, Invalid, NotThere, OutOfState
from services.controller.identity import Caller
from services.kit.access import AccessView, Identity
from services.kit.access.access import Access
from services.kit.access.rules import PEOPLE, check_grant
from services.kit.access.tokens import KeyText, make_key
from services.kit.access.view import Key

__all__ = ["KeyActions", "KeyValues", "visible_keys"]

_NS: Final = 1_000_000_000
_LIVE_MAX: Final = 200
"""Live keys of one user: a script that makes a key a run must not fill every replica's memory."""


@dataclass(frozen=True, slots=True)
class KeyValues:
    """The values of a new key; None: those of the caller. ``user`` empty: not a user's key. ``expires_in_s`` None: never (or with the key
    that makes it)."""

    title: str = ""
    user: str | None = None
    tenant: str | None = None
    role: str | None = None
    scopes: tuple[str, ...] | None = None
    expires_in_s: int | None = None
    node: str = ""


class KeyActions:
    """Each method raises Denied and kit.access.errors.Forbidden, NotThere (also for keys that are not theirs to see), Invalid, OutOfState,
    TooMany, and
    kit.errors.BusUnavailable; it returns once the view shows what was done."""

    def __init__(self, log: AccessLog, access: Access) -> None:
        self._log = log
        self._access = access

    def seen(self, by: Caller, key: str) -> Key:
        """Raises NotThere."""
        found = self._log.view.keys.get(key)
        if found is None or not _may_see(by, found):
            raise NotThere(f"there is no key {key}")
        return found

    async def issue(self, by: Caller, values: KeyValues) -> tuple[Key, KeyText]:
        """A new key, and its text, which cannot be recovered later."""
        by.require("key.write", by.identity.tenant)
        await self._log.caught_up()
        wanted = self._wanted(by, values)
        text = make_key()
        phc = await self._access.checker.hasher.hash_secret(text.secret)
        fact = KeyIssued(
            time.time_ns(),
            text.id,
            wanted.tenant,
            wanted.name,
            wanted.role,
            phc,
            wanted.scopes,
            self._expires_ns(by, values),
            values.title,
            wanted.node,
        )

        def decide(view: AccessView) -> Change:
            self._wanted(by, values)  # the user may have changed meanwhile
            live = sum(1 for key in view.keys.values() if fact.user and key.fact.user == fact.user and not key.revoked_ns)
            if live >= _LIVE_MAX:
                raise OutOfState(f"user {fact.user} has {live} keys that are not revoked; revoke some first")
            detail = f"issued: {fact.role}" + (f" ({', '.join(fact.scopes)})" if fact.scopes else "") + (f" for {fact.user or fact.node}")
            return Change(fact, "key.write", text.id, fact.tenant, detail)

        return (await self._log.change(by, decide)).keys[text.id], text

    async def revoke(self, by: Caller, key: str) -> Key:
        """Revoked before: nothing is done."""

        def decide(view: AccessView) -> Change | None:
            held = self.seen(by, key)
            by.require("key.write", held.fact.tenant)
            if held.revoked_ns:
                return None
            return Change(KeyRevoked(time.time_ns(), key), "key.write", key, held.fact.tenant, "revoked")

        return (await self._log.change(by, decide)).keys[key]

    def _wanted(self, by: Caller, values: KeyValues) -> Identity:
        """Who the key will be (``name``: its user). Raises what ``issue`` raises."""
        view, who = self._log.view, by.identity
        program = values.role is not None and values.role not in PEOPLE
        own = who.name if who.name in view.users else ""
        name = values.user if values.user is not None else "" if program else own
        user = view.users.get(name)
        if name and (user is None or not (name == who.name or by.may("user.read", user.fact.tenant))):
            raise Invalid("user", f"there is no user {name}")
        if program and name:
            raise Invalid("user", f"a key of role {values.role} belongs to no user; leave the user out")
        if (values.role == "node") != bool(values.node):
            raise Invalid("node", "a key of role node, and only such a key, names its node")
        role = values.role or (user.fact.role if user is not None else who.role)
        tenant = values.tenant if values.tenant is not None else "" if program else user.fact.tenant if user is not None else who.tenant
        scopes = tuple(sorted(set(values.scopes))) if values.scopes is not None else () if program else who.scopes
        check_grant(who, role, tenant, scopes)  # first: the other answers would reveal which tenants exist
        if tenant and tenant not in view.tenants:
            raise Invalid("tenant", f"there is no tenant {tenant}")
        if program and tenant:
            raise Invalid("tenant", f"a key of role {role} is the cluster's; leave the tenant out")
        if not tenant and role == "member":
            raise Invalid("tenant", "a member belongs to a tenant")
        if user is not None and user.fact.tenant not in ("", tenant):
            raise Invalid("tenant", f"user {name} belongs to tenant {user.fact.tenant}")
        if (name != who.name or not name) and not by.may("user.write", tenant):
            raise Denied(f"{who.name} ({who.role}) makes keys for themselves only")
        if user is not None:
            check_grant(Identity(name, user.fact.tenant, user.fact.role), role, tenant, scopes)
        return Identity(name, tenant, role, scopes, node=values.node)

    def _expires_ns(self, by: Caller, values: KeyValues) -> int:
        """A key made by one that expires does not outlive it."""
        maker = self._log.view.keys.get(by.identity.key)
        limit_ns = maker.fact.expires_ns if maker is not None else 0
        if values.expires_in_s is None:
            return limit_ns
        wanted_ns = time.time_ns() + values.expires_in_s * _NS
        return min(wanted_ns, limit_ns) if limit_ns else wanted_ns


def visible_keys(view: AccessView, by: Caller, *, tenant: str | None = None, user: str | None = None) -> list[Key]:
    """The newest first."""
    found = [
        key
        for key in view.keys.values()
        if (tenant is None or key.fact.tenant == tenant) and (user is None or key.fact.user == user) and _may_see(by, key)
    ]
    return sorted(found, key=lambda key: (-key.position, key.fact.key))


def _may_see(by: Caller, key: Key) -> bool:
    """One's own, and with user.read also others'."""
    fact = key.fact
    if not by.may("key.read", fact.tenant):
        return False
    own = fact.user == by.identity.name if fact.user else fact.key == by.identity.key
    return own or by.may("user.read", fact.tenant)
