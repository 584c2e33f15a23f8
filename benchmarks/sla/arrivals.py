"""Arrival times of requests: an open loop of bursts at random times. Pure: a seed determines the schedule.

Bursts come as a Poisson process; a burst is a geometric number of requests (mean ``BURST_MEAN``) that come together.
"""

from __future__ import annotations

import random
from typing import Final

__all__ = ["BURST_MEAN", "bursts"]

BURST_MEAN: Final = 2.0


def bursts(count: int, rate_per_s: float, seed: int) -> list[int]:
    """Arrival times in ns from 0 of ``count`` requests that come at ``rate_per_s`` in the mean."""
    draw = random.Random(seed)
    out: list[int] = []
    at_s = 0.0
    while len(out) < count:
        at_s += draw.expovariate(rate_per_s / BURST_MEAN)
        size = 1
        while draw.random() > 1 / BURST_MEAN:
            size += 1
        out += [int(at_s * 1e9)] * size
    return out[:count]
