"""What a task asks for, as one value: the same from the client's configuration over placement to the node. Pure.

Messages and facts that hold it stay flat, with fields of these names (OpenSession, SessionOpenedFact, TaskSubmitted, the bodies of REST):
their bytes are older than this struct. Each edge converts once.
"""

from __future__ import annotations

import msgspec


class TaskTerms(msgspec.Struct, frozen=True, kw_only=True):
    """The terms on which a task's sessions use a device."""

    #: Who pays.
    tenant: str
    #: The controller's task id; empty: the script came without a controller.
    task: str = ""
    #: For people.
    title: str = ""
    #: 0 (the highest) to 4.
    priority: int
    #: Quota on each device, 0: none but the device's size.
    vram_bytes: int = 0
    #: No other task may be on the device.
    exclusive: bool = False
    #: Its memory may be swapped out.
    swap: bool = True
    #: Part of the core time beside others of its priority, 1 to 10,000.
    weight: int = 100
    #: Latency that 99 of 100 of its batches shall have, in ms; priority 0 only; 0: none.
    sla_ms_p99: int = 0
    #: The most of the device's core time that it may take, 0: no bound.
    pace_percent: int = 0

    def at_priority(self, priority: int) -> TaskTerms:
        """The same at another priority: one that leaves P0 loses its latency target."""
        return msgspec.structs.replace(self, priority=priority, sla_ms_p99=0 if priority else self.sla_ms_p99)
