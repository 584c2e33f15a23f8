"""Numbers over time in bounded memory: for each key a row of slots, one slot for each step of time, the oldest overwritten by the newest.

Pure but for numpy: time comes with the numbers. One array a field for all keys, so that sums over thousands of them are one operation.
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
    longest silent gives way."""

    def __init__(self, fields: Sequence[str], *, step_s: int, slots: int, rows_max: int) -> None:
        self.step_s = step_s
        self.slots = slots
        self._fields = (*fields, "count")
        self._rows_max = rows_max
        self._rows: dict[Hashable, int] = {}
        self._numbers: npt.NDArray[np.int64] = np.zeros((_FIRST_ROWS, slots), np.int64)
        self._values: Floats = np.zeros((len(self._fields), _FIRST_ROWS, slots), np.float32)

    def __len__(self) -> int:
        return len(self._rows)

    @property
    def nbytes(self) -> int:
        return int(self._numbers.nbytes + self._values.nbytes)

    def add(self, key: Hashable, at_s: float, values: Sequence[float]) -> None:
        """Add ``values`` (in the order of the fields) to the slot of ``at_s`` (Unix seconds). What is older than the ring is left out."""
        number = int(at_s) // self.step_s
        slot = number % self.slots
        row = self._rows.get(key)
        if row is None:
            row = self._new_row(key)
        held = self._numbers[row, slot]
        if number < held:
            return
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
        rows = list(self._rows.values()) if keys is None else [self._rows[key] for key in keys if key in self._rows]
        if not rows:
            return {name: np.full(self.slots, np.nan, np.float32) for name in self._fields}
        values, there = self._slots(rows, now_s)
        counts = np.where(there, values[-1], 1.0)
        shown = {name: np.where(there, values[at] / counts, 0.0).sum(axis=0) for at, name in enumerate(self._fields[:-1])}
        shown["count"] = there.sum(axis=0).astype(np.float32)
        nothing = ~there.any(axis=0)
        for floats in shown.values():
            floats[nothing] = np.nan
        return shown

    def _read(self, rows: list[int], now_s: float) -> dict[str, Floats]:
        values, there = self._slots(rows, now_s)
        return {name: np.where(there, values[at], np.nan).sum(axis=0) for at, name in enumerate(self._fields)}

    def _slots(self, rows: list[int], now_s: float) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """(field, row, time) in order of time, and which of (row, time) were filled."""
        last = int(now_s) // self.step_s
        wanted = np.arange(last - self.slots + 1, last + 1)
        order = wanted % self.slots
        return self._values[:, rows][:, :, order], self._numbers[rows][:, order] == wanted

    def _new_row(self, key: Hashable) -> int:
        if len(self._rows) >= self._rows_max:
            newest = self._numbers.max(axis=1)
            oldest = min(self._rows, key=lambda name: int(newest[self._rows[name]]))
            row = self._rows.pop(oldest)
            self._numbers[row] = 0
        else:
            row = len(self._rows)
            if row == len(self._numbers):
                self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
                self._values = np.concatenate([self._values, np.zeros_like(self._values)], axis=1)
        self._rows[key] = row
        return row
