"""Errors of the controller's requests, with those that all services have."""

from __future__ import annotations

from services.kit.errors import Invalid, LogUnreadable, NotThere, RequestError, Stale

__all__ = [
    "Ambiguous", "Busy", "NotThere", "Denied", "Stale", "Invalid", "OutOfState", "TaskExists", "TaskImpossible", "LogUnreadable",
]  # fmt: skip


class Ambiguous(RequestError):
    """The name in the request fits several entities."""

    kind, title = "ambiguous", "The name is ambiguous"


class Denied(RequestError):
    """The caller may not do this."""

    status, kind, title = 403, "denied", "Not allowed"


class OutOfState(RequestError):
    """It cannot be done to this entity as it is now (a task that is over, a group that exists)."""


class TaskExists(RequestError):
    """The id belongs to a task that was submitted with another body."""

    kind, title = "task-exists", "The task exists"

    def __init__(self, message: str) -> None:
        super().__init__(message, "id")


class TaskImpossible(Invalid):
    """``field`` asks for what no device could ever give."""


class Busy(RequestError):
    """Too many of these requests are in progress; the same one is answered a little later."""

    status, kind, title = 503, "unavailable", "Not available now"
