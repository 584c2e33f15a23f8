"""The controller's projection of the event log: the placement view and further folds, in memory alone."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, cast

from bus_schemas.events import Event, decode_events
from bus_schemas.subjects import EVENTS_STREAM
from scheduler.placement import ClusterView
from services.controller.turns import Turns
from services.kit.bus import Bus
from services.kit.projection import Projection

__all__ = ["ACCESS", "Fold", "LogProjection"]

ACCESS: Final = "wooly.evt.access."
_USAGE: Final = "wooly.evt.usage."
_SESSION: Final = "wooly.evt.session."
_PLACEMENT: Final = "wooly.evt.placement."


class Fold(Protocol):
    """Another view over the same log."""

    def apply(self, position: int, event: Event) -> None: ...


F = TypeVar("F", bound=Fold)


class LogProjection(Projection):
    """``async with LogProjection(bus)`` returns once the history is applied."""

    def __init__(self, bus: Bus) -> None:
        super().__init__(bus)
        self._listeners: list[Callable[[int, Event], None]] = []
        self._live_from = 0
        self._folds: dict[type[Any], Fold] = {}
        #: its ``position`` is of the last message about placement
        self.view = ClusterView()
        self.turns = Turns()
        self.access_position = 0
        self.subject_positions: dict[str, int] = {}

    async def __aenter__(self) -> Self:
        self._live_from = await self._bus.last_position(EVENTS_STREAM) + 1
        await self.follow()
        await self.wait_for(self._live_from - 1)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    def also(self, kind: type[F]) -> None:
        """Keep a view of this kind as well, from the first event on. Before the block is entered."""
        self._folds[kind] = kind()

    def fold(self, kind: type[F]) -> F:
        """The current view of this kind; ask again each time: it is replaced when the broker loses the tail of the log."""
        return cast(F, self._folds[kind])

    def on_live_event(self, listener: Callable[[int, Event], None]) -> None:
        """Call ``listener(position, event)`` for every event newer than the history at the start. It must not raise."""
        self._listeners.append(listener)

    def apply(self, position: int, subject: str, data: bytes) -> None:
        if subject.startswith(_USAGE):
            return  # most of the log, and irrelevant to placement
        events = decode_events(data)
        for event in events:
            self.view.apply(position, event)
            for fold in self._folds.values():
                fold.apply(position, event)
        self.turns.note(position, subject)
        if not subject.startswith((_SESSION, _PLACEMENT)):
            self.subject_positions[subject] = position
        if subject.startswith(ACCESS):
            self.access_position = position
        if position >= self._live_from:
            for event in events:
                for listener in self._listeners:
                    listener(position, event)

    def start_over(self) -> None:
        self.view = ClusterView()
        self._folds = {kind: kind() for kind in self._folds}
        self.turns = Turns()
        self.access_position = 0
        self.subject_positions.clear()
