"""Score of a device for a task. Integers only, higher is better; every part is 0 to 100, so a score is 0 to 1000. Pure.

    score = 3 x (100 - utilization %) + 3 x (100 - starvation %) + 2 x share of promisable VRAM left free + 2 x room beside equals

Utilization says whether the device runs at all times, starvation whether work queues for it: a device that is busy but never short of
room to run (80 % utilized, 0 % starved) is a better place than one where launches wait. The VRAM term spreads tasks between
measurements, the last term keeps those of equal or higher priority apart. Ties are broken by node id, then gpu index.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from scheduler.placement import columns as col
from scheduler.placement.columns import Columns, Ints
from scheduler.placement.states import PRIORITY_MAX

__all__ = ["WEIGHTS", "SCORE_MAX", "PARTS", "parts", "scores", "order_keys"]

WEIGHTS: Final = {"utilization": 3, "starvation": 3, "vram": 2, "priority": 2}
SCORE_MAX: Final = 100 * sum(WEIGHTS.values())
PARTS: Final = tuple(WEIGHTS)
"""The parts of a score, in the order of the rows of ``parts`` and of Considered.parts."""

_ROOM_BESIDE: Final = np.array([100 // (1 + rivals) for rivals in range(101)], np.int64)
_WEIGHTS: Final = tuple(WEIGHTS.values())


def parts(columns: Columns, rows: Ints, priority: int, need_bytes: int) -> Ints:
    """The parts of the scores of ``rows`` for a task of ``priority`` that needs ``need_bytes`` and fits there: one row a part."""
    device = columns.devices
    out = np.empty((len(PARTS), len(rows)), np.int64)
    for part, column in enumerate((col.UTILIZATION, col.STARVATION)):
        out[part] = 100 - np.minimum(device[column].take(rows), 100)
    schedulable = device[col.SCHEDULABLE].take(rows)
    left = np.maximum(schedulable - device[col.PROMISED].take(rows) - need_bytes, 0)
    out[2] = 100 * left // np.maximum(schedulable, 1)
    rivals = np.zeros(len(rows), np.int64)
    for level in range(min(priority, PRIORITY_MAX) + 1):
        rivals += device[col.HOLDERS + level].take(rows)
    out[3] = _ROOM_BESIDE.take(np.minimum(rivals, 100))
    return out


def scores(made_of: Ints) -> Ints:
    total: Ints = made_of[0] * _WEIGHTS[0]
    for part, weight in zip(made_of[1:], _WEIGHTS[1:], strict=True):
        total += part * weight
    return total


def order_keys(score: Ints, rows: Ints, rows_in_all: int) -> Ints:
    """Sort keys, best first: by score, then by row, which is node id, then gpu. Total: no two devices share a row."""
    keys: Ints = (SCORE_MAX - score) * max(rows_in_all, 1) + rows
    return keys
