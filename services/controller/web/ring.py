"""Time series in bounded memory: a ring of slots for each key, one slot for each step of time.

Pure but for numpy: the time comes with the numbers. One array for each field of all keys, so a sum over thousands of keys is one operation.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

__all__ = ["Ring"]

_FIRST_ROWS: Final = 16
Floats = npt.NDArray[np.float32]


class Ring:
    """``fields`` are added up in their slot by ``add``; ``count`` (how often) comes with them. At most ``rows_max`` keys: then the one
    with the oldest last value is evicted."""

    def __init__(self, fields: Sequence[str], *, step_s: int, slots: int, rows_max: int) -> None:
        self.step_s = step_s
        self.slots = slots
        self._fields = (*fields, "count")
        self._rows_max = rows_max
        self._rows: dict[Hashable, int] = {}
        self._numbers: npt.NDArray[np.int64] = np.zeros((_FIRST_ROWS, slots), np.int64)
        self._kept: tuple[int, Floats] | None = None
        self._values: Floats = np.zeros((len(self._fields), _FIRST_ROWS, slots), np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return int(self._numbers.nbytes + self._values.nbytes)

    def add(self, key: Hashable, at_s: float, values: Sequence[float]) -> None:
        """Add ``values`` (in the order of the fields) to the slot of ``at_s`` (Unix seconds). Values older than the ring are dropped."""
        number = int(at_s) // self.step_s
        slot = number % self.slots
        row = self._rows.get(key)
        if row is None:
            row = self._new_row(key)
        held = self._numbers[row, slot]
        if number < held:
            return
        if self._kept is not None and number < self._kept[0] - 1:
            self._kept = None  # late: a slot that was complete is not
        if number > held:
            self._numbers[row, slot] = number
            self._values[:, row, slot] = 0
        self._values[:, row, slot] += (*values, 1.0)

    def times(self, now_s: float) -> list[int]:
        """Unix seconds of the beginnings of the slots that end by ``now_s``, oldest first, and of the one that has begun."""
        last = int(now_s) // self.step_s
        return [number * self.step_s for number in range(last - self.slots + 1, last + 1)]

    def series(self, key: Hashable, now_s: float) -> dict[str, Floats]:
        """By field, one value for each of ``times``; NaN where nothing was added."""
        row = self._rows.get(key)
        if row is None:
            return {name: np.full(self.slots, np.nan, np.float32) for name in self._fields}
        return self._read([row], now_s)

    def means(self, now_s: float, keys: Sequence[Hashable] | None = None) -> dict[str, Floats]:
        """Each field's sum over ``keys`` (None: all) of its mean in the slot; ``count``: how many keys have one. NaN: none has."""
        last = int(now_s) // self.step_s
        if keys is None:
            sums = self._all(last)
        else:
            sums = self._sums([self._rows[key] for key in keys if key in self._rows], self._numbers_until(last, self.slots))
        return dict(zip(self._fields, sums, strict=True))

    def _all(self, last: int) -> Floats:
        """Sums over all keys up to slot ``last``: those of slots that are over are kept, so that thousands of keys cost little a second."""
        known = self._kept if self._kept is not None and self._kept[0] <= last else None
        new = self.slots if known is None else min(self.slots, last - known[0] + 2)
        fresh = self._sums(slice(0, len(self._rows)), self._numbers_until(last, new))
        if known is not None and new < self.slots:
            fresh = np.concatenate([known[1][:, new - 2 :][:, : self.slots - new], fresh], axis=1)
        self._kept = last, fresh
        return fresh

    def _numbers_until(self, last: int, count: int) -> npt.NDArray[np.int64]:
        return np.arange(last - count + 1, last + 1)

    def _sums(self, rows: list[int] | slice, numbers: npt.NDArray[np.int64]) -> Floats:
        """(field, time): what ``means`` says, for slots with these numbers."""
        values, there = self._slots(rows, numbers)
        counts = np.where(there, values[-1], 1.0)
        out: Floats = np.where(there, values / counts, 0.0).sum(axis=1, dtype=np.float64).astype(np.float32)
        out[-1] = there.sum(axis=0)
        out[:, ~there.any(axis=0)] = np.nan
        return out

    def _read(self, rows: list[int], now_s: float) -> dict[str, Floats]:
        values, there = self._slots(rows, self._numbers_until(int(now_s) // self.step_s, self.slots))
        return {name: np.where(there, values[at], np.nan).sum(axis=0) for at, name in enumerate(self._fields)}

    def _slots(self, rows: list[int] | slice, numbers: npt.NDArray[np.int64]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """(field, row, time) of the slots with these numbers, and which of (row, time) were filled."""
        order = numbers % self.slots
        return self._values[:, rows][:, :, order], self._numbers[rows][:, order] == numbers

    def _new_row(self, key: Hashable) -> int:
        if len(self._rows) >= self._rows_max:
            newest = self._numbers.max(axis=1)
            oldest = min(self._rows, key=lambda name: int(newest[self._rows[name]]))
            row = self._rows.pop(oldest)
            self._numbers[row] = 0
            self._kept = None
        else:
            row = len(self._rows)
            if row == len(self._numbers):
                self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
                self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
        self._rows[key] = row
        return row
