"""Names of the faults that a node reports to a session, in one place. Pure: names only.

The client maps each to a class of its error tree; a name it does not know is a refusal of a batch it built itself.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "MALFORMED", "OVERSIZED", "UNVERIFIABLE", "BAD_HANDLE", "QUOTA_EXCEEDED", "TRAP", "OUT_OF_FUEL", "KERNEL_REFUSED", "SESSION_LOST",
    "SESSION_UNKNOWN", "MEMORY_LOST", "NODE_LOST", "OUT_OF_ORDER", "NO_SUCH_DEVICE", "DEVICE_TAKEN", "SESSION_TAKEN", "NODE_FAULT",
    "SWAP_CORRUPT", "BUDGET_EXCEEDED", "PRIORITY_CEILING", "QUOTA_REACHED", "CANCELLED", "ACCESS_DENIED", "DISPLACED",
]  # fmt: skip

MALFORMED: Final = "MalformedBatch"
"""The message is not a batch, or its fields contradict each other."""
OVERSIZED: Final = "OversizedBatch"
"""The batch exceeds one of the node's limits."""
UNVERIFIABLE: Final = "UnverifiableProgram"
"""The program or its dims break a rule of the instruction set; the places name rule and position."""
BAD_HANDLE: Final = "BadHandle"
"""The batch names a buffer that the session does not have, creates one that exists, or accesses memory outside of one."""
QUOTA_EXCEEDED: Final = "QuotaExceeded"
"""The session's quota or the device's memory is used up. The batch had no effect; the session continues."""
TRAP: Final = "Trap"
"""The program trapped (an index out of range): the session is over, as after a device-side assert."""
OUT_OF_FUEL: Final = "OutOfFuel"
"""A kernel executed more thread-instructions than the node allows a launch: the session is over, as after a launch that timed out."""
KERNEL_REFUSED: Final = "KernelRefused"
"""The device cannot run a kernel, or compiling it took more time or memory than is allowed. The batch had no effect."""
SESSION_LOST: Final = "SessionLostError"
"""The session is over."""
SESSION_UNKNOWN: Final = "SessionUnknown"
"""The node does not have this session, or no longer has it."""
MEMORY_LOST: Final = "MemoryLost"
"""The process that held the session's memory has ended: its client may open another session and repeat its batches there."""
NODE_LOST: Final = "NodeLostError"
"""The node is being stopped, and its sessions end."""
OUT_OF_ORDER: Final = "OutOfOrder"
"""The batch is too far ahead of the one that the node expects, or belongs to another epoch."""
NO_SUCH_DEVICE: Final = "NoSuchDevice"
"""The node has no device of this number."""
DEVICE_TAKEN: Final = "DeviceTaken"
"""Another session holds the device exclusively, or exclusive use was requested while other sessions hold it."""
SESSION_TAKEN: Final = "SessionTaken"
"""A session of this name is open."""
BUDGET_EXCEEDED: Final = "BudgetExceeded"
"""The tenant's budget is used up. The batch had no effect and the session continues: the same batch may be sent again."""
PRIORITY_CEILING: Final = "PriorityCeiling"
"""The priority is above the ceiling of the tenant's tier."""
QUOTA_REACHED: Final = "QuotaReached"
"""A quota of the tenant or of the key (bus_schemas.quotas) refuses the request; ``Fault.excess`` names it."""
NODE_FAULT: Final = "NodeFault"
"""The node failed internally; this session is over, other sessions continue."""
SWAP_CORRUPT: Final = "SwapCorrupt"
"""Swapped-out memory failed its checksum when it was read back: none of it was used, and the session is over."""
ACCESS_DENIED: Final = "AccessDenied"
"""The caller lacks the permission."""
CANCELLED: Final = "TaskCancelled"
"""The session's task was cancelled."""
DISPLACED: Final = "TaskDisplaced"
"""The session's task is to run elsewhere: its client may open another session there, and repeat its batches."""
