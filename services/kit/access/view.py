"""Tenants, users, keys and the audit log: a fold over the event log. Pure: no clock, no I/O; the same log gives the same view."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from heapq import merge
from typing import Final, Protocol, TypeVar

import blake3

from bus_schemas.events import ActionTaken, Event, KeyIssued, KeyRevoked, TenantChanged, UserChanged
from services.kit.access.refusals import DENIED, FAILED
from services.kit.access.rules import PEOPLE, Identity, rights
from services.kit.access.totp import CODE_USE, unforgotten

__all__ = ["AccessView", "Done", "Key", "Tenant", "User", "SESSION_END"]

SESSION_END: Final = "session.end"
_ACTIONS_KEPT: Final = 100_000
_REFUSALS_KEPT: Final = 20_000
"""Of their own, so that failed logins do not displace records of what was done."""
_SESSION_LIFE_NS: Final = 24 * 3_600 * 10**9
"""Longer than any session lives: an ended one is forgotten after it."""


F = TypeVar("F", TenantChanged, UserChanged, KeyIssued)


class Opened(Protocol):
    """Decrypts the personal fields of a fact."""

    def __call__(self, fact: F, /) -> F: ...


def as_stored(fact: F) -> F:
    """For services that show no personal fields: they stay encrypted."""
    return fact


@dataclass(frozen=True, slots=True)
class Tenant:
    fact: TenantChanged
    position: int
    stored: TenantChanged  #: as the log holds it


@dataclass(frozen=True, slots=True)
class User:
    fact: UserChanged
    position: int
    stored: UserChanged  #: as the log holds it

    @property
    def stamp(self) -> str:
        """Changes with the password, the second factor and the provider's identity, so that sessions begun with others end."""
        return blake3.blake3(f"{self.stored.password_hash}{self.stored.oidc_subject}{self.stored.totp}".encode()).hexdigest(8)


@dataclass(frozen=True, slots=True)
class Key:
    fact: KeyIssued
    position: int
    stored: KeyIssued  #: as the log holds it
    revoked_ns: int = 0


@dataclass(frozen=True, slots=True)
class Done:
    fact: ActionTaken
    position: int


class AccessView:
    """The projection of access events. ``opened`` decrypts personal fields, as far as their keys are there."""

    def __init__(self, opened: Opened = as_stored) -> None:
        self._opened = opened
        #: of the last event about access
        self.position = 0
        self.tenants: dict[str, Tenant] = {}
        self.users: dict[str, User] = {}
        self.keys: dict[str, Key] = {}
        #: audit records, oldest first: of what was done, and of what was refused
        self._done: deque[Done] = deque(maxlen=_ACTIONS_KEPT)
        self._refused: deque[Done] = deque(maxlen=_REFUSALS_KEPT)
        #: by user: codes of the second factor that were used, as ``totp.accepted`` notes them
        self.codes_used: dict[str, frozenset[str]] = {}
        #: when sessions were ended, Unix ns
        self._ended: dict[str, int] = {}

    def apply(self, position: int, event: Event) -> None:
        """Events that are not about access are passed over."""
        if isinstance(event, ActionTaken):
            (self._refused if event.action in (DENIED, FAILED) else self._done).append(Done(event, position))
            if event.action == SESSION_END:
                self._end_session(event)
            if event.action == CODE_USE:
                self.codes_used[event.actor] = unforgotten(self.codes_used.get(event.actor, frozenset()) | {event.target})
            return
        if isinstance(event, TenantChanged):
            self.tenants[event.tenant] = Tenant(self._opened(event), position, event)
        elif isinstance(event, UserChanged):
            self.users[event.user] = User(self._opened(event), position, event)
        elif isinstance(event, KeyIssued):
            self.keys.setdefault(
                event.key, Key(self._opened(event), position, event)
            )  # an id is given once; nothing brings a revoked one back
        elif isinstance(event, KeyRevoked):
            known = self.keys.get(event.key)
            if known is not None and not known.revoked_ns:
                self.keys[event.key] = replace(known, revoked_ns=event.at_ns)
        else:
            return
        self.position = position

    def reopen(self, owner: str) -> None:
        """The key of the personal fields of ``tenant.ID`` or ``user.ID`` came, or was destroyed: read them again."""
        kind, _, name = owner.partition(".")
        if kind == "tenant" and name in self.tenants:
            self.tenants[name] = replace(self.tenants[name], fact=self._opened(self.tenants[name].stored))
        if kind == "user" and name in self.users:
            self.users[name] = replace(self.users[name], fact=self._opened(self.users[name].stored))
        for key in [key for key in self.keys.values() if name == (key.stored.tenant if kind == "tenant" else key.stored.user)]:
            self.keys[key.stored.key] = replace(key, fact=self._opened(key.stored))

    def _end_session(self, event: ActionTaken) -> None:
        self._ended = {session: at_ns for session, at_ns in self._ended.items() if event.at_ns - at_ns < _SESSION_LIFE_NS}
        self._ended[event.target] = event.at_ns

    def session_ended(self, session: str) -> bool:
        """Whether the session was ended by a logout."""
        return session in self._ended

    def actions(self) -> Iterator[Done]:
        """The audit records that are kept, the newest first."""
        return merge(reversed(self._done), reversed(self._refused), key=lambda done: done.position, reverse=True)

    def has_actions_since(self, position: int) -> bool:
        """Whether all audit records behind ``position`` are kept."""
        return all(len(kept) < (kept.maxlen or 0) or kept[0].position <= position for kept in (self._done, self._refused))

    # -- identities now ----------------------------------------------------------------------------------------------------------------

    def principal(self, key: str, now_ns: int) -> Identity | None:
        """The identity of this key at ``now_ns`` (Unix); None when it is unknown, revoked or expired, or its user or tenant is disabled. A
        key never has more rights than its user has today."""
        known = self.keys.get(key)
        if known is None or self.why_not(key, now_ns):
            return None
        fact = known.fact
        role, name = fact.role, fact.key
        if fact.user:
            name = fact.user
            role = self._lesser(fact.role, self.users[fact.user].fact.role)
        return Identity(name, fact.tenant, role, fact.scopes, fact.key, fact.node)

    def why_not(self, key: str, now_ns: int) -> str:
        """Why this key is not valid at ``now_ns``: ``unknown``, ``revoked``, ``expired``, ``disabled``; empty when it is."""
        known = self.keys.get(key)
        if known is None:
            return "unknown"
        fact = known.fact
        if known.revoked_ns:
            return "revoked"
        if fact.expires_ns and now_ns >= fact.expires_ns:
            return "expired"
        if self.tenant_disabled(fact.tenant):
            return "disabled"
        if fact.user:
            user = self.users.get(fact.user)
            if user is None or user.fact.disabled or user.fact.tenant not in ("", fact.tenant) or self.tenant_disabled(user.fact.tenant):
                return "disabled"
        return ""

    def person(self, user: str) -> Identity | None:
        """The current identity of this user; None when it is unknown or disabled."""
        known = self.users.get(user)
        if known is None or known.fact.disabled or known.fact.role not in PEOPLE or self.tenant_disabled(known.fact.tenant):
            return None
        return Identity(known.fact.user, known.fact.tenant, known.fact.role)

    def resolve(self, who: Identity, now_ns: int) -> Identity | None:
        """Re-resolve a cached identity; None if it was revoked. For operations that last longer than a request. Scopes never change; a
        token may have fewer than its key."""
        now = self.principal(who.key, now_ns) if who.key else self.person(who.name)
        return now and replace(now, scopes=who.scopes)

    def tenant_disabled(self, tenant: str) -> bool:
        known = self.tenants.get(tenant)
        return known is not None and known.fact.disabled

    # -- administrators ----------------------------------------------------------------------------------------------------------------

    def ways_in(self, now_ns: int) -> int:
        """The number of users and keys that may create users and keys in the whole cluster. A key that expires does not count."""
        count = 0
        for user in self.users.values():
            who = self.person(user.fact.user)
            if who is not None and _rules(who) and user.fact.password_hash:
                count += 1
        for key in self.keys.values():
            found = self.principal(key.fact.key, now_ns)
            if found is not None and _rules(found) and not key.fact.expires_ns and key.fact.role in PEOPLE:
                count += 1
        return count

    @staticmethod
    def _lesser(role: str, of_user: str) -> str:
        return role if rights(role) <= rights(of_user) else of_user


def _rules(who: Identity) -> bool:
    return not who.tenant and {"user.write", "key.write", "tenant.write"} <= rights(who.role, who.scopes)
