"""The access view for services whose own projection does not fold it: a projection of the log's access subjects alone."""

from __future__ import annotations

import asyncio
import contextlib
from types import TracebackType
from typing import Final, Self

from bus_schemas.events import decode_events
from services.kit.access.view import AccessView
from services.kit.bus import Bus
from services.kit.errors import LogUnreadable
from services.kit.projection import Projection

__all__ = ["AccessProjection"]

_SUBJECTS: Final = "wooly.evt.access.*"
_HISTORY_S: Final = 30.0


class AccessProjection(Projection):
    """``async with AccessProjection(bus)`` returns once the history is folded. After an unreadable event, which may be a revocation, all
    authentication fails."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus, _SUBJECTS)
        self.view = AccessView()

    async def __aenter__(self) -> Self:
        await self.follow()
        async with asyncio.timeout(_HISTORY_S):
            with contextlib.suppress(LogUnreadable):
                await self.wait_for(await self.log_end())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    @property
    def receives_revocations(self) -> bool:
        """Whether a revocation would be folded now."""
        return self.connected and self.failure is None

    def apply(self, position: int, subject: str, data: bytes) -> None:
        for event in decode_events(data):
            self.view.apply(position, event)

    def start_over(self) -> None:
        self.view = AccessView()
