"""Errors that end the execution of a batch early. Carried as exceptions inside the executor only; outside they are Done messages and
statuses."""

from __future__ import annotations

from bus_schemas.batch import Fault

__all__ = ["Refused", "Needs", "Awaits"]


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
