"""The stimuli of a device's memory core. Data types only.

They are journalled, so the rules of the wire hold: array-like, hand-written tags, new fields go last and have defaults.
Every ``at_ns`` is the node's monotonic clock and never runs backwards from one stimulus to the next. Memory is in bytes.
"""

from __future__ import annotations

from typing import Final

import msgspec

IDLE_NS: Final = 300_000_000_000
"""A session may be swapped out after five minutes without device use, unless configured otherwise."""

RETRY_NS: Final = 10_000_000_000
"""A session whose swap failed is not asked again for this long."""


class DeviceConfigured(msgspec.Struct, array_like=True, frozen=True, tag="device_configured.v1"):
    """The device's memory; how much of it shall stay free; how much may be swapped out at once (0: nothing); after how long without device
    use a session may be."""

    at_ns: int
    physical_bytes: int
    reserve_bytes: int = 0
    swap_bytes: int = 0
    idle_ns: int = IDLE_NS
    retry_ns: int = RETRY_NS


class SessionOpened(msgspec.Struct, array_like=True, frozen=True, tag="session_opened.v1"):
    """``quota_bytes`` 0: no quota but the device. ``use_bytes``: what it already holds (after a restart). ``swap``: it may be swapped out.
    ``wait_ns``: how long a batch may wait for memory that others hold, 0: not at all."""

    at_ns: int
    session: str
    quota_bytes: int
    use_bytes: int = 0
    priority: int = 0
    swap: bool = True
    wait_ns: int = 0


class SessionClosed(msgspec.Struct, array_like=True, frozen=True, tag="session_closed.v1"):
    """All it held is free again. ``device_shared_bytes``: shared blocks that are left on the device, each once."""

    at_ns: int
    session: str
    device_shared_bytes: int = 0


class AllocationRequested(msgspec.Struct, array_like=True, frozen=True, tag="allocation_requested.v2"):
    """A batch is about to begin and asks for all it needs as one, so that it gets everything or nothing; asked for every batch, also one
    that needs nothing. ``nbytes``: new buffers and temporaries. ``back_bytes``: swapped-out buffers that it names. ``pinned_bytes``: what
    it names of its own on the device, or works in. ``attached_bytes``: new buffers on shared blocks (they count for the quota only).
    ``copied_bytes``: private copies of shared buffers (they count for the device only)."""

    at_ns: int
    session: str
    nbytes: int
    back_bytes: int = 0
    pinned_bytes: int = 0
    attached_bytes: int = 0
    copied_bytes: int = 0


class Holds(msgspec.Struct, array_like=True, frozen=True, tag="holds.v1"):
    """What a session holds now: alone on the device (temporaries included), swapped out, and on shared blocks (in full). ``over``: its
    batch is over. ``device_shared_bytes``: all shared blocks of the device, each once."""

    at_ns: int
    session: str
    held_bytes: int
    swapped_bytes: int = 0
    shared_bytes: int = 0
    device_shared_bytes: int = 0
    over: bool = True


class Freed(msgspec.Struct, array_like=True, frozen=True, tag="freed.v1"):
    """``nbytes`` of what the session alone holds on the device are free again."""

    at_ns: int
    session: str
    nbytes: int


class SwappedOut(msgspec.Struct, array_like=True, frozen=True, tag="swapped_out.v1"):
    """A SwapOut has been carried out: ``nbytes`` left the device, ``dropped_bytes`` of temporaries were given up."""

    at_ns: int
    session: str
    nbytes: int
    dropped_bytes: int = 0


class SwapFailed(msgspec.Struct, array_like=True, frozen=True, tag="swap_failed.v1"):
    """A SwapOut was abandoned (no room where it should go): the rest stays on the device. ``nbytes`` and ``dropped_bytes`` had left."""

    at_ns: int
    session: str
    nbytes: int = 0
    dropped_bytes: int = 0


class SwappedIn(msgspec.Struct, array_like=True, frozen=True, tag="swapped_in.v1"):
    """A SwapIn has been carried out: ``nbytes`` are on the device again."""

    at_ns: int
    session: str
    nbytes: int


class SwapLost(msgspec.Struct, array_like=True, frozen=True, tag="swap_lost.v1"):
    """What was swapped out of this session did not come back as it was: the session is about to end. ``nbytes`` had come back before."""

    at_ns: int
    session: str
    nbytes: int = 0


class Expected(msgspec.Struct, array_like=True, frozen=True, tag="expected.v1"):
    """A batch of this session will run soon; ``nbytes`` that it may need are swapped out."""

    at_ns: int
    session: str
    nbytes: int


class PriorityChanged(msgspec.Struct, array_like=True, frozen=True, tag="priority_changed.v1"):
    """An open session has another priority from now on; what it holds and waits for stays as it is."""

    at_ns: int
    session: str
    priority: int


class Tick(msgspec.Struct, array_like=True, frozen=True, tag="tick.v1"):
    """Nothing but time: sessions become idle, patience ends."""

    at_ns: int


Stimulus = (
    DeviceConfigured | SessionOpened | SessionClosed | AllocationRequested | Holds | Freed | SwappedOut | SwapFailed | SwappedIn | SwapLost
    | Expected | Tick | PriorityChanged
)  # fmt: skip
