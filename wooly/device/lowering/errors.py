"""Errors of lowerings."""

from __future__ import annotations

__all__ = ["LoweringError", "Unsupported"]


class LoweringError(Exception):
    """A lowering made something that cannot be a template: a fault of this package, never of the user's program."""


class Unsupported(Exception):
    """This call has no lowering, and the reason; the caller falls back (Python decomposition, then CPU)."""
