"""The exception that ends a command with one line and exit code 2."""

from __future__ import annotations

__all__ = ["CommandError"]


class CommandError(Exception):
    """The message is one line that says what to do."""
