"""Counters of the node's batches, over all devices. Data only."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Counters"]


@dataclass(slots=True)
class Counters:
    """Since the server started."""

    received: int = 0
    executed: int = 0
    dropped: int = 0
    refused: int = 0
    restarts: int = 0
