"""What tenants use of the quotas that the executor enforces, and what these refused: reported to the server about once a second, while
something changes. Used by the data port's thread and the launching one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from bus_schemas.quotas import Excess
from bus_schemas.telemetry import QuotaUse
from scheduler.quotas import Asked, Refusals, answer
from services.server.protocol import QuotasUsed

_USES_MAX: Final = 64


class QuotaWatch:
    def __init__(self) -> None:
        self.on_change: Callable[[], None] = lambda: None
        """Called after every change, from any thread."""
        self._lock = threading.Lock()
        self._refusals = Refusals()
        self._uses: dict[tuple[str, str], QuotaUse] = {}

    def use(self, use: QuotaUse) -> None:
        """This is used now. ``use.tenant`` may be a trust domain."""
        with self._lock:
            self._uses[use.quota, use.tenant] = use
            if not use.used:
                del self._uses[use.quota, use.tenant]
        self.on_change()

    def ask(self, asked: Asked) -> Excess | None:
        """The refusal, or None."""
        excess = answer(asked)
        if excess is not None:
            with self._lock:
                self._refusals.note(asked)
            self.on_change()
        return excess

    def take(self) -> QuotasUsed:
        """What is used now (the greatest parts), and the refusals since the last call."""
        with self._lock:
            greatest = sorted(self._uses.values(), key=lambda use: use.used / use.limit, reverse=True)
            return QuotasUsed(tuple(greatest[:_USES_MAX]), tuple(self._refusals.take()))
