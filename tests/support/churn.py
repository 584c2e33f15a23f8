"""Random allocation load on one device: spaces allocate and free tensors of every size, from a fixed seed.

Sizes are log-uniform, as in traces of training jobs: a parameter vector is as likely as an activation a thousand times as large. What is
live goes up and down between two marks of the capacity.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass

from jit.errors import OutOfMemory
from jit.memory import Arena, Block, Capacity, SpaceMemory, arena_bytes

__all__ = ["Account", "NoMemory", "churn"]

SMALLEST, LARGEST = 256, 256 << 20


class NoMemory:
    """The backing of an arena that is addresses only, so that it can be as large as any device."""

    align_bytes = 64

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes

    def bind(self, block: Block, offset: int) -> None:
        block.offset = offset

    def zero(self, block: Block) -> None: ...
    def copy(self, source: Block, target: Block) -> None: ...
    def taken(self, offset: int, nbytes: int) -> None: ...
    def given(self, offset: int, nbytes: int) -> None: ...
    def move(self, source: int, target: int, nbytes: int) -> None: ...


@dataclass(frozen=True, slots=True)
class Account:
    """After so many ``operations``: ``overhead`` is footprint / used - 1 at this moment, ``worst`` the highest so far while at least half
    of the device was used. ``failed``: requests that were refused although the capacity had as many bytes free."""

    operations: int
    used_bytes: int
    overhead: float
    worst: float
    failed: int
    asked_bytes: int
    compactions: int
    moved_bytes: int
    longest_plan_ns: int
    us_per_operation: float  # processor time since the account before


def churn(capacity_bytes: int, operations: int, every: int, *, spaces: int = 8, seed: int = 1, low: float = 0.7, high: float = 0.9,
          largest: int = LARGEST) -> Iterator[Account]:  # fmt: skip
    """Run so many allocations and frees; an account after ``every`` of them. Requests beyond the capacity are not made."""
    rng = random.Random(seed)
    arena = Arena(NoMemory(arena_bytes(capacity_bytes)))
    capacity = Capacity(capacity_bytes, arena)
    tenants = [SpaceMemory(capacity) for _ in range(spaces)]
    live: list[tuple[SpaceMemory, int]] = []
    growing, failed, asked, worst, spent_ns = True, 0, 0, 0.0, 0
    bottom, top = math.log(SMALLEST), math.log(largest)
    for number in range(1, operations + 1):
        growing = capacity.used_bytes < (high if growing else low) * capacity_bytes
        nbytes = int(math.exp(rng.uniform(bottom, top)))
        if live and rng.random() < (0.35 if growing else 0.65):
            at = rng.randrange(len(live))
            live[at], live[-1] = live[-1], live[at]
            space, key = live.pop()
            before = time.process_time_ns()
            space.free(key)
            spent_ns += time.process_time_ns() - before
        elif capacity.used_bytes + nbytes <= capacity_bytes:
            space = rng.choice(tenants)
            asked += nbytes
            before = time.process_time_ns()
            try:
                space.alloc(number, nbytes, zero=False)
                live.append((space, number))
            except OutOfMemory:
                failed += 1
            spent_ns += time.process_time_ns() - before
        overhead = capacity.memory.footprint_bytes / max(capacity.used_bytes, 1) - 1
        if capacity.used_bytes > capacity_bytes // 2:
            worst = max(worst, overhead)
        if number % every == 0:
            moved = arena.moved
            yield Account(
                number, capacity.used_bytes, overhead, worst, failed, asked, moved.times, moved.nbytes, moved.longest_ns,
                spent_ns / every / 1e3,
            )  # fmt: skip
            spent_ns = 0
