"""Alternating timing of two functions, so that other load on the machine affects both: medians and their ratio."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

__all__ = ["Compared", "compared"]


class Compared(NamedTuple):
    """Medians in ms, and the median of the rounds' ratios ours / other."""

    ours_ms: float
    other_ms: float
    ratio: float


def compared(ours: Callable[[], object], other: Callable[[], object], seconds: float = 1.5, rounds_min: int = 9) -> Compared:
    """Rounds of both, one after the other, after two that do not count."""
    pairs: list[tuple[float, float]] = []
    for _ in range(2):
        ours()
        other()
    end = time.perf_counter() + seconds
    while len(pairs) < rounds_min or time.perf_counter() < end:
        pairs.append((_timed(ours), _timed(other)))
    mine, theirs = zip(*pairs, strict=True)
    ratio = statistics.median(a / b for a, b in pairs)
    return Compared(1e3 * statistics.median(mine), 1e3 * statistics.median(theirs), ratio)


def _timed(f: Callable[[], object]) -> float:
    start = time.perf_counter()
    f()
    return time.perf_counter() - start
