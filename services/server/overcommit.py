"""The overcommit that holds on this node: its own setting, else what the controller's configuration in the event log says."""

from __future__ import annotations

from typing import Final

import msgspec

from bus_schemas import subjects
from bus_schemas.events import ConfigChanged, decode_events
from scheduler.placement.view import ENVIRONMENT, GLOBAL, OVERCOMMIT_GLOBAL, OVERCOMMIT_NODE
from scheduler.vram.overcommit import effective_percent
from services.kit.bus import Bus
from services.kit.follow import Follower

__all__ = ["Overcommit"]

_CONFIG_ALL: Final = subjects.event_subject("config", "x").removesuffix("x") + ">"


class Overcommit:
    """``own`` None: the node says nothing itself."""

    def __init__(self, node: str, own: int | None) -> None:
        self._node = node
        self._own = own
        self._values: dict[tuple[str, str], int] = {}
        self._follower: Follower | None = None

    @property
    def percent(self) -> int:
        """What holds now: 0 to 1000."""
        if self._own is not None:
            return self._own
        values = self._values
        default = values.get((ENVIRONMENT, OVERCOMMIT_GLOBAL), 0)
        return effective_percent(values.get((self._node, OVERCOMMIT_NODE)), values.get((GLOBAL, OVERCOMMIT_GLOBAL)), default)

    async def start(self, bus: Bus) -> None:
        """Follow the configuration from the beginning of the log on, unless the node's own setting comes first anyway."""
        if self._own is None:
            self._follower = bus.follow(subjects.EVENTS_STREAM, 1, self._on_message, subject=_CONFIG_ALL)
            await self._follower.start()

    async def stop(self) -> None:
        if self._follower is not None:
            await self._follower.stop()

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        try:
            events = decode_events(data)
        except msgspec.DecodeError:  # of a newer version
            return
        for event in events:
            if isinstance(event, ConfigChanged):
                self._values.pop((event.scope, event.key), None)
                if isinstance(event.value, int):
                    self._values[event.scope, event.key] = event.value
