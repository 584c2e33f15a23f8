"""Names of the faults that a node reports to a session, in one place. Pure: names only.

The client maps each to a class of its error tree; a name it does not know is a refusal of a batch it built itself.
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "MALFORMED", "OVERSIZED", "UNVERIFIABLE", "BAD_HANDLE", "QUOTA_EXCEEDED", "TRAP", "OUT_OF_FUEL", "KERNEL_REFUSED", "SESSION_LOST",
    "NODE_LOST", "OUT_OF_ORDER", "NO_SUCH_DEVICE", "DEVICE_TAKEN", "SESSION_TAKEN", "NODE_FAULT", "SWAP_CORRUPT", "BUDGET_EXCEEDED",
    "PRIORITY_CEILING", "TOO_MANY_SESSIONS", "CANCELLED", "ACCESS_DENIED",
]  # fmt: skip

MALFORMED: Final = "MalformedBatch"
"""Not a batch at all, or one that contradicts itself."""
OVERSIZED: Final = "OversizedBatch"
"""Beyond one of the node's limits."""
UNVERIFIABLE: Final = "UnverifiableProgram"
"""The program or its dims break a rule of the instruction set; the places say which and where."""
BAD_HANDLE: Final = "BadHandle"
"""Names a buffer the session does not hold, makes one it holds already, or reaches outside of one."""
QUOTA_EXCEEDED: Final = "QuotaExceeded"
"""The session's quota or the device's memory is used up. The batch had no effect; the session lives on."""
TRAP: Final = "Trap"
"""The program trapped (an index out of range): the session is over, as after a device-side assert."""
OUT_OF_FUEL: Final = "OutOfFuel"
"""A kernel executed more thread-instructions than the node allows a launch: the session is over, as after a launch that timed out."""
KERNEL_REFUSED: Final = "KernelRefused"
"""The device cannot run a kernel, or compiling it took more time or memory than is allowed. The batch had no effect."""
SESSION_LOST: Final = "SessionLostError"
"""The node does not know the session (any more)."""
NODE_LOST: Final = "NodeLostError"
"""The process that held the session's memory has ended."""
OUT_OF_ORDER: Final = "OutOfOrder"
"""Too far ahead of the batch the node waits for, or of another epoch."""
NO_SUCH_DEVICE: Final = "NoSuchDevice"
DEVICE_TAKEN: Final = "DeviceTaken"
"""Held exclusively by another session, or wanted exclusively while others hold it."""
SESSION_TAKEN: Final = "SessionTaken"
"""The session's name is in use."""
BUDGET_EXCEEDED: Final = "BudgetExceeded"
"""The tenant's budget is used up. Nothing of the batch was done, and the session lives on: the same batch may be sent again."""
PRIORITY_CEILING: Final = "PriorityCeiling"
"""The tenant's tier does not allow sessions of so high a priority."""
TOO_MANY_SESSIONS: Final = "TooManySessions"
"""The tenant has as many sessions open on the node as one may."""
NODE_FAULT: Final = "NodeFault"
"""The node's own failure; the session is over, others are not."""
SWAP_CORRUPT: Final = "SwapCorrupt"
"""Memory that was swapped out did not come back as it went: the session is over; none of it was used."""
ACCESS_DENIED: Final = "AccessDenied"
"""The caller lacks the permission."""
CANCELLED: Final = "TaskCancelled"
"""The session's task was cancelled."""
