"""What a task has that says nothing of it. Pure."""

from __future__ import annotations

from scheduler.placement.states import DEFAULT_VRAM_MB, PRIORITY_MAX
from scheduler.placement.view import ClusterView

__all__ = ["default_priority", "default_vram_bytes"]

_DEVICE_PART = 4
_MIB_SHIFT = 20


def default_vram_bytes(view: ClusterView, tier_mb: int) -> int:
    """The memory by which a task is placed that names none: the default of its tenant's tier (``tier_mb``, MiB) or, when that is 0, the
    cluster's; on small devices a quarter of the largest, so that several such tasks fit beside each other. 0: tasks must name it."""
    setting_bytes = (tier_mb or view.setting(DEFAULT_VRAM_MB)) << _MIB_SHIFT
    largest = max((device.vram_bytes for node in view.nodes.values() for device in node.registered.devices), default=0)
    quarter = largest // _DEVICE_PART >> _MIB_SHIFT << _MIB_SHIFT
    return min(setting_bytes, quarter or setting_bytes)


def default_priority(ceiling: int, *, latency_target: bool = False) -> int:
    """The middle of what a tier allows (from ``ceiling``, its best priority, to the lowest); of two the better one. A task with a latency
    target gets 0, which it needs."""
    return 0 if latency_target else (ceiling + PRIORITY_MAX) // 2
