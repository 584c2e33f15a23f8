"""How good is a device for a task? Integers only, higher is better; every part is 0 to 100, so a score is 0 to 1000. Pure.

    score = 3 x (100 - utilization %) + 3 x (100 - starvation %) + 2 x share of promisable VRAM left free + 2 x room beside equals

Utilization says whether the device runs at all times, starvation whether work queues for it: a device that is busy but never short of
room to run (80 % utilized, 0 % starved) is a better place than one where launches wait. The VRAM term spreads tasks between
measurements, the last term keeps those of equal or higher priority apart. Ties are broken by node id, then gpu index.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduler.placement.capacity import Capacity

__all__ = ["WEIGHTS", "SCORE_MAX", "Parts", "parts", "order"]

WEIGHTS = {"utilization": 3, "starvation": 3, "vram": 2, "priority": 2}
SCORE_MAX = 100 * sum(WEIGHTS.values())


@dataclass(frozen=True, slots=True)
class Parts:
    """What a score is made of; each 0 to 100."""

    utilization: int
    starvation: int
    vram: int
    priority: int

    @property
    def score(self) -> int:
        return (
            WEIGHTS["utilization"] * self.utilization
            + WEIGHTS["starvation"] * self.starvation
            + WEIGHTS["vram"] * self.vram
            + WEIGHTS["priority"] * self.priority
        )


def parts(room: Capacity, priority: int, need_bytes: int, utilization_percent: int, starvation_percent: int) -> Parts:
    """The parts for a task of ``priority`` that needs ``need_bytes`` on a device with this ``room``."""
    left_bytes = max(0, room.free_bytes - need_bytes)
    rivals = sum(1 for other in room.priorities if other <= priority)
    return Parts(
        utilization=100 - min(100, max(0, utilization_percent)),
        starvation=100 - min(100, max(0, starvation_percent)),
        vram=100 * left_bytes // room.schedulable_bytes if room.schedulable_bytes else 0,
        priority=100 // (1 + rivals),
    )


def order(score: int, node: str, gpu: int) -> tuple[int, str, int]:
    """Sort key, best first. Total: no two devices share (node, gpu)."""
    return (-score, node, gpu)
