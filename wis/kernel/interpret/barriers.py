"""Barriers of the blocks of a batch: which threads wait where, and when a barrier is complete.

They are judged when no thread of a block can run, so the outcome does not depend on an order. Barrier n, at which threads wait, is complete
- if the lowest of them gave no count: when all threads of the block that have not ended wait at n;
- if it gave a count: when so many have arrived at n, waiting or not, since it was last complete.
When none is, the block can never go on.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

__all__ = ["BARRIERS", "Barriers"]

Array = npt.NDArray[Any]
BARRIERS: Final = 16


class Barriers:
    """``number``: the barrier that each thread waits at, or -1; ``count``: what it gave, or -1 for all."""

    def __init__(self, blocks: int, threads: int) -> None:
        self._blocks, self._threads = blocks, threads
        self._number = np.full((blocks, threads), -1, np.int8)
        self._count = np.full((blocks, threads), -1, np.int64)
        self._counted = np.zeros((blocks, threads), np.bool_)
        self._arrivals = np.zeros((blocks, BARRIERS), np.int64)
        self.any_waiting = False

    def arrive(self, threads: Array, barrier: int, count: Array | None, *, wait: bool) -> None:
        """Threads (numbers in the batch) arrive at a barrier; ``count``: how many complete it, None: all."""
        np.add.at(self._arrivals.reshape(-1), threads // self._threads * BARRIERS + barrier, 1)
        if not wait:
            return
        self._number.reshape(-1)[threads] = barrier
        self._counted.reshape(-1)[threads] = count is not None
        if count is not None:
            self._count.reshape(-1)[threads] = count
        self.any_waiting = True

    def judge(self, idle: Array, ended: Array) -> tuple[Array, list[tuple[int, int]]]:
        """Threads that go on, and for every block that never can, its number and its lowest waiting thread.

        ``idle``: which threads of the batch wait or have ended; ``ended``: which have ended.
        """
        shape = (self._blocks, self._threads)
        waiting = self._number >= 0
        ready = np.flatnonzero(idle.reshape(shape).all(axis=1) & waiting.any(axis=1))
        free = np.zeros(shape, np.bool_)
        stuck: list[tuple[int, int]] = []
        number, alive = self._number[ready], ~ended.reshape(shape)[ready]
        # Almost always all threads wait at one barrier that takes all.
        first = number.max(axis=1, initial=-1)
        simple = ((number == first[:, None]) | ~alive).all(axis=1) & ~(self._counted[ready] & waiting[ready]).any(axis=1)
        free[ready[simple]] = waiting[ready[simple]]
        self._arrivals[ready[simple], first[simple]] = 0
        for local in ready[~simple].tolist():
            complete = self._complete(local, ~ended.reshape(shape)[local])
            if complete:
                free[local] = np.isin(self._number[local], complete)
                self._arrivals[local, complete] = 0
            else:
                stuck.append((local, int(np.flatnonzero(waiting[local])[0])))
                self._number[local] = -1
        self._number[free] = -1
        self.any_waiting = bool((self._number >= 0).any())
        return np.flatnonzero(free.reshape(-1)), stuck

    def _complete(self, local: int, alive: Array) -> list[int]:
        number = self._number[local]
        complete = []
        for n in np.unique(number[number >= 0]).tolist():
            lowest = int(np.flatnonzero(number == n)[0])
            if not self._counted[local, lowest]:
                done = bool((number[alive] == n).all())
            else:
                done = bool(self._arrivals[local, n] >= self._count[local, lowest])
            if done:
                complete.append(n)
        return complete
