"""The errors of the scheduler cores. Each class says whose fault it is; what a tenant sends never raises: refusing is a decision."""

from __future__ import annotations

__all__ = ["SchedulerError", "StimulusError", "JournalError", "ReplayMismatch", "ModelError"]


class SchedulerError(Exception):
    """Base of all errors of this package."""


class StimulusError(SchedulerError):
    """The shell's fault: a stimulus that cannot have happened (time ran backwards, an unknown launch finished). State is unchanged."""


class JournalError(SchedulerError):
    """The storage's fault: the journal is damaged before its end (a torn last record is not an error)."""


class ReplayMismatch(SchedulerError):
    """Our fault: replaying a journal gave other decisions than it records. The message names the first record that differs."""


class ModelError(SchedulerError):
    """The caller's error: the input of a virtual run cannot happen (a batch without a session, a negative cost, too many waiting
    batches)."""
