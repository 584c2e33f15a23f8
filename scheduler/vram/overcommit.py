"""Overcommit: the VRAM that may be promised. Physical x (1 + percent / 100) to tasks that may be swapped out, physical to the others."""

from __future__ import annotations

from typing import Final

PERCENT_MAX: Final = 1000


def effective_percent(node: int | None, stored: int | None, default: int) -> int:
    """The percent of a node: its own value if set (0 means none), else the stored global one, else the environment's default."""
    percent = node if node is not None else stored if stored is not None else default
    if not 0 <= percent <= PERCENT_MAX:
        raise ValueError(f"an overcommit percent is an integer from 0 to {PERCENT_MAX}, not {percent}")
    return percent


def schedulable_bytes(physical_bytes: int, percent: int) -> int:
    """What may be promised to swappable tasks on a device of ``physical_bytes``; rounded down."""
    return physical_bytes * (100 + percent) // 100
