"""Tenants, users, keys and audit records, the same for REST and pages. Hashes of secrets are in none of them."""

from __future__ import annotations

from typing import Any

from services.controller.presenters import Json, rfc3339
from services.kit.access import AccessView, Identity
from services.kit.access.rules import rights
from services.kit.access.view import Done, Key, Tenant, User


def tenant_answer(tenant: Tenant) -> Json:
    fact = tenant.fact
    return {
        "id": fact.tenant,
        "title": fact.title,
        "disabled": fact.disabled,
        "updated_at": rfc3339(fact.at_ns),
        "revision": tenant.position,
    }


def user_answer(user: User) -> Json:
    fact = user.fact
    return {
        "id": fact.user,
        "tenant": fact.tenant or None,
        "role": fact.role,
        "title": fact.title,
        "disabled": fact.disabled,
        "has_password": bool(fact.password_hash),
        "has_totp": bool(user.stored.totp),
        "oidc_name": fact.oidc_name or None,
        "oidc_linked": bool(fact.oidc_subject),
        "updated_at": rfc3339(fact.at_ns),
        "revision": user.position,
    }


def key_answer(view: AccessView, key: Key, now_ns: int) -> Json:
    """``state``: active, revoked, expired, or disabled (its user or tenant is). ``role``: what it is today, its user's if that is less."""
    fact = key.fact
    who = view.principal(fact.key, now_ns)
    return {
        "id": fact.key,
        "title": fact.title,
        "tenant": fact.tenant or None,
        "user": fact.user or None,
        "node": fact.node or None,
        "groups": None if fact.groups is None else list(fact.groups),
        "device_cores": fact.device_cores or None,
        "device_mb": fact.device_mb or None,
        "role": who.role if who is not None else fact.role,
        "scopes": list(fact.scopes),
        "state": view.why_not(fact.key, now_ns) or "active",
        "issued_at": rfc3339(fact.at_ns),
        "expires_at": rfc3339(fact.expires_ns) if fact.expires_ns else None,
        "revoked_at": rfc3339(key.revoked_ns) if key.revoked_ns else None,
    }


def identity_answer(who: Identity, **more: Any) -> Json:
    return {
        "name": who.name,
        "tenant": who.tenant or None,
        "role": who.role,
        "scopes": list(who.scopes),
        "key": who.key or None,
        "actions": sorted(rights(who.role, who.scopes, who.tenant)),
        **more,
    }


def action_answer(done: Done) -> Json:
    fact = done.fact
    return {
        "position": done.position,
        "at": rfc3339(fact.at_ns),
        "actor": fact.actor,
        "tenant": fact.tenant or None,
        "action": fact.action,
        "target": fact.target,
        "detail": fact.detail,
        "source": fact.source or None,
    }
