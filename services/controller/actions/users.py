"""Actions on users: create, change, disable, set a password."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from typing import Final

from bus_schemas.events import UserChanged
from services.controller.actions.access_log import AccessLog, Change
from services.controller.errors import Invalid, NotThere, OutOfState
from services.controller.identity import Caller
from services.controller.revisions import check
from services.kit.access import AccessView
from services.kit.access.access import Access
from services.kit.access.checker import PASSWORD_MAX
from services.kit.access.errors import Unauthenticated
from services.kit.access.rules import check_grant, check_over
from services.kit.access.tokens import is_key_id
from services.kit.access.view import User

__all__ = ["PASSWORD_MIN", "UserActions", "UserValues", "visible_users"]

PASSWORD_MIN: Final = 12
_RESERVED: Final = frozenset({"local", "bootstrap", "system", "nobody", "everyone"})
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)


@dataclass(frozen=True, slots=True)
class UserValues:
    """What a user is to be; None: as it is. ``password`` empty: none any more."""

    tenant: str | None = None
    role: str | None = None
    title: str | None = None
    disabled: bool | None = None
    password: str | None = None

    def __repr__(self) -> str:
        return f"UserValues({self.tenant!r}, {self.role!r}, ...)"  # a password is in no log


class UserActions:
    """Each method raises Denied and kit.access.errors.Forbidden, NotThere (also for another tenant's user), Invalid, OutOfState, Stale,
    kit.access.errors.TooMany and kit.errors.BusUnavailable; it returns once the view shows what was done."""

    def __init__(self, log: AccessLog, access: Access) -> None:
        self._log = log
        self._access = access

    def seen(self, by: Caller, user: str) -> User:
        """Oneself, or whom one may see. Raises NotThere."""
        found = self._log.view.users.get(user)
        if found is None or not (user == by.identity.name or by.may("user.read", found.fact.tenant)):
            raise NotThere(f"there is no user {user}")
        return found

    async def create(self, by: Caller, user: str, values: UserValues) -> User:
        """``values`` name at least a role."""
        if not _NAME.fullmatch(user) or is_key_id(user) or user in _RESERVED:
            raise Invalid("id", "use 1 to 64 lower-case letters, digits, '-' or '_', not like the id of a key, and none of our own names")
        tenant, role = values.tenant if values.tenant is not None else by.identity.tenant, values.role or ""
        by.require("user.write", tenant)
        check_grant(by.identity, role, tenant)
        phc = await self._hash(user, values.password)
        fact = UserChanged(time.time_ns(), user, tenant, role, phc or "", values.title or "", bool(values.disabled))

        def decide(view: AccessView) -> Change:
            if user in view.users:
                raise OutOfState(f"user {user} exists")
            _check_tenant(view, fact)
            return Change(fact, "user.write", user, tenant, f"created: {role}")

        return (await self._log.change(by, decide)).users[user]

    async def change(self, by: Caller, user: str, values: UserValues, *, revision: int | None = None) -> User:
        """A new password ends the user's sessions; a lesser role narrows their keys; another tenant ends their keys of the old one."""
        await self._log.caught_up()
        self._check_may(by, self.seen(by, user))
        phc = await self._hash(user, values.password)

        def decide(view: AccessView) -> Change | None:
            held = self.seen(by, user)
            self._check_may(by, held)
            check(f"user {user}", held.position, revision)
            old = held.fact
            new = UserChanged(
                time.time_ns(),
                user,
                old.tenant if values.tenant is None else values.tenant,
                old.role if values.role is None else values.role,
                old.password_hash if phc is None else phc,
                old.title if values.title is None else values.title,
                old.disabled if values.disabled is None else values.disabled,
            )
            check_grant(by.identity, new.role, new.tenant)
            _check_tenant(view, new)
            done = _what_changed(old, new)
            return Change(new, "user.write", user, new.tenant, done) if done else None

        return (await self._log.change(by, decide)).users[user]

    async def change_own_password(self, by: Caller, old: str, new: str) -> User:
        """Raises Unauthenticated when ``old`` is not the password."""
        user = by.identity.name
        if user not in self._log.view.users:
            raise OutOfState("this key belongs to no user: it has no password")
        await self._access.checker.password(user, old, by.source)
        proved = self._log.view.users[user].stamp
        phc = await self._hash(user, new or None)
        if phc is None:
            raise Invalid("new_password", "a password is needed")

        def decide(view: AccessView) -> Change:
            fact = view.users[user].fact
            if view.users[user].stamp != proved:
                raise Unauthenticated("the password has changed meanwhile")
            changed = UserChanged(time.time_ns(), user, fact.tenant, fact.role, phc, fact.title, fact.disabled)
            return Change(changed, "password.change", user, fact.tenant, "")

        return (await self._log.change(by, decide)).users[user]

    @staticmethod
    def _check_may(by: Caller, held: User) -> None:
        by.require("user.write", held.fact.tenant)
        check_over(by.identity, held.fact.role, held.fact.tenant)

    async def _hash(self, user: str, password: str | None) -> str | None:
        """The PHC string; empty for no password, None when there is nothing to change."""
        if not password:
            return password
        if not PASSWORD_MIN <= len(password) <= PASSWORD_MAX:
            raise Invalid("password", f"use {PASSWORD_MIN} to {PASSWORD_MAX} characters")
        if len(set(password)) < 5 or user in password.lower():
            raise Invalid("password", "this is easy to guess: use a few words, without the user's name")
        return await self._access.checker.hash_password(password)


def _check_tenant(view: AccessView, fact: UserChanged) -> None:
    """Raises Invalid."""
    if fact.tenant and fact.tenant not in view.tenants:
        raise Invalid("tenant", f"there is no tenant {fact.tenant}")
    if not fact.tenant and fact.role == "member":
        raise Invalid("tenant", "a member belongs to a tenant")


def _what_changed(old: UserChanged, new: UserChanged) -> str:
    changes = {
        f"tenant {new.tenant or '(cluster)'}": old.tenant != new.tenant,
        f"role {new.role}": old.role != new.role,
        "password": old.password_hash != new.password_hash,
        "title": old.title != new.title,
        "disabled" if new.disabled else "enabled": old.disabled != new.disabled,
    }
    return ", ".join(name for name, changed in changes.items() if changed)


def visible_users(view: AccessView, by: Caller, tenant: str | None = None) -> list[User]:
    """By name; oneself always."""
    return [
        found
        for name, found in sorted(view.users.items())
        if (tenant is None or found.fact.tenant == tenant) and (name == by.identity.name or by.may("user.read", found.fact.tenant))
    ]
