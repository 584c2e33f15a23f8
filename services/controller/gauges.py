"""The last telemetry of every device: live measurements, not facts. A decision that uses them records them."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import msgspec

from bus_schemas.subjects import TELEMETRY_STREAM
from bus_schemas.telemetry import Telemetry, telemetry_on
from scheduler.placement import Measured
from services.kit.bus import Bus
from services.kit.log import get_logger
from services.kit.streams import telemetry_stream_config

__all__ = ["Gauges"]

_HISTORY: Final = 2_000
"""Messages read from before the start, for devices measured just before it."""


class Gauges:
    """``async with Gauges(bus)`` follows the telemetry stream."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._listeners: list[Callable[[str, int], None]] = []
        self._seen: list[Callable[[Telemetry], None]] = []
        self._live_from = 0
        self._position = 0
        self._last: dict[tuple[str, int], Telemetry] = {}

    async def __aenter__(self) -> Self:
        self._live_from = await self._bus.last_position(TELEMETRY_STREAM) + 1
        begin = max(1, self._live_from - _HISTORY)
        self._follower = self._bus.follow(TELEMETRY_STREAM, begin, self._on_message, made_anew=telemetry_stream_config())
        await self._follower.start()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self._follower.stop()

    def on_heard(self, listener: Callable[[str, int], None]) -> None:
        """Call ``listener(node, epoch)`` for every measurement published since the start: a sign of life."""
        self._listeners.append(listener)

    def on_seen(self, listener: Callable[[Telemetry], None]) -> None:
        """Call ``listener(measurement)`` for every one from now on."""
        self._seen.append(listener)

    @property
    def position(self) -> int:
        """Of the last measurement taken, in its stream."""
        return self._position

    @property
    def hearing(self) -> bool:
        """Whether what nodes send would be heard."""
        return self._follower.hearing

    def last(self) -> list[Telemetry]:
        """By node and gpu; also of nodes that left long ago."""
        return [self._last[key] for key in sorted(self._last)]

    def measured(self) -> dict[tuple[str, int], Measured]:
        """The input of placement, by node and gpu. A silent node is declared lost before its last measurement is old."""
        return {key: Measured(seen.utilization_percent, seen.starvation_percent, seen.vram_used_bytes) for key, seen in self._last.items()}

    def _on_message(self, position: int, subject: str, data: bytes) -> None:
        try:
            seen = telemetry_on(subject, data)
        except msgspec.DecodeError as error:
            get_logger().warning("telemetry ignored", subject=subject, position=position, error=str(error))
            return
        before = self._last.get((seen.node, seen.gpu))
        if before is None or seen.epoch >= before.epoch:  # in the order of the stream: a node's clock may be set back
            self._last[seen.node, seen.gpu] = seen
        if position <= self._position:
            self._live_from = 0  # the stream is in memory: the broker restarted, and counts anew
        self._position = position
        for take in self._seen:
            take(seen)
        if position >= self._live_from:
            for listener in self._listeners:
                listener(seen.node, seen.epoch)
