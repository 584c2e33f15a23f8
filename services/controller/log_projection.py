"""The controller's projection of the event log: the placement view and further folds, in memory alone; and the optimistic-concurrency fence
for placements, the condition of each append, so that no two controllers promise the same memory.

A placement is appended if the last one of any task is the one its decision saw. The bus finds "the last" by looking at every subject that
matches; with a subject for each task that would be every task there ever was. So placements come in generations of 128 messages,
``wooly.evt.placement.<generation>.<task>``, and only one generation is looked at. Which one is a function of the log: a controller that has
not seen that it is full still writes into it, and its append fails, because the last message is not the one that its decision saw.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Final, Protocol, Self, TypeVar, cast

from bus_schemas.events import Event, TaskSubmitted, decode_events
from bus_schemas.subjects import AREAS, EVENTS_STREAM, placement_subject
from scheduler.placement import ClusterView
from services.controller.personal import PersonalKeys, is_sealed
from services.kit.access import AccessView
from services.kit.bus import Bus
from services.kit.projection import Projection

GENERATION: Final = 128
"""Messages of one generation."""

_PREFIX: Final = "wooly.evt.placement."


class Turns:
    """``generation``: the one that the next placement belongs to, of ``size`` messages each. ``positions``: of the last decisions."""

    def __init__(self, size: int = GENERATION) -> None:
        self._size = size
        self.generation = 0
        self.positions: dict[str, int] = {}
        self._messages = 0
        self._last: dict[int, int] = {}
        self._subjects: dict[str, tuple[str, ...]] = {}

    @property
    def last(self) -> int:
        """Position of the last message of the generation, 0: there is none."""
        return self._last.get(self.generation, 0)

    def subjects(self, task: str) -> tuple[str, ...]:
        """The subjects that hold decisions on a task."""
        return self._subjects.get(task, ())

    def note(self, position: int, subject: str) -> None:
        """Take the next message of the log; those that are no placements change nothing."""
        if not subject.startswith(_PREFIX):
            return
        text, _, task = subject.removeprefix(_PREFIX).partition(".")
        if not task:
            text, task = "", text  # of a time before there were generations
        self.positions[task] = position
        known = self._subjects.get(task, ())
        if subject not in known:
            self._subjects[task] = (*known, subject)
        if not text.isdigit():
            return
        generation = int(text)
        self._last[generation] = position
        if generation == self.generation:
            self._messages += 1
            if self._messages == self._size:
                self.generation += 1
                self._messages = 0

    def subject(self, task: str) -> str:
        """Where the next decision on ``task`` goes."""
        return placement_subject(str(self.generation), task)

    def rivals(self) -> str:
        """What matches every placement of this generation."""
        return f"{_PREFIX}{self.generation}.*"


ACCESS: Final = "wooly.evt.access."
_USAGE: Final = "wooly.evt.usage."
_SESSION: Final = "wooly.evt.session."
_PLACEMENT: Final = "wooly.evt.placement."


class Fold(Protocol):
    """Another view over the same log."""

    def apply(self, position: int, event: Event) -> None: ...


F = TypeVar("F", bound=Fold)


class LogProjection(Projection):
    """``async with LogProjection(bus, personal)`` returns once the history is applied."""

    #: usage is most of the log, and irrelevant to placement
    COUNTS = tuple(f"wooly.evt.{area}.>" for area in AREAS if area != "usage")

    def __init__(self, bus: Bus, personal: PersonalKeys) -> None:
        """``personal`` decrypts titles of tasks, and the personal fields of its AccessView."""
        super().__init__(bus)
        self._personal = personal
        #: by task, as the log holds them
        self._sealed_tasks: dict[str, TaskSubmitted] = {}
        self._listeners: list[Callable[[int, Event], None]] = []
        self._live_from = 0
        self._folds: dict[type[Any], Fold] = {}
        self._makers: dict[type[Any], Callable[[], Fold]] = {}
        #: its ``position`` is of the last message about placement
        self.view = ClusterView()
        self.turns = Turns()
        self.access_position = 0
        self.subject_positions: dict[str, int] = {}
        self.also(AccessView, lambda: AccessView(personal.opened))
        personal.on_change = self._reopen

    async def __aenter__(self) -> Self:
        self._live_from = await self._bus.last_position(EVENTS_STREAM) + 1
        await self.follow()
        await self.wait_for(self._live_from - 1)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    def also(self, kind: type[F], make: Callable[[], F] | None = None) -> None:
        """Keep a view of this kind as well, from the first event on; ``make`` makes an empty one. Before the block is entered."""
        self._makers[kind] = make or kind
        self._folds[kind] = self._makers[kind]()

    def fold(self, kind: type[F]) -> F:
        """The current view of this kind; ask again each time: it is replaced when the broker loses the tail of the log."""
        return cast(F, self._folds[kind])

    def on_live_event(self, listener: Callable[[int, Event], None]) -> None:
        """Call ``listener(position, event)`` for every event newer than the history at the start. It must not raise."""
        self._listeners.append(listener)

    def apply(self, position: int, subject: str, data: bytes) -> None:
        if subject.startswith(_USAGE):
            return
        events = [self._opened(event) for event in decode_events(data)]
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

    def _opened(self, event: Event) -> Event:
        if not isinstance(event, TaskSubmitted) or not is_sealed(event.title):
            return event
        self._sealed_tasks.setdefault(event.task, event)
        return self._personal.opened(event)

    def _reopen(self, owner: str) -> None:
        """The key of the personal fields of ``owner`` came, or was destroyed."""
        self.fold(AccessView).reopen(owner)
        for name, stored in self._sealed_tasks.items():
            if owner == f"tenant.{stored.tenant}":
                self.view.retitle(name, self._personal.opened(stored).title)

    def start_over(self) -> None:
        self.view = ClusterView()
        self._sealed_tasks.clear()
        self._folds = {kind: make() for kind, make in self._makers.items()}
        self.turns = Turns()
        self.access_position = 0
        self.subject_positions.clear()
