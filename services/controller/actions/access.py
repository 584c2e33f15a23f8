"""Actions on tenants, users and API keys, written as serialised appends across all replicas, so that invariants over all of them (names are
unique, at least one administrator can log in) hold."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from msgspec.structs import replace

from bus_schemas.events import ActionTaken, Event, KeyIssued, KeyRevoked, TenantChanged, UserChanged
from services.controller.errors import Denied, Invalid, LogUnreadable, NotThere, OutOfState
from services.controller.identity import Caller
from services.controller.log_projection import LogProjection
from services.controller.lookup import check
from services.controller.writer import Writer
from services.kit.access import AccessView, Identity
from services.kit.access.access import Access
from services.kit.access.checker import PASSWORD_MAX
from services.kit.access.errors import Unauthenticated
from services.kit.access.refusals import records
from services.kit.access.rules import PEOPLE, check_grant, check_over
from services.kit.access.tokens import KeyText, is_key_id, make_key
from services.kit.access.view import Done, Key, Tenant, User
from services.kit.errors import BusRefused, BusUnavailable, reached
from services.kit.log import get_logger

PASSWORD_MIN: Final = 12
_RESERVED: Final = frozenset({"local", "bootstrap", "system", "nobody", "everyone"})
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}", re.ASCII)
_NS: Final = 1_000_000_000
_REFUSALS_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Change:
    """A change of access and its audit record."""

    event: Event
    action: str  #: of AUDITED
    target: str
    tenant: str
    detail: str  #: what the audit record says


class AccessLog:
    def __init__(self, projection: LogProjection, writer: Writer, access: Access) -> None:
        self._projection = projection
        self._writer = writer
        self._access = access

    @property
    def view(self) -> AccessView:
        return self._projection.fold(AccessView)

    async def caught_up(self) -> AccessView:
        await self._projection.caught_up()
        return self.view

    async def change(self, by: Caller, decide: Callable[[AccessView], Change | None]) -> AccessView:
        """Append what ``decide`` makes of the view as it is (None: nothing is to be done), and again while others write at the same time;
        the view then. Raises what ``decide`` raises, OutOfState when no administrator would be left, Unauthenticated when the caller's
        identity was revoked meanwhile (a key that is being revoked makes no other in its last moment), BusUnavailable."""
        await self.caught_up()

        def events(view: AccessView) -> tuple[str, list[Event]] | None:
            if self._access.resolve(by.identity) != by.identity:
                raise Unauthenticated("your rights have changed meanwhile; try again")
            change = decide(view)
            if change is None:
                return None
            _check_way_in(view, change.event)
            took = ActionTaken(time.time_ns(), by.identity.name, change.tenant, change.action, change.target, change.detail, by.source)
            return change.target, [change.event, took]

        await self._writer.change_access(events)
        return self.view

    async def erase(self, owners: Sequence[str]) -> None:
        """Destroy the keys of the personal fields of these, each ``user.ID`` or ``tenant.ID``. Raises BusUnavailable, BusRefused."""
        await self._writer.erase(owners)

    async def record_refusals(self) -> None:
        """Append what was refused since the last call, one audit record a count. It is counted further when the log cannot be written."""
        refusals = self._access.checker.refusals
        counts = refusals.take()
        try:
            if counts:
                await self._writer.append_always("access", "refused", records(counts, time.time_ns()))
        except (BusRefused, BusUnavailable, LogUnreadable) as error:
            get_logger().warning("refusals are not in the log yet", error=str(error))
            for refusal, count in counts.items():
                refusals.add(refusal, count)

    async def record_refusals_forever(self) -> None:
        """Every minute, and once more when it is cancelled."""
        try:
            while True:
                await asyncio.sleep(_REFUSALS_S)
                await self.record_refusals()
        finally:
            await self.record_refusals()

    async def note(self, by: Caller, done: ActionTaken) -> None:
        """Append an audit record of an action that changes no rights."""
        await self._writer.append_always("access", by.identity.name, [done])


def _check_way_in(view: AccessView, event: Event) -> None:
    """Raises OutOfState when ``event`` would leave no identity that can make users and keys."""
    now_ns = time.time_ns()
    if not view.ways_in(now_ns):
        return
    preview = copy(view)
    preview.tenants, preview.users, preview.keys = dict(view.tenants), dict(view.users), dict(view.keys)
    preview.apply(view.position, event)
    if not preview.ways_in(now_ns):
        raise OutOfState("this is the last way in for an admin of the cluster: make another one first (a user with a password, or a key)")


class TenantActions:
    """Each method raises Denied, NotThere (also for another tenant), OutOfState, Stale, and kit.errors.BusUnavailable; it returns once the
    view shows what was done."""

    def __init__(self, log: AccessLog) -> None:
        self._log = log

    def seen(self, by: Caller, tenant: str) -> Tenant:
        """Raises NotThere."""
        found = self._log.view.tenants.get(tenant)
        if found is None or not by.may("tenant.read", tenant):
            raise NotThere(f"there is no tenant {tenant}")
        return found

    async def create(self, by: Caller, tenant: str, title: str = "") -> Tenant:
        """Raises OutOfState when there is one of this name, in whatever case."""
        by.require("tenant.write")

        def decide(view: AccessView) -> Change:
            same = next((name for name in view.tenants if name.lower() == tenant.lower()), None)
            if same is not None:
                raise OutOfState(f"tenant {same} exists")
            return Change(TenantChanged(time.time_ns(), tenant, title), "tenant.write", tenant, tenant, "created")

        return (await self._log.change(by, decide)).tenants[tenant]

    async def change(
        self, by: Caller, tenant: str, *, title: str | None = None, disabled: bool | None = None, revision: int | None = None
    ) -> Tenant:
        """None: unchanged. The keys and users of a disabled tenant are refused at once; its facts stay."""
        by.require("tenant.write")

        def decide(view: AccessView) -> Change | None:
            held = self.seen(by, tenant)
            check(f"tenant {tenant}", held.position, revision)
            new = TenantChanged(
                time.time_ns(), tenant, held.fact.title if title is None else title, held.fact.disabled if disabled is None else disabled
            )
            if (new.title, new.disabled) == (held.fact.title, held.fact.disabled):
                return None
            detail = "changed" if new.disabled == held.fact.disabled else "disabled" if new.disabled else "enabled"
            return Change(new, "tenant.write", tenant, tenant, detail)

        return (await self._log.change(by, decide)).tenants[tenant]

    async def erase(self, by: Caller, tenant: str) -> Tenant:
        """Disable the tenant, and make the personal fields of the tenant and of its users unreadable in the whole log, for good. What it
        used and owes stays. To be repeated when it fails."""
        by.require("tenant.write")

        def decide(view: AccessView) -> Change:
            self.seen(by, tenant)
            return Change(TenantChanged(time.time_ns(), tenant, disabled=True), "tenant.write", tenant, tenant, "erased")

        view = await self._log.change(by, decide)
        users = [name for name, user in view.users.items() if user.fact.tenant == tenant]
        await self._log.erase([f"tenant.{tenant}", *(f"user.{name}" for name in users)])
        return self._log.view.tenants[tenant]


def visible_tenants(view: AccessView, by: Caller) -> list[Tenant]:
    """By name."""
    return [view.tenants[name] for name in sorted(view.tenants) if by.may("tenant.read", name)]


@dataclass(frozen=True, slots=True)
class UserValues:
    """Values of a user; None: unchanged."""

    tenant: str | None = None
    role: str | None = None
    title: str | None = None
    disabled: bool | None = None
    password: str | None = None  #: empty: the user has none
    oidc_name: str | None = None  #: empty: no login through the identity provider

    def __repr__(self) -> str:
        return f"UserValues({self.tenant!r}, {self.role!r}, ...)"  # a password is in no log


class UserActions:
    """Each method raises Denied and kit.access.errors.Forbidden, NotThere (also for another tenant's user), Invalid, OutOfState, Stale,
    kit.errors.QuotaReached and kit.errors.BusUnavailable; it returns once the view shows what was done."""

    def __init__(self, log: AccessLog, access: Access) -> None:
        self._log = log
        self._access = access

    def seen(self, by: Caller, user: str) -> User:
        """The caller's own user, or one that they may read. Raises NotThere."""
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
        fact = UserChanged(time.time_ns(), user, tenant, role, phc or "", values.title or "", bool(values.disabled), values.oidc_name or "")

        def decide(view: AccessView) -> Change:
            if user in view.users:
                raise OutOfState(f"user {user} exists")
            _check_tenant(view, fact)
            _check_oidc_name(view, fact)
            return Change(fact, "user.write", user, tenant, f"created: {role}")

        return (await self._log.change(by, decide)).users[user]

    async def change(self, by: Caller, user: str, values: UserValues, *, revision: int | None = None) -> User:
        """A new password ends the user's sessions; a lesser role narrows their keys; another tenant ends their keys of the old one; another
        ``oidc_name`` forgets the linked identity, and ends the sessions."""
        await self._log.caught_up()
        self.changeable(by, user)
        phc = await self._hash(user, values.password)

        def decide(view: AccessView) -> Change | None:
            held = self.changeable(by, user)
            check(f"user {user}", held.position, revision)
            old = held.fact
            given = {
                "tenant": values.tenant,
                "role": values.role,
                "password_hash": phc,
                "title": values.title,
                "disabled": values.disabled,
                "oidc_name": values.oidc_name,
                "oidc_subject": None if values.oidc_name in (None, old.oidc_name) else "",
            }
            new = replace(old, at_ns=time.time_ns(), **{name: value for name, value in given.items() if value is not None})
            check_grant(by.identity, new.role, new.tenant)
            _check_tenant(view, new)
            _check_oidc_name(view, new)
            done = _what_changed(old, new)
            return Change(new, "user.write", user, new.tenant, done) if done else None

        return (await self._log.change(by, decide)).users[user]

    async def erase(self, by: Caller, user: str) -> User:
        """Disable the user, and make the user's personal fields unreadable in the whole log, for good. To be repeated when it fails."""

        def decide(view: AccessView) -> Change:
            fact = self.changeable(by, user).fact
            return Change(
                UserChanged(time.time_ns(), user, fact.tenant, fact.role, disabled=True), "user.write", user, fact.tenant, "erased"
            )

        await self._log.change(by, decide)
        await self._log.erase([f"user.{user}"])
        return self._log.view.users[user]

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
            changed = replace(fact, at_ns=time.time_ns(), password_hash=phc)
            return Change(changed, "password.change", user, fact.tenant, "")

        return (await self._log.change(by, decide)).users[user]

    async def holder(self, subject: str, name: str, source: str) -> Identity | None:
        """The identity of the user whom the provider calls ``subject`` and ``name``; the first login links the user to ``subject``."""
        view = await self._log.caught_up()
        user = matching_user(view, subject, name)
        who = view.person(user) if user else None
        if who is None or view.users[user].fact.oidc_subject:
            return who

        def decide(view: AccessView) -> Change:
            if matching_user(view, subject, name) != user:
                raise Unauthenticated("the user has changed meanwhile")
            fact = view.users[user].fact
            return Change(replace(fact, at_ns=time.time_ns(), oidc_subject=subject), "identity.link", user, fact.tenant, "")

        return (await self._log.change(Caller(who, source), decide)).person(user)

    def changeable(self, by: Caller, user: str) -> User:
        """A user whom the caller may change. Raises NotThere, Denied, Forbidden."""
        held = self.seen(by, user)
        by.require("user.write", held.fact.tenant)
        check_over(by.identity, held.fact.role, held.fact.tenant)
        return held

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


def _check_oidc_name(view: AccessView, fact: UserChanged) -> None:
    """Raises OutOfState: one identity is one user."""
    name = fact.oidc_name.lower()
    if name and any(held.fact.oidc_name.lower() == name for held in view.users.values() if held.fact.user != fact.user):
        raise OutOfState(f"another user has the identity {fact.oidc_name}", "oidc_name")


def matching_user(view: AccessView, subject: str, name: str) -> str:
    """The user who is linked to ``subject`` (issuer and subject of the provider), else the user without a link whose ``oidc_name`` is
    ``name`` (a name with an @ in any case: an address); empty: none. Of a linked user the name does not count: it may have passed on to
    another person."""
    for user in view.users.values():
        if user.fact.oidc_subject == subject:
            return user.fact.user
    wanted = _one_case(name)
    for user in view.users.values():
        if wanted and not user.fact.oidc_subject and _one_case(user.fact.oidc_name) == wanted:
            return user.fact.user
    return ""


def _one_case(name: str) -> str:
    """Empty for what is not ASCII: other letters may have several spellings."""
    return "" if not name.isascii() else name.lower() if "@" in name else name


def _what_changed(old: UserChanged, new: UserChanged) -> str:
    changes = {
        f"tenant {new.tenant or '(cluster)'}": old.tenant != new.tenant,
        f"role {new.role}": old.role != new.role,
        "password": old.password_hash != new.password_hash,
        "title": old.title != new.title,
        f"identity {'set' if new.oidc_name else 'removed'}": old.oidc_name != new.oidc_name,
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


@dataclass(frozen=True, slots=True)
class KeyValues:
    """Values of a new key; None: those of the caller."""

    title: str = ""
    user: str | None = None  #: empty: not a user's key
    tenant: str | None = None
    role: str | None = None
    scopes: tuple[str, ...] | None = None
    expires_in_s: int | None = None  #: None: never, or with the key that makes it
    node: str = ""
    groups: tuple[str, ...] = ()
    device_cores: int = 0
    device_mb: int = 0


class KeyActions:
    """Each method raises Denied and kit.access.errors.Forbidden, NotThere (also for keys that they may not read), Invalid, OutOfState,
    kit.errors.QuotaReached, and
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
            at_ns=time.time_ns(),
            key=text.id,
            tenant=wanted.tenant,
            user=wanted.name,
            role=wanted.role,
            secret_hash=phc,
            scopes=wanted.scopes,
            expires_ns=self._expires_ns(by, values),
            title=values.title,
            node=wanted.node,
            groups=values.groups if wanted.node else None,
            device_cores=values.device_cores,
            device_mb=values.device_mb,
        )

        def decide(view: AccessView) -> Change:
            self._wanted(by, values)  # the user may have changed meanwhile
            held = [name for name, key in view.keys.items() if fact.user and key.fact.user == fact.user]
            live = sum(view.why_not(name, fact.at_ns) not in ("revoked", "expired") for name in held)
            refusal = reached("user_keys", live, f"user {fact.user}")
            if refusal is not None:
                raise refusal
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
        if not values.node and (values.groups or values.device_cores or values.device_mb):
            raise Invalid("groups", "only a key of role node has groups and bounds of devices")
        role = values.role or (user.fact.role if user is not None else who.role)
        tenant = values.tenant if values.tenant is not None else "" if program else user.fact.tenant if user is not None else who.tenant
        scopes = tuple(sorted(set(values.scopes))) if values.scopes is not None else () if program else who.scopes
        check_grant(who, role, tenant, scopes)  # first: later refusals would reveal which tenants exist
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


def visible_actions(view: AccessView, by: Caller, *, actor: str, action: str) -> list[Done]:
    """The audit records that are kept and that the caller may read, the newest first. ``actor``, ``action``: empty: any."""
    return [
        done
        for done in view.actions()
        if actor in ("", done.fact.actor) and action in ("", done.fact.action) and by.may("audit.read", done.fact.tenant)
    ]


def exported_actions(view: AccessView, by: Caller, after: int, limit: int) -> tuple[list[Done], bool]:
    """The audit records behind the position ``after`` that the caller may read, the oldest first, and whether none of them is forgotten.
    Records of one position stay together, so there may be more than ``limit``."""
    newer = list(takewhile(lambda done: done.position > after, view.actions()))[::-1]
    found = [done for done in newer if by.may("audit.read", done.fact.tenant)]
    while 0 < limit < len(found) and found[limit].position == found[limit - 1].position:
        limit += 1
    return found[:limit], view.has_actions_since(after)
