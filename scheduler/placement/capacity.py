"""Promised and available memory of a device: the sums that the fold keeps. Pure integer arithmetic over bytes."""

from __future__ import annotations

from dataclasses import dataclass

from bus_schemas.events import DeviceFact
from scheduler.placement import columns as col
from scheduler.placement.view import ClusterView

__all__ = ["Capacity", "capacity", "capacity_of_row"]


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
    """Of a device of a node that has joined."""
    return capacity_of_row(view, view.columns.row(node, device.index))


def capacity_of_row(view: ClusterView, row: int) -> Capacity:
    values: list[int] = view.columns.devices[:, row].tolist()
    holders = values[col.HOLDERS :]
    return Capacity(
        physical_bytes=values[col.PHYSICAL],
        schedulable_bytes=values[col.SCHEDULABLE],
        promised_bytes=values[col.PROMISED],
        promised_noswap_bytes=values[col.NOSWAP],
        exclusive=values[col.EXCLUSIVE] > 0,
        priorities=tuple(priority for priority, count in enumerate(holders) for _ in range(count)),
    )
