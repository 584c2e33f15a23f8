"""Optimistic-concurrency fence for placements: the condition of each append, so that no two controllers promise the same memory.

A placement is appended if the last one of any task is the one its decision saw. The bus finds "the last" by looking at every subject that
matches; with a subject for each task that would be every task there ever was. So placements come in generations of 128 messages,
``wooly.evt.placement.<generation>.<task>``, and only one generation is looked at. Which one is a function of the log: a controller that has
not seen that it is full still writes into it, and its append fails, because the last message is not the one that its decision saw.
"""

from __future__ import annotations

from typing import Final

from bus_schemas.subjects import placement_subject

__all__ = ["GENERATION", "Turns"]

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
