"""The decisions of a device's memory core. Data types only; journalled, so append-only (see stimuli)."""

from __future__ import annotations

import msgspec

from scheduler.vram.quota import Verdict


class Allow(msgspec.Struct, array_like=True, frozen=True, tag="allow.v1"):
    """The batch has all it asked for and runs now; a Holds follows when it is over."""

    session: str
    nbytes: int


class Await(msgspec.Struct, array_like=True, frozen=True, tag="await.v1"):
    """Not now: a MemoryReady will come, then the batch asks again. ``until_ns``: when its patience ends (what is being moved for it is
    waited for in any case)."""

    session: str
    until_ns: int


class Refuse(msgspec.Struct, array_like=True, frozen=True, tag="refuse.v1"):
    session: str
    verdict: Verdict


class SwapOut(msgspec.Struct, array_like=True, frozen=True, tag="swap_out.v1"):
    """Take about ``nbytes`` of this session off the device: its temporaries, then the buffers it has not used for longest. Answered by
    SwappedOut or SwapFailed. ``for_session``: whose batch needs the room, empty: the reserve does."""

    session: str
    nbytes: int
    for_session: str = ""


class SwapIn(msgspec.Struct, array_like=True, frozen=True, tag="swap_in.v1"):
    """``nbytes`` of the device are set aside: bring that much of the session back. Answered by SwappedIn or SwapLost."""

    session: str
    nbytes: int


class MemoryReady(msgspec.Struct, array_like=True, frozen=True, tag="memory_ready.v1"):
    """The session's batch asks again: its memory is there, or its patience is over."""

    session: str


Decision = Allow | Await | Refuse | SwapOut | SwapIn | MemoryReady
