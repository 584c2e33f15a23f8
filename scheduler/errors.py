"""The errors of the scheduler cores. Each class says whose fault it is; what a tenant sends never raises: refusing is a decision."""

from __future__ import annotations

from collections.abc import Iterable


class SchedulerError(Exception):
    """Base of all errors of this package."""


class StimulusError(SchedulerError):
    """The shell's fault: a stimulus that cannot have happened (time ran backwards, an unknown launch finished). State is unchanged."""


class IllegalTransition(SchedulerError):
    """A fault of the core: a step of ``name`` that its table does not have. The message tells the ``story`` so far, the steps
    (at, from, to) in order, ``at`` being the time of the stimulus or the position of the event: enough to find it in the journal or log."""

    def __init__(self, name: str, before: str, after: str, story: Iterable[tuple[int, str, str]]) -> None:
        self.name, self.before, self.after = name, before, after
        self.story = tuple(story)
        steps = ", ".join(f"at {at} from {old} to {new}" for at, old, new in self.story)
        super().__init__(f"{name}: no step leads from {before} to {after}; its story so far: {steps or 'none'}")


class JournalError(SchedulerError):
    """The storage's fault: the journal is damaged before its end (a torn last record is not an error)."""


class ModelError(SchedulerError):
    """The caller's error: the input of a virtual run cannot happen (a batch without a session, a negative cost, too many waiting
    batches)."""
