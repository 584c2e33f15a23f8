"""Errors of the billing service that its caller caused; ``problems`` maps them to REST answers.

May live here: exception classes. May not: HTTP.
"""

from __future__ import annotations

__all__ = ["AlreadyThere", "BillingServiceError", "Invalid", "NotThere", "Stale"]


class BillingServiceError(Exception):
    """Base of all errors of this package."""


class NotThere(BillingServiceError):
    """No such thing, or none that the caller may know of: the two are not told apart."""


class Invalid(BillingServiceError):
    """``field`` is well-formed and cannot be granted."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class Stale(BillingServiceError):
    """The caller's change is based on an outdated revision. ``revision``: the current one."""

    def __init__(self, what: str, revision: int) -> None:
        super().__init__(f"{what} has changed: its revision is {revision} now; read it again and repeat")
        self.revision = revision


class AlreadyThere(BillingServiceError):
    """The id belongs to a grant of another tenant or another amount."""
