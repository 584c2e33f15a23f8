"""Reasons of refusals of nodes and devices: the names that users see. Constants only; append, never rename."""

from __future__ import annotations

from typing import Final

NO_NODES: Final = "no_nodes"
"""No node has ever registered."""
UNKNOWN_GROUP: Final = "unknown_group"
"""The task targets a group that no node is in."""
NODE_LOST: Final = "node_lost"
"""The node stopped, or is silent for longer than its lease."""
NODE_DRAINED: Final = "node_drained"
"""An operator took the node out of service for new tasks."""
NODE_LEFT: Final = "node_left"
"""The task was displaced from the node, or to another one."""
NOT_IN_GROUP: Final = "not_in_group"
"""The task targets groups, and the node is in none of them."""
GROUP_ONLY: Final = "group_only"
"""The node is in a group, so it serves only tasks that target it."""
NO_DEVICE: Final = "no_device"
"""The node has no device."""
GPU_COUNT: Final = "gpu_count"
"""The device is suitable, but its node has fewer suitable devices than the task needs."""
VRAM_SHORT: Final = "vram_short"
"""The VRAM that can still be promised is less than the task requires."""
VRAM_PHYSICAL_SHORT: Final = "vram_physical_short"
"""The task cannot be swapped out, and the free physical VRAM is less than it requires."""
EXCLUSIVE_CONFLICT: Final = "exclusive_conflict"
"""The task requests exclusive use, and other tasks are on the device."""
DEVICE_EXCLUSIVE: Final = "device_exclusive"
"""Another task uses the device exclusively."""

GROUP_EMPTY: Final = "group_empty"
"""The groups that the task targets are known, and no node is in them."""
RESERVED: Final = "reserved"
"""The device is suitable, but it is reserved for a task ahead in the queue."""
GANG_INCOMPLETE: Final = "gang_incomplete"
"""The task would fit, but not all tasks of its gang have been submitted."""
GANG_SHORT: Final = "gang_short"
"""The task would fit, but not all tasks of its gang at once."""
OTHER_DOMAIN: Final = "other_domain"
"""The node's devices serve one trust domain at a time, and this one serves another."""

REASONS: Final = frozenset(
    {NO_NODES, UNKNOWN_GROUP, NODE_LOST, NODE_DRAINED, NOT_IN_GROUP, GROUP_ONLY, NO_DEVICE, GPU_COUNT, VRAM_SHORT, VRAM_PHYSICAL_SHORT,
     EXCLUSIVE_CONFLICT, DEVICE_EXCLUSIVE, GROUP_EMPTY, RESERVED, NODE_LEFT, GANG_INCOMPLETE, GANG_SHORT,
     OTHER_DOMAIN}
)  # fmt: skip

GANG: Final = frozenset({GANG_INCOMPLETE, GANG_SHORT})

ASIDE: Final = frozenset({NODE_DRAINED, NODE_LEFT, NOT_IN_GROUP, GROUP_ONLY, NO_DEVICE})
"""Reasons of nodes that are not for the task, however much room they have."""

NODE_WIDE: Final = -1
"""Stands for the gpu in a refusal of a whole node; the node is empty in a refusal of the whole cluster."""

_TEXTS: Final = {
    NODE_LOST: ("node", "lost"),
    NODE_DRAINED: ("node", "drained"),
    NODE_LEFT: ("node", "that the task is moved away from"),
    NOT_IN_GROUP: ("node", "outside of the task's groups"),
    GROUP_ONLY: ("node", "for tasks of another group"),
    NO_DEVICE: ("node", "without a device"),
    GPU_COUNT: ("device", "on nodes that have too few free devices for the task"),
    VRAM_SHORT: ("device", "with too little free VRAM"),
    VRAM_PHYSICAL_SHORT: ("device", "with too little free physical VRAM"),
    EXCLUSIVE_CONFLICT: ("device", "in use, while the task wants one for itself"),
    DEVICE_EXCLUSIVE: ("device", "held exclusively by another task"),
    OTHER_DOMAIN: ("device", "in use by another trust domain"),
    RESERVED: ("device", "kept for a task that has waited longer"),
}
_CLUSTER_TEXTS: Final = {
    NO_NODES: "no node has joined",
    UNKNOWN_GROUP: "the task's groups are unknown",
    GROUP_EMPTY: "no node is in the task's groups",
    GANG_INCOMPLETE: "other tasks of its gang are not submitted yet",
    GANG_SHORT: "there is no room for its whole gang",
}


def reason_text(reason: str, count: int) -> str:
    """A reason and how often it holds, in words: ``2 devices with too little free VRAM``."""
    if reason in _CLUSTER_TEXTS:
        return _CLUSTER_TEXTS[reason]
    noun, what = _TEXTS.get(reason, ("device", f"refused ({reason})"))
    return f"{count} {noun}{'s' if count != 1 else ''} {what}"
