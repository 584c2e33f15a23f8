"""Errors of reading journals. Each message is one line that says what to do."""

from __future__ import annotations

__all__ = ["ReplayError", "NothingFound"]


class ReplayError(Exception):
    """Base: the question cannot be answered."""


class NothingFound(ReplayError):
    """No journal, node or task of that name is on record."""
