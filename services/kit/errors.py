"""Errors of the shared plumbing. Each class says whose fault it is; each message says what to do."""

from __future__ import annotations

__all__ = ["KitError", "SettingError", "BusUnavailable", "BusRefused", "Conflict", "StartError"]


class KitError(Exception):
    """Base of all errors of this package."""


class SettingError(KitError):
    """The operator's fault: an environment variable is missing or malformed."""


class BusUnavailable(KitError):
    """The bus did not answer in time, or cannot be reached."""


class BusRefused(KitError):
    """The bus answered with an error. ``code`` is JetStream's err_code (0 when it gave none)."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Conflict(BusRefused):
    """A conditional publish lost its race: another writer came first. Read again and retry."""


class StartError(KitError):
    """A child process did not come up; the message holds the end of its log."""
