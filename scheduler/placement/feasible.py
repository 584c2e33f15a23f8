"""May this task run there? Every no has a name (reasons) and a sentence for the person who asks: one node, one device at a time.

Which of thousands of devices are refused for what is found by survey, in columns; what is said of them is said here. Pure.
"""

from __future__ import annotations

from bus_schemas.events import DeviceFact, TaskSubmitted
from scheduler.placement import reasons as why
from scheduler.placement.capacity import Capacity
from scheduler.placement.view import ClusterView, NodeView
from scheduler.vram.overcommit import schedulable_bytes

__all__ = ["Refusal", "beyond_every_device", "refuse_cluster", "refuse_node", "refuse_device", "refuse_count", "refuse_reserved"]

Refusal = tuple[str, int, str, str]
"""(node, gpu, reason, detail); gpu -1: the whole node; node empty: the whole cluster."""


def refuse_cluster(view: ClusterView, task: TaskSubmitted) -> Refusal | None:
    """Why no node at all can serve the task, or None."""
    if not view.nodes:
        return ("", why.NODE_WIDE, why.NO_NODES, "no node has joined; start one with NODE_NAME and CONTROLLER_NATS_URL set")
    if not task.groups or any(view.membership.members(group) for group in task.groups):
        return None
    known = view.membership.known()
    wanted = sorted(set(task.groups))
    reason = why.GROUP_EMPTY if set(wanted) & set(known) else why.UNKNOWN_GROUP
    return ("", why.NODE_WIDE, reason, f"no node is in {_list('group', wanted)}; known groups: {', '.join(known) or 'none'}")


def beyond_every_device(view: ClusterView, task: TaskSubmitted) -> str:
    """Why no device that ever joined could hold the task, were it empty; else (or when none has joined yet) nothing."""
    most = 0
    for name, node in view.nodes.items():
        percent = 0 if task.noswap else view.overcommit_percent(name)
        most = max((most, *(schedulable_bytes(device.vram_bytes, percent) for device in node.registered.devices)))
    if not most or task.vram_bytes <= most:
        return ""
    kind = "of physical memory, and a task that cannot be swapped out needs that" if task.noswap else "that may be promised"
    return f"{_mib(task.vram_bytes)} MiB are more than any device could ever give: the largest has {_mib(most)} MiB {kind}"


def refuse_node(view: ClusterView, task: TaskSubmitted, name: str, node: NodeView) -> Refusal | None:
    """Why this node as a whole cannot serve the task, or None."""
    groups = view.groups_of(name)
    if node.lost is not None:
        return (name, why.NODE_WIDE, why.NODE_LOST, f"the node is lost: {node.lost}")
    if view.drained(name):
        return (name, why.NODE_WIDE, why.NODE_DRAINED, "the node is drained: it takes no new tasks")
    if task.groups and not set(task.groups) & groups:
        detail = f"the task targets {_list('group', sorted(set(task.groups)))}, the node is in none of them"
        return (name, why.NODE_WIDE, why.NOT_IN_GROUP, detail)
    if groups and not task.groups:
        return (name, why.NODE_WIDE, why.GROUP_ONLY, f"the node serves only tasks that target {_list('group', sorted(groups))}")
    if not node.registered.devices:
        return (name, why.NODE_WIDE, why.NO_DEVICE, "the node has no device")
    return None


def refuse_device(task: TaskSubmitted, name: str, device: DeviceFact, room: Capacity, used_bytes: int) -> Refusal | None:
    """Why this device cannot serve the task, or None. ``used_bytes``: as last measured (0: never)."""
    gpu = device.index
    if room.exclusive:
        return (name, gpu, why.DEVICE_EXCLUSIVE, "another task has the device for itself")
    if task.exclusive and room.priorities:
        return (name, gpu, why.EXCLUSIVE_CONFLICT, f"the task wants the device for itself, {len(room.priorities)} other(s) are on it")
    need = task.vram_bytes
    if need > room.free_bytes:
        detail = f"needs {_mib(need)} MiB, {_mib(room.free_bytes)} of {_mib(room.schedulable_bytes)} MiB schedulable are free"
        return (name, gpu, why.VRAM_SHORT, detail)
    if task.noswap and need > room.free_physical_bytes(used_bytes):
        free = room.free_physical_bytes(used_bytes)
        detail = f"needs {_mib(need)} MiB and cannot be swapped out, {_mib(free)} of {_mib(room.physical_bytes)} MiB physical are free"
        return (name, gpu, why.VRAM_PHYSICAL_SHORT, detail)
    return None


def refuse_reserved(name: str, gpu: int, holder: str) -> Refusal:
    """The device would do, but is kept for ``holder``."""
    return (name, gpu, why.RESERVED, f"kept for task {holder}, which has waited long and goes first")


def refuse_count(name: str, gpu: int, wanted: int, fitting: int) -> Refusal:
    """The device would do, but only ``fitting`` of its node would."""
    return (name, gpu, why.GPU_COUNT, f"the task needs {wanted} devices of one node, {fitting} of this one would do")


def _mib(nbytes: int) -> int:
    return nbytes >> 20


def _list(noun: str, names: list[str]) -> str:
    return f"{noun}{'s' if len(names) != 1 else ''} {', '.join(names)}"
