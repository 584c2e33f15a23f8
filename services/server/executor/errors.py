"""Errors inside the executor: those that end the execution of a batch early (outside they are Done messages and statuses), and those of
swapping.
"""

from __future__ import annotations

from bus_schemas.batch import Fault


class Refused(Exception):
    """The tenant's fault: the batch has no effect. ``fault.fatal`` says whether the session is over."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.name}: {fault.message}")
        self.fault = fault


class Needs(Exception):
    """The executor does not hold these programs, dims or chunks (any more); the session sends them again."""

    def __init__(self, digests: tuple[bytes, ...]) -> None:
        super().__init__(f"{len(digests)} missing")
        self.digests = digests


class Awaits(Exception):
    """The memory the batch needs is not free yet. It had no effect; its session is notified when the memory is free."""


class Unprepared(Exception):
    """The batch's program is not compiled: that is the preparing thread's work. It had no effect; its session is notified when it is."""


class SwapError(Exception):
    """Base of all."""


class SwapFull(SwapError):
    """There is no room (any more) where memory is swapped to: it stays where it is."""


class SwapAway(SwapError):
    """What was swapped cannot be read now, for want of something that has nothing to do with it; it is where it was."""


class SwapCorrupt(SwapError):
    """What comes back is not what went: it must not be used."""
