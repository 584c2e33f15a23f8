"""Errors of the services. Each message says what to do."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = [
    "BusRefused", "BusUnavailable", "Conflict", "Invalid", "KitError", "LogUnreadable", "NotThere", "RequestError", "SettingError", "Stale",
    "StartError",
]  # fmt: skip


class KitError(Exception):
    """Base of all errors of this package."""


class SettingError(KitError):
    """The operator's fault: an environment variable is missing or malformed."""


class BusUnavailable(KitError):
    """The bus did not answer in time, or cannot be reached."""


class BusRefused(KitError):
    """The bus answered with an error. ``code`` is JetStream's err_code (0 when it gave none)."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Conflict(BusRefused):
    """A conditional publish lost its race: another writer came first. Read again and retry."""


class StartError(KitError):
    """A child process did not come up; the message holds the end of its log."""


class RequestError(KitError):
    """A request that is refused; ``services.kit.problems`` answers it with a problem document. A subclass for each answer."""

    #: HTTP status
    status: ClassVar[int] = 409
    #: last part of the problem's type
    kind: ClassVar[str] = "out-of-state"
    #: of the problem document
    title: ClassVar[str] = "Conflict with the current state"

    def __init__(self, message: str, field: str = "") -> None:
        """``field``: of the body, the query or the headers that is to blame, or empty."""
        super().__init__(message)
        self.field = field

    @property
    def detail(self) -> str:
        """The sentence of the problem document."""
        return str(self)

    @property
    def members(self) -> dict[str, Any]:
        """Further members of the problem document."""
        return {}

    @property
    def headers(self) -> dict[str, str]:
        """Headers of the answer."""
        return {}


class NotThere(RequestError):
    """No such entity, or none that the caller may know of: the answer does not reveal which."""

    status, kind, title = 404, "not-found", "Not found"


class Invalid(RequestError):
    """``field`` of the body is well-formed and cannot be granted."""

    status, kind, title = 400, "invalid-body", "The body is not valid"

    def __init__(self, field: str, reason: str) -> None:
        super().__init__(reason, field)

    @property
    def detail(self) -> str:
        return f"{self.field}: {self}"


class Stale(RequestError):
    """The change is based on an outdated revision. ``revision``: the current one."""

    status, kind, title = 409, "stale-revision", "Changed in the meantime"

    def __init__(self, what: str, revision: int) -> None:
        super().__init__(f"{what} has changed: its revision is {revision} now; read it again and repeat", "If-Match")
        self.revision = revision

    @property
    def members(self) -> dict[str, Any]:
        return {"revision": self.revision}


class LogUnreadable(RequestError):
    """The log holds an event that this service cannot read: run one at least as new as the newest node. Until then it gives no answers."""

    status, kind, title = 503, "unavailable", "Not available now"
