"""Errors of the services. Each message says what to do. Refusals at a quota (bus_schemas.quotas) are counted for the metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar, Final

from bus_schemas.quotas import COUNT_RETRY_MS, QUOTAS, Excess


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


REFUSED: Final[Counter[str]] = Counter()
"""Refusals of this process since its start, by quota."""


class QuotaReached(RequestError):
    """A quota refuses it. ``whose``: for the sentence, such as ``tenant 'lab'``. Each one made is counted in ``REFUSED``."""

    status, kind, title = 429, "quota-reached", "Quota reached"

    def __init__(self, excess: Excess, whose: str, field: str = "") -> None:
        super().__init__(excess.sentence(whose), field)
        self.excess = excess
        REFUSED[excess.quota] += 1

    @property
    def wait_s(self) -> int:
        """When to try again, in seconds, rounded up."""
        return -(-self.excess.retry_after_ms // 1000)

    @property
    def members(self) -> dict[str, Any]:
        excess = self.excess
        return {"quota": excess.quota, "limit": excess.limit, "used": excess.used, "retry_after_ms": excess.retry_after_ms}

    @property
    def headers(self) -> dict[str, str]:
        return {"Retry-After": str(self.wait_s)}


def reached(quota: str, used: int, whose: str, *, limit: int = 0, field: str = "") -> QuotaReached | None:
    """The refusal of one more of a count, if as many are ``used`` as may be. ``limit`` 0: the table's."""
    most = limit or QUOTAS[quota].limit
    return QuotaReached(Excess(quota, most, used, COUNT_RETRY_MS), whose, field) if used >= most else None
