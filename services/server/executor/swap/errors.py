"""Errors of swapping. Carried inside the executor only."""

from __future__ import annotations

__all__ = ["SwapError", "SwapFull", "SwapAway", "SwapCorrupt"]


class SwapError(Exception):
    """Base of all."""


class SwapFull(SwapError):
    """There is no room (any more) where memory is swapped to: it stays where it is."""


class SwapAway(SwapError):
    """What was swapped cannot be read now, for want of something that has nothing to do with it; it is where it was."""


class SwapCorrupt(SwapError):
    """What comes back is not what went: it must not be used."""
