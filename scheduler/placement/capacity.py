"""What is promised on a device and what may still be: sums over a view. Pure integer arithmetic over bytes."""

from __future__ import annotations

from dataclasses import dataclass

from bus_schemas.events import DeviceFact
from scheduler.placement.view import ClusterView
from scheduler.vram.overcommit import schedulable_bytes

__all__ = ["Capacity", "capacity"]


@dataclass(frozen=True, slots=True)
class Capacity:
    """One device. ``promised_bytes``: to live tasks placed on it, and to sessions that came without a placement (their quotas).
    ``promised_noswap_bytes``: the part of those that cannot be swapped out. ``priorities``: of all of them, sorted."""

    physical_bytes: int
    schedulable_bytes: int
    promised_bytes: int
    promised_noswap_bytes: int
    exclusive: bool
    priorities: tuple[int, ...]

    @property
    def free_bytes(self) -> int:
        """What may be promised to a swappable task; never negative (a smaller overcommit may come after the promises)."""
        return max(0, self.schedulable_bytes - self.promised_bytes)

    def free_physical_bytes(self, used_bytes: int) -> int:
        """What may be promised to a task that cannot be swapped out, with ``used_bytes`` of the device measured in use: what others use
        now, or may come to use and then cannot give back, is not free."""
        return max(0, min(self.free_bytes, self.physical_bytes - max(self.promised_noswap_bytes, used_bytes)))


def capacity(view: ClusterView, node: str, device: DeviceFact) -> Capacity:
    promised = noswap = 0
    exclusive = False
    priorities: list[int] = []
    covered: set[str] = set()
    for task in view.tasks_on(node, device.index):
        submitted = task.submitted
        promised += submitted.vram_bytes
        noswap += submitted.vram_bytes if submitted.noswap else 0
        exclusive = exclusive or submitted.exclusive
        priorities.append(submitted.priority)
        covered.add(submitted.task)
    for session in view.sessions_on(node, device.index):
        if session.task in covered:
            continue  # its memory is the task's
        promised += session.quota_bytes
        noswap += 0 if session.swap else session.quota_bytes
        priorities.append(session.priority)
    schedulable = schedulable_bytes(device.vram_bytes, view.overcommit_percent(node))
    return Capacity(device.vram_bytes, schedulable, promised, noswap, exclusive, tuple(sorted(priorities)))
