"""Errors of lowerings.

May live here: the exceptions of this package. May not: anything that catches them.
"""

from __future__ import annotations

__all__ = ["LoweringError", "Unsupported"]


class LoweringError(Exception):
    """A lowering made something that cannot be a template: a fault of this package, never of the user's program."""


class Unsupported(Exception):
    """This call has no lowering, and the reason; the caller falls back (Python decomposition, then CPU)."""
