"""May this task run there? What a device has left, and one named reason (reasons) with a sentence for every refusal. Pure.

One node, one device at a time; which of thousands of devices are refused for what is found by ``survey``, in columns.
"""

from __future__ import annotations

from dataclasses import dataclass

from bus_schemas.events import DeviceFact, TaskSubmitted
from scheduler.placement import columns as col
from scheduler.placement import reasons as why
from scheduler.placement.view import ClusterView, NodeView
from scheduler.vram.overcommit import schedulable_bytes


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one device has and has promised."""

    physical_bytes: int
    schedulable_bytes: int
    #: To live tasks placed on it, and to sessions that came without a placement (their quotas).
    promised_bytes: int
    #: The part of those that cannot be swapped out.
    promised_noswap_bytes: int
    #: A task has it for itself.
    exclusive: bool
    #: Of all holders, sorted.
    priorities: tuple[int, ...]
    #: The number of the trust domain that it serves, SEVERAL, or 0.
    domain: int = 0

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
        domain=values[col.DOMAIN],
    )


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
    if not view.admits(task, name):
        return (name, why.NODE_WIDE, why.NODE_LEFT, "the task is being moved to another node")
    if task.groups and not set(task.groups) & groups:
        detail = f"the task targets {_list('group', sorted(set(task.groups)))}, the node is in none of them"
        return (name, why.NODE_WIDE, why.NOT_IN_GROUP, detail)
    if groups and not task.groups:
        return (name, why.NODE_WIDE, why.GROUP_ONLY, f"the node serves only tasks that target {_list('group', sorted(groups))}")
    if not node.registered.devices:
        return (name, why.NODE_WIDE, why.NO_DEVICE, "the node has no device")
    return None


def refuse_device(task: TaskSubmitted, node: NodeView, device: DeviceFact, room: Capacity, used_bytes: int) -> Refusal | None:
    """Why this device of the node cannot serve the task, or None. ``used_bytes``: as last measured (0: never)."""
    name, gpu = node.registered.node, device.index
    if room.domain and room.domain != node.domain_number(task.tenant):
        return (name, gpu, why.OTHER_DOMAIN, "the device serves one trust domain at a time, and now another one than the task's")
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
