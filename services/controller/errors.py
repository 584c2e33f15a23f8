"""Errors of the controller. Each class says whether the caller caused it; ``problems`` maps them to REST answers."""

from __future__ import annotations

__all__ = [
    "ControllerError", "Ambiguous", "Busy", "NotThere", "Denied", "Stale", "Invalid", "OutOfState", "TaskExists", "TaskImpossible",
    "LogUnreadable",
]  # fmt: skip


class ControllerError(Exception):
    """Base of all errors of this package."""


class NotThere(ControllerError):
    """The caller's error: there is no such entity, or none that they may read; the two are not distinguished."""


class Ambiguous(ControllerError):
    """The caller's error: the name means several entities."""


class Denied(ControllerError):
    """The caller's error: they lack the permission."""


class Stale(ControllerError):
    """The caller's error: the change is based on an outdated revision. ``revision``: the current one."""

    def __init__(self, what: str, revision: int) -> None:
        super().__init__(f"{what} has changed: its revision is {revision} now; read it again and repeat")
        self.revision = revision


class Invalid(ControllerError):
    """The caller's error: ``field`` is well-formed and cannot be granted."""

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason)
        self.field = field


class OutOfState(ControllerError):
    """The caller's error: the entity's state does not allow it (a task that is over, a group that exists)."""


class TaskExists(ControllerError):
    """The caller's error: the id belongs to a task that was submitted with another body."""


class TaskImpossible(Invalid):
    """The caller's error: ``field`` asks for what no device could ever give."""


class Busy(ControllerError):
    """Too much of this is under way; the same question is answered a little later."""


class LogUnreadable(ControllerError):
    """The log holds a fact this controller cannot read: run one at least as new as the newest node. Until then it gives no answers."""
