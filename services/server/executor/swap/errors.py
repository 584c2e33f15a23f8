"""How swapping fails. Carried inside the executor only."""

from __future__ import annotations

__all__ = ["SwapError", "SwapFull", "SwapCorrupt"]


class SwapError(Exception):
    """Base of both."""


class SwapFull(SwapError):
    """There is no room (any more) where memory is swapped to: it stays where it is."""


class SwapCorrupt(SwapError):
    """What comes back is not what went: it must not be used."""
