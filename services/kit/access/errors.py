"""Errors of authentication and authorisation. Each class has one HTTP status; the messages reveal nothing to unauthenticated clients."""

from __future__ import annotations

__all__ = ["AccessError", "CrossSite", "Forbidden", "Hidden", "TooMany", "Unauthenticated", "Unsure"]


class AccessError(Exception):
    """Base of all errors of this package. ``field``: of the body or the query that is to blame, or empty."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


class Unauthenticated(AccessError):
    """401: no identity, or one that opens nothing any more. The message is the same whatever was wrong with it."""


class Forbidden(AccessError):
    """403: known, and may not."""


class CrossSite(Forbidden):
    """403: a browser sends this for another site, or without the token that only our pages have."""


class Hidden(AccessError):
    """404: the entity does not exist, or belongs to another tenant. The answer is the same, so it does not reveal which."""


class TooMany(AccessError):
    """429: too many failures. ``wait_s``: when to try again."""

    def __init__(self, message: str, wait_s: int) -> None:
        super().__init__(message)
        self.wait_s = wait_s


class Unsure(AccessError):
    """503: whether a key is still good cannot be known now, because the log cannot be heard."""
