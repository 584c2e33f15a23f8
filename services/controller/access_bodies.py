"""The bodies of requests about tenants, users, keys and sessions. Unknown fields are refused; secrets are in no repr."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from services.controller.bodies import Token
from services.kit.access.checker import PASSWORD_MAX

__all__ = [
    "KeyBody", "LoginBody", "LoginForm", "LogoutForm", "NewTenantBody", "NewUserBody", "PasswordBody", "TenantBody", "UserBody",
]  # fmt: skip

Title = Annotated[str, Meta(max_length=200)]
Role = Literal["admin", "operator", "member", "viewer"]
Scope = Literal["read", "submit", "operate", "admin", "bus"]
Password = Annotated[str, Meta(max_length=PASSWORD_MAX)]
TenantOrCluster = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z", description="empty: the whole cluster")]
_DECADE_S = 10 * 366 * 86_400


class NewTenantBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: Token
    title: Title = ""


class TenantBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is left out stays as it is."""

    title: Title | UnsetType = UNSET
    disabled: Annotated[bool, Meta(description="true: its keys and users are refused")] | UnsetType = UNSET


class NewUserBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    id: Annotated[str, Meta(pattern=r"\A[a-z0-9][a-z0-9_-]{0,63}\Z", description="1 to 64 lower-case letters, digits, '-' or '_'")]
    role: Role
    tenant: TenantOrCluster | UnsetType = UNSET
    title: Title = ""
    password: Password = ""

    def __repr__(self) -> str:
        return f"NewUserBody(id={self.id!r})"


class UserBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """What is left out stays as it is."""

    role: Role | UnsetType = UNSET
    tenant: TenantOrCluster | UnsetType = UNSET
    title: Title | UnsetType = UNSET
    disabled: bool | UnsetType = UNSET
    password: Annotated[str, Meta(max_length=PASSWORD_MAX, description="empty: removes the password")] | UnsetType = UNSET

    def __repr__(self) -> str:
        return "UserBody()"


class KeyBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A new key; fields left out default to those of the caller."""

    title: Title = ""
    user: Annotated[str, Meta(max_length=64, description="the user that the key belongs to; empty: no user")] | UnsetType = UNSET
    tenant: TenantOrCluster | UnsetType = UNSET
    role: Literal["admin", "operator", "member", "viewer", "node", "service"] | UnsetType = UNSET
    scopes: Annotated[tuple[Scope, ...], Meta(max_length=8, description="restricts the role's permissions; empty: all")] | UnsetType = UNSET
    expires_in_s: Annotated[int, Meta(ge=1, le=_DECADE_S)] | None = None
    node: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_-]{0,64}\Z", description="with role node: the only node that may use the key")] = ""


class LoginBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A user with a password, or an API key."""

    user: Annotated[str, Meta(max_length=64)] = ""
    password: Password = ""
    key: Annotated[str, Meta(max_length=100)] = ""

    def __repr__(self) -> str:
        return f"LoginBody(user={self.user!r})"


class LoginForm(msgspec.Struct, frozen=True):
    """What the login page sends."""

    user: Annotated[str, Meta(max_length=64)] = ""
    password: Password = ""
    key: Annotated[str, Meta(max_length=100)] = ""
    next: Annotated[str, Meta(max_length=2_000)] = ""
    csrf: Annotated[str, Meta(max_length=200)] = msgspec.field(name="_csrf_token", default="")

    def __repr__(self) -> str:
        return f"LoginForm(user={self.user!r})"


class LogoutForm(msgspec.Struct, frozen=True):
    csrf: Annotated[str, Meta(max_length=200)] = msgspec.field(name="_csrf_token", default="")


class PasswordBody(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    old_password: Password
    new_password: Password

    def __repr__(self) -> str:
        return "PasswordBody()"
