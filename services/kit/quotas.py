"""The refusal of a request at a quota (bus_schemas.quotas): 429 with ``Retry-After``, counted for the metrics."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from bus_schemas.quotas import COUNT_RETRY_MS, QUOTAS, Excess
from services.kit.errors import RequestError

__all__ = ["REFUSED", "QuotaReached", "reached"]

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
