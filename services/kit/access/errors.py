"""Errors of authentication and authorisation. The messages reveal nothing to unauthenticated clients."""

from __future__ import annotations

from services.kit.errors import RequestError


class AccessError(RequestError):
    """Base of all errors of this package."""


class Unauthenticated(AccessError):
    """No identity, or a revoked one. The message is the same whatever was wrong with it."""

    status, kind, title = 401, "unauthenticated", "Log in"

    @property
    def headers(self) -> dict[str, str]:
        return {"WWW-Authenticate": "Bearer"}


class CodeNeeded(Unauthenticated):
    """The password is right, and the user has a second factor."""

    kind, title = "code-needed", "Enter the code"

    @property
    def headers(self) -> dict[str, str]:
        return {"X-Code-Needed": "totp"}


class Forbidden(AccessError):
    """A known identity without the right."""

    status, kind, title = 403, "forbidden", "Not allowed"


class CrossSite(Forbidden):
    """A browser sends this for another site, or without the token that only our pages have."""

    kind = "cross-site"


class Hidden(AccessError):
    """The entity does not exist, or belongs to another tenant. The answer is the same, so it does not reveal which."""

    status, kind, title = 404, "not-found", "Not found"


class Unsure(AccessError):
    """Whether a key is still valid cannot be known now, because the log cannot be read."""

    status, kind, title = 503, "unavailable", "Not available now"

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": "1"}
