"""Errors of billing, by responsibility: the caller, the event log, or billing itself."""

from __future__ import annotations


class BillingError(Exception):
    """Base of every error here; never raised itself."""


class BillingRequestError(BillingError):
    """The caller asked for something that does not exist. ``field`` names the argument."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


class CorruptSnapshotError(BillingError):
    """A saved view cannot be read; it is derived, so delete it and replay the log."""


class LedgerImbalanceError(BillingError):
    """Our fault: a transaction whose debits differ from its credits."""
